//! Queued resources without a TPU: how long they wait, and what follows when they have failed.

use super::amend::present;
use super::runs::with_checkpoints;
use super::withdrawal::{Asked, waiting};
use super::*;
use crate::model::command::CommandKind;
use crate::model::ids::RunOrder;
use crate::model::queued::RequestView;
use crate::model::view::ActionName;

fn provisioning() -> Value {
    json!({"state": "PROVISIONING"})
}

fn failed(code: i64, message: &str) -> Value {
    json!({"state": "FAILED", "failedData": {"error": {"code": code, "message": message}}})
}

impl Asked {
    /// The request fails, and is removed.
    fn fails(&mut self, state: &Value) {
        self.is_deleted(state);
        self.answers(None);
        self.world.wait(30);
    }

    /// It fails, and the operation of its delete ends. Returns that delete's request id.
    pub fn is_deleted(&mut self, state: &Value) -> Option<String> {
        self.shows(Some(state));
        for _ in 0..8 {
            if is_delete(&self.world.actions) {
                break;
            }
            self.shows(Some(state));
        }
        let [Action::Delete { force: false, stray: false, request_id, .. }] =
            &self.world.actions[..]
        else {
            panic!("{:?} {:?}", self.world.actions, self.world.fleet.slots["a"].decision)
        };
        let request_id = request_id.clone();
        self.world.called("a", CallOutcome::Accepted(OPERATION.into()));
        self.world.done("a", OperationState::Succeeded);
        request_id
    }

    /// Whether another request is sent within two hours.
    fn asks_again(&mut self) -> bool {
        self.asks_within(240)
    }

    pub fn decision(&self) -> (ActionName, Option<HoldReason>, String) {
        let decision = self.world.fleet.slots["a"].decision.clone().unwrap();
        (decision.action, decision.hold, decision.reason)
    }
}

const CLOSED: &str = "User does not have permission to submit requests into this queue for accelerator type v4-8 in location us-central2-b.";

#[test]
fn a_place_in_the_queue_is_kept_for_days_and_nothing_is_told() {
    let mut asked = Asked::new();
    for _ in 0..2 * 86_400 / 30 {
        asked.shows(Some(&waiting()));
        assert!(asked.world.actions.is_empty());
    }
    let (action, hold, reason) = asked.decision();
    assert_eq!((action, hold), (ActionName::Wait, None));
    assert!(reason.contains("waiting for capacity"), "{reason}");
}

#[test]
fn a_request_that_is_provisioned_for_too_long_is_told_by_its_own_clock_and_never_deleted() {
    let mut asked = Asked::new();
    for _ in 0..240 {
        asked.shows(Some(&waiting()));
    }
    // 45 min from PROVISIONING, not from the request.
    for poll in 0..=120 {
        asked.shows(Some(&provisioning()));
        let (_, hold, reason) = asked.decision();
        let wanted = (poll >= 90).then_some(HoldReason::CreateUnresolved);
        assert_eq!(hold, wanted, "poll {poll}: {reason}");
        assert!(asked.world.actions.is_empty());
    }
    let reason = asked.decision().2;
    assert!(reason.contains("longer than grace.provision (45m)"), "{reason}");
    // It goes back into the queue: the clock begins again.
    asked.shows(Some(&waiting()));
    asked.shows(Some(&provisioning()));
    assert_eq!(asked.decision().1, None);
}

#[test]
fn a_request_that_is_being_taken_away_is_waited_for_and_told_after_an_hour() {
    let mut asked = Asked::new();
    asked.shows(Some(&waiting()));
    for poll in 0..=130 {
        asked.shows(Some(&json!({"state": "SUSPENDING", "stateInitiator": "SERVICE"})));
        let (action, hold, reason) = asked.decision();
        let since = asked.world.fleet.slots["a"].since;
        let told = (asked.world.now >= after(since, Duration::from_secs(3600)))
            .then_some(HoldReason::Deleting);
        assert_eq!(hold, told, "poll {poll}: {reason}");
        assert_eq!(action == ActionName::Escalate, told.is_some(), "poll {poll}: {reason}");
        assert!(asked.world.actions.is_empty() && asked.world.fleet.slots["a"].request.is_some());
    }
    let (_, hold, reason) = asked.decision();
    assert_eq!(hold, Some(HoldReason::Deleting));
    assert!(reason.contains("gcloud compute tpus queued-resources describe q"), "{reason}");
    // Once it is suspended it is removed, and asked for again.
    asked.fails(&json!({"state": "SUSPENDED", "stateInitiator": "SERVICE"}));
    assert!(asked.asks_again());
}

#[test]
fn l9_a_request_that_failed_for_want_of_capacity_is_removed_and_asked_for_again() {
    let mut asked = Asked::new();
    for _ in 0..8 {
        asked.fails(&failed(8, "There is no more capacity in the zone"));
        assert!(asked.asks_again());
    }
    // A quota that others use up ends with what they delete.
    asked
        .fails(&failed(8, "Quota limit 'TPUV6E' has been exceeded. Limit: 64 in region us-east5."));
    assert!(asked.asks_again());
    assert!(asked.world.fleet.slots["a"].attempts.len() <= 1, "uncounted");
}

#[test]
fn l9_a_request_that_another_one_would_follow_into_failure_is_removed_and_its_create_held() {
    let reasons = [
        failed(7, CLOSED),
        failed(3, "CloudTpu received an invalid AcceleratorType"),
        failed(7, "This API method requires billing to be enabled. Please enable billing"),
    ];
    for state in reasons {
        let mut asked = Asked::new();
        asked.fails(&state);
        assert!(!asked.asks_again(), "{state}");
        let (action, hold, reason) = asked.decision();
        assert_eq!((action, hold), (ActionName::Escalate, Some(HoldReason::RequestRefused)));
        assert!(reason.contains("`retry a`"), "{reason}");
        asked.command(CommandKind::Retry { slot: "a".into(), from: None });
        assert!(asked.asks_again(), "{state}");
    }
}

#[test]
fn a_reason_that_no_rule_knows_is_tried_once_more() {
    for state in [
        failed(2, "something new"),
        json!({"state": "FAILED"}),
        // Quotas that people raise; what was just deleted may still count.
        failed(8, "Quota limit 'TPUV6EPerProject' has been exceeded. Limit: 0 in region us-east5."),
        failed(8, "Quota 'IN_USE_ADDRESSES' exceeded. Limit: 8.0 in region us-central2."),
    ] {
        let mut asked = Asked::new();
        asked.fails(&state);
        assert!(asked.asks_again(), "once more");
        asked.fails(&state);
        assert!(!asked.asks_again(), "{state}");
        assert_eq!(asked.decision().1, Some(HoldReason::RequestRefused));
        asked.command(CommandKind::Retry { slot: "a".into(), from: None });
        assert!(asked.asks_again());
    }
}

#[test]
fn a_delete_of_a_request_is_done_when_a_read_says_so_too() {
    let state = failed(8, "There is no more capacity in the zone");
    let phase = |asked: &Asked| {
        asked.world.fleet.slots["a"].recovery.as_ref().map(|recovery| recovery.phase())
    };
    let mut asked = Asked::new();
    let first = asked.is_deleted(&state);
    assert_eq!(phase(&asked), Some(Phase::Deleting));
    // The operation has ended, and the request is there all the same.
    asked.answers(Some(&state));
    assert_eq!(phase(&asked), Some(Phase::Condemned), "it is deleted once more");
    // The API would answer the same call with its former operation.
    assert_ne!(asked.is_deleted(&state), first);
    asked.answers(None);
    asked.world.wait(30);
    assert_eq!(phase(&asked), Some(Phase::Gone));
    assert!(asked.asks_again());
}

#[test]
fn a_request_that_waited_out_its_time_is_asked_for_again() {
    let mut asked = Asked::new();
    // Of ours waits for 7 days, where the config does not say.
    for _ in 0..3 {
        asked.world.wait(7 * 86_400);
        asked.fails(&failed(4, "something about an interval"));
        assert!(asked.asks_again());
    }
}

#[test]
fn s14_while_a_request_waits_in_the_queue_of_a_pool_no_judged_slot_there_is_destroyed() {
    let deletes_other = |asked: &mut Asked| {
        if asked.world.asks("b") {
            asked.world.wait(1);
            let shown = node("b", asked.other.clone());
            asked.world.get("b", Some(shown));
        }
        asked.world.actions.iter().any(|action| action.slot() == "b")
    };
    let mut asked = Asked::new();
    asked.other = timeout();
    for _ in 0..60 {
        asked.shows(Some(&waiting()));
        assert!(!deletes_other(&mut asked), "{:?}", asked.world.messages);
    }
    assert_eq!(asked.world.hold("b"), Some(HoldReason::ZoneShort));
    let reason = asked.world.fleet.slots["b"].decision.clone().unwrap().reason;
    assert!(reason.contains("a queued resource has waited for capacity in the pool"), "{reason}");
    // It is being filled: there is capacity.
    let deleted = (0..10).any(|_| {
        asked.shows(Some(&provisioning()));
        deletes_other(&mut asked)
    });
    assert!(deleted, "{:?}", asked.world.fleet.slots["b"].decision);
    // A queue that never moves does not keep it for ever: one is tried in two hours.
    let mut asked = Asked::new();
    asked.other = timeout();
    let deleted = (0..260).position(|_| {
        asked.shows(Some(&waiting()));
        deletes_other(&mut asked)
    });
    assert!(deleted.is_some_and(|poll| poll >= 239), "{deleted:?}");
}

#[test]
fn a_zone_that_is_closed_is_left_for_one_that_may_have_capacity() {
    let mut asked = Asked::new();
    let mut settings = asked.world.fleet.settings.clone();
    settings.slots.get_mut("a").unwrap().zones = vec!["us-east5-a".into(), ZONE.into()];
    asked.world.input(Input::Configured(Box::new(settings)));
    // The last of the list is closed; the first was never asked.
    asked.fails(&failed(7, CLOSED));
    let sent = |asked: &mut Asked| {
        (0..60).find_map(|_| {
            asked.shows(None);
            asked.world.actions.iter().find_map(|action| match action {
                Action::Create { zone, .. } => Some(zone.clone()),
                _ => None,
            })
        })
    };
    assert_eq!(sent(&mut asked).as_deref(), Some("us-east5-a"), "{:?}", asked.decision());
    // Without capacity there the closed one is not asked all the same.
    let short = Failure::new(FailureClass::StockOut, "no more capacity");
    asked.world.called("a", CallOutcome::Refused(short));
    asked.answers(None);
    assert_eq!(sent(&mut asked).as_deref(), Some("us-east5-a"), "{:?}", asked.decision());
}

#[test]
fn what_was_asked_for_and_is_gone_keeps_no_pool_short() {
    let mut asked = Asked::new();
    for _ in 0..40 {
        asked.shows(Some(&waiting()));
    }
    assert_eq!(asked.world.fleet.ledger.pools.len(), 1);
    asked.command(CommandKind::Forget { slot: "a".into(), purge: false });
    asked.shows(None);
    asked.shows(None);
    assert!(asked.world.fleet.ledger.pools.is_empty(), "{:?}", asked.world.fleet.ledger.pools);
}

#[test]
fn flex_start_capacity_that_is_about_to_run_out_asks_its_job_for_a_checkpoint() {
    let mut world = with_checkpoints();
    let mut settings = world.fleet.settings.clone();
    settings.slots.get_mut("a").unwrap().job.as_mut().unwrap().on_notice = Some("SIGUSR1".into());
    world.input(Input::Configured(Box::new(settings)));
    let node = world.at_work("v3");
    let ends_at = after(world.now, Duration::from_secs(3600));
    let asked = (1..=120).find(|_| {
        world.wait(29);
        let mut view = NodeView::parse(node.clone()).unwrap();
        (view.times.ends_at, view.fingerprint) = (Some(ends_at), view.fingerprint ^ 1);
        let idle = ["idle-1", "idle-2"].map(|name| NodeView::parse(super::node(name, json!({}))));
        let nodes = idle.into_iter().map(Result::unwrap).chain([view]).map(Arc::new).collect();
        world.poll_result(Ok((nodes, vec![])));
        world.wait(1);
        world.workers_say(&[(1, "v3", None)]);
        world.run_order().is_some()
    });
    assert_eq!(asked, Some(90), "15 min before");
    assert_eq!(world.run_order(), Some(RunOrder { notice: true, ..present(&node) }));
}

#[test]
fn flex_start_capacity_that_has_run_out_is_lost_and_was_not_stopped() {
    let ends = |asked: &Asked, left: i64| {
        let ends_at = asked.world.now + jiff::SignedDuration::from_secs(left);
        let mut request = asked.request(&json!({"state": "ACTIVE"}));
        request.times.ends_at = Some(ends_at);
        request
    };
    let condition = |asked: &Asked| asked.world.fleet.slots["a"].verdict.condition;
    let mut asked = Asked::new();
    let request = ends(&asked, 3600);
    let made = asked.world.now.to_string();
    let node = |state: &str| {
        let of = "projects/p/locations/us-central2-b/queuedResources/q";
        let raw = json!({"state": state, "queuedResource": of, "createTime": made});
        Arc::new(NodeView::parse(super::node("a", raw)).unwrap())
    };
    asked.lists(request.clone(), vec![node("READY")]);
    assert_eq!(condition(&asked), Condition::Healthy);
    // Before the end a node that is gone may come back.
    asked.lists(request.clone(), vec![]);
    assert_eq!(condition(&asked), Condition::SliceLost);
    asked.lists(request.clone(), vec![node("READY")]);
    asked.world.wait(3600);
    asked.lists(request.clone(), vec![node("DELETING")]);
    assert!(asked.world.fleet.slots["a"].deleted.is_none(), "its time was over");
    let gone = (1..=20).find(|_| {
        asked.lists(request.clone(), vec![]);
        is_delete(&asked.world.actions)
    });
    assert!(gone.is_some_and(|polls| (4..=6).contains(&polls)), "grace.missing: {gone:?}");
    let evidence = &asked.world.fleet.slots["a"].verdict.evidence;
    assert!(evidence.contains("its capacity ends at"), "{evidence}");
}

#[test]
fn l9_the_reason_of_a_request_is_kept_when_a_read_lags_behind_its_delete() {
    let mut asked = Asked::new();
    let state = failed(7, CLOSED);
    asked.is_deleted(&state);
    asked.answers(Some(&state));
    for _ in 0..20 {
        asked.shows(None);
    }
    let (_, hold, reason) = asked.decision();
    assert_eq!(hold, Some(HoldReason::RequestRefused), "{reason}");
    assert!(!asked.asks_again(), "the queue is closed");
}

/// A node of the request `q`.
pub fn of_q(made: &str, more: Value) -> Arc<NodeView> {
    let of = "projects/p/locations/us-central2-b/queuedResources/q";
    let mut raw = json!({"state": "READY", "queuedResource": of, "createTime": made});
    raw.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    Arc::new(NodeView::parse(super::node("a", raw)).unwrap())
}

/// The request is ACTIVE, and its node at work.
pub fn granted() -> (Asked, RequestView, String) {
    let mut asked = Asked::new();
    let (request, made) = (asked.request(&json!({"state": "ACTIVE"})), asked.world.now.to_string());
    asked.lists(request.clone(), vec![of_q(&made, json!({}))]);
    assert_eq!(asked.world.fleet.slots["a"].verdict.condition, Condition::Healthy);
    (asked, request, made)
}

#[test]
fn a_request_that_the_service_deletes_was_not_deleted_by_a_person() {
    for (by, deleted) in [("SERVICE", false), ("USER", true)] {
        let (mut asked, _, made) = granted();
        let state = json!({"state": "DELETING", "stateInitiator": by});
        asked.lists(asked.request(&state), vec![of_q(&made, json!({}))]);
        assert_eq!(asked.world.fleet.slots["a"].deleted.is_some(), deleted, "{by}");
    }
}

#[test]
fn a_delete_of_ours_that_took_the_node_alone_is_finished() {
    let (mut asked, request, made) = granted();
    let sick = || of_q(&made, json!({"health": "TIMEOUT"}));
    let deletes = |asked: &Asked| matches!(asked.world.actions[..], [Action::Delete { .. }]);
    let sent = (0..120).any(|_| {
        asked.lists(request.clone(), vec![sick()]);
        deletes(&asked)
    });
    assert!(sent, "{:?}", asked.world.fleet.slots["a"].decision);
    asked.world.called("a", CallOutcome::Accepted(OPERATION.into()));
    let why = Failure::new(FailureClass::Internal, "the nodes are gone, the request is not");
    asked.world.done("a", OperationState::Failed(why));
    let again = (0..20).any(|_| {
        asked.lists(request.clone(), vec![]);
        deletes(&asked)
    });
    assert!(again, "{:?}", asked.world.fleet.slots["a"].decision);
}

#[test]
fn a_request_of_ours_that_is_taken_up_once_more_is_known_as_ours() {
    let (mut asked, request, made) = granted();
    asked.world.fleet.slots.get_mut("a").unwrap().request = None;
    asked.world.fleet.slots.get_mut("a").unwrap().incarnation = None;
    let owner = asked.world.fleet.settings.owner.clone();
    let ours = json!({"metadata": {"tpu-watchdog-owner": owner, "tpu-watchdog-slot": "a"}});
    asked.lists(request, vec![of_q(&made, ours)]);
    assert_eq!(asked.world.fleet.slots["a"].request.as_deref(), Some("q"));
}

#[test]
fn s7_s12_a_request_without_its_node_shows_neither_the_label_nor_the_keys_that_the_node_had() {
    for off in [true, false] {
        let (mut asked, request, made) = granted();
        let labels =
            |off: bool| if off { json!({"tpu-watchdog": "off"}) } else { json!({"a": "b"}) };
        // The request has the other label, and a key that was taken off its node.
        let mut raw = Value::clone(&request.raw);
        let wanted = &mut raw["tpu"]["nodeSpec"][0]["node"];
        (wanted["labels"], wanted["metadata"]["old"]) = (labels(!off), json!("x"));
        let request = |state: Value| {
            let mut raw = raw.clone();
            raw["state"] = state;
            crate::google::answers::request(raw, false).unwrap()
        };
        let mut metadata = raw["tpu"]["nodeSpec"][0]["node"]["metadata"].clone();
        metadata.as_object_mut().unwrap().remove("old");
        let node = of_q(&made, json!({"labels": labels(off), "metadata": metadata}));
        asked.lists(request(json!({"state": "ACTIVE"})), vec![node]);
        let suspended = request(json!({"state": "SUSPENDED", "stateInitiator": "SERVICE"}));
        asked.lists(suspended, vec![]);
        let record = &asked.world.fleet.slots["a"];
        assert_eq!(record.verdict.condition, Condition::Preempted);
        assert_eq!(record.seen.as_ref().unwrap().opted_out, off);
        let learned = Value::Object(record.spec.as_ref().unwrap().body().clone());
        assert_eq!(learned.pointer("/metadata/old"), None, "{learned}");
    }
}

#[test]
fn the_request_of_a_slot_is_shown_with_its_state_and_since_when() {
    let mut asked = Asked::new();
    let shown = |asked: &Asked| {
        let tpu = view::document(&asked.world.fleet, asked.world.now).tpus.remove(0);
        tpu.request.map(|of| (of.name, of.state, of.since))
    };
    let first = shown(&asked);
    asked.shows(Some(&waiting()));
    assert_eq!(shown(&asked), first);
    assert!(first.is_some_and(|(name, state, _)| name == "q" && state == "WAITING_FOR_RESOURCES"));
    asked.shows(Some(&provisioning()));
    let then = asked.world.now;
    // It reads otherwise, and is in the same state.
    asked.shows(Some(&json!({"state": "PROVISIONING", "provisioningData": {}})));
    assert_eq!(shown(&asked), Some(("q".into(), "PROVISIONING".into(), then)));
}
