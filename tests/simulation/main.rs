//! The deterministic simulation: the real core, the real journal's order, the simulated cloud, a
//! virtual clock, and everything that can go wrong. Every invariant is looked at by its name.
//!
//! A seed that failed becomes a regression test by one more entry in [`FOUND`]. Long runs:
//! `swarm.rs`.

mod accidents;
mod bucket;
mod campaign;
mod fault;
mod network;
mod process;
mod proof;
mod setup;
mod shelf;
mod storage;
mod truth;
mod world;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::fault::Fault;
use crate::setup::{HOUR, Setup};
use crate::world::{Outcome, play};

/// Seeds that found something once, with what they found.
const FOUND: &[(u64, &str)] = &[
    (
        30_014,
        "a silent TPU whose reports could not be read any more waited for ever and asked nobody (L1)",
    ),
    (
        1_002_972_650_076,
        "a GET on its way while the journal was read again made time count twice (S10)",
    ),
    (
        20_043_998_270_057,
        "one that was judged in the very turn in which the rest of a storm became ripe (S8)",
    ),
    (
        700_000_101,
        "beacons of a create that came late were taken for old ones, and its working TPU for never booted (S5)",
    ),
    (
        2_041,
        "a lost slot whose delete failed, and that was judged when it was there again, took no room in the budget (S6)",
    ),
    (
        4_014_711_700_059,
        "the same, allowed when there was nothing left, was deleted although creates were refused (S14)",
    ),
    (
        19_939_723_450_224,
        "the create of a slot that left the config had no result in the log when its node vanished (S11)",
    ),
    (
        740_701,
        "a storm breaker that opened without anybody new, by a clock that was set back, was not written (S8)",
    ),
    (5_000_040, "the time in which a zone could not be read was taken for healthy time (S3)"),
    (
        30_504_218_210_206,
        "a GET from before a create, whose answer could not be written, read it back as not carried out (S11)",
    ),
];

/// Seeds that found something when every fault struck at its ordinary rate, with what they found:
/// played at those rates.
const FOUND_AT_ORDINARY_RATES: &[(u64, &str)] = &[
    (16, "a symptom that is no sickness kept old sickness alive (S3)"),
    (54, "a clock that was set back while a node flapped (S3)"),
    (64, "clocks of two watchdogs that disagree about a trial (S14)"),
    (65, "a listing that lags behind counted as progress of a node that never booted (L8)"),
    (
        4_233_212_140_123,
        "a node whose delete was done was believed in by a watchdog with another clock (S1)",
    ),
    (67, "a trial whose slot was held kept everybody waiting (L1)"),
    (92, "a finished job ended a recovery whose delete was on its way (S2)"),
    (102, "a GET that showed another condition confirmed a preemption (S10)"),
    (135, "a slot that left the config was created without its checkpoint (S15)"),
    (40837, "a recovery did not end although its node was there and its job finished (L1)"),
    (
        41008,
        "a delete that did not come about kept its place although its job was at work again (L1)",
    ),
    (41693, "the very report that showed life set off the delete (S5)"),
    (
        70070,
        "a checkpoint that a person took back counted as progress of a node that never booted (L8)",
    ),
];

/// The seeds that are always played, and the file that says what arrived at the cloud in each: how
/// many mutations, and a hash of all.
const FIXED: std::ops::Range<u64> = 0..200;
const ARRIVALS: &str = "tests/simulation/arrivals.txt";

/// Invariants that the truth, the audit and the end of a world look at. The others are shown by
/// unit tests with their names.
const LOOKED_AT: &[&str] = &[
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S15", "S17", "S18",
    "L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8",
];

/// Plays worlds on all cores. Their outcomes come in the order of the worlds.
fn hold(worlds: impl IntoIterator<Item = Setup>) -> Vec<Outcome> {
    let next = Mutex::new(worlds.into_iter().collect::<Vec<Setup>>().into_iter().enumerate());
    let outcomes = Mutex::new(BTreeMap::new());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                // Locked for the draw alone.
                while let Some((index, setup)) =
                    { next.lock().unwrap_or_else(PoisonError::into_inner).next() }
                {
                    let outcome = campaign::hold(setup).unwrap_or_else(|report| panic!("{report}"));
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(index, outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
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
    assert_eq!(golden.lines().count(), arrived.len());
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

#[test]
fn what_was_found_once_stays_fixed() {
    hold(FOUND.iter().map(|(seed, _)| Setup::of(*seed)));
    // What is new among the faults takes its turns from others: those that were found before are
    // played as they were, too.
    let grown = FOUND
        .iter()
        .map(|(seed, _)| Setup::of(*seed))
        .filter(|setup| setup.has(Fault::CheckpointsTaken));
    hold(grown.map(|setup| setup.without(Fault::CheckpointsTaken)));
    hold(FOUND_AT_ORDINARY_RATES.iter().map(|(seed, _)| Setup::of(*seed).at_ordinary_rates()));
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
