//! Playing worlds: one, many, and the shortest story of one that went wrong.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::proof::Violation;
use crate::setup::Setup;
use crate::world::{Outcome, play};

/// How long a shrinking goes on: a shorter story is worth a minute.
const SHRINKING: Duration = Duration::from_secs(60);
/// Lines of a story.
const LINES: usize = 120;

/// Plays worlds on all cores. What comes of them comes in their order.
pub fn on_all_cores<W: Send, T: Send>(
    worlds: impl Iterator<Item = W> + Send,
    play: impl Fn(W) -> T + Sync,
) -> Vec<T> {
    let next = Mutex::new(worlds.enumerate());
    let played = Mutex::new(BTreeMap::new());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                // Locked for the draw alone.
                while let Some((index, world)) =
                    { next.lock().unwrap_or_else(PoisonError::into_inner).next() }
                {
                    let outcome = play(world);
                    played.lock().unwrap_or_else(PoisonError::into_inner).insert(index, outcome);
                }
            });
        }
    });
    played.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Plays a world. A violation comes as the whole report that a person needs.
pub fn hold(setup: Setup) -> Result<Outcome, String> {
    let outcome = play(setup.clone(), false);
    match &outcome.violation {
        None => Ok(outcome),
        Some(violation) => Err(report(setup, violation)),
    }
}

/// What was found, and the shortest story that shows it.
pub fn report(setup: Setup, violation: &Violation) -> String {
    let seed = setup.seed;
    let mut text = format!(
        "seed {seed} at commit {}: {} does not hold for {}: {}\n",
        commit(),
        violation.name,
        violation.slot,
        violation.message
    );
    // A panic while shrinking must not hide what was found.
    eprint!("{text}");
    let setup = shrink(setup, violation.name);
    let faults: Vec<&str> = setup.faults.iter().map(|f| f.name()).collect();
    let outcome = play(setup.clone(), true);
    let found = outcome.violation.unwrap_or_else(|| violation.clone());
    let _ = writeln!(
        text,
        "shortest: {} slots, {:?}, faults {faults:?}: {}: {}",
        setup.settings.slots.len(),
        setup.watchdogs,
        found.name,
        found.message
    );
    let about = |line: &&String| {
        let of_another = setup
            .settings
            .slots
            .keys()
            .any(|name| *name != found.slot && line.contains(name.as_str()));
        found.slot == "-" || line.contains(&found.slot) || !of_another
    };
    let story: Vec<&String> = outcome.trace.iter().filter(about).collect();
    for line in &story[story.len().saturating_sub(LINES)..] {
        let _ = writeln!(text, "  {}", line.chars().take(300).collect::<String>());
    }
    let _ = writeln!(text, "again: cargo fast --test swarm -- --seed {seed} --trace");
    text
}

/// Takes faults and slots away as long as the same invariant breaks.
fn shrink(mut setup: Setup, name: &str) -> Setup {
    let began = Instant::now();
    let breaks = |candidate: &Setup| {
        began.elapsed() < SHRINKING
            && play(candidate.clone(), false).violation.is_some_and(|v| v.name == name)
    };
    loop {
        let before = (setup.faults.len(), setup.settings.slots.len());
        for fault in setup.faults.clone() {
            let mut candidate = setup.clone();
            candidate.faults.remove(&fault);
            if breaks(&candidate) {
                setup = candidate;
            }
        }
        let names: Vec<String> = setup.settings.slots.keys().cloned().collect();
        let half = names.len().div_ceil(2);
        for part in [&names[..half], &names[half..]]
            .into_iter()
            .chain(names.iter().map(std::slice::from_ref))
        {
            if part.len() >= setup.settings.slots.len()
                || part.iter().any(|name| !setup.settings.slots.contains_key(name))
            {
                continue;
            }
            let mut candidate = setup.clone();
            for name in part {
                candidate.settings.slots.remove(name);
                candidate.bodies.remove(name);
                candidate.origins.remove(name);
            }
            if breaks(&candidate) {
                setup = candidate;
            }
        }
        if (setup.faults.len(), setup.settings.slots.len()) == before {
            return setup;
        }
    }
}

/// The commit that is played, as far as git knows it.
pub fn commit() -> String {
    git("HEAD").unwrap_or_else(|| "unknown".to_owned())
}

/// A number that follows from the committed source of the product and of this simulation: the same
/// source always plays the same seeds, a changed one others.
#[allow(dead_code, reason = "the swarm's")]
pub fn number_of_source() -> u64 {
    let number = |tree: &str| {
        git(tree).and_then(|tree| u64::from_str_radix(tree.get(..8)?, 16).ok()).unwrap_or(0)
    };
    number("HEAD:src") ^ number("HEAD:tests/simulation")
}

fn git(revision: &str) -> Option<String> {
    let output = std::process::Command::new("git")
        .args(["rev-parse", "--short=12", revision])
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
