//! Queued resources that are granted and have no nodes, and creates that the API refuses for good.

use super::request::{granted, of_q};
use super::withdrawal::Asked;
use super::*;
use crate::model::command::CommandKind;
use crate::model::condition::Verdict;
use crate::model::queued::RequestView;
use crate::model::settings::WhenMissing;

#[test]
fn a_request_whose_node_is_gone_is_replaced_after_grace_slice_unless_it_was_deleted_on_purpose() {
    /// After how many half minutes the request is deleted that is ACTIVE without its node.
    fn deleted_after(asked: &mut Asked) -> Option<u32> {
        let active = asked.request(&json!({"state": "ACTIVE"}));
        (1..=180).find(|_| {
            asked.lists(active.clone(), vec![]);
            is_delete(&asked.world.actions)
        })
    }
    let polls = deleted_after(&mut granted().0);
    assert!(polls.is_some_and(|polls| (60..=66).contains(&polls)), "{polls:?}");
    // The zone's operations name whoever deleted it.
    let (mut asked, _, _) = granted();
    let at = asked.world.now;
    asked.world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at }]);
    assert_eq!(deleted_after(&mut asked), None);
    let (_, hold, reason) = asked.decision();
    assert_eq!(hold, Some(HoldReason::Deleted), "{reason}");
    assert!(reason.contains("(operation 9). `recreate a` replaces it"), "{reason}");
    let incarnation = asked.world.fleet.slots["a"].incarnation.clone();
    asked.command(CommandKind::Recreate { slot: "a".into(), incarnation });
    assert!(deleted_after(&mut asked).is_some(), "{:?}", asked.decision());
    // The config decides about absence inside a request, too.
    for (policy, hold) in
        [(WhenMissing::Hold, Some(HoldReason::Missing)), (WhenMissing::Create, None)]
    {
        let (mut asked, _, _) = granted();
        let slot = asked.world.fleet.settings.slots.get_mut("a").unwrap();
        slot.policy.when_missing = policy;
        asked.world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at }]);
        assert_eq!(deleted_after(&mut asked).is_none(), hold.is_some(), "{policy:?}");
        assert_eq!(asked.decision().1, hold);
    }
}

#[test]
fn a_request_that_a_person_deletes_after_its_nodes_is_not_made_again() {
    // Google's own way of deleting one: the nodes first, then the request; DELETING was never read.
    for nodes_first in [true, false] {
        let (mut asked, request, _) = granted();
        if nodes_first {
            (0..4).for_each(|_| asked.lists(request.clone(), vec![]));
        }
        let at = asked.world.now;
        asked.world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at }]);
        for _ in 0..40 {
            asked.shows(None);
            asked.answers(None);
            assert!(asked.world.actions.is_empty(), "{nodes_first}: {:?}", asked.world.actions);
        }
        assert_eq!(asked.decision().1, Some(HoldReason::Deleted), "{nodes_first}");
    }
}

#[test]
fn what_a_former_version_held_as_emptied_and_what_never_had_a_node_is_kept() {
    let held = |asked: &mut Asked, request: RequestView| {
        for _ in 0..180 {
            asked.lists(request.clone(), vec![]);
            assert!(asked.world.actions.is_empty(), "{:?}", asked.decision());
        }
        assert_eq!(asked.decision().1, Some(HoldReason::Deleted));
    };
    let (mut asked, request, _) = granted();
    asked.lists(request.clone(), vec![]);
    let record = asked.world.fleet.slots.get_mut("a").unwrap();
    record.verdict = Verdict::new(Condition::Stopped, "and its node was deleted");
    let settings = asked.world.fleet.settings.clone();
    asked.world.input(Input::Configured(Box::new(settings)));
    held(&mut asked, request);
    // One of a person's that is adopted without a node.
    let mut raw = (*Asked::new().request(&json!({"state": "ACTIVE"})).raw).clone();
    raw["tpu"]["nodeSpec"][0]["node"]["metadata"] = json!({});
    held(&mut Asked::unsent(), crate::google::answers::request(raw, true).unwrap());
}

#[test]
fn s3_a_node_that_is_made_again_is_not_judged_by_the_time_without_it() {
    let (mut asked, request, made) = granted();
    (0..56).for_each(|_| asked.lists(request.clone(), vec![]));
    let sick = asked.world.fleet.slots["a"].suspicion.as_ref().unwrap().sick_for;
    assert!(sick >= Duration::from_secs(27 * 60), "{sick:?}");
    let again = asked.world.now.to_string();
    assert!(again > made);
    for _ in 0..18 {
        asked.lists(request.clone(), vec![of_q(&again, json!({"health": "TIMEOUT"}))]);
        assert!(asked.world.actions.is_empty(), "{:?}", asked.decision());
    }
}

#[test]
fn a_delete_from_before_the_present_node_was_made_is_no_reason_of_its_absence() {
    for (later, held) in [(-60, false), (60, true)] {
        let (mut asked, request, _) = granted();
        asked.world.wait(3600);
        let again = asked.world.now;
        let node = of_q(&again.to_string(), json!({}));
        (0..4).for_each(|_| asked.lists(request.clone(), vec![node.clone()]));
        let at = again + jiff::SignedDuration::from_secs(later);
        asked.world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at }]);
        let deleted = (0..90).any(|_| {
            asked.lists(request.clone(), vec![]);
            matches!(asked.world.actions[..], [Action::Delete { .. }])
        });
        assert_eq!(deleted, !held, "{later}: {:?}", asked.decision());
    }
}

#[test]
fn s8_nodes_that_people_delete_are_no_storm() {
    let (mut asked, request, _) = granted();
    let at = asked.world.now;
    asked.world.deletions = Ok(vec![Deletion { operation: "o/9".into(), at }]);
    for _ in 0..80 {
        asked.lists(request.clone(), vec![]);
    }
    assert_eq!(asked.decision().1, Some(HoldReason::Deleted));
    let ledger = &asked.world.fleet.ledger;
    assert!(ledger.storm.is_empty(), "{:?}", ledger.storm);
}

#[test]
fn a_create_that_the_api_refuses_for_good_leaves_its_slot_unprotected() {
    for (class, protected) in [(FailureClass::BadRequest, false), (FailureClass::StockOut, true)] {
        let mut asked = Asked::new();
        asked.world.called("a", CallOutcome::Refused(Failure::new(class, "no v5e-16 here")));
        asked.shows(None);
        let slot = view::document(&asked.world.fleet, asked.world.now).tpus[0].clone();
        assert_eq!(slot.protected, protected, "{:?}", slot.unprotected_reason);
        let why = slot.unprotected_reason.unwrap_or_default();
        assert_eq!(
            why.contains("bad_request): no v5e-16 here. Mend [tpu.create]"),
            !protected,
            "{why}"
        );
    }
}

#[test]
fn s4_a_listing_that_lacks_the_node_of_a_request_says_nothing_before_a_get_says_so_too() {
    let (mut asked, request, made) = granted();
    let nodes = [of_q(&made, json!({}))];
    let condition = |asked: &Asked| asked.world.fleet.slots["a"].verdict.condition;
    asked.is_listed(&request, &[]);
    assert_eq!(condition(&asked), Condition::Unclear);
    assert!(asked.world.looks.iter().any(|look| matches!(look, Look::Node { .. })));
    asked.is_read(&request, &nodes);
    assert_eq!(condition(&asked), Condition::Healthy);
    // The next gap in a listing is confirmed once more, and a read of it is enough.
    asked.is_listed(&request, &[]);
    assert_eq!(condition(&asked), Condition::Unclear);
    asked.is_read(&request, &[]);
    assert_eq!(condition(&asked), Condition::SliceLost);
    asked.is_listed(&request, &[]);
    assert_eq!(condition(&asked), Condition::SliceLost);
    assert!(!asked.world.looks.iter().any(|look| matches!(look, Look::Node { .. })));
    // The next process has nothing to tell.
    asked.world.fleet.memory.clear();
    asked.is_listed(&request, &[]);
    assert_eq!(condition(&asked), Condition::SliceLost);
}
