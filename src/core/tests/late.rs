//! Queued resources that come late, in a zone that their slot has left.

use super::request::{granted, of_q};
use super::withdrawal::Asked;
use super::*;
use crate::model::action::RequestList;
use crate::model::command::CommandKind;
use crate::model::fleet::Stray;
use crate::model::queued::RequestView;

#[test]
fn s21_a_request_that_came_late_in_a_zone_that_was_left_is_followed() {
    let (mut asked, request, made) = granted();
    let mut raw = Value::clone(&request.raw);
    raw["name"] = json!("projects/p/locations/us-east5-a/queuedResources/q");
    raw["state"] = json!({"state": "WAITING_FOR_RESOURCES"});
    let late = crate::google::answers::request(raw, false).unwrap();
    let listing = |zone: &str, nodes: Vec<Arc<NodeView>>, request: RequestView| Listing {
        zone: zone.into(),
        result: Ok((nodes, vec![]).into()),
        requests: Some(Ok(RequestList { requests: vec![request], unreachable: vec![] })),
    };
    let listings = |late: RequestView| {
        vec![
            listing(ZONE, vec![of_q(&made, json!({}))], request.clone()),
            listing("us-east5-a", vec![], late),
        ]
    };
    let poll = |asked: &mut Asked, late: RequestView| {
        asked.world.wait(30);
        let began = asked.world.now;
        asked.world.input(Input::Polled(Box::new(Poll::of(began, listings(late)))));
    };
    // One of before, which a list shows late, is not; nor is another watchdog's.
    asked.world.fleet.slots.get_mut("a").unwrap().left_in = Some("us-east5-a".into());
    asked.world.fleet.slots.get_mut("a").unwrap().left_behind =
        late.created.map(|created| (created, asked.world.now));
    poll(&mut asked, late.clone());
    asked.world.fleet.slots.get_mut("a").unwrap().left_in = None;
    poll(&mut asked, RequestView { owner: Some("other".into()), ..late.clone() });
    assert!(asked.world.fleet.ledger.strays.is_empty());
    poll(&mut asked, late);
    let stray = asked.world.fleet.ledger.strays.get(&Stray::key("us-east5-a", "a")).unwrap();
    assert_eq!(stray.request.as_deref(), Some("q"));
    assert!(asked.looks_at_it(), "it waits, and is withdrawn");
}

#[test]
fn s15_a_request_that_came_late_with_its_node_is_followed_as_a_request() {
    // It was granted while no watchdog ran: the first list shows both. The other time its node was listed first.
    for before in [false, true] {
        let (mut asked, request, made) = granted();
        let mut raw = Value::clone(&request.raw);
        raw["name"] = json!("projects/p/locations/us-east5-a/queuedResources/q");
        let late = crate::google::answers::request(raw, false).unwrap();
        let owner = asked.world.fleet.settings.owner.clone();
        let ours = json!({"tpu-watchdog-owner": owner, "tpu-watchdog-slot": "a"});
        let name = "projects/p/locations/us-east5-a/nodes/a";
        let there = of_q(&made, json!({"name": name, "metadata": ours}));
        let listing = |zone: &str, nodes: Vec<Arc<NodeView>>, requests: Vec<RequestView>| Listing {
            zone: zone.into(),
            result: Ok((nodes, vec![]).into()),
            requests: Some(Ok(RequestList { requests, unreachable: vec![] })),
        };
        let lists = if before { vec![vec![], vec![late]] } else { vec![vec![late]] };
        for late in lists {
            asked.world.wait(30);
            let here = of_q(&made, json!({}));
            let listings = vec![
                listing(ZONE, vec![here], vec![request.clone()]),
                listing("us-east5-a", vec![Arc::clone(&there)], late),
            ];
            let began = asked.world.now;
            asked.world.input(Input::Polled(Box::new(Poll::of(began, listings))));
        }
        let stray = asked.world.fleet.ledger.strays.get(&Stray::key("us-east5-a", "a")).unwrap();
        assert_eq!((stray.request.as_deref(), stray.state.as_deref()), (Some("q"), Some("ACTIVE")));
    }
}

#[test]
fn s21_a_request_that_was_granted_late_fills_the_slot_that_is_without_a_tpu() {
    let (mut asked, request, made) = granted();
    let settings = asked.world.fleet.settings.clone();
    let mut both = settings.clone();
    both.slots.get_mut("a").unwrap().zones.push("us-east5-a".into());
    asked.world.input(Input::Configured(Box::new(both)));
    asked.is_deleted(&json!({"state": "SUSPENDED", "stateInitiator": "SERVICE"}));
    asked.command(CommandKind::Pause { slot: Some("a".into()), until: None });
    asked.world.wait(1);
    let (began, reading) = (asked.world.now, Reading::Absent);
    asked.world.input(Input::Got { slot: "a".into(), began, reading });
    let recovery = asked.world.fleet.slots["a"].recovery.clone().expect("a create is owed");
    assert_eq!((recovery.phase(), recovery.order), (Phase::Gone, None));
    // One of an earlier recovery, in the other zone, was followed as a stray.
    let mut raw = Value::clone(&request.raw);
    raw["name"] = json!("projects/p/locations/us-east5-a/queuedResources/q");
    let late = crate::google::answers::request(raw, false).unwrap();
    let owner = asked.world.fleet.settings.owner.clone();
    let of = "projects/p/locations/us-east5-a/queuedResources/q";
    let there = of_q(
        &made,
        json!({"name": "projects/p/locations/us-east5-a/nodes/a", "queuedResource": of,
        "metadata": {"tpu-watchdog-owner": owner, "tpu-watchdog-slot": "a"}}),
    );
    let stray = Stray::followed("us-east5-a".into(), "a".into(), "late".into(), asked.world.now);
    let stray = Stray { request: Some("q".into()), ..stray };
    asked.world.fleet.ledger.strays.insert(Stray::key("us-east5-a", "a"), stray);
    for _ in 0..4 {
        asked.world.wait(30);
        let listing = |zone: &str, nodes, requests| Listing {
            zone: zone.into(),
            result: Ok((nodes, vec![]).into()),
            requests: Some(Ok(RequestList { requests, unreachable: vec![] })),
        };
        let listings = vec![
            listing(ZONE, vec![], vec![]),
            listing("us-east5-a", vec![Arc::clone(&there)], vec![late.clone()]),
        ];
        let began = asked.world.now;
        asked.world.input(Input::Polled(Box::new(Poll::of(began, listings))));
    }
    let record = &asked.world.fleet.slots["a"];
    assert_eq!(record.zone, "us-east5-a", "{:?}", asked.world.messages);
    assert!(record.ours && record.incarnation.is_some() && record.recovery.is_none());
    assert!(asked.world.fleet.ledger.strays.is_empty());
}
