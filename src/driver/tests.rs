//! The driver on its own: messages in, instructions out, both clocks as an argument.

mod pauses;
mod pulse;

use super::*;
use crate::driver::message::StoreCall;
use crate::model::action::Poll;
use crate::model::command::CommandKind;
use crate::model::condition::{Condition, Kind};
use crate::model::fleet::Pending;
use crate::model::ids::Incarnation;
use crate::model::lease::Lease;
use crate::model::phase::Phase;
use crate::model::recovery::Recovery;
use crate::model::settings::{PollSettings, Share, Storm};
use crate::model::slot::SlotRecord;
use crate::model::step::At;
use crate::store::{Batch, Stored};

const TTL: Duration = Duration::from_secs(30);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A driver, its clocks, and what it wants done that was not looked at yet.
struct Machine {
    driver: Driver,
    boot: Duration,
    out: Vec<Instruction>,
}

impl Machine {
    fn new(mode: Mode) -> Machine {
        let poll = PollSettings {
            every: seconds(30),
            operations: seconds(5),
            timeout: seconds(20),
            max_gap: seconds(300),
        };
        let settings = Settings {
            digest: String::new(),
            project: "p".into(),
            owner: String::new(),
            label: None,
            decided_by: String::new(),
            dry_run: false,
            alpha: false,
            poll,
            max_unavailable: Share::Count(1),
            removes_dead: false,
            max_judged_recreates_per_hour: 20,
            storm: Storm::default(),
            slots: Default::default(),
        };
        let facts = StoreFacts { location: "here".into(), pace: seconds(0) };
        let claimant = Claimant { holder: "me".into(), ttl: TTL };
        let driver = Driver::new(settings, facts, claimant, mode, seconds(100));
        let mut machine = Machine { driver, boot: seconds(100), out: Vec::new() };
        machine.on(Message::Woke);
        machine
    }

    fn leading(mode: Mode) -> Machine {
        let mut machine = Machine::new(mode);
        machine.takes();
        machine
    }

    fn on(&mut self, message: Message) {
        let after = Duration::from_secs(1_700_000_000) + self.boot;
        let wall = jiff::Timestamp::UNIX_EPOCH + after;
        self.out.extend(self.driver.on(message, Now { boot: self.boot, wall }));
    }

    fn wait(&mut self, wait: Duration) {
        self.boot += wait;
        self.on(Message::Woke);
    }

    /// The store call that is wanted.
    fn call(&mut self) -> Option<StoreCall> {
        let at = self.out.iter().position(|i| matches!(i, Instruction::Store(_)))?;
        match self.out.remove(at) {
            Instruction::Store(call) => Some(call),
            _ => None,
        }
    }

    fn loads(&mut self, lease: Option<Lease>) {
        assert!(matches!(self.call(), Some(StoreCall::Load)));
        self.on(Message::Loaded(Ok(Box::new(Stored {
            lease,
            owner: "o".into(),
            ..Stored::default()
        }))));
    }

    fn takes(&mut self) {
        self.loads(None);
        assert!(matches!(self.call(), Some(StoreCall::Commands)));
        self.on(Message::Commands(Ok(Vec::new())));
        assert!(matches!(self.call(), Some(StoreCall::Take { .. })));
        self.on(Message::Taken(Ok(true)));
        assert!(self.driver.leads());
    }

    fn polled(&mut self) {
        let began = jiff::Timestamp::UNIX_EPOCH;
        let input = Box::new(Input::Polled(Box::new(Poll::of(began, Vec::new()))));
        self.on(Message::Answer { term: self.driver.term(), input });
    }

    /// Answers store calls until none is wanted.
    fn settle_store(&mut self) {
        while let Some(call) = self.call() {
            self.on(match call {
                StoreCall::Load => Message::Loaded(Ok(Box::default())),
                StoreCall::Commands => Message::Commands(Ok(Vec::new())),
                StoreCall::Take { .. } => Message::Taken(Ok(true)),
                StoreCall::Commit(_) | StoreCall::Release(_) => Message::Written(Ok(())),
            });
        }
    }

    fn ended(&self) -> Option<&End> {
        self.out.iter().find_map(|i| match i {
            Instruction::End(end) => Some(end),
            _ => None,
        })
    }

    fn polls(&self) -> usize {
        self.out.iter().filter(|i| matches!(i, Instruction::Poll { .. })).count()
    }

    /// A create that the core has decided, without its long way there.
    fn decides_a_create(&mut self) {
        let (slot, zone, body) = ("a".to_owned(), "z".to_owned(), serde_json::Value::Null);
        let (request_id, filling) = (None, Default::default());
        let create = Action::Create { slot, zone, body, request_id, filling };
        self.driver.journal.push(Vec::new(), Vec::new(), vec![create]);
        let now = jiff::Timestamp::UNIX_EPOCH;
        let mut recovery = Recovery::condemned(Condition::Missing, Kind::Lost, now, now);
        recovery.at = At::of(Phase::Creating);
        recovery.order = Some(Default::default());
        let mut record = SlotRecord::new("a", "z", now);
        record.recovery = Some(recovery);
        self.driver.fleet.slots.insert("a".into(), record);
        self.driver.fleet.memory.insert("a".into(), Default::default());
        self.on(Message::Woke);
    }

    fn sends(&self) -> usize {
        self.out.iter().filter(|i| matches!(i, Instruction::Send { .. })).count()
    }
}

fn error(failure: StoreFailure) -> StoreError {
    StoreError { failure, location: "here".into(), message: "no".into() }
}

fn once(deadline: u64, end: u64) -> Mode {
    Mode::Once { deadline: seconds(100 + deadline), end: seconds(100 + end) }
}

#[test]
fn l4_a_standby_leads_after_one_whole_lease_without_a_renewal() {
    let mut machine = Machine::new(Mode::Serve);
    let mut lease = Lease::next(None, "other", TTL);
    machine.loads(Some(lease.clone()));
    machine.wait(seconds(20));
    lease.renewals += 1;
    machine.loads(Some(lease.clone()));
    for _ in 0..8 {
        assert!(!machine.driver.leads());
        let wait = machine.driver.due(machine.boot) - machine.boot;
        assert!(wait <= TTL / 8, "it looks often enough to see a renewal");
        machine.wait(wait);
        if machine.boot < seconds(150) {
            machine.loads(Some(lease.clone()));
        }
    }
    assert_eq!(machine.boot, seconds(150));
    machine.loads(Some(lease.clone()));
    assert!(matches!(machine.call(), Some(StoreCall::Commands)), "what was commanded counts first");
    machine.on(Message::Commands(Ok(Vec::new())));
    let taken = machine.call();
    assert!(matches!(taken, Some(StoreCall::Take { seen: Some(seen), .. }) if seen == lease));
    machine.on(Message::Taken(Ok(false)));
    assert!(!machine.driver.leads(), "another was faster");
}

#[test]
fn s11_no_request_leaves_when_its_write_failed_and_the_journal_is_read_again_first() {
    for works in [true, false] {
        let mut machine = Machine::leading(Mode::Serve);
        machine.settle_store();
        machine.decides_a_create();
        assert!(matches!(machine.call(), Some(StoreCall::Commit(_))));
        assert_eq!(machine.sends(), 0, "nothing leaves before it is durable");
        if works {
            machine.on(Message::Written(Ok(())));
            assert_eq!(machine.sends(), 1);
            continue;
        }
        machine.on(Message::Written(Err(error(StoreFailure::Unavailable))));
        assert!(machine.driver.store_fails());
        machine.on(Message::Woke);
        assert!(machine.call().is_none(), "for a second nothing is asked of the store");
        machine.wait(seconds(1));
        assert!(matches!(machine.call(), Some(StoreCall::Load)));
        machine.on(Message::Loaded(Ok(Box::default())));
        machine.settle_store();
        assert!(!machine.driver.store_fails());
        assert_eq!(machine.sends(), 0);
    }
}

#[test]
fn s9_a_delete_of_a_stray_that_was_not_written_ends_no_call_of_the_slot_of_that_name() {
    let mut machine = Machine::leading(Mode::Serve);
    machine.settle_store();
    machine.decides_a_create();
    machine.settle_store();
    machine.driver.fleet.memory.get_mut("a").unwrap().pending.insert(Pending::Call);
    let now = jiff::Timestamp::UNIX_EPOCH;
    let incarnation = Incarnation { id: "1".into(), created: now };
    let delete = Action::Delete {
        slot: "a".into(),
        zone: "another".into(),
        incarnation,
        verified: now,
        request_id: None,
        filling: Default::default(),
        force: false,
        stray: true,
    };
    machine.driver.not_written(&error(StoreFailure::Unavailable), &[delete], &mut Vec::new());
    assert!(machine.driver.fleet.memory["a"].pending.contains(&Pending::Call));
}

#[test]
fn s11_the_answer_to_an_order_that_comes_while_nothing_can_be_written_ends_its_call() {
    let mut machine = Machine::leading(Mode::Serve);
    machine.settle_store();
    machine.decides_a_create();
    machine.driver.fleet.memory.get_mut("a").unwrap().pending.insert(Pending::Call);
    machine.on(Message::Written(Err(error(StoreFailure::Unavailable))));
    let outcome = crate::model::action::CallOutcome::Accepted("o".into());
    let input = Box::new(Input::Ordered { slot: "a".into(), generation: 1, outcome });
    machine.on(Message::Answer { term: machine.driver.term(), input });
    assert!(!machine.driver.fleet.memory["a"].pending.contains(&Pending::Call));
}

#[test]
fn s11_a_request_that_was_called_off_while_its_intent_was_written_is_not_sent() {
    for (called_off, sent) in [(false, 1), (true, 0)] {
        let mut machine = Machine::leading(Mode::Serve);
        machine.settle_store();
        machine.decides_a_create();
        if called_off {
            let record = machine.driver.fleet.slots.get_mut("a").unwrap();
            record.recovery = None;
        }
        machine.settle_store();
        assert_eq!(machine.sends(), sent);
    }
}

#[test]
fn s9_who_has_lost_the_lock_stands_by_and_hears_no_answer_of_the_former_term() {
    let mut machine = Machine::leading(Mode::Serve);
    let former = machine.driver.term();
    machine.settle_store();
    machine.wait(seconds(10));
    assert!(matches!(machine.call(), Some(StoreCall::Commit(_))), "a renewal");
    machine.on(Message::Written(Err(error(StoreFailure::Fenced))));
    assert!(!machine.driver.leads() && machine.ended().is_none());
    let answer = |machine: &mut Machine, term| {
        let poll = Poll::of(jiff::Timestamp::UNIX_EPOCH, Vec::new());
        machine.on(Message::Answer { term, input: Box::new(Input::Polled(Box::new(poll))) });
        machine.driver.fleet().polls
    };
    assert_eq!(answer(&mut machine, former), 0);
    machine.takes();
    assert_ne!(machine.driver.term(), former);
    assert_eq!(answer(&mut machine, former), 0, "it was asked in another term");
    let present = machine.driver.term();
    assert_eq!(answer(&mut machine, present), 1);
}

#[test]
fn s9_the_lock_is_renewed_at_a_third_of_its_lease_and_sending_ends_at_two_thirds() {
    let mut machine = Machine::leading(Mode::Serve);
    machine.settle_store();
    machine.polled();
    machine.settle_store();
    let term = machine.driver.journal.term().clone();
    machine.wait(seconds(9));
    assert!(machine.call().is_none());
    machine.wait(seconds(1));
    assert!(matches!(machine.call(), Some(StoreCall::Commit(b)) if b.records.is_empty()));
    machine.wait(seconds(10));
    assert!(!term.may_send(machine.boot), "the renewal hangs");
    machine.wait(seconds(60));
    assert!(!machine.driver.is_alive(machine.boot), "a service manager is told");
}

#[test]
fn a_cycle_ends_when_nothing_is_due_and_gives_the_lock_back() {
    let mut machine = Machine::leading(once(60, 70));
    machine.settle_store();
    assert_eq!(machine.polls(), 1);
    assert!(machine.ended().is_none(), "its poll is under way");
    machine.polled();
    while let Some(call) = machine.call() {
        let releases = matches!(call, StoreCall::Release(_));
        machine.on(Message::Written(Ok(())));
        assert_eq!(machine.ended().is_some(), releases);
    }
    assert!(matches!(machine.ended(), Some(End::Done)));
}

#[test]
fn a_cycle_leaves_its_work_to_another_watchdog_or_says_that_the_store_is_silent() {
    let lease = Lease::next(None, "other", TTL);
    let mut machine = Machine::new(once(20, 25));
    machine.loads(Some(lease.clone()));
    assert!(
        matches!(machine.ended(), Some(End::Another(line)) if line.contains("longer than the deadline"))
    );
    let mut machine = Machine::new(once(60, 70));
    machine.loads(Some(lease.clone()));
    machine.wait(seconds(4));
    machine.loads(Some(Lease { renewals: 1, ..lease }));
    assert!(matches!(machine.ended(), Some(End::Another(line)) if line.contains("is at work")));
    let mut machine = Machine::new(once(60, 70));
    machine.wait(seconds(60));
    assert!(matches!(machine.ended(), Some(End::Failed(e)) if e.message.contains("deadline")));
}

#[test]
fn on_the_way_out_answers_are_waited_for_and_an_open_request_keeps_the_lock() {
    for answered in [true, false] {
        let mut machine = Machine::leading(Mode::Serve);
        machine.settle_store();
        machine.decides_a_create();
        machine.settle_store();
        assert_eq!(machine.sends(), 1);
        machine.on(Message::Stop);
        assert!(machine.call().is_none() && machine.ended().is_none());
        if answered {
            let failure = crate::model::failure::Failure::new(
                crate::model::failure::FailureClass::Transient,
                "no",
            );
            let outcome = crate::model::action::CallOutcome::NotSent(failure);
            let input = Box::new(Input::Called { slot: "a".into(), outcome });
            machine.on(Message::Answer { term: machine.driver.term(), input });
        } else {
            machine.wait(leaving::LAST_ANSWERS);
        }
        let last = machine.call();
        assert_eq!(matches!(last, Some(StoreCall::Release(_))), answered);
        assert_eq!(matches!(last, Some(StoreCall::Commit(_))), !answered);
        machine.on(Message::Written(Ok(())));
        assert!(matches!(machine.ended(), Some(End::Done)));
    }
}

#[test]
fn a_last_write_that_hangs_is_not_waited_for() {
    let mut machine = Machine::leading(Mode::Serve);
    machine.settle_store();
    machine.on(Message::Stop);
    assert!(matches!(machine.call(), Some(StoreCall::Release(_))));
    machine.wait(LAST_WRITE);
    assert!(matches!(machine.ended(), Some(End::Done)));
}

#[test]
fn a_lock_that_is_being_taken_when_told_to_stop_is_given_back() {
    let mut machine = Machine::new(Mode::Serve);
    machine.loads(None);
    machine.call();
    machine.on(Message::Commands(Ok(Vec::new())));
    machine.call();
    machine.on(Message::Stop);
    assert!(machine.ended().is_none(), "it may be ours already");
    machine.on(Message::Taken(Ok(true)));
    assert!(matches!(machine.call(), Some(StoreCall::Release(_))));
    assert_eq!(machine.polls(), 0);
}

#[test]
fn a_reload_takes_effect_in_every_role() {
    let mut machine = Machine::new(Mode::Serve);
    let mut settings = machine.driver.settings().clone();
    settings.dry_run = true;
    machine.on(Message::Reload(Box::new(settings.clone())));
    machine.takes();
    assert!(machine.driver.fleet().settings.dry_run, "also of one that stood by");
    machine.settle_store();
    machine.polled();
    let polls = machine.polls();
    settings.poll.every = seconds(10);
    machine.on(Message::Reload(Box::new(settings)));
    assert_eq!(machine.polls(), polls + 1, "another interval begins at once");
    assert_eq!(machine.driver.fleet().settings.owner, "o", "the store's own id stays");
}

#[test]
fn commands_are_read_with_each_poll_and_work_once() {
    let mut machine = Machine::leading(Mode::Serve);
    assert!(matches!(machine.call(), Some(StoreCall::Commands)));
    let kind = CommandKind::Pause { slot: None, until: None };
    let at = jiff::Timestamp::UNIX_EPOCH;
    let pause = Command { id: "1".into(), at, who: "ada".into(), reason: None, kind };
    machine.on(Message::Commands(Ok(vec![pause.clone()])));
    assert!(machine.driver.fleet().ledger.paused.is_some());
    let Some(StoreCall::Commit(Batch { events, .. })) = machine.call() else { panic!() };
    assert_eq!(events.len(), 1);
    machine.on(Message::Written(Ok(())));
    machine.polled();
    machine.settle_store();
    machine.wait(seconds(30));
    while let Some(call) = machine.call() {
        machine.on(match call {
            StoreCall::Commands => Message::Commands(Ok(vec![pause.clone()])),
            StoreCall::Commit(batch) => {
                assert!(batch.events.is_empty(), "it has worked already");
                Message::Written(Ok(()))
            }
            other => panic!("{other:?}"),
        });
    }
}

#[test]
fn s11_a_journal_that_is_read_again_on_the_way_out_counts_for_the_last_write() {
    let mut machine = Machine::leading(Mode::Serve);
    machine.settle_store();
    machine.decides_a_create();
    machine.call();
    machine.on(Message::Written(Err(error(StoreFailure::Unavailable))));
    machine.wait(seconds(1));
    assert!(matches!(machine.call(), Some(StoreCall::Load)));
    machine.on(Message::Stop);
    let mut stored = Stored::default();
    let kept = SlotRecord::new("kept", "z", jiff::Timestamp::UNIX_EPOCH);
    stored.slots.insert("kept".into(), kept);
    machine.on(Message::Loaded(Ok(Box::new(stored))));
    assert!(matches!(machine.call(), Some(StoreCall::Commands)));
    machine.on(Message::Commands(Ok(Vec::new())));
    assert!(matches!(machine.call(), Some(StoreCall::Commit(_))));
    machine.on(Message::Written(Ok(())));
    assert!(machine.driver.fleet().slots.contains_key("kept"), "memory is what is stored");
    assert!(matches!(machine.call(), Some(StoreCall::Release(batch)) if batch.records.is_empty()));
}

#[test]
fn a_survey_has_its_own_time_and_no_limit_is_cut_to_the_poll_interval() {
    let mut machine = Machine::leading(Mode::Serve);
    let poll = PollSettings {
        every: seconds(5),
        operations: seconds(5),
        timeout: seconds(20),
        max_gap: seconds(300),
    };
    let location = crate::model::settings::CheckpointSettings {
        uri: "gs://b/a".into(),
        format: None,
        orbax_mode: Default::default(),
    };
    let survey =
        crate::model::action::Look::Checkpoints { slot: "a".into(), location, set_aside: None };
    let (slot, zone, filling, nodes) = ("a".into(), "z".into(), Default::default(), vec![]);
    let node = crate::model::action::Look::Node { slot, zone, filling, nodes };
    assert_eq!(poll::limit(&survey, &poll), seconds(120));
    assert_eq!(poll::limit(&node, &poll), seconds(20));
    assert_eq!(
        poll::limit(&node, &PollSettings { every: seconds(60), ..poll.clone() }),
        seconds(60)
    );
    machine.driver.fleet.settings.poll = poll;
    assert_eq!(poll::plan(&machine.driver.fleet).limit, seconds(20));
    // A poll that takes so long is no sign of death.
    machine.settle_store();
    machine.driver.settings.poll.timeout = seconds(300);
    machine.boot += seconds(500);
    assert!(machine.driver.is_alive(machine.boot));
}
