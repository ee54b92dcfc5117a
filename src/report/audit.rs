//! The event log as an audit: checks that follow from the log alone, without any setting and
//! without asking why something was done.
//!
//! Each mutation has an intent with its evidence and a result; its evidence is a GET of at most 5 s
//! before; nothing is begun on a slot that is paused, nor a judged recreate while the storm breaker
//! is open; creates stay under 60 a minute. What a log can't show is no violation: one that begins
//! in the middle of a call is read from its next intent on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::condition::{Condition, Kind};
use crate::model::event::{CallResult, CommandName, Event, Evidence, Verb, What};
use crate::model::ids::Incarnation;
use crate::model::time::elapsed;
use crate::model::traits::BudgetOf;

/// A GET that verifies a delete is decided on within this time (S1).
const VERIFIED_FOR: Duration = Duration::from_secs(5);
/// Creates a minute and project (S18).
const CREATES_PER_MINUTE: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// An invariant that the log shows broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// As in docs/invariants.md: `S11`.
    pub invariant: &'static str,
    /// The slot, where it is about one.
    pub slot: Option<String>,
    /// The time of the event that shows it.
    pub at: Timestamp,
    /// The finding, in words.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { invariant, slot, at, text } = self;
        write!(f, "{at:.0}  {invariant}  {}: {text}", slot.as_deref().unwrap_or("-"))
    }
}

/// Checks a log, oldest event first.
pub fn audit(events: &[Event]) -> Vec<Violation> {
    let mut audit = Audit::default();
    events.iter().flat_map(|event| audit.take(event)).collect()
}

/// A log that is checked event by event.
#[derive(Debug, Default)]
pub struct Audit {
    calls: BTreeMap<String, Call>,
    /// Until when each slot, or all of them, is paused; none: until it is resumed.
    paused: BTreeMap<Option<String>, Option<Timestamp>>,
    breaker_open: Option<BudgetOf>,
    /// Slots whose creates an operator has called off.
    forgotten: BTreeSet<Option<String>>,
    creates: VecDeque<Timestamp>,
}

/// The last mutation of a slot that the log intends.
#[derive(Debug, Clone)]
pub struct Call {
    /// Which.
    pub verb: Verb,
    /// In which zone.
    pub zone: String,
    /// The incarnation that a delete is meant for.
    pub incarnation: Option<Incarnation>,
    /// The observations that it rests on.
    pub evidence: Option<Evidence>,
    /// The log does not say yet how it ended.
    pub open: bool,
    /// The log says that it was carried out.
    pub done: bool,
}

impl Audit {
    /// The last mutation of this slot that the log intends.
    pub fn last_call(&self, slot: &str) -> Option<&Call> {
        self.calls.get(slot)
    }

    /// Takes the next event in, and returns what it shows broken.
    pub fn take(&mut self, event: &Event) -> Vec<Violation> {
        let mut found = Found { event, violations: Vec::new() };
        self.begins(&mut found);
        match (&event.what, &event.slot) {
            (What::Intent { .. }, Some(slot)) => self.intent(slot, &mut found),
            (What::Outcome { .. }, Some(slot)) => self.outcome(slot, &mut found),
            (What::Command { command, until, left, .. }, slot) => match command {
                CommandName::Pause => _ = self.paused.insert(slot.clone(), *until),
                CommandName::Resume => _ = self.paused.remove(slot),
                CommandName::BreakerReset => self.breaker_open = None,
                // Back in the config, one that had left it is wanted.
                CommandName::Forget if !*left => _ = self.forgotten.insert(slot.clone()),
                CommandName::Retry | CommandName::Recreate => _ = self.forgotten.remove(slot),
                _ => {}
            },
            (What::StrayIntent { confirmed_at, .. }, _) => found.rests_on(*confirmed_at),
            (What::BreakerOpened { of, .. }, _) => self.breaker_open = Some(*of),
            (What::InvariantViolation { invariant }, _) => {
                found.check("checker", false, || format!("a plan was refused ({invariant})"));
            }
            _ => {}
        }
        found.violations
    }

    /// S7, S18: nothing is begun while it is paused, and the log says who decided it.
    fn begins(&self, found: &mut Found) {
        let event = found.event;
        let (slot, decided_by, begins) = match &event.what {
            What::Condemned { .. } => (event.slot.as_ref(), None, true),
            What::Intent { decided_by, .. } | What::OrderIntent { decided_by, .. } => {
                (event.slot.as_ref(), Some(decided_by), true)
            }
            // That hosts wait, or are given back, begins nothing.
            What::Amendment { decided_by, wait, generation, .. } => {
                (event.slot.as_ref(), Some(decided_by), !*wait && *generation > 0)
            }
            What::StrayIntent { decided_by, name, .. } => (Some(name), Some(decided_by), true),
            _ => return,
        };
        let holds = |until: &Option<Timestamp>| until.is_none_or(|until| event.at < until);
        let pauses = [None, slot.cloned()].map(|whose| self.paused.get(&whose));
        let paused = pauses.into_iter().flatten().any(holds);
        found.check("S7", !(begins && paused), || format!("it is paused: {}", event.message));
        found.check("S18", decided_by.is_none_or(|by| !by.is_empty()), || {
            format!("it does not say who decided it: {}", event.message)
        });
    }

    fn intent(&mut self, slot: &str, found: &mut Found) {
        let Event { at, what, .. } = found.event;
        let What::Intent { call: verb, zone, incarnation, evidence, .. } = what else { return };
        let open = self.calls.get(slot).is_some_and(|call| call.open);
        found.check("S11", !open, || format!("a {verb}, and the call before it has no result"));
        found.check("S18", evidence.is_some(), || format!("a {verb} names no evidence"));
        if let (Verb::Delete, Some(evidence)) = (verb, evidence) {
            found.rests_on(evidence.confirmed_at);
            // An operator's recreate, another hand's stuck delete that is sent once more, and the end
            // of a finished job.
            let condition = evidence.condition;
            let asked = condition == Condition::Requested;
            let other = asked || matches!(condition, Condition::Deleting | Condition::Finished);
            let known = other || condition.kind() == Some(evidence.kind);
            found
                .check("S5", known, || format!("a delete for {condition}, which condemns nothing"));
            let judged = evidence.kind == Kind::Judged && !asked;
            let stalled = condition == Condition::JobStalled;
            let open = self.breaker_open.is_some_and(|of| stalled || of == BudgetOf::Tpus);
            found.check("S8", !(open && judged), || "the storm breaker is open".to_owned());
        }
        if *verb == Verb::Create {
            let wanted = !self.forgotten.contains(&Some(slot.to_owned()));
            found.check("S21", wanted, || "a create is intended that was called off".to_owned());
            self.creates.retain(|create| create <= at && elapsed(*create, *at) < MINUTE);
            self.creates.push_back(*at);
            let count = self.creates.len();
            found.check("S18", count <= CREATES_PER_MINUTE, || format!("{count} creates a minute"));
        }
        let (zone, incarnation, evidence) = (zone.clone(), incarnation.clone(), evidence.clone());
        let call = Call { verb: *verb, zone, incarnation, evidence, open: true, done: false };
        self.calls.insert(slot.to_owned(), call);
    }

    fn outcome(&mut self, slot: &str, found: &mut Found) {
        let what = &found.event.what;
        let What::Outcome { call: verb, result, incarnation: of, .. } = what else { return };
        if (*verb, *result) == (Verb::Create, CallResult::NotSent) {
            self.creates.pop_back();
        }
        let Some(call) = self.calls.get_mut(slot) else { return };
        call.open &= !result.is_final();
        call.done |= (call.verb, *result) == (*verb, CallResult::Done);
        // A late create of an earlier intent may be found after the next delete was decided.
        let (intended, meant) = (call.verb, &call.incarnation);
        let matches = *verb == Verb::Create || (intended, meant) == (*verb, of);
        found.check("S18", matches, || {
            format!("the log says {result} of the {verb} of {of:?} after a {intended} of {meant:?}")
        });
    }
}

/// The violations that one event shows.
struct Found<'a> {
    event: &'a Event,
    violations: Vec<Violation>,
}

impl Found<'_> {
    /// S1: a delete rests on a GET of just now.
    fn rests_on(&mut self, confirmed_at: Timestamp) {
        let at = self.event.at;
        let fresh = confirmed_at <= at && elapsed(confirmed_at, at) <= VERIFIED_FOR;
        self.check("S1", fresh, || format!("a delete rests on a GET of {confirmed_at}"));
    }

    fn check(&mut self, invariant: &'static str, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            let (slot, at) = (self.event.slot.clone(), self.event.at);
            self.violations.push(Violation { invariant, slot, at, text: text() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::condition::Condition;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn event(second: i64, what: What) -> Event {
        Event { at: at(second), slot: Some("a".into()), message: String::new(), what }
    }

    fn incarnation() -> Option<Incarnation> {
        Some(Incarnation { id: "1".into(), created: at(-9_000) })
    }

    fn delete(confirmed: i64) -> What {
        let evidence = Evidence {
            condition: Condition::Unresponsive,
            kind: Kind::Judged,
            symptom_at: at(-900),
            sick_seconds: 900.0,
            reads: 9,
            confirmed_at: at(confirmed),
            observed: "health TIMEOUT".into(),
        };
        What::Intent {
            call: Verb::Delete,
            zone: "z".into(),
            incarnation: incarnation(),
            generation: None,
            evidence: Some(evidence),
            decided_by: "host:1:x".into(),
        }
    }

    fn create(second: i64) -> What {
        let What::Intent { evidence, decided_by, zone, .. } = delete(second) else {
            panic!("an intent")
        };
        What::Intent {
            call: Verb::Create,
            zone,
            incarnation: None,
            generation: Some(2),
            evidence,
            decided_by,
        }
    }

    fn outcome(call: Verb, result: CallResult) -> What {
        let incarnation = incarnation().filter(|_| call == Verb::Delete);
        What::Outcome { call, result, incarnation, submission: None }
    }

    fn command(command: CommandName, until: Option<i64>) -> What {
        What::Command {
            command,
            who: "ada".into(),
            reason: None,
            until: until.map(at),
            left: false,
        }
    }

    fn found(events: &[(i64, What)]) -> Vec<&'static str> {
        let events: Vec<Event> =
            events.iter().map(|(second, what)| event(*second, what.clone())).collect();
        audit(&events).into_iter().map(|violation| violation.invariant).collect()
    }

    #[test]
    fn a_slot_that_was_forgotten_while_it_was_out_of_the_config_is_wanted_when_it_is_back() {
        let forget = |left| What::Command {
            command: CommandName::Forget,
            who: "ada".into(),
            reason: None,
            until: None,
            left,
        };
        assert_eq!(found(&[(0, forget(false)), (10, create(1))]), ["S21"]);
        assert!(!found(&[(0, forget(true)), (10, create(1))]).contains(&"S21"));
    }

    #[test]
    fn a_whole_replacement_is_in_order() {
        use CallResult::*;
        let story = [
            (0, outcome(Verb::Create, Done)),
            (10, delete(9)),
            (11, outcome(Verb::Delete, Unknown)),
            (12, outcome(Verb::Delete, Failed)),
            (13, delete(12)),
            (14, outcome(Verb::Delete, Accepted)),
            (20, outcome(Verb::Delete, Done)),
            (21, create(20)),
            (22, outcome(Verb::Create, Refused)),
            (52, create(20)),
            (53, outcome(Verb::Create, Accepted)),
            (90, outcome(Verb::Create, Done)),
        ];
        assert_eq!(found(&story), Vec::<&str>::new());
    }

    #[test]
    fn s1_s5_s18_an_intent_rests_on_a_get_of_five_seconds_and_says_who_decided() {
        assert_eq!(found(&[(10, delete(4))]), ["S1"]);
        assert_eq!(found(&[(10, delete(11))]), ["S1"], "a GET of the future proves nothing");
        let What::Intent { zone, incarnation, evidence, .. } = delete(10) else {
            panic!("an intent")
        };
        let strange =
            evidence.map(|evidence| Evidence { condition: Condition::Stopped, ..evidence });
        let intent = |evidence, decided_by: &str| What::Intent {
            call: Verb::Delete,
            zone: zone.clone(),
            incarnation: incarnation.clone(),
            generation: None,
            evidence,
            decided_by: decided_by.into(),
        };
        assert_eq!(found(&[(10, intent(strange, "me"))]), ["S5"]);
        assert_eq!(found(&[(10, intent(None, "me"))]), ["S18"]);
    }

    #[test]
    fn s11_s18_each_call_has_its_own_result_before_the_next() {
        assert_eq!(found(&[(10, delete(9)), (30, create(9))]), ["S11"]);
        assert_eq!(
            found(&[
                (10, delete(9)),
                (11, outcome(Verb::Delete, CallResult::Unknown)),
                (30, create(9))
            ]),
            ["S11"]
        );
        let of_another = What::Outcome {
            call: Verb::Delete,
            result: CallResult::Done,
            incarnation: None,
            submission: None,
        };
        assert_eq!(found(&[(10, delete(9)), (11, of_another)]), ["S18"]);
    }

    #[test]
    fn s7_s8_nothing_is_begun_while_paused_and_nothing_judged_while_the_breaker_is_open() {
        let condemned = What::Condemned {
            cause: Condition::Preempted,
            kind: Kind::Lost,
            incarnation: None,
            detection_seconds: 1.0,
        };
        assert_eq!(
            found(&[
                (0, command(CommandName::Pause, None)),
                (10, condemned.clone()),
                (10, delete(9))
            ]),
            ["S7", "S7"]
        );
        assert_eq!(
            found(&[(0, command(CommandName::Pause, Some(5))), (10, delete(9))]),
            Vec::<&str>::new()
        );
        let resumed = [
            (0, command(CommandName::Pause, None)),
            (5, command(CommandName::Resume, None)),
            (10, condemned),
        ];
        assert_eq!(found(&resumed), Vec::<&str>::new());
        assert_eq!(
            found(&[(0, What::BreakerOpened { slots: 4, of: BudgetOf::Tpus }), (10, delete(9))]),
            ["S8"]
        );
        let reset = [
            (0, What::BreakerOpened { slots: 4, of: BudgetOf::Tpus }),
            (5, command(CommandName::BreakerReset, None)),
            (10, delete(9)),
        ];
        assert_eq!(found(&reset), Vec::<&str>::new());
    }

    #[test]
    fn s18_creates_are_counted_a_minute_but_for_those_that_never_left() {
        let named =
            |slot: usize, what: What| Event { slot: Some(format!("s{slot}")), ..event(10, what) };
        let many = |count: usize| -> Vec<Event> {
            (0..count).map(|slot| named(slot, create(9))).collect()
        };
        assert_eq!(audit(&many(60)).len(), 0);
        assert_eq!(audit(&many(61))[0].invariant, "S18");
        let mut events = many(60);
        events.push(named(59, outcome(Verb::Create, CallResult::NotSent)));
        events.push(named(60, create(9)));
        assert_eq!(audit(&events).len(), 0);
    }
}
