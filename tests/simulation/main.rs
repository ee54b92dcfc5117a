//! The deterministic simulation: the real core, the real journal's order, the simulated cloud, a virtual clock, and everything
//! that can go wrong. Every invariant is looked at by its name.
//!
//! A seed that failed becomes a regression test by one more entry in [`FOUND`]. Long runs: `swarm.rs`.

mod accidents;
mod bucket;
mod campaign;
mod fault;
mod network;
mod oracle;
mod process;
mod setup;
mod shelf;
mod shell;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use tpu_watchdog::model::mutant::{Mutant, become_mutant};
use tpu_watchdog::model::quiet::QuietHours;

use crate::fault::Fault;
use crate::setup::{HOUR, Kind, Setup, ZONES};
use crate::world::{Outcome, play};

/// Seeds that found something once, with what they found.
const FOUND: &[(u64, &str)] = &[
    (30_014, "a silent TPU whose reports could not be read any more waited for ever and asked nobody (L1)"),
    (5122, "a listing that came while a create was being sent (a bound of S4)"),
    (6076, "health that a failed write made forgotten (a bound of S3)"),
    (26_988_522_470_138, "a read that lagged behind while a delete was under way (a bound of S3)"),
    (1_002_972_650_076, "a GET on its way while the journal was read again made time count twice (S10)"),
    (1_002_972_650_331, "a create that was refused because a person's own node stood there (a bound of S12)"),
    (20_043_998_270_057, "one that was judged in the very turn in which the rest of a storm became ripe (S8)"),
    (13_615_750_830_333, "the clock of somebody who had lost the lock took time back that was healthy (a bound of S3)"),
    (13_615_750_830_340, "the same, across many holders (a bound of S3)"),
    (13_615_750_830_096, "a label that was read just before its node went, and never written (a bound of S7)"),
    (700_000_101, "beacons of a create that came late were taken for old ones, and its working TPU for never booted (S5)"),
    (700_000_369, "listings without a node count when a GET has confirmed that it is absent (a bound of S3)"),
    (910_000_163, "reports that lacked workers were forgotten with the write that failed (a bound of S5)"),
    (910_000_183, "a GET that began before a delete which never left says nothing (a bound of S3)"),
    (2_041, "a lost slot whose delete failed, and that was judged when it was there again, took no room in the budget (S6)"),
    (4_014_711_700_059, "the same, allowed when there was nothing left, was deleted although creates were refused (S14)"),
    (4_014_711_700_280, "a slot that left the config with a create owed begins anew when it comes back (a bound of S15)"),
    (41_572_083_880_021, "a replacement failed when its grace was over, not when it was deleted at last (a bound of S14)"),
    (19_939_723_450_224, "the create of a slot that left the config had no result in the log when its node vanished (S11)"),
    (813_230_060_079, "a read beside a call that showed what the workers had reported (a bound of S8)"),
    (481_102, "judged slots that a clock which was ahead made forgotten (a bound of S6)"),
    (481_276, "a listing that began before a create was refused, and carried out by its second copy (a bound of S4)"),
    (400_804, "a standby that stood still when the holder died (a bound of L4)"),
    (300_333, "a person's own node in the place of one that a create made twice, in another zone (a bound of S15)"),
    (20_044, "times in the journal of somebody whose clock was ahead (a bound of S3)"),
    (5_875_579_310_031, "the clock of a holder that wrote nothing took time back that was healthy (a bound of S3)"),
    (600_519, "the checkpoint of a slot that left the config with a create owed is known by its record (a bound of S15)"),
    (600_545, "a person's own node was shown once more when it was gone (a bound of S12)"),
    (8_159_002_480_137, "a GET that was answered late, after a later one, confirmed a delete (a bound of S18)"),
    (8_159_002_480_191, "reads beside a create that was never sent (a bound of S18)"),
    (8_159_002_480_276, "a listing from the middle of a create, read when that was known to have failed (a bound of S4)"),
    (8_159_002_480_332, "the longer grace of a reserved TPU that waited beside a storm (a bound of S8)"),
    (720_412, "a slot left the config when its replacement was there, and came back (a bound of L3)"),
    (760_334, "a listing showed a person's own node, and the GET that read a delete back the one before (a bound of S3)"),
    (780_185, "a read of the old node in between made the reads of the new one forgotten (a bound of S18)"),
    (18_544_225_530_189, "a clock that was set back between a create and the read that showed its second copy (a bound of S4)"),
    (740_701, "a storm breaker that opened without anybody new, by a clock that was set back, was not written (S8)"),
    (700_175, "a person's own node was seen by somebody who wrote nothing about it (a bound of S3)"),
    (5_000_040, "the time in which a zone could not be read was taken for healthy time (S3)"),
    (5_000_375, "a node was absent while its predecessor was shown once more (a bound of S18)"),
    (5_040_111, "a replacement that was lost while it was created was condemned at the read that told of it (a bound of S18)"),
    (5_000_466, "a clock was set back before the breaker was closed by another's (a bound of S8)"),
    (30_504_218_210_206, "a GET from before a create, whose answer could not be written, read it back as not carried out (S11)"),
    (92_000_539, "a window was over by the clock of the next holder, who judged by reads of the one before (a bound of S8)"),
    (91_000_484, "reads that may have been no diagnosis were one, as the journal said to the next holder (a bound of S18)"),
];

/// Seeds that found something when every fault struck at its ordinary rate, with what they found: played at those rates.
const FOUND_AT_ORDINARY_RATES: &[(u64, &str)] = &[
    (16, "a symptom that is no sickness kept old sickness alive (S3)"),
    (54, "a clock that was set back while a node flapped (S3)"),
    (64, "clocks of two watchdogs that disagree about a trial (S14)"),
    (65, "a listing that lags behind counted as progress of a node that never booted (L8)"),
    (4_233_212_140_123, "a node whose delete was done was believed in by a watchdog with another clock (S1)"),
    (67, "a trial whose slot was held kept everybody waiting (L1)"),
    (92, "a finished job ended a recovery whose delete was on its way (S2)"),
    (102, "a GET that showed another condition confirmed a preemption (S10)"),
    (135, "a slot that left the config was created without its checkpoint (S15)"),
    (40837, "a recovery did not end although its node was there and its job finished (L1)"),
    (41008, "a delete that did not come about kept its place although its job was at work again (L1)"),
    (41693, "the very report that showed life set off the delete (S5)"),
    (70070, "a checkpoint that a person took back counted as progress of a node that never booted (L8)"),
];

/// The first of the seeds that are always played.
const FIXED: std::ops::Range<u64> = 200..240;

fn hold(worlds: impl IntoIterator<Item = Setup>) -> Vec<Outcome> {
    let play = |setup| campaign::hold(setup).unwrap_or_else(|report| panic!("{report}"));
    worlds.into_iter().map(play).collect()
}

#[test]
fn every_invariant_is_looked_at_and_holds_and_every_fault_strikes() {
    let outcomes = hold(FIXED.map(Setup::of));
    let turns: u64 = outcomes.iter().map(|outcome| outcome.turns).sum();
    let mut checked: BTreeMap<&str, u64> = BTreeMap::new();
    let mut strikes: BTreeMap<Fault, u32> = BTreeMap::new();
    for outcome in outcomes {
        outcome.checked.into_iter().for_each(|(name, times)| *checked.entry(name).or_default() += times);
        outcome.strikes.into_iter().for_each(|(fault, times)| *strikes.entry(fault).or_default() += times);
    }
    let (turns, node_hours) = (turns, FIXED.map(|seed| Setup::of(seed).node_hours()).sum::<f64>());
    println!("{turns} turns over {node_hours:.0} node-hours; looked at: {checked:?}");
    // S19 has its own test: the same seed twice.
    let names = (1..=18).map(|n| format!("S{n}")).chain((1..=8).map(|n| format!("L{n}")));
    let unseen: Vec<String> = names.filter(|name| checked.get(name.as_str()).is_none_or(|times| *times < 3)).collect();
    assert!(unseen.is_empty(), "never looked at: {unseen:?}");
    let idle: Vec<&str> = Fault::ALL.iter().filter(|fault| !strikes.contains_key(fault)).map(|fault| fault.name()).collect();
    assert!(idle.is_empty(), "never struck: {idle:?}");
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
    // What is new among the faults takes its turns from others: those that were found before are played as they were, too.
    let grown = FOUND.iter().map(|(seed, _)| Setup::of(*seed)).filter(|setup| setup.has(Fault::CheckpointsTaken));
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
    // What no input says shows.
    become_mutant(Some(Mutant::TossesACoin));
    let stories = (0..50).map(|seed| [(); 2].map(|()| play(Setup::of(seed), true).trace));
    let differs = stories.into_iter().position(|[first, second]| first != second);
    become_mutant(None);
    println!("{:?} is found in world {differs:?}", Mutant::TossesACoin);
    assert!(differs.is_some());
}

/// A deliberate defect, and the invariant that it has to break.
type Defect = (Mutant, &'static str);

/// Plays worlds until this defect is found by its invariant. Returns after how many.
///
/// Its worlds know the faults under which it can show, beside whatever their seeds draw: a swarm would find it, too, later.
fn hunt(defect: Defect, faults: &[Fault], most: u64) -> Option<u64> {
    find(defect, most, |setup| setup.faults.extend(faults))
}

/// Plays small worlds that know these faults alone, and meet them often: for what shows in few of the others.
fn hunt_narrowly(defect: Defect, faults: &[Fault], shape: fn(&mut Setup), most: u64) -> Option<u64> {
    find(defect, most, |setup| {
        *setup = setup.clone().with_slots(5);
        setup.faults = faults.iter().copied().collect();
        setup.quarters = faults.iter().map(|fault| (*fault, 1)).collect();
        shape(setup);
    })
}

fn find((mutant, name): Defect, most: u64, shape: impl Fn(&mut Setup)) -> Option<u64> {
    (0..most).find(|seed| {
        let mut setup = Setup::of(10_000 + seed);
        setup.settings.dry_run = false;
        shape(&mut setup);
        become_mutant(Some(mutant));
        let outcome = play(setup.clone(), false);
        become_mutant(None);
        // It is the defect that was found when the same world holds without it.
        outcome.violation.is_some_and(|violation| violation.name == name) && play(setup, false).violation.is_none()
    })
}

/// Any small world.
fn any(_: &mut Setup) {}

/// A fleet in which more can be lost at once than may be created in a minute.
fn many(setup: &mut Setup) {
    let large = (setup.seed..).map(Setup::of).find(|setup| setup.settings.slots.len() > 60).expect("every tenth is large");
    let (seed, faults, quarters) = (setup.seed, setup.faults.clone(), setup.quarters.clone());
    *setup = Setup { seed, faults, quarters, chaos: 2 * HOUR, end: 2 * HOUR, ..large };
    setup.settings.dry_run = false;
}

fn few_an_hour(setup: &mut Setup) {
    setup.settings.max_judged_recreates_per_hour = 2;
}

fn few_preemptions(setup: &mut Setup) {
    setup.settings.slots.values_mut().for_each(|slot| slot.policy.attempts.preemptions = 2);
}

/// One node was made with a label that no create may carry any more.
fn one_without_specification(setup: &mut Setup) {
    if let Some(body) = setup.bodies.values_mut().next() {
        body.insert("labels".to_owned(), serde_json::json!({ "Team": "Vision" }));
    }
}

fn two_services(setup: &mut Setup) {
    setup.watchdogs = vec![Kind::Service; 2];
}

fn missing_stays_missing(setup: &mut Setup) {
    setup.settings.slots.values_mut().for_each(|slot| slot.policy.create_missing = false);
}

/// One slot's node may not be deleted.
fn deletes_forbidden(setup: &mut Setup) {
    setup.forbidden_deletes = true;
}

/// Little healthy time clears what is held against a node.
fn healing_fast(setup: &mut Setup) {
    setup.settings.slots.values_mut().for_each(|slot| slot.policy.heal = setup.settings.poll.max_gap);
}

/// Every other hour is quiet.
fn often_quiet(setup: &mut Setup) {
    let hours: Vec<QuietHours> = QuietHours::new("0 0 */2 * * *", Duration::from_secs(3600)).into_iter().collect();
    setup.settings.slots.values_mut().for_each(|slot| slot.policy.quiet_hours.clone_from(&hours));
}

/// The first slot's zone stays without capacity for good, the others live in another one.
fn first_is_stuck(setup: &mut Setup) {
    // Of few slots each is lost often: also right before its zone has no capacity any more.
    *setup = setup.clone().with_slots(3);
    for (index, slot) in setup.settings.slots.values_mut().enumerate() {
        slot.zones = vec![ZONES[usize::from(index > 0)].to_owned()];
    }
    setup.broken_zone = Some(ZONES[0].to_owned());
}

macro_rules! mutants {
    ($($test:ident: [$($mutant:ident breaks $name:ident ($($fault:ident)*) $(in $shape:ident)?),+ $(,)?],)+) => {
        $(
            #[test]
            fn $test() {
                $(
                    let defect = (Mutant::$mutant, stringify!($name));
                    let found = mutants!(@hunt defect, [$(Fault::$fault),*] $($shape)?);
                    let worlds = found.unwrap_or_else(|| panic!("{defect:?} was not found"));
                    println!("{defect:?} is found in world {worlds}");
                )+
            }
        )+

        #[test]
        fn every_mutant_has_its_test() {
            let tested: Vec<Mutant> = vec![$($(Mutant::$mutant),+),+];
            // One is found by playing a seed twice.
            for mutant in Mutant::ALL.into_iter().filter(|mutant| *mutant != Mutant::TossesACoin) {
                assert!(tested.contains(&mutant), "{mutant:?}");
            }
        }
    };
    (@hunt $defect:ident, [$($fault:expr),*]) => { hunt($defect, &[$($fault),*], 150) };
    (@hunt $defect:ident, [$($fault:expr),*] $shape:ident) => { hunt_narrowly($defect, &[$($fault),*], $shape, 500) };
}

mutants! {
    mutants_of_the_evidence_are_found: [
        NoConfirmingGet breaks S1 (),
        FailedListingIsEmpty breaks S3 (ReadFails Preemption) in any,
        UnknownIsSick breaks S5 (StrangeValues),
        NoGrace breaks S3 (),
        AnyIncarnation breaks S1 (PersonReplaces Preemption) in any,
        UnreachableIsEmpty breaks S3 (Unreachable Preemption) in any,
        AbsenceIsEnough breaks S4 (ListLacksNodes) in any,
        GapsCount breaks S3 (ReadFails Unreachable Sickness) in any,
        StaleReads breaks S1 (StaleRead SlowRead Preemption BornSick) in any,
        ReuseTheReports breaks S2 (ServerError Silence Preemption) in any,
        OneGrace breaks S3 (Sickness) in any,
        NoWindow breaks S3 (Sickness) in any,
        NoWindowSlack breaks S3 (Sickness) in any,
        ReservedIsOrdinary breaks S3 (Sickness) in any,
        MissingAtOnce breaks S3 (Vanishing) in any,
        NeverHeals breaks S3 (Flapping) in any,
        UnseenHeals breaks S3 (Unreachable ReadFails Flapping Sickness) in healing_fast,
        NeverHeals breaks L5 (Sickness) in any,
        OldReports breaks S5 (Silence Flapping Crash) in any,
        SilentAtOnce breaks S5 (Preemption) in any,
    ],
    mutants_of_the_journal_are_found: [
        ForgetIntent breaks S11 (),
        ForgetOwedCreate breaks L3 (Preemption) in missing_stays_missing,
        RepeatsAtStart breaks S11 (SendCrash Preemption) in any,
        BlindRepeat breaks S11 (CallLostAfter Preemption),
        AnySpecification breaks S12 (Preemption) in one_without_specification,
        ForgetLabels breaks S12 (),
        ForgetUnknownFields breaks S12 (),
        ForgetOverlay breaks S12 (),
        ForgetOwed breaks S12 (Reload Crash Preemption) in any,
        ForgetMetadata breaks S12 (),
        ForgetSupervisor breaks S12 (Preemption) in any,
        ForgetEvidence breaks S18 (),
        OldEvidence breaks S18 (),
        NeverResend breaks L1 (CallLostBefore Preemption) in any,
        DeletesForEver breaks L2 (Sickness) in deletes_forbidden,
        GoneAtOnce breaks S15 (SurveyStale Preemption) in any,
        CheckpointGoesBack breaks S15 (SurveyStale Preemption) in any,
        IncompleteIsComplete breaks S15 (HalfWritten Preemption) in any,
        RetryFromAnywhere breaks S15 (CheckpointsTaken Levers Preemption) in any,
    ],
    mutants_of_the_budgets_are_found: [
        RecoveringIsHealthy breaks S6 (),
        NoHourlyLimit breaks S6 (Sickness) in few_an_hour,
        WaitingCounts breaks S6 (BornSick BadScript Sickness) in any,
        ReplacementResetsAttempts breaks S13 (BornSick Sickness BadScript) in any,
        NoAttempts breaks S13 (BornSick Sickness BadScript) in any,
        NoPreemptionLimit breaks S13 (Preemption) in few_preemptions,
        SettledAtOnce breaks S13 (BornSick Sickness Flapping) in any,
        NoCreateLimit breaks S18 (Outage) in many,
        RelaunchForEver breaks S16 (StuckJob) in any,
        PassesOverAgain breaks S16 (StuckJob) in any,
    ],
    mutants_of_the_guards_are_found: [
        NoDeadlineOfTheApi breaks S10 (),
        StoppedIsLost breaks S10 (),
        IgnoresDryRun breaks S7 (Reload Preemption) in any,
        NoPause breaks S7 (Levers),
        PauseHoldsCreates breaks S7 (Levers Preemption) in any,
        RetryDoesNothing breaks L7 (Levers BornSick Sickness) in any,
        LeavingIsWatched breaks S17 (Reload Sickness) in any,
        ResumeDoesNothing breaks L7 (Levers Sickness) in any,
        NoOptOut breaks S7 (OptOut Sickness) in any,
        ForgetsOptOut breaks S7 (OptOut Vanishing) in any,
        NoQuietHours breaks S7 (Sickness) in often_quiet,
        AnyNode breaks S17 (),
    ],
    mutants_of_the_breakers_are_found: [
        NoBreaker breaks S8 (Outage Sickness),
        BreakerIgnoresShare breaks S8 (Outage Sickness),
        LostIsAStorm breaks S8 (Outage Preemption),
        GuardsHoldLost breaks S8 (Outage Preemption),
        BreakerCloses breaks S8 (Outage),
        ResetDoesNothing breaks L7 (Outage),
        BreakerHoldsCreates breaks S8 (Outage Preemption Sickness StockOut) in any,
        NoShortage breaks S14 (StockOut Sickness),
        QuotaIsShortage breaks S14 (Quota Sickness Preemption) in any,
        ManyTrials breaks S14 (StockOut Sickness Preemption) in any,
        NoUnfit breaks S14 (BadScript Preemption Sickness),
        AnyRecoveryRelieves breaks S14 (StockOut Sickness Preemption) in any,
        DeadOnesWait breaks S14 (StockOut Preemption Sickness) in any,
        OneHoldsAll breaks L6 (Preemption) in first_is_stuck,
    ],
    mutants_of_the_judgement_are_found: [
        SicknessIsHealth breaks L1 (Sickness) in any,
        WaitForEver breaks L1 (Sickness Preemption) in any,
        DeafToReports breaks L8 (Silence Preemption) in any,
        ShortReports breaks S5 (AttributesShort Preemption) in any,
        AnotherGeneration breaks S5 (CallDuplicated CallLate Preemption PreemptedAtBirth) in any,
    ],
    mutants_of_the_lock_are_found: [
        TakeTheLock breaks S9 (Preemption Pause) in two_services,
        SendForEver breaks S9 (Preemption Pause) in two_services,
        SendToTheEnd breaks S9 (Preemption Pause SlowStore) in two_services,
        NeverTakeTheLock breaks L4 () in two_services,
    ],
}
