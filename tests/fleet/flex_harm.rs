//! Ways in which a request ahead could become a second grant, or an unwanted one: a TPU that a person deleted, lists that lack it for a
//! while, a journal that is lost, a config that names it.

use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::model::hold::HoldReason;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::flex_start::{CONFIG, TIMES, ZONE, asked, at_work};
use crate::world::{World, minutes};

impl World {
    fn person_deletes(&mut self, id: &str) {
        let path = format!("v2/projects/p/locations/{ZONE}/queuedResources/{id}");
        let force = [("force".to_owned(), "true".to_owned())].into();
        assert_eq!(self.call("DELETE", &path, &force, None).0, 200);
    }

    fn hold_of(&self, slot: &str) -> Option<HoldReason> {
        self.fleet().slots[slot].decision.as_ref().and_then(|decision| decision.hold)
    }

    fn story(&self) -> String {
        format!("{}\n{}", self.state("a"), self.log.join("\n"))
    }
}

#[test]
fn a_tpu_that_a_person_deleted_is_followed_by_no_request_ahead() {
    // Asked for already.
    let mut world = asked();
    world.person_deletes("qr");
    world.with_one_grant(minutes(15));
    assert!(world.request_ids().is_empty(), "{}", world.story());
    assert_eq!(world.hold_of("a"), Some(HoldReason::Deleted), "{}", world.story());
    world.with_one_grant(minutes(90));
    assert!(world.request_ids().is_empty(), "{}", world.story());
    // Deleted while no watchdog runs, and not asked for yet.
    let mut world = at_work();
    world.stop();
    world.person_deletes("qr");
    world.run_for(minutes(5));
    world.start("two");
    world.with_one_grant(minutes(240));
    assert!(world.request_ids().is_empty(), "{}", world.story());
    assert_eq!(world.hold_of("a"), Some(HoldReason::Deleted), "{}", world.story());
    // An operator wants it after all.
    world.command(CommandKind::Retry { slot: "a".into(), from: None });
    world.with_one_grant(minutes(15));
    assert!(world.is_ready(ZONE, "a"), "{}", world.story());
}

#[test]
fn s2_nothing_is_asked_for_ahead_of_an_end_that_was_read_long_ago() {
    let mut world = at_work();
    world.with_one_grant(minutes(95));
    world.trouble(ZONE, "", Trouble::Unreachable, Some(minutes(40)));
    world.with_one_grant(minutes(38));
    assert_eq!(world.request_ids(), ["qr"], "{}", world.story());
    world.with_one_grant(minutes(10));
    assert_eq!(world.request_ids(), ["qr", "qr-next"], "{}", world.story());
}

#[test]
fn s4_s21_a_request_ahead_that_lists_lack_is_kept_for_a_while_and_followed_when_it_shows_again() {
    for (lacking, kept) in [(5, true), (25, false)] {
        let mut world = asked();
        world.hidden.insert("qr-next".into());
        world.with_one_grant(minutes(lacking));
        world.hidden.clear();
        world.with_one_grant(minutes(10));
        // One that was given up is withdrawn: another one follows at the end.
        assert_eq!(world.request_ids().contains(&"qr-next"), kept, "{}", world.story());
        world.with_one_grant(minutes(60));
        let node = if kept { "a-next" } else { "a" };
        assert!(world.is_ready(ZONE, node), "{lacking}: {}", world.story());
        assert!(world.fleet().ledger.strays.is_empty(), "{}", world.story());
    }
}

#[test]
fn s21_a_journal_that_is_lost_makes_no_second_grant_in_any_zone_and_at_no_time() {
    // Filled by its next request in its second zone; or before its end.
    for filled in [true, false] {
        let zones = format!("zones = [\"us-east5-a\", \"{ZONE}\"]");
        let config = CONFIG.replace(&format!("zone = \"{ZONE}\""), &zones);
        let mut world = World::new(&config, TIMES, Box::new(SqliteStore::in_memory().unwrap()));
        world.trains("a", 3_000);
        world.trouble("us-east5-a", "", Trouble::StockOut, None);
        world.settings.slots.get_mut("a").unwrap().policy.grace.queue =
            Some(std::time::Duration::from_secs(60));
        world.start("one");
        world.with_one_grant(minutes(40));
        assert!(world.is_ready(ZONE, "a"), "{}", world.story());
        world.with_one_grant(minutes(if filled { 180 } else { 120 }));
        assert!(world.request_ids().contains(&"qr-next"), "{}", world.story());
        let there = world.request_ids().len();
        world.stop();
        world.store = Box::new(SqliteStore::in_memory().unwrap());
        world.start("two");
        world.with_one_grant(minutes(10));
        if !filled {
            world.command(CommandKind::Resume { slot: Some("a".into()), adopt: true });
        }
        world.with_one_grant(minutes(120));
        assert!(world.request_ids().len() <= there, "{}", world.story());
        let told = |world: &World| {
            let told = world.fleet().slots["a"].decision.clone().unwrap();
            let advice = "set queued_resource = \"qr-next\"";
            assert!(told.reason.contains(advice), "{told:?} {}", world.story());
        };
        told(&world);
        // Neither a list that fails nor another process forgets it.
        world.trouble(ZONE, "", Trouble::Unreachable, Some(minutes(5)));
        world.with_one_grant(minutes(10));
        world.restart();
        world.with_one_grant(minutes(10));
        assert!(world.request_ids().len() <= there, "{}", world.story());
        told(&world);
        if filled {
            continue;
        }
        // Once that one is over it can't be granted, and holds nothing.
        let key = (ZONE.to_owned(), "qr-next".to_owned());
        world.cloud.queued.get_mut(&key).unwrap().state = "SUSPENDED";
        world.cloud.nodes.retain(|(_, name), _| name != "a-next");
        world.with_one_grant(minutes(30));
        assert!(world.is_ready(ZONE, "a"), "{}", world.story());
    }
}

#[test]
fn a_config_that_names_the_request_that_fills_the_slot_keeps_it_at_work_over_the_next_end() {
    let mut world = asked();
    world.with_one_grant(minutes(60));
    assert!(world.is_ready(ZONE, "a-next"), "{}", world.story());
    let named = tpu_watchdog::model::filling::Filling::QueuedResource("qr-next".into());
    world.settings.slots.get_mut("a").unwrap().filling = named;
    world.reload();
    world.with_one_grant(minutes(200));
    assert!(world.is_ready(ZONE, "a"), "the next end has passed: {}", world.story());
    let sent = world.sent.len();
    world.reload();
    world.with_one_grant(minutes(10));
    world.restart();
    world.with_one_grant(minutes(10));
    assert_eq!(world.sent.len(), sent, "{}", world.story());
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", world.story());
    assert!(world.fleet().ledger.strays.is_empty(), "{}", world.story());
}

#[test]
fn a_command_that_is_changed_after_the_next_request_was_asked_for_runs_on_the_next_capacity() {
    let mut world = at_work();
    world.command(CommandKind::Relaunch { slot: "a".into() });
    world.with_one_grant(minutes(135));
    assert!(world.fleet().ledger.orders_followed && world.request_ids().len() == 2);
    let job = world.settings.slots.get_mut("a").unwrap().job.as_mut().unwrap();
    job.command = Some("python3 other.py".into());
    world.reload();
    world.with_one_grant(minutes(75));
    let run = world.run_on("a").unwrap_or_else(|| panic!("{}", world.story()));
    assert!(!run.order.wait, "{run:?} {}", world.story());
    assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", world.story());
}

#[test]
fn s15_a_request_ahead_that_was_granted_before_it_could_be_withdrawn_waits_and_is_told_of_its_slot()
{
    let mut world = asked();
    let key = (ZONE.to_owned(), "qr-next".to_owned());
    world.cloud.queued.get_mut(&key).unwrap().valid_after = None;
    while world.cloud.queued[&key].state != "PROVISIONING" {
        world.run_for(1_000);
    }
    world.command(CommandKind::Forget { slot: "a".into(), purge: false });
    world.run_for(minutes(10));
    let run = world.run_on("a-next").unwrap_or_else(|| panic!("{}", world.story()));
    assert!(run.order.wait, "{run:?} {}", world.story());
    let told = |line: &&String| line.contains("`retry a` takes it up");
    assert!(world.log.iter().any(|line| told(&line)), "{}", world.story());
}

#[test]
fn l8_machines_that_wait_and_can_not_be_heard_are_told() {
    let mut world = at_work();
    world.command(CommandKind::Relaunch { slot: "a".into() });
    world.with_one_grant(minutes(135));
    assert!(world.fleet().ledger.orders_followed && world.request_ids().len() == 2);
    world.deaf = true;
    world.with_one_grant(minutes(100));
    assert_eq!(world.hold_of("a"), Some(HoldReason::NoBeaconChannel), "{}", world.story());
    world.deaf = false;
    world.with_one_grant(minutes(10));
    let run = world.run_on("a-next").unwrap_or_else(|| panic!("{}", world.story()));
    assert!(!run.order.wait, "{}", world.story());
    assert_eq!(world.hold_of("a"), None, "{}", world.story());
}
