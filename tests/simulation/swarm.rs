//! Long runs of the simulation: as many seeds as the time allows, one seed with its whole story, or
//! the speed.
//!
//!     cargo fast --test swarm -- --minutes 60
//!     cargo fast --test swarm -- --seed 4711 --trace
//!     cargo fast --test swarm -- --speed
//!     cargo fast --test swarm -- --year

mod accidents;
mod bucket;
mod campaign;
mod commands;
mod departure;
mod fault;
mod mutations;
mod network;
mod orders;
mod process;
mod proof;
mod requests;
mod setup;
mod shelf;
mod storage;
mod truth;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use setup::Setup;

const USAGE: &str =
    "usage: swarm [--seed N [--trace] [--with FAULT,…]] | [--from N] [--count N] [--minutes M] [--keep-going] | --speed | --year
  --seed N     plays one seed; --trace tells its whole story, --with NAME,… adds faults to its world
  --from N     the first seed; without it one that follows from the committed source, so that the same source plays the same ones
  --count N    so many seeds (20 without --minutes)
  --minutes M  for so long
  --keep-going a line for each seed that fails, without its story
  --queued     slots that are queued resources
  --year       a year of a small fleet whose team changes its mind in stock-outs
  --arrivals   what arrived in each of --count N seeds, a line each, as in arrivals.txt";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let value =
        |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str| value(name).and_then(|text| text.parse::<u64>().ok());
    if has("--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if has("--speed") {
        speed();
        return ExitCode::SUCCESS;
    }
    if has("--year") {
        let seed = number("--seed").unwrap_or_default();
        return one(Setup::year(seed), "", has("--trace"));
    }
    if let Some(seed) = number("--seed") {
        let with = value("--with").map_or("", String::as_str);
        let setup = if has("--queued") { Setup::queued(seed) } else { Setup::of(seed) };
        return one(setup, with, has("--trace"));
    }
    // What cargo test itself passes on is no matter of ours.
    let from =
        number("--from").unwrap_or_else(|| 1_000_000 + campaign::number_of_source() * 10_000);
    let minutes = number("--minutes");
    let count = number("--count").unwrap_or(if minutes.is_some() { u64::MAX } else { 20 });
    let world = if has("--queued") { Setup::queued } else { Setup::of };
    if has("--keep-going") {
        return survey(world, from, count, minutes.map(minutes_long));
    }
    if has("--arrivals") {
        (from..from.saturating_add(count)).for_each(|seed| {
            println!("{}", world::play(Setup::of(seed), false).arrivals.line(seed))
        });
        return ExitCode::SUCCESS;
    }
    many(world, from, count, minutes.map(minutes_long))
}

fn minutes_long(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

/// Which seeds fail, and of what.
fn survey(world: fn(u64) -> Setup, from: u64, count: u64, limit: Option<Duration>) -> ExitCode {
    let began = Instant::now();
    let seeds = (from..from.saturating_add(count))
        .take_while(|_| limit.is_none_or(|limit| began.elapsed() <= limit));
    let failed = campaign::on_all_cores(seeds, |seed| {
        let violation = world::play(world(seed), false).violation?;
        println!("seed {seed}: {} {}: {}", violation.name, violation.slot, violation.message);
        Some(())
    });
    let played = failed.len();
    let failed = failed.into_iter().flatten().count();
    println!("{failed} of {played} seeds from {from} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(mut setup: Setup, with: &str, trace: bool) -> ExitCode {
    let seed = setup.seed;
    setup.faults.extend(
        fault::Fault::ALL.iter().filter(|fault| with.split(',').any(|name| name == fault.name())),
    );
    let outcome = world::play(setup.clone(), trace);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    match outcome.violation {
        None => {
            let arrivals = outcome.arrivals;
            println!(
                "seed {seed}: every invariant held over {} turns; {} mutations arrived",
                outcome.turns, arrivals.count
            );
            ExitCode::SUCCESS
        }
        Some(violation) if trace => {
            println!(
                "seed {seed}: {} does not hold for {}: {}",
                violation.name, violation.slot, violation.message
            );
            ExitCode::FAILURE
        }
        Some(violation) => {
            println!("{}", campaign::report(setup, &violation));
            ExitCode::FAILURE
        }
    }
}

fn many(world: fn(u64) -> Setup, from: u64, count: u64, limit: Option<Duration>) -> ExitCode {
    let (began, failed) = (Instant::now(), AtomicBool::new(false));
    let goes_on = |_: &u64| {
        limit.is_none_or(|limit| began.elapsed() <= limit) && !failed.load(Ordering::Relaxed)
    };
    let seeds = (from..from.saturating_add(count)).take_while(goes_on);
    let outcomes = campaign::on_all_cores(seeds, |seed| {
        let setup = world(seed);
        let hours = setup.node_hours();
        let outcome = campaign::hold(setup);
        failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome.map(|outcome| (hours, outcome))
    });
    let (mut node_hours, mut turns, mut strikes, seeds) = (0.0, 0, 0, outcomes.len());
    let mut checked: BTreeMap<&str, u64> = BTreeMap::new();
    for outcome in outcomes {
        let (hours, outcome) = match outcome {
            Ok(played) => played,
            Err(report) => {
                println!("{report}");
                return ExitCode::FAILURE;
            }
        };
        node_hours += hours;
        turns += outcome.turns;
        strikes += outcome.strikes.values().sum::<u32>();
        let looks = outcome.checked.iter();
        looks.for_each(|(name, times)| *checked.entry(name).or_default() += times);
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {from}, {node_hours:.0} node-hours, {strikes} faults, {turns} turns in {seconds:.1} s: {:.0} node-hours/s",
        node_hours / seconds
    );
    let looks: Vec<String> =
        checked.iter().map(|(name, times)| format!("{name} {times}")).collect();
    println!("looked at: {}", looks.join(", "));
    // Worlds are not tests, and are not counted as such.
    println!("{seeds} new worlds were played, and every invariant held");
    ExitCode::SUCCESS
}

/// An ordinary fleet: now and then something fails, and is recovered.
fn speed() {
    for (slots, jobs) in [(500, false), (50, true), (500, true)] {
        let setup = Setup::ordinary(slots, if jobs { 20 } else { 100 }, jobs);
        let hours = setup.node_hours();
        let began = Instant::now();
        let outcome = world::play(setup, false);
        let seconds = began.elapsed().as_secs_f64();
        // A world that ended early was not played for so many hours: it has no speed.
        if let Some(violation) = outcome.violation {
            println!("{slots} slots: no speed, it ended early: {violation:?}");
            continue;
        }
        println!(
            "{slots} slots{}: {hours:.0} node-hours in {seconds:.1} s: {:.0} node-hours/s; {} turns",
            if jobs { " with jobs and checkpoints" } else { "" },
            hours / seconds,
            outcome.turns
        );
    }
}
