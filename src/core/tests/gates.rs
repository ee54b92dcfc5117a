//! The gates and the checker, apart from each other: each gate holds its story, and without its row
//! the slot acts or the checker refuses; the checker refuses each rule by its name.

use super::super::check::{Case, Checker};
use super::runs::with_checkpoints;
use super::*;
use crate::model::checkpoint::{Checkpoint, CheckpointSurvey};
use crate::model::command::Pause;
use crate::model::condition::Kind;
use crate::model::exit::Stuck;
use crate::model::fleet::{Breaker, Confirmed, Stray};
use crate::model::ids::RunOrder;
use crate::model::quiet::QuietHours;
use crate::model::recovery::Recovery;
use crate::model::settings::WhenMissing;
use crate::model::slot::{Attempt, SlotRecord};
use crate::model::traits::BudgetOf;

/// The result when the gate's row is taken away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Without {
    Acts,
    Refused(&'static str),
}
pub use Without::{Acts, Refused};

/// One gate: the hold that it gives in a story, and what becomes of the same story without it.
pub type Row = (&'static str, HoldReason, Without, fn(&mut World));

const STORIES: &[Row] = &[
    ("paused", HoldReason::Paused, Refused("S7"), |w| {
        let pause = Pause { who: "ada".into(), reason: None, until: None, since: None };
        w.sick_but(timeout(), |w| w.fleet.ledger.paused = Some(pause));
    }),
    ("opted_out", HoldReason::OptedOut, Refused("S7"), |w| {
        w.lost_but(json!({"labels": {"tpu-watchdog": "off"}}), |_| ())
    }),
    ("plain_node", HoldReason::QueuedResource, Refused("S17"), |w| {
        w.lost_but(json!({"queuedResource": "q"}), |_| ())
    }),
    ("when_missing", HoldReason::Missing, Acts, |w| {
        w.missing_but(|w| w.policy().when_missing = WhenMissing::Hold)
    }),
    ("ended_early", HoldReason::EndedEarly, Acts, |w| {
        w.lost_but(json!({}), |w| w.record().job.stuck = Some(Stuck::EndedEarly));
    }),
    ("specification", HoldReason::NoSpecification, Refused("S12"), |w| {
        w.lost_but(json!({}), |w| {
            w.fleet.settings.slots.get_mut("a").unwrap().create.labels = invalid_label()
        });
    }),
    ("order_dry_run", HoldReason::DryRun, Refused("S7"), |w| {
        w.relaunch_but(|w| w.fleet.settings.dry_run = true)
    }),
    ("same_job", HoldReason::CannotRelaunch, Refused("S15"), |w| {
        w.relaunch_but(|w| w.record().job.ordered = Some("another".into()))
    }),
    ("supervisors", HoldReason::CannotRelaunch, Refused("S22"), |w| {
        w.relaunch_but(|w| w.record().job.workers.clear())
    }),
    ("order_pause", HoldReason::Backoff, Acts, World::failed_at_once),
    ("order_once_more", HoldReason::Backoff, Acts, World::ended_early_at_once),
    ("order_checkpoints", HoldReason::CheckpointUnreadable, Refused("S15"), |w| {
        w.relaunch_but(|w| {
            w.fleet.memory.get_mut("a").unwrap().survey_failure = Some("listing failed".into());
        })
    }),
    ("order_heard", HoldReason::Unclear, Refused("S5"), |w| {
        w.crashed();
        w.fleet.memory.get_mut("a").unwrap().heard = None;
        w.surveyed(&[100, 200]);
    }),
    ("forgotten", HoldReason::Forgotten, Acts, |w| {
        w.lost_but(json!({}), |w| w.record().forgotten = true);
    }),
    ("deleted", HoldReason::Deleted, Acts, |w| {
        w.missing_but(|w| w.record().deleted = Some("by hand".into()));
    }),
    ("create_check", HoldReason::CannotCreate, Refused("S20"), |w| {
        w.create_check.certain = Some("actAs is missing".into());
        w.sick_but(timeout(), |_| ());
    }),
    ("refused_in_pool", HoldReason::CannotCreate, Acts, |w| {
        w.is_refused("b", FailureClass::Permission);
        w.sick_but(timeout(), |_| ());
    }),
    ("repeated", HoldReason::Repeated, Refused("S8"), |w| {
        w.sick_but(timeout(), |w| {
            let attempt = Attempt { at: w.now, kind: Kind::Judged };
            w.record().attempts.push(attempt);
        });
    }),
    ("other_request", HoldReason::CreateUnresolved, Refused("S21"), |w| {
        w.gone_but(|w| w.has_stray("elsewhere", json!({"state": "ACTIVE", "request": "q"})))
    }),
    ("remains", HoldReason::Backoff, Refused("S9"), |w| {
        w.gone_but(|w| {
            let is = json!({"id": "9", "created": w.now});
            let removal =
                json!({"at": w.now, "incarnation": is, "state": "PREEMPTED", "call": "unknown"});
            w.has_stray(ZONE, json!({"state": "PREEMPTED", "incarnation": is, "removal": removal}));
        })
    }),
    ("request_refused", HoldReason::RequestRefused, Acts, |w| {
        w.gone_but(|w| {
            let failure = Failure::new(FailureClass::ClosedQueue, "closed");
            w.record().recovery.as_mut().unwrap().halted = Some(failure);
        })
    }),
    ("probe", HoldReason::Backoff, Acts, |w| w.gone_but(World::is_short)),
    ("delete_backoff", HoldReason::Backoff, Acts, |w| {
        w.lost_but(json!({}), |_| ());
        w.delete_refused_but(|_| ());
    }),
    ("attempts", HoldReason::Attempts, Refused("S13"), |w| {
        w.sick_but(timeout(), |w| w.policy().attempts.max = 0)
    }),
    ("beacon_channel", HoldReason::NoBeaconChannel, Acts, |w| w.never_booted()),
    ("breaker", HoldReason::Breaker, Refused("S8"), |w| {
        let breaker = Breaker { opened_at: w.now, why: "a storm".into(), of: BudgetOf::Tpus };
        w.sick_but(timeout(), |w| w.fleet.ledger.breaker = Some(breaker));
    }),
    ("no_progress", HoldReason::NoProgress, Acts, |w| {
        w.silent_but(|w| w.record().job.runs.fruitless = 9);
    }),
    ("location", HoldReason::CheckpointUnreadable, Refused("S20"), |w| {
        w.silent_but(|w| w.record().job.listed_at = None)
    }),
    ("quiet_hours", HoldReason::QuietHours, Refused("S7"), |w| {
        w.sick_but(timeout(), |w| {
            w.policy().quiet_hours = QuietHours::new("0 0 * * * *", hours(1)).into_iter().collect()
        });
    }),
    ("pool", HoldReason::ZoneShort, Refused("S14"), |w| {
        w.sick_but(timeout(), |w| {
            w.is_short();
        });
    }),
    ("judged_per_hour", HoldReason::JudgedPerHour, Acts, |w| {
        w.sick_but(timeout(), |w| w.fleet.settings.max_judged_recreates_per_hour = 0);
    }),
    ("max_unavailable", HoldReason::MaxUnavailable, Refused("S6"), |w| {
        w.sick(&["b"], timeout(), 600);
        w.get("b", Some(node("b", timeout())));
        w.called("b", CallOutcome::Accepted(OPERATION.into()));
        w.sick_but(timeout(), |_| ());
    }),
    ("create_backoff", HoldReason::Backoff, Acts, |w| {
        w.gone_but(|w| w.recovery().not_before = Some(after(w.now, hours(1))))
    }),
    ("dry_run", HoldReason::DryRun, Refused("S7"), |w| {
        w.gone_but(|w| w.fleet.settings.dry_run = true)
    }),
    ("checkpoints", HoldReason::CheckpointUnreadable, Refused("S15"), |w| {
        w.begin(&[100]);
        w.called("a", CallOutcome::Refused(Failure::new(FailureClass::StockOut, "none")));
        w.wait(400);
        let failed = Err(Failure::new(FailureClass::Transient, "503"));
        w.input(Input::Surveyed {
            slot: "a".into(),
            began: w.now,
            location: "gs://b/c".into(),
            result: failed,
        });
    }),
    ("create_limit", HoldReason::CreateLimit, Refused("S18"), |w| {
        w.gone_but(|w| w.fleet.ledger.creates = vec![w.now; 60]);
    }),
    ("body", HoldReason::NoSpecification, Refused("S12"), |w| {
        w.gone_but(|w| {
            w.fleet.settings.slots.get_mut("a").unwrap().create.labels = invalid_label()
        });
    }),
];

fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}

fn invalid_label() -> std::collections::BTreeMap<String, Option<String>> {
    [("Team".to_owned(), Some("Vision".to_owned()))].into()
}

impl World {
    fn record(&mut self) -> &mut SlotRecord {
        self.fleet.slots.get_mut("a").unwrap()
    }

    fn recovery(&mut self) -> &mut Recovery {
        self.record().recovery.as_mut().unwrap()
    }

    fn policy(&mut self) -> &mut Policy {
        &mut self.fleet.settings.slots.get_mut("a").unwrap().policy
    }

    /// Sick for its grace, confirmed by a GET; `change` comes right before.
    fn sick_but(&mut self, shown: Value, change: impl FnOnce(&mut World)) {
        self.sick(&["a"], shown.clone(), 570);
        change(self);
        self.wait(30);
        self.poll(&[node("a", shown.clone())]);
        self.get("a", Some(node("a", shown)));
    }

    fn lost_but(&mut self, mut shown: Value, change: impl FnOnce(&mut World)) {
        self.poll(&[node("a", shown.clone())]);
        shown["state"] = json!("PREEMPTED");
        change(self);
        self.wait(30);
        self.poll(&[node("a", shown.clone())]);
        self.get("a", Some(node("a", shown)));
    }

    fn missing_but(&mut self, change: impl FnOnce(&mut World)) {
        self.poll(&[node("a", json!({}))]);
        change(self);
        for _ in 0..8 {
            self.wait(30);
            self.poll(&[]);
            self.get("a", None);
            if !self.actions.is_empty() {
                return;
            }
        }
    }

    /// The delete that was just decided is refused; `change` comes before the next GET.
    fn delete_refused_but(&mut self, change: impl FnOnce(&mut Recovery)) {
        assert!(is_delete(&self.actions), "{:?}", self.hold("a"));
        self.called("a", CallOutcome::Refused(Failure::new(FailureClass::Permission, "403")));
        change(self.recovery());
        self.wait(1);
        self.get("a", Some(node("a", json!({"state": "PREEMPTED"}))));
    }

    /// A create is pending; `change` comes right before it is decided.
    fn gone_but(&mut self, change: impl FnOnce(&mut World)) {
        self.lost_but(json!({}), |_| ());
        self.called("a", CallOutcome::Accepted(OPERATION.into()));
        self.recovery().not_before = Some(after(self.now, Duration::from_secs(1)));
        // Held until `change` was made.
        let create = std::mem::take(&mut self.gates);
        self.gates = create.iter().filter(|gate| gate.name == "dry_run").copied().collect();
        self.fleet.settings.dry_run = true;
        self.wait(1);
        self.done("a", OperationState::Succeeded);
        (self.gates, self.fleet.settings.dry_run) = (create, false);
        change(self);
        self.input(Input::Tick);
    }

    /// No slot owns this, which has the name of `a`.
    fn has_stray(&mut self, zone: &str, more: Value) {
        let mut stray = json!({"zone": zone, "name": "a", "since": self.now, "why": "late"});
        stray.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let stray: Stray = serde_json::from_value(stray).unwrap();
        self.fleet.ledger.strays.insert(Stray::key(zone, "a"), stray);
    }

    fn silent_but(&mut self, change: impl FnOnce(&mut World)) {
        let node = self.silent();
        change(self);
        self.reports(7, None);
        self.get("a", Some(node));
    }

    fn never_booted(&mut self) {
        self.begin(&[100]);
        self.called("a", CallOutcome::Accepted(OPERATION.into()));
        let node = self.supervised("10", self.now);
        self.wait(5);
        self.get("a", Some(node.clone()));
        self.fleet.ledger.beacons_seen = false;
        for _ in 0..30 {
            let of = self.fleet.slots["a"].incarnation.clone().unwrap();
            self.input(Input::Attributes {
                slot: "a".into(),
                of,
                began: self.now,
                result: Ok(vec![Default::default()]),
            });
            self.get("a", Some(node.clone()));
            if !self.actions.is_empty() {
                return;
            }
            self.wait(30);
            self.poll(std::slice::from_ref(&node));
        }
    }
}

fn played(row: &Row, gates: Vec<Gate>) -> World {
    let needs_job = [
        "beacon_channel",
        "no_progress",
        "location",
        "checkpoints",
        "order_dry_run",
        "same_job",
        "supervisors",
        "order_checkpoints",
        "order_heard",
        "order_pause",
        "order_once_more",
    ];
    let needs_job = needs_job.contains(&row.0);
    let slots: &[&str] =
        if matches!(row.0, "max_unavailable" | "refused_in_pool") { &["a", "b"] } else { &["a"] };
    let mut world = if needs_job { with_checkpoints() } else { World::new(settings(slots)) };
    world.gates = gates;
    (row.3)(&mut world);
    world
}

#[test]
fn every_gate_holds_its_story_and_without_its_row_the_slot_acts_or_the_checker_refuses() {
    for gate in GATES {
        let row = STORIES
            .iter()
            .chain(super::training_gates::STORIES)
            .find(|row| row.0 == gate.name)
            .unwrap_or_else(|| panic!("{} has no story", gate.name));
        let world = played(row, GATES.to_vec());
        assert_eq!(
            (world.hold("a"), world.actions.len()),
            (Some(row.1), 0),
            "{}: {:?}",
            gate.name,
            world.messages
        );
        let others = GATES.iter().filter(|other| other.name != gate.name).copied().collect();
        let world = played(row, others);
        let refused = world.events.iter().find_map(|event| match event {
            What::InvariantViolation { invariant } => Some(invariant.as_str()),
            _ => None,
        });
        let is = match (world.actions.len(), refused) {
            (1.., None) => Some(Acts),
            (0, Some(invariant)) => [
                "S5", "S6", "S7", "S8", "S9", "S12", "S13", "S14", "S15", "S17", "S18", "S20",
                "S21", "S22", "S24",
            ]
            .into_iter()
            .find(|name| *name == invariant)
            .map(Refused),
            _ => None,
        };
        assert_eq!(
            is,
            Some(row.2),
            "{}: {:?} {refused:?} {:?}",
            gate.name,
            world.hold("a"),
            world.actions
        );
    }
    assert_eq!(STORIES.len() + super::training_gates::STORIES.len(), GATES.len());
}

#[test]
fn the_checker_refuses_by_name_what_a_plan_must_never_ask_for() {
    let verdict = |change: &dyn Fn(&mut Fleet, &mut Confirmed)| {
        let mut world = World::new(settings(&["a", "b"]));
        world.sick(&["b"], timeout(), 600);
        world.get("b", Some(node("b", timeout())));
        world.fleet.settings.max_unavailable = Share::Count(2);
        world.sick(&["a"], timeout(), 600);
        let incarnation = world.fleet.slots["a"].incarnation.clone();
        let mut confirmed =
            Confirmed { began: world.now, incarnation, condition: Condition::Unresponsive };
        change(&mut world.fleet, &mut confirmed);
        let fleet = &world.fleet;
        let (slot, record, memory) =
            (&fleet.settings.slots["a"], &fleet.slots["a"], &fleet.memory["a"]);
        let case = Case {
            settings: &fleet.settings,
            slot,
            record,
            memory,
            ledger: &fleet.ledger,
            now: world.now,
        };
        Checker::new(fleet)
            .delete(&case, Condition::Unresponsive, &confirmed)
            .map_err(|violation| violation.name())
    };
    fn record(fleet: &mut Fleet) -> &mut SlotRecord {
        fleet.slots.get_mut("a").unwrap()
    }
    assert_eq!(verdict(&|_, _| ()), Ok(()), "the plan as it should be");
    let earlier =
        |at: Timestamp, seconds| at.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap();
    assert_eq!(
        verdict(&|_, confirmed| confirmed.incarnation.as_mut().unwrap().id = "2".into()),
        Err("S1")
    );
    assert_eq!(verdict(&|_, confirmed| confirmed.incarnation = None), Err("S1"));
    assert_eq!(verdict(&|_, confirmed| confirmed.began = earlier(confirmed.began, 6)), Err("S1"));
    assert_eq!(
        verdict(&|_, confirmed| confirmed.began = after(confirmed.began, hours(1))),
        Err("S1"),
        "of the future"
    );
    assert_eq!(
        verdict(&|fleet, confirmed| record(fleet).mutated_at = Some(confirmed.began)),
        Err("S2")
    );
    let read = |fleet: &mut Fleet, at| fleet.memory.get_mut("a").unwrap().last_read = Some(at);
    assert_eq!(verdict(&|fleet, confirmed| read(fleet, earlier(confirmed.began, 121))), Err("S2"));
    assert_eq!(verdict(&|fleet, _| record(fleet).suspicion.as_mut().unwrap().reads = 1), Err("S3"));
    assert_eq!(
        verdict(&|fleet, _| record(fleet).suspicion.as_mut().unwrap().sick_for =
            Duration::from_secs(599)),
        Err("S3")
    );
    assert_eq!(verdict(&|fleet, _| record(fleet).suspicion = None), Err("S3"));
    assert_eq!(verdict(&|fleet, _| fleet.settings.max_unavailable = Share::Count(1)), Err("S6"));
    assert_eq!(
        verdict(&|fleet, _| record(fleet).seen.as_mut().unwrap().opted_out = true),
        Err("S7")
    );
    assert_eq!(verdict(&|fleet, _| record(fleet).spec = None), Err("S12"));
    assert_eq!(
        verdict(&|fleet, _| record(fleet).seen.as_mut().unwrap().queued_resource = Some("q".into())),
        Err("S17")
    );
    assert_eq!(
        verdict(&|fleet, _| record(fleet).seen.as_mut().unwrap().other_owner = Some("o".into())),
        Err("S17")
    );
}

#[test]
fn the_checker_refuses_creates_that_no_plan_may_send() {
    type Change<'a> = &'a dyn Fn(&mut Fleet, &mut RunOrder, &mut Value);
    let verdict = |change: Change| {
        let mut world = with_checkpoints();
        world.begin(&[100]);
        world.called("a", CallOutcome::Refused(Failure::new(FailureClass::StockOut, "none")));
        let newest = Checkpoint { step: 100, uri: "gs://b/c/100".into() };
        let result = Ok(CheckpointSurvey { newest: Some(newest), ..CheckpointSurvey::default() });
        world.input(Input::Surveyed {
            slot: "a".into(),
            began: world.now,
            location: "gs://b/c".into(),
            result,
        });
        assert_eq!(world.phase("a"), Some(Phase::Gone));
        let fleet = &mut world.fleet;
        let mut order = RunOrder {
            generation: 2,
            step: Some(100),
            checkpoint: "gs://b/c/100".into(),
            ..RunOrder::default()
        };
        let (slot, record) = (&fleet.settings.slots["a"], &fleet.slots["a"]);
        let spec = record.spec.clone().unwrap().overlaid(&slot.create);
        let mut body = spec.render("me", "a", &order, slot.supervisor.as_deref());
        change(fleet, &mut order, &mut body);
        let (slot, record, memory) =
            (&fleet.settings.slots["a"], &fleet.slots["a"], &fleet.memory["a"]);
        let case = Case {
            settings: &fleet.settings,
            slot,
            record,
            memory,
            ledger: &fleet.ledger,
            now: world.now,
        };
        Checker::new(fleet).create(&case, &order, &body).map_err(|violation| violation.name())
    };
    assert_eq!(verdict(&|_, _, _| ()), Ok(()), "the plan as it should be");
    assert_eq!(
        verdict(&|fleet, _, _| fleet.slots.get_mut("a").unwrap().recovery = None),
        Err("S4")
    );
    assert_eq!(verdict(&|fleet, _, _| fleet.settings.dry_run = true), Err("S7"));
    let calling = |fleet: &mut Fleet| {
        _ = fleet.memory.get_mut("a").unwrap().pending.insert(crate::model::fleet::Pending::Call)
    };
    assert_eq!(verdict(&|fleet, _, _| calling(fleet)), Err("S9"));
    assert_eq!(verdict(&|_, _, body| body["labels"] = json!({"team": "other"})), Err("S12"));
    assert_eq!(
        verdict(&|fleet, _, _| fleet.slots.get_mut("a").unwrap().job.checkpoint = None),
        Err("S15")
    );
    assert_eq!(
        verdict(&|fleet, _, _| fleet.memory.get_mut("a").unwrap().surveyed_at = None),
        Err("S15")
    );
    assert_eq!(
        verdict(&|fleet, _, _| fleet.slots.get_mut("a").unwrap().zone = "elsewhere".into()),
        Err("S17")
    );
    assert_eq!(
        verdict(&|fleet, _, _| fleet.ledger.creates = vec![Timestamp::UNIX_EPOCH; 60]),
        Err("S18")
    );
}
