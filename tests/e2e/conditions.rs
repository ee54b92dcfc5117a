//! Every row of the condition table that concerns plain nodes: acted on in the first poll after its
//! grace, not before.

use jiff::SignedDuration;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::harness::{POLICY, Rig, ZONE, job, slot};

/// The DELETE comes only when `grace` (ms) has passed since the trouble, and no poll that could act
/// is passed over.
#[track_caller]
fn recreated(trouble: Trouble, grace: i64) {
    let mut rig = Rig::with_one_node("");
    // Every call leaves in time, also where a write takes long.
    let text = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), text.replace("lease = \"1s\"", "lease = \"30s\"")).unwrap();
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    let at = rig.trouble("a", trouble, None);
    rig.wait_recovered("a", old);
    let delete = rig.mutations().into_iter().find(|m| m.method == "DELETE").expect("a delete");
    let grace = SignedDuration::from_millis(grace);
    assert!(
        delete.at.duration_since(at) >= grace,
        "{trouble:?} was acted on {} after it, grace {grace}",
        delete.at.duration_since(at)
    );
    let polls: Vec<_> = rig.polls().into_iter().filter(|p| p.at >= at).collect();
    let one_poll = SignedDuration::from_millis(300);
    let passed_over = polls
        .iter()
        .filter(|p| p.at.duration_since(polls[0].at) >= grace + one_poll && p.at < delete.at)
        .count();
    assert!(passed_over <= 1, "{trouble:?}: {passed_over} polls after the grace did not act");
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
    assert_eq!(rig.mutations().len(), 2, "{}", rig.mutations_text());
}

#[test]
fn preempted_is_acted_on_in_the_poll_that_first_shows_it() {
    recreated(Trouble::Preempt, 0);
}

#[test]
fn terminated_is_acted_on_in_the_poll_that_first_shows_it() {
    recreated(Trouble::Terminate, 0);
}

#[test]
fn failed_repair_after_its_grace() {
    recreated(Trouble::FailedRepair, 1000);
}

#[test]
fn maintenance_that_does_not_come_back_after_its_grace() {
    recreated(Trouble::Maintenance, 1000);
}

#[test]
fn repairing_without_end_after_its_grace() {
    recreated(Trouble::Repairing, 1000);
}

#[test]
fn restarting_without_end_after_its_grace() {
    recreated(Trouble::Restarting, 1000);
}

#[test]
fn unresponsive_after_its_grace() {
    recreated(Trouble::Unresponsive, 1000);
}

#[test]
fn runtime_unhealthy_after_its_grace() {
    recreated(Trouble::RuntimeUnhealthy, 1000);
}

#[test]
fn missing_is_created_again_without_a_delete() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    let at = rig.trouble("a", Trouble::Vanish, None);
    rig.wait_recovered("a", old);
    let mutations = rig.mutations();
    assert_eq!(mutations.len(), 1, "{}", rig.mutations_text());
    assert_eq!(mutations[0].method, "POST");
    assert!(mutations[0].at.duration_since(at) >= SignedDuration::from_secs(1));
}

#[test]
fn a_missing_node_is_held_when_the_user_wants_that() {
    let mut rig = Rig::with_one_node("");
    rig.configure("", &format!("{POLICY}\nwhen_missing = \"hold\""), &slot("a", ""));
    rig.start();
    rig.wait_polls(2);
    rig.trouble("a", Trouble::Vanish, None);
    rig.wait_for_log("when_missing = \"hold\"");
    rig.wait_polls(3);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}

/// Nothing is done, and the log says why.
#[track_caller]
fn left_alone(trouble: Trouble, lasts: Option<u64>, words: &str) {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", trouble, lasts);
    rig.wait_for_log(words);
    // Well beyond every grace of one second.
    rig.wait_polls(8);
    assert!(rig.mutations().is_empty(), "{trouble:?}: {}", rig.mutations_text());
    assert_eq!(rig.node("a").unwrap().uid, old);
}

/// It is seen, heals, and nothing is done when its grace would have been over.
#[track_caller]
fn heals_in_time(trouble: Trouble, condition: &str) {
    let mut rig = Rig::with_one_node("");
    rig.configure("", &POLICY.replace("= \"1s\"", "= \"5s\""), &slot("a", ""));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    let at = rig.trouble("a", trouble, None);
    rig.wait_for_log(&format!("-> {condition}"));
    let healthy = || rig.logs().matches("-> healthy").count();
    let before = healthy();
    rig.trouble("a", Trouble::Heal, None);
    rig.wait_until("it is seen to be healthy", || healthy() > before);
    let over = at + SignedDuration::from_secs(6);
    rig.wait_until("its grace would be over", || {
        rig.polls().last().is_some_and(|poll| poll.at > over)
    });
    assert!(rig.mutations().is_empty(), "{trouble:?}: {}", rig.mutations_text());
    assert_eq!(rig.node("a").unwrap().uid, old);
}

#[test]
fn maintenance_that_heals_inside_its_grace_costs_nothing() {
    heals_in_time(Trouble::Maintenance, "maintenance");
}

#[test]
fn a_timeout_that_heals_inside_its_grace_costs_nothing() {
    heals_in_time(Trouble::Unresponsive, "unresponsive");
}

#[test]
fn a_failed_repair_that_heals_inside_its_grace_costs_nothing() {
    heals_in_time(Trouble::FailedRepair, "failed_repair");
}

#[test]
fn a_restart_that_ends_inside_its_grace_costs_nothing() {
    heals_in_time(Trouble::Restarting, "starting");
}

#[test]
fn a_repair_that_ends_inside_its_grace_costs_nothing() {
    heals_in_time(Trouble::Repairing, "maintenance");
}

#[test]
fn an_unhealthy_runtime_that_heals_inside_its_grace_costs_nothing() {
    heals_in_time(Trouble::RuntimeUnhealthy, "runtime_unhealthy");
}

#[test]
fn an_ongoing_window_of_a_healthy_node_is_shown_and_judges_nothing() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    rig.trouble("a", Trouble::Window, None);
    rig.wait_until("it is shown", || {
        let slot = rig.status()["tpus"][0].clone();
        slot["condition"] == "healthy"
            && slot["evidence"].as_str().unwrap().contains("upcomingMaintenance ONGOING")
    });
    // Far beyond the grace of a maintenance.
    rig.wait_polls(12);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}

#[test]
fn a_stopped_node_is_left_to_whoever_stopped_it() {
    left_alone(Trouble::Stop, None, "stopped or hidden by another client");
}

#[test]
fn a_hidden_node_is_left_to_whoever_hid_it() {
    left_alone(Trouble::Hide, None, "stopped or hidden by another client");
}

#[test]
fn a_node_that_somebody_deletes_is_waited_for() {
    left_alone(Trouble::Deleting, None, "another client is deleting it");
}

#[test]
fn an_unknown_health_value_means_hold() {
    left_alone(Trouble::Strange, None, "HEALTH_OF_THE_FUTURE");
}

#[test]
fn an_unknown_state_means_hold() {
    left_alone(Trouble::StrangeState, None, "STATE_OF_THE_FUTURE");
}

#[test]
fn an_opted_out_node_is_held() {
    let mut rig = Rig::with_one_node("");
    rig.trouble("a", Trouble::OptOut, None);
    rig.start();
    rig.wait_polls(2);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("opts it out");
    rig.wait_polls(3);
    // Remembered from the last read, so that it holds a missing one, too.
    rig.trouble("a", Trouble::Vanish, None);
    rig.wait_polls(8);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}

/// A node that is not the slot's own plain node is watched and held.
#[track_caller]
fn held_kind(change: impl FnOnce(&mut tpu_watchdog::simulator::things::Node), words: &str) {
    let mut rig = Rig::with_one_node("");
    rig.simulator
        .with(|cloud| change(cloud.nodes.get_mut(&(ZONE.to_owned(), "a".to_owned())).unwrap()));
    rig.start();
    rig.wait_polls(2);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log(words);
    rig.wait_polls(4);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}

#[test]
fn a_node_of_a_queued_resource_is_held() {
    held_kind(
        |node| node.queued_resource = Some("projects/p/locations/z/queuedResources/q".into()),
        "belongs to",
    );
}

#[test]
fn a_node_of_a_multislice_is_held() {
    held_kind(|node| node.multislice = true, "part of a multislice");
}

#[test]
fn a_node_of_api_v1_is_held() {
    held_kind(|node| node.made_by = "V1", "made by API v1");
}

#[test]
fn a_node_of_another_owner_is_held() {
    let mark = |node: &mut tpu_watchdog::simulator::things::Node| {
        node.body
            .insert("metadata".into(), serde_json::json!({"tpu-watchdog-owner": "somebody-else"}));
    };
    held_kind(mark, "\"somebody-else\" owns it");
}

#[test]
fn dry_run_calls_nothing_but_reads() {
    let mut rig = Rig::with_one_node("");
    rig.configure("dry_run = true", POLICY, &slot("a", &job("a")));
    rig.start();
    rig.wait_polls(2);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("recreate: preempted");
    rig.wait_polls(4);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}
