//! Patches of a node's metadata: one key is changed or all of ours taken out, on exactly the node
//! that is meant, and every other key stays.

use std::time::Duration;

use serde_json::{Value, json};
use tpu_watchdog::google::tpu::TpuClient;
use tpu_watchdog::model::action::{Action, CallOutcome};
use tpu_watchdog::model::failure::FailureClass;
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::ids::{Incarnation, RunOrder};
use tpu_watchdog::model::relaunch::Patch;
use tpu_watchdog::model::spec::NodeSpec;
use tpu_watchdog::resource::spec::SUPERVISOR_MARK;
use tpu_watchdog::simulator::http::Simulator;

use crate::{ZONE, in_a_minute, peer};

fn order(generation: u64) -> RunOrder {
    RunOrder { generation, ..RunOrder::default() }
}

/// A node of generation 4 with a person's own metadata, and its incarnation.
async fn node() -> (Simulator, TpuClient, Incarnation) {
    let (simulator, client, _) = peer(Duration::from_secs(10)).await;
    let own = json!({"startup-script": "#! /bin/sh\n", "team": "llm"});
    let raw = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "metadata": own});
    let supervisor = format!("#! /bin/bash\n{SUPERVISOR_MARK} 3\n");
    let spec = NodeSpec::learn(&raw).unwrap();
    let body = spec.render("me", "a", &order(4), Some(&supervisor));
    simulator.with(|cloud| {
        cloud.nodes.clear();
        cloud.add_node(ZONE, "a", body.as_object().unwrap().clone(), true);
    });
    let view = client.get_node(ZONE, "a", in_a_minute()).await.unwrap();
    let incarnation = view.incarnation.clone().unwrap();
    (simulator, client, incarnation)
}

async fn send(client: &TpuClient, incarnation: &Incarnation, patch: Patch) -> CallOutcome {
    send_to(client, ("a", false), incarnation, patch).await
}

/// To a slot's node, or a stray of this name.
async fn send_to(
    client: &TpuClient,
    (name, stray): (&str, bool),
    incarnation: &Incarnation,
    patch: Patch,
) -> CallOutcome {
    let (slot, zone, incarnation) = (name.to_owned(), ZONE.to_owned(), incarnation.clone());
    client
        .carry_out(
            &Action::Patch {
                nodes: vec!["a".to_owned()],
                filling: Default::default(),
                slot,
                zone,
                incarnation,
                patch,
                stray,
            },
            || Ok(()),
        )
        .await
}

fn metadata(simulator: &Simulator) -> Value {
    simulator.with(|cloud| cloud.nodes.values().next().unwrap().body["metadata"].clone())
}

#[tokio::test]
async fn an_order_changes_one_key_and_a_release_leaves_what_was_there_before_us() {
    let (simulator, client, incarnation) = node().await;
    let before = metadata(&simulator);
    let waits = RunOrder { wait: true, ..order(4) };
    let outcome = send(&client, &incarnation, Patch::Order(waits.clone())).await;
    assert!(matches!(outcome, CallOutcome::Accepted(_)), "{outcome:?}");
    let mut expected = before.clone();
    expected["tpu-watchdog-run"] = json!(waits.text());
    assert_eq!(metadata(&simulator), expected);
    let outcome = send(&client, &incarnation, Patch::Release).await;
    assert!(matches!(outcome, CallOutcome::Accepted(_)), "{outcome:?}");
    let own = json!({"startup-script": "#! /bin/sh\n", "team": "llm"});
    assert_eq!(metadata(&simulator), own);
}

#[tokio::test]
async fn a_stray_that_is_called_otherwise_than_its_slot_is_told_to_wait() {
    let (simulator, client, incarnation) = node().await;
    let waits = Patch::Order(RunOrder { wait: true, ..order(4) });
    let slots = send_to(&client, ("qr-next", false), &incarnation, waits.clone()).await;
    assert!(matches!(slots, CallOutcome::NotSent(_)), "{slots:?}");
    let outcome = send_to(&client, ("qr-next", true), &incarnation, waits).await;
    assert!(matches!(outcome, CallOutcome::Accepted(_)), "{outcome:?}");
    assert!(metadata(&simulator)["tpu-watchdog-run"].as_str().unwrap().contains("\"wait\":true"));
}

#[tokio::test]
async fn exactly_the_node_that_is_meant_is_stopped() {
    let (simulator, client, incarnation) = node().await;
    let other = Incarnation { id: "77".into(), ..incarnation.clone() };
    let outcome = send(&client, &other, Patch::Stop).await;
    assert!(matches!(outcome, CallOutcome::Refused(_)), "{outcome:?}");
    let stops = || simulator.log().iter().filter(|logged| logged.path.ends_with("a:stop")).count();
    assert_eq!(stops(), 0);
    let outcome = send(&client, &incarnation, Patch::Stop).await;
    assert!(matches!(outcome, CallOutcome::Accepted(_)), "{outcome:?}");
    assert_eq!(stops(), 1);
    let state = simulator.with(|cloud| cloud.nodes.values().next().unwrap().state);
    assert_eq!(state, "STOPPING");
}

#[tokio::test]
async fn an_older_order_another_node_and_a_read_without_metadata_send_nothing() {
    let (simulator, client, incarnation) = node().await;
    let before = metadata(&simulator);
    let is = |outcome: &CallOutcome, class| match outcome {
        CallOutcome::Refused(failure) | CallOutcome::NotSent(failure) => failure.class == class,
        _ => false,
    };
    let older = send(&client, &incarnation, Patch::Order(order(3))).await;
    assert!(is(&older, FailureClass::Conflict), "{older:?}");
    let another = RunOrder { checkpoint: "gs://b/c/7".into(), step: Some(7), ..order(4) };
    let another = send(&client, &incarnation, Patch::Order(another)).await;
    assert!(
        is(&another, FailureClass::Conflict),
        "its own generation, from elsewhere: {another:?}"
    );
    let other = Incarnation { id: "77".into(), ..incarnation.clone() };
    for patch in [Patch::Order(order(5)), Patch::Release] {
        let outcome = send(&client, &other, patch).await;
        assert!(is(&outcome, FailureClass::NotFound), "{outcome:?}");
    }
    assert_eq!(metadata(&simulator), before);
    simulator.with(|cloud| {
        let body = &mut cloud.nodes.values_mut().next().unwrap().body;
        body.remove("metadata");
    });
    for patch in [Patch::Order(order(5)), Patch::Release] {
        let outcome = send(&client, &incarnation, patch).await;
        assert!(is(&outcome, FailureClass::Garbage), "{outcome:?}");
    }
    assert!(simulator.log().iter().all(|logged| logged.method != "PATCH"));
}

#[tokio::test]
async fn an_order_for_several_slices_is_finished_where_one_of_them_could_not_be_ordered() {
    let (simulator, client, _) = peer(Duration::from_secs(10)).await;
    let raw = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    let supervisor = format!("#! /bin/bash\n{SUPERVISOR_MARK} 4\n");
    let body = NodeSpec::learn(&raw).unwrap().render("me", "a", &order(4), Some(&supervisor));
    let of = format!("projects/p/locations/{ZONE}/queuedResources/qr");
    let made = simulator.with(|cloud| {
        cloud.nodes.clear();
        cloud.grant(ZONE, "qr", "n", body.as_object().unwrap());
        cloud.nodes.clear();
        for node in ["n-0", "n-1", "n-2"] {
            cloud.add_node(ZONE, node, body.as_object().unwrap().clone(), true);
        }
        cloud.nodes.values_mut().for_each(|node| node.queued_resource = Some(of.clone()));
        cloud.queued.values().next().unwrap().created
    });
    let nodes: Vec<String> = (0..3).map(|slice| format!("n-{slice}")).collect();
    let incarnation = Incarnation { id: format!("qr.{}", made.as_second()), created: made };
    let send = async |patch: Patch| {
        let action = Action::Patch {
            slot: "a".into(),
            zone: ZONE.into(),
            nodes: nodes.clone(),
            filling: Filling::QueuedResource("qr".into()),
            incarnation: incarnation.clone(),
            patch,
            stray: false,
        };
        client.carry_out(&action, || Ok(())).await
    };
    let set = |at: usize, metadata: Value| {
        let node = |nodes: &mut tpu_watchdog::simulator::nodes::Nodes| {
            nodes.values_mut().nth(at).unwrap().body.insert("metadata".into(), metadata.clone())
        };
        simulator.with(|cloud| node(&mut cloud.nodes))
    };
    let patched = || {
        let log = simulator.log();
        let patches = log.iter().filter(|logged| logged.method == "PATCH");
        patches
            .map(|logged| logged.path.split_once("/nodes/").unwrap().1[..3].to_owned())
            .collect::<Vec<_>>()
    };
    // The read of the second one lacks its metadata for a moment.
    let whole = set(1, json!({})).unwrap();
    let outcome = send(Patch::Order(order(5))).await;
    let CallOutcome::Unknown(why) = outcome else { panic!("{outcome:?}") };
    assert!(why.message.contains("the nodes before n-1 have it"), "{why}");
    assert_eq!(patched(), ["n-0"]);
    set(1, whole);
    assert!(matches!(send(Patch::Order(order(5))).await, CallOutcome::Accepted(_)));
    assert_eq!(patched(), ["n-0", "n-1", "n-2"]);
    // Nothing is left to do, and nothing is sent.
    assert!(matches!(send(Patch::Order(order(5))).await, CallOutcome::Unknown(_)));
    assert_eq!(patched().len(), 3);
    // A release that stopped after the first one.
    set(0, json!({"team": "llm"}));
    assert!(matches!(send(Patch::Release).await, CallOutcome::Accepted(_)));
    assert_eq!(patched()[3..], ["n-1", "n-2"]);
}
