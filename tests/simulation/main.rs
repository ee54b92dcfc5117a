//! The deterministic simulation: the real core, the real journal's order, the simulated cloud, a
//! virtual clock, and everything that can go wrong. Every invariant is looked at by its name.
//!
//! A seed's finding becomes a test of the core or the driver: the seed is worth nothing once the
//! simulation draws otherwise. Long runs: `swarm.rs`.

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

use crate::fault::Fault;
use crate::setup::{HOUR, Setup};
use crate::world::{Outcome, play};

/// The seeds that are always the same, and the file that says what arrived at the cloud in each: how
/// many mutations, and a hash of all.
const FIXED: std::ops::Range<u64> = 0..200;
const ARRIVALS: &str = "tests/simulation/arrivals.txt";

/// Invariants that the truth and the end of a world look at. The audit alone looks at S8; the others
/// are shown by unit tests with their names.
const LOOKED_AT: &[&str] = &[
    "S1",
    "S2",
    "S3",
    "S4",
    "S5",
    "S6",
    "S7",
    "S9",
    "S10",
    "S11",
    "S12",
    "S15",
    "S16",
    "S17",
    "S18",
    "S20",
    "S21",
    "S22",
    "S23",
    "L1",
    "L2",
    "L3",
    "L4",
    "L4 in time",
    "L5",
    "L6",
    "L7",
    "L7 in time",
    "L8",
    "L9",
];

/// Plays worlds; one that goes wrong is a panic with the report. Outcomes come in the order of the
/// worlds.
fn hold(worlds: impl IntoIterator<Item = Setup>) -> Vec<Outcome> {
    let worlds: Vec<Setup> = worlds.into_iter().collect();
    campaign::on_all_cores(worlds.into_iter(), |setup| {
        campaign::hold(setup).unwrap_or_else(|report| panic!("{report}"))
    })
}

/// Slots that are queued resources, under the same faults.
const QUEUED: std::ops::Range<u64> = 0..24;

#[test]
fn fixed_worlds_of_queued_resources_hold() {
    let outcomes = hold(QUEUED.map(Setup::queued));
    let asked = |name: &str| -> u64 {
        outcomes.iter().filter_map(|outcome| outcome.checked.get(name)).sum()
    };
    for name in ["S1", "S3", "S10", "S12", "S17", "S21", "L1", "L3", "L8", "L9"] {
        assert!(asked(name) > 10, "{name} was looked at {} times", asked(name));
    }
}

#[test]
fn fixed_worlds_hold_every_fault_strikes_and_what_arrives_is_what_arrived_before() {
    let outcomes = hold(FIXED.map(Setup::of));
    let turns: u64 = outcomes.iter().map(|outcome| outcome.turns).sum();
    let mut checked: BTreeMap<&str, u64> = BTreeMap::new();
    let mut strikes: BTreeMap<Fault, u32> = BTreeMap::new();
    let mut arrived = Vec::new();
    for (seed, outcome) in FIXED.zip(outcomes) {
        outcome
            .checked
            .into_iter()
            .for_each(|(name, times)| *checked.entry(name).or_default() += times);
        outcome
            .strikes
            .into_iter()
            .for_each(|(fault, times)| *strikes.entry(fault).or_default() += times);
        arrived.push(outcome.arrivals.line(seed));
    }
    let node_hours = FIXED.map(|seed| Setup::of(seed).node_hours()).sum::<f64>();
    println!("{turns} turns over {node_hours:.0} node-hours; looked at: {checked:?}");
    let unseen: Vec<&&str> = LOOKED_AT
        .iter()
        .filter(|name| checked.get(**name).is_none_or(|times| *times < 3))
        .collect();
    assert!(unseen.is_empty(), "never looked at: {unseen:?}");
    let idle: Vec<&str> = Fault::ALL
        .iter()
        .filter(|fault| !strikes.contains_key(fault))
        .map(|fault| fault.name())
        .collect();
    assert!(idle.is_empty(), "never struck: {idle:?}");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(ARRIVALS);
    if std::env::var_os("UPDATE_ARRIVALS").is_some() {
        return std::fs::write(path, arrived.join("\n") + "\n").expect("the file can be written");
    }
    let golden = std::fs::read_to_string(path).expect("the file is there");
    let differ: Vec<&String> = arrived
        .iter()
        .zip(golden.lines())
        .filter(|(is, was)| is != was)
        .map(|(is, _)| is)
        .collect();
    assert_eq!(golden.lines().count() as u64, FIXED.end);
    assert!(
        differ.is_empty(),
        "other mutations arrive than before in {} worlds: {differ:#?}. Where that is meant, UPDATE_ARRIVALS=1 writes the file anew",
        differ.len()
    );
}

#[test]
fn an_ordinary_fleet_is_kept_alive() {
    let mut setup = Setup::ordinary(40, 100, true);
    // Long enough after the last fault for everything to follow that has to.
    setup.end = setup.chaos + 12 * HOUR;
    let outcome = play(setup, false);
    assert_eq!(outcome.violation, None);
    assert!(outcome.checked.get("L8").is_some_and(|times| *times >= 40), "{:?}", outcome.checked);
    assert!(outcome.strikes.contains_key(&Fault::Preemption), "something happened in it");
}

/// Slots of 1 to 64 hosts.
fn of_many_sizes() -> Setup {
    let mut setup = Setup::ordinary(24, 60, true);
    for (kind, body) in ["v4-8", "v4-16", "v4-32", "v4-64", "v4-256", "v4-512"]
        .into_iter()
        .cycle()
        .zip(setup.bodies.values_mut())
    {
        body.insert("acceleratorType".into(), kind.into());
    }
    setup.end = setup.chaos + 12 * HOUR;
    setup
}

#[test]
fn l10_after_a_crash_on_1_to_64_hosts_all_are_ordered_within_two_polls() {
    let mut setup = of_many_sizes();
    setup.faults = [Fault::Preemption, Fault::JobCrashes].into();
    let outcome = play(setup, false);
    assert_eq!(outcome.violation, None);
    let looked = |name: &str| outcome.checked.get(name).copied().unwrap_or(0);
    assert!(looked("L10") >= 10 && looked("S22") >= 10, "{:?}", outcome.checked);
}

#[test]
fn l8_on_1_to_64_hosts_every_job_starts_within_the_bound_of_its_size() {
    let mut setup = of_many_sizes();
    setup.faults = [Fault::Preemption, Fault::Ungathered].into();
    let outcome = play(setup, false);
    assert_eq!(outcome.violation, None);
    assert!(outcome.checked.get("L8").is_some_and(|n| *n >= 40), "{:?}", outcome.checked);
}

#[test]
fn s19_a_seed_played_twice_gives_the_same_story_to_the_byte() {
    for seed in [3, 7, 11] {
        let [first, second] = [(); 2].map(|()| play(Setup::of(seed), true));
        assert!(first.trace.len() > 50, "a story worth comparing");
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
    // On a disk, too: nothing in it may depend on the path, the time or the process.
    let on_disk = (0..).find(|seed| Setup::of(*seed).sqlite).expect("some worlds have one");
    let [first, second] = [(); 2].map(|()| play(Setup::of(on_disk), true).trace);
    assert_eq!(first, second, "seed {on_disk}");
}
