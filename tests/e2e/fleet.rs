//! Many slots at once: budgets, limits, pages, stock-outs.

use std::time::Duration;

use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{POLICY, Rig, ZONE, slot};

fn many(prefix: &str, count: usize, page_max: usize) -> (String, String) {
    let nodes = format!(
        "page_max = {page_max}\n[[nodes]]\nprefix = \"{prefix}\"\ncount = {count}\nzone = \"{ZONE}\"\n"
    );
    let slots = (0..count).map(|i| slot(&format!("{prefix}{i}"), "")).collect();
    (nodes, slots)
}

#[test]
fn two_hundred_preempted_slots_come_back_paced_by_the_create_limit_alone() {
    let (nodes, slots) = many("n", 200, 100);
    let mut rig = Rig::new(&nodes, POLICY, &slots);
    rig.start();
    rig.wait_polls(2);
    for i in 0..200 {
        rig.trouble(&format!("n{i}"), Trouble::Preempt, None);
    }
    rig.wait_for("all slots are back", Duration::from_secs(600), |cloud| {
        cloud.nodes.len() == 200 && cloud.nodes.values().all(|n| n.state == "READY")
    });
    let creates: Vec<_> = rig.mutations().into_iter().filter(|m| m.method == "POST").collect();
    assert_eq!(creates.len(), 200);
    // The limit is below 60 in any minute; nothing else may have held them back.
    for window in creates.windows(60) {
        let span = window[59].at.duration_since(window[0].at);
        assert!(span.as_secs_f64() >= 59.0, "60 creates within {span}");
    }
    for i in 0..200 {
        assert_eq!(rig.creations(&format!("n{i}")), 2);
    }
}

#[test]
fn three_of_four_sick_slots_are_healed_one_after_the_other_and_none_is_forgotten() {
    let (nodes, slots) = many("n", 4, 100);
    let mut rig = Rig::new(&nodes, POLICY, &slots);
    rig.start();
    rig.wait_polls(2);
    for i in 0..3 {
        rig.trouble(&format!("n{i}"), Trouble::Unresponsive, None);
    }
    rig.wait("all are healthy", |cloud| {
        cloud.nodes.len() == 4
            && cloud
                .nodes
                .values()
                .all(|n| n.state == "READY" && n.health.as_deref() == Some("HEALTHY"))
    });
    let mutations = rig.mutations();
    assert_eq!(mutations.len(), 6, "{}", rig.mutations_text());
    for pair in mutations.chunks(2) {
        // max_unavailable is one of four: a delete, then the create of the same node, then the
        // next.
        assert_eq!(
            (pair[0].method.as_str(), pair[1].method.as_str()),
            ("DELETE", "POST"),
            "{}",
            rig.mutations_text()
        );
        let node = pair[0].path.rsplit('/').next().unwrap();
        assert!(pair[1].path.ends_with(&format!("nodeId={node}")), "{}", rig.mutations_text());
    }
}

#[test]
fn twenty_stock_outs_do_not_lose_the_specification() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let before = rig.node("a").unwrap();
    rig.trouble("", Trouble::StockOut, None);
    rig.trouble("a", Trouble::Preempt, None);
    let refused = |rig: &Rig| rig.mutations().iter().filter(|m| m.method == "POST").count();
    rig.wait("twenty refusals", |_| refused(&rig) >= 20);
    rig.simulator.with(|cloud| cloud.refusals.clear());
    rig.wait_recovered("a", before.uid);
    let after = rig.node("a").unwrap().body;
    for key in ["labels", "schedulingConfig", "acceleratorType", "runtimeVersion"] {
        assert_eq!(after.get(key), before.body.get(key), "{key}");
    }
    assert_eq!(after["metadata"]["startup-script"], before.body["metadata"]["startup-script"]);
}

#[test]
fn a_quota_refusal_is_waited_out() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("", Trouble::Quota, None);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log("(quota)");
    rig.simulator.with(|cloud| cloud.quota.clear());
    rig.wait_recovered("a", old);
}

#[test]
fn the_next_zone_is_tried_on_a_stock_out() {
    let nodes = format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\n");
    let slots = format!("[[tpu]]\nname = \"a\"\nzones = [\"{ZONE}\", \"us-east5-a\"]\n");
    let mut rig = Rig::new(&nodes, POLICY, &slots);
    rig.start();
    rig.wait_polls(2);
    rig.trouble("", Trouble::StockOut, None);
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait("the node is in the second zone", |cloud| {
        cloud
            .nodes
            .get(&("us-east5-a".to_owned(), "a".to_owned()))
            .is_some_and(|n| n.state == "READY")
    });
    rig.wait_polls(4);
    assert!(rig.node("a").is_none());
    assert_eq!(rig.mutations().len(), 3, "{}", rig.mutations_text());
}

#[test]
fn two_thousand_nodes_are_listed_in_pages_and_a_failed_page_declares_nobody_missing() {
    let (nodes, _) = many("n", 2000, 100);
    let slots: String = (0..40).map(|i| slot(&format!("n{}", i * 50), "")).collect();
    let mut rig = Rig::new(&nodes, POLICY, &slots);
    rig.start();
    rig.wait("a whole listing", |_| rig.polls().len() >= 20);
    rig.wait_for_log("unclear -> healthy");
    rig.simulator.set_hook(Some(Box::new(|logged| {
        let reply = Reply::new(500, "");
        logged.path.contains("pageToken=page-1000").then_some(Fault::AnswerBefore(reply))
    })));
    rig.wait_for_log("the listing failed");
    // Much longer than the grace of a missing node.
    let before = rig.polls().len();
    rig.wait("polls go on", |_| rig.polls().len() >= before + 60);
    assert!(!rig.logs().contains("-> missing"), "{}", rig.logs());
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}

#[test]
fn an_unreachable_zone_declares_nobody_missing() {
    let (nodes, slots) = many("n", 4, 100);
    let mut rig = Rig::new(&nodes, POLICY, &slots);
    rig.start();
    rig.wait_polls(2);
    rig.trouble("", Trouble::Unreachable, None);
    rig.wait_for_log("could not reach the zone");
    rig.wait_polls(8);
    assert!(!rig.logs().contains("-> missing"), "{}", rig.logs());
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    rig.simulator.with(|cloud| cloud.unreachable.clear());
    rig.wait_for_log("unclear -> healthy");
}

#[test]
fn an_empty_listing_alone_creates_nothing() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    rig.simulator.set_hook(Some(Box::new(|logged| {
        (logged.method == "GET" && logged.path.contains("/nodes?"))
            .then(|| Fault::AnswerBefore(Reply::new(200, "{}")))
    })));
    rig.wait_for_log("absent from the listing");
    rig.wait_polls(8);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}

#[test]
fn a_slot_that_does_not_exist_yet_is_created_from_the_config_or_held() {
    let create = "[tpu.create]\naccelerator_type = \"v4-16\"\nruntime_version = \"tpu-ubuntu2204-base\"\nspot = true\nlabels = { team = \"x\" }\n";
    let slots = format!("{}{}", slot("new", create), slot("vague", ""));
    let mut rig = Rig::new("", POLICY, &slots);
    rig.start();
    rig.wait_recovered("new", 0);
    rig.wait_for_log("no TPU of this name was ever seen in");
    rig.wait_polls(3);
    assert_eq!(rig.mutations().len(), 1, "{}", rig.mutations_text());
    let body = rig.node("new").unwrap().body;
    assert_eq!(
        (&body["acceleratorType"], &body["schedulingConfig"]["spot"]),
        (&"v4-16".into(), &true.into())
    );
}

#[test]
fn many_zones_are_listed_in_one_call_and_those_it_could_not_reach_declare_nobody_missing() {
    let zones: Vec<String> =
        (1..=5).flat_map(|n| ["a", "b"].map(|z| format!("us-east{n}-{z}"))).collect();
    let nodes: String = zones
        .iter()
        .enumerate()
        .map(|(i, z)| format!("[[nodes]]\nnames = [\"n{i}\"]\nzone = \"{z}\"\n"))
        .collect();
    let slots: String = zones
        .iter()
        .enumerate()
        .map(|(i, z)| format!("[[tpu]]\nname = \"n{i}\"\nzone = \"{z}\"\n"))
        .collect();
    let mut rig = Rig::new(&nodes, POLICY, &slots);
    rig.start();
    rig.wait_polls(2);
    assert!(rig.polls().iter().all(|p| p.path.contains("/locations/-/nodes")), "{:?}", rig.polls());
    rig.simulator.with(|cloud| cloud.unreachable.insert(zones[3].clone(), jiff::Timestamp::MAX));
    rig.wait_for_log("could not reach the zone");
    rig.wait_polls(8);
    assert!(!rig.logs().contains("-> missing"), "{}", rig.logs());
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    // The other zones are looked after meanwhile.
    let trouble = tpu_watchdog::simulator::trouble::Event {
        at: Duration::ZERO,
        node: "n0".into(),
        zone: zones[0].clone(),
        what: Trouble::Preempt,
        lasts: None,
    };
    rig.simulator.with(|cloud| cloud.trouble(trouble));
    rig.wait("n0 is back", |cloud| {
        cloud.creations["n0"] == 2 && cloud.nodes.values().all(|n| n.state == "READY")
    });
}
