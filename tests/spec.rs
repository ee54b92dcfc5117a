//! The specification: lossless over any number of recreates.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tpu_watchdog::google::classify;
use tpu_watchdog::google::origin::Origin;
use tpu_watchdog::model::event::Verb;
use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::Overlay;
use tpu_watchdog::model::spec::NodeSpec;
use tpu_watchdog::resource::capacity;
use tpu_watchdog::resource::queued::body::create_body;
use tpu_watchdog::resource::spec::{SUPERVISOR_MARK, needs_alpha};
use tpu_watchdog::simulator::{cloud::Cloud, shape};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from)
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner, 0..3)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn texts(key: &'static str) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(key, "\\PC{0,40}".prop_map(Value::from), 0..4)
        .prop_map(|m| m.into_iter().collect())
}

prop_compose! {
    /// A node as a person may have made it, with fields that this program never heard of.
    fn nodes()(
        kind in prop::sample::select(vec!["v4-8", "v4-32", "v5litepod-16", "v6e-8"]),
        labels in texts("[a-z]{1,8}"),
        mut metadata in texts("[a-z][a-z-]{0,8}"),
        script in prop::option::of("#! /bin/bash\n\\PC{0,60}"),
        url in prop::option::of("gs://[a-z]{1,8}/[a-z.]{1,8}"),
        strange in prop::collection::btree_map("x[A-Z][a-z]{1,8}", any_json(), 0..4),
        spot in any::<bool>(),
        hidden in any::<(bool, bool, bool)>(),
    ) -> Map<String, Value> {
        metadata.retain(|key, _| !key.starts_with("tpu-watchdog"));
        if let Some(script) = script {
            metadata.insert("startup-script".into(), json!(script));
        }
        if let Some(url) = url {
            metadata.insert("startup-script-url".into(), json!(url));
        }
        let mut body: Map<String, Value> = strange.into_iter().collect();
        body.insert("acceleratorType".into(), json!(kind));
        body.insert("runtimeVersion".into(), json!("tpu-ubuntu2204-base"));
        body.insert("labels".into(), Value::Object(labels));
        if !metadata.is_empty() {
            body.insert("metadata".into(), Value::Object(metadata));
        }
        if spot {
            body.insert("schedulingConfig".into(), json!({"spot": true, "preemptible": hidden.0,
                "provisioningModel": if hidden.1 { "STANDARD" } else { "SPOT" }, "terminationTimestamp": "x"}));
        }
        if hidden.2 {
            body.insert("bootDiskConfig".into(), json!({"diskSizeGb": "500"}));
            body["labels"]["goog-tpu"] = json!("x");
            body["labels"]["tpu-watchdog"] = json!("off");
        }
        body
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn learn_of_render_is_the_specification_over_fifty_recreates(body in nodes(), supervised in any::<bool>()) {
        let mut cloud = Cloud::new(Default::default());
        cloud.add_node("us-central2-b", "a", body, true);
        let read = |cloud: &Cloud| shape::node(cloud.nodes.values().next().unwrap(), "projects/p/locations/us-central2-b/nodes/a", "v2alpha1");
        let first = NodeSpec::learn(&read(&cloud)).unwrap();
        let supervisor = format!("#! /bin/bash\n{SUPERVISOR_MARK} 1\n");
        for generation in 1..=50 {
            let order = RunOrder { generation, checkpoint: format!("gs://b/{generation}"), step: Some(generation), ..RunOrder::default() };
            let rendered = first.render("owner", "a", &order, supervised.then_some(supervisor.as_str()));
            cloud.nodes.clear();
            cloud.add_node("us-central2-b", "a", rendered.as_object().unwrap().clone(), true);
            let learned = NodeSpec::learn(&read(&cloud)).unwrap();
            prop_assert_eq!(learned.body(), first.body());
        }
    }

    #[test]
    fn an_empty_overlay_changes_nothing(body in nodes()) {
        let spec = NodeSpec::learn(&Value::Object(body)).unwrap();
        let overlaid = spec.overlaid(&Overlay::default());
        prop_assert_eq!(overlaid.body(), spec.body());
        prop_assert!(spec.drift(&Overlay::default()).is_empty());
    }

    #[test]
    fn reading_any_json_never_panics(raw in any_json()) {
        let _ = NodeSpec::learn(&raw);
        let _ = tpu_watchdog::model::node::NodeView::parse(raw.clone());
        let _ = tpu_watchdog::resource::attributes::parse_guest_attributes(&raw);
        let _ = classify::operation_failure(Origin::operation(Verb::Create, true), &raw);
        let _ = classify::http_failure(Origin::create(&raw), 500, raw.to_string().as_bytes());
    }
}

#[test]
fn a_users_script_that_mentions_the_supervisor_is_the_users() {
    let script = format!("#! /bin/bash\nset -e\n# not the {SUPERVISOR_MARK}\npip install jax\n");
    let headed = format!("{SUPERVISOR_MARK}: copied from a describe\npip install jax\n");
    let ours = json!({"tpu-watchdog-owner": "me", "tpu-watchdog-slot": "a"});
    for (script, mut metadata) in [(&script, json!({})), (&script, ours), (&headed, json!({}))] {
        metadata["startup-script"] = json!(script);
        let raw = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "metadata": metadata});
        let learned = NodeSpec::learn(&raw).unwrap();
        assert_eq!(learned.body()["metadata"]["startup-script"], json!(script));
        // It is still there when the supervisor runs it, and when that is learned again.
        let rendered = learned.render(
            "me",
            "a",
            &RunOrder::default(),
            Some(&format!("#! /bin/bash\n{SUPERVISOR_MARK} 1\n")),
        );
        assert_eq!(rendered["metadata"]["tpu-watchdog-user-script"], json!(script));
        assert_eq!(NodeSpec::learn(&rendered).unwrap(), learned);
    }
}

#[test]
fn what_the_api_derives_is_not_sent_back() {
    let spec = NodeSpec::learn(&json!({
        "name": "projects/p/locations/z/nodes/a", "id": "1", "state": "READY", "health": "HEALTHY", "createTime": "2026-01-01T00:00:00Z",
        "acceleratorType": "v4-8", "acceleratorConfig": {"type": "V4", "topology": "2x2x1"}, "cidrBlock": "10.0.0.0/20",
        "networkConfig": {"network": "n"}, "networkConfigs": [{"network": "n"}], "networkEndpoints": [{}], "runtimeVersion": "r",
        "schedulingConfig": {"spot": true, "terminationTimestamp": "x"}, "bootDiskConfig": {"diskSizeGb": "200"}, "somethingNew": {"a": 1},
    }))
    .unwrap();
    let expected = json!({"acceleratorType": "v4-8", "networkConfig": {"network": "n"}, "runtimeVersion": "r",
        "schedulingConfig": {"spot": true}, "bootDiskConfig": {"diskSizeGb": "200"}, "somethingNew": {"a": 1}});
    assert_eq!(Value::Object(spec.body().clone()), expected);
    let both = json!({"networkConfig": {"network": "a"}, "networkConfigs": [{"network": "a"}, {"network": "b"}]});
    assert_eq!(
        Value::Object(NodeSpec::learn(&both).unwrap().body().clone()),
        json!({"networkConfigs": [{"network": "a"}, {"network": "b"}]})
    );
    let topology = json!({"acceleratorConfig": {"type": "V4", "topology": "2x2x4"}});
    assert_eq!(Value::Object(NodeSpec::learn(&topology).unwrap().body().clone()), topology);
}

#[test]
fn marks_of_others_and_contradictions_are_never_sent() {
    let raw = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "protectionTier": "STANDARD", "bootDisk": {}, "useTpuVm": true,
        "labels": {"team": "llm", "goog-gke": "x", "tpu-watchdog": "off"},
        "schedulingConfig": {"spot": true, "preemptible": true, "provisioningModel": "STANDARD", "terminationTimestamp": "x"}});
    let spec = NodeSpec::learn(&raw).unwrap();
    let expected = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "labels": {"team": "llm"},
        "schedulingConfig": {"spot": true}});
    assert_eq!(Value::Object(spec.body().clone()), expected);
    // Another value of our label is the user's own, and no empty map of labels stays.
    let labels = |labels: Value| {
        let raw = json!({"acceleratorType": "v4-8", "labels": labels});
        NodeSpec::learn(&raw).unwrap().body().get("labels").cloned()
    };
    assert_eq!(labels(json!({"tpu-watchdog": "on"})), Some(json!({"tpu-watchdog": "on"})));
    assert_eq!(labels(json!({"tpu-watchdog": "off"})), None);
    // Nor what a former version learned, or the config says.
    let stored: NodeSpec = serde_json::from_value(raw).unwrap();
    let overlay = Overlay {
        labels: [("tpu-watchdog".to_owned(), Some("off".to_owned()))].into(),
        ..Overlay::default()
    };
    let mut sent = stored.overlaid(&overlay).render("me", "a", &RunOrder::default(), None);
    sent.as_object_mut().unwrap().remove("metadata");
    assert_eq!(sent, expected);
}

#[test]
fn a_capacity_that_the_config_chooses_leaves_the_learned_model_and_reservation() {
    let chosen = |learned: Value, chosen: Value| {
        let spec =
            NodeSpec::learn(&json!({"acceleratorType": "v4-8", "schedulingConfig": learned}));
        let overlay = Overlay {
            fields: [("schedulingConfig".to_owned(), chosen)].into(),
            ..Overlay::default()
        };
        spec.unwrap().overlaid(&overlay).body()["schedulingConfig"].clone()
    };
    let spot = json!({"spot": true, "preemptible": null, "reserved": null});
    let reserved = json!({"reserved": true, "preemptible": null, "spot": null});
    let named =
        json!({"reserved": true, "provisioningModel": "RESERVATION_BOUND", "reservationName": "r"});
    assert_eq!(chosen(named.clone(), spot.clone()), json!({"spot": true}));
    assert_eq!(chosen(named.clone(), reserved.clone()), named);
    let learned = json!({"spot": true, "provisioningModel": "SPOT"});
    assert_eq!(chosen(learned.clone(), spot.clone()), learned);
    assert_eq!(chosen(learned, reserved), json!({"reserved": true}));
    assert_eq!(chosen(json!({"provisioningModel": "STANDARD"}), spot), json!({"spot": true}));
}

#[test]
fn what_v2_hides_is_kept_where_v2_shows_the_same_and_is_sent_through_v2alpha1() {
    let raw = json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "autocheckpointEnabled": true,
        "bootDiskConfig": {"diskSizeGb": "500"}, "schedulingConfig": {"reserved": true, "reservationName": "r"},
        "dataDisks": [{"sourceDisk": "d", "workerIds": ["0"]}]});
    let whole = NodeSpec::learn(&raw).unwrap();
    let v2 = json!({"acceleratorType": "v4-8", "runtimeVersion": "r2", "schedulingConfig": {"reserved": true},
        "dataDisks": [{"sourceDisk": "d"}]});
    let shown = NodeSpec::learn(&v2).unwrap();
    let merged = shown.clone().with_hidden_of(&whole);
    let mut expected = raw.clone();
    expected["runtimeVersion"] = json!("r2");
    assert_eq!(Value::Object(merged.body().clone()), expected);
    let other = json!({"acceleratorType": "v4-8", "schedulingConfig": {"spot": true}, "dataDisks": [{"sourceDisk": "e"}]});
    let merged = NodeSpec::learn(&other).unwrap().with_hidden_of(&whole);
    assert_eq!(merged.body()["schedulingConfig"], json!({"spot": true}));
    assert_eq!(merged.body()["dataDisks"], json!([{"sourceDisk": "e"}]));
    assert!(
        !needs_alpha(&v2)
            && !needs_alpha(&json!({"bootDiskConfig": {"customerEncryptionKey": "k"}}))
    );
    for field in ["autocheckpointEnabled", "bootDiskConfig", "schedulingConfig", "dataDisks"] {
        assert!(needs_alpha(&json!({field: raw[field]})), "{field}");
    }
}

#[test]
fn a_specification_is_filled_with_what_it_lacks() {
    let listed = json!({"acceleratorConfig": {"type": "V4", "topology": "2x2x1"}, "runtimeVersion": "r",
        "labels": {"a": "1"}, "networkConfig": {"network": "n"}});
    let got = json!({"acceleratorType": "v4-8", "runtimeVersion": "s", "labels": {"a": "2", "b": "3"},
        "tags": ["t"], "networkConfigs": [{"network": "n"}, {"network": "m"}]});
    let (listed, got) = (NodeSpec::learn(&listed).unwrap(), NodeSpec::learn(&got).unwrap());
    let filled = listed.filled_from(&got).unwrap();
    assert_eq!(
        Value::Object(filled.body().clone()),
        json!({"acceleratorType": "v4-8", "runtimeVersion": "r", "labels": {"a": "1", "b": "3"}, "tags": ["t"],
            "networkConfigs": [{"network": "n"}, {"network": "m"}]})
    );
}

#[test]
fn flex_start_of_the_config_takes_the_place_of_the_spot_capacity_that_was_learned() {
    let of = |create: &str| {
        let text = format!(
            "project = \"p\"\nstate = \"memory:\"\n[[tpu]]\nname = \"a\"\nzone = \"us-east5-b\"\nqueued_resource = \"q\"\n[tpu.create]\n{create}"
        );
        let config = tpu_watchdog::config::parse("w.toml".as_ref(), &text, &|_| None).unwrap();
        let learned = json!({"acceleratorType": "v6e-8", "runtimeVersion": "r", "schedulingConfig": {"spot": true}});
        let spec = NodeSpec::learn(&learned).unwrap().overlaid(&config.settings.slots["a"].create);
        create_body(&Value::Object(spec.body().clone()), "projects/p/locations/z", "a", false)
    };
    let flex = "provisioning_model = \"flex-start\"\nmax_run = \"12h\"\nboot_disk_gb = 200";
    let (body, alpha) = of(flex);
    assert!(alpha, "v2 does not know these fields");
    assert_eq!(body["provisioningModel"], "FLEX_START");
    assert_eq!(body["runDuration"], json!({"maxRunDuration": "43200s"}));
    assert_eq!(body.get("spot"), None);
    let node = &body["tpu"]["nodeSpec"][0]["node"];
    assert_eq!(node["bootDiskConfig"], json!({"diskSizeGb": "200"}));
    assert_eq!(of("provisioning_model = \"standard\"").0["spot"], json!({}), "as it was learned");
}

#[test]
fn the_overlay_merges_per_key_and_removes() {
    let spec = NodeSpec::learn(&json!({"acceleratorType": "v4-8", "labels": {"a": "1", "b": "2"},
        "schedulingConfig": {"preemptible": true, "other": 7}, "metadata": {"startup-script": "old", "k": "v"}}))
    .unwrap();
    let overlay = Overlay {
        fields: [("schedulingConfig".to_owned(), json!({"spot": true, "preemptible": null}))]
            .into(),
        labels: [("a".to_owned(), None), ("c".to_owned(), Some("3".to_owned()))].into(),
        metadata: Default::default(),
        startup_script: Some("new".into()),
    };
    let wanted = json!({"acceleratorType": "v4-8", "labels": {"b": "2", "c": "3"}, "schedulingConfig": {"spot": true, "other": 7},
        "metadata": {"startup-script": "new", "k": "v"}});
    assert_eq!(Value::Object(spec.overlaid(&overlay).body().clone()), wanted);
    let drift = spec.drift(&overlay);
    assert_eq!(
        drift,
        [
            "labels.a",
            "labels.c",
            "metadata.startup-script",
            "schedulingConfig.preemptible",
            "schedulingConfig.spot"
        ]
    );
}

#[test]
fn what_the_api_would_refuse_is_found_before_anything_is_deleted() {
    let check = |body: Value| NodeSpec::learn(&body).unwrap().validate();
    let good = json!({"acceleratorType": "v4-8", "runtimeVersion": "r"});
    assert_eq!(check(good.clone()), Ok(()));
    let with = |key: &str, value: Value| {
        let mut body = good.clone();
        body[key] = value;
        check(body).unwrap_err()
    };
    assert!(check(json!({"runtimeVersion": "r"})).unwrap_err().contains("accelerator"));
    assert!(check(json!({"acceleratorType": "v4-8"})).unwrap_err().contains("runtimeVersion"));
    assert!(with("labels", json!({"Team": "x"})).contains("lower-case"));
    assert!(with("metadata", json!({"k": "x".repeat(262_145)})).contains("256 KiB"));
    assert!(
        with("metadata", json!({"a": "x".repeat(262_144), "b": "x".repeat(262_144)}))
            .contains("512 KiB")
    );
    assert!(with("description", json!("x".repeat(513))).contains("512"));
    // Secrets live in metadata: no message may repeat a value.
    assert!(!with("metadata", json!({"bad key": "hunter2"})).contains("hunter2"));
}

#[test]
fn a_reservation_of_the_config_is_named_in_full_where_it_is_asked_for() {
    let of = |filling: &str, create: &str| {
        let text = format!(
            "project = \"p\"\nstate = \"memory:\"\n[[tpu]]\nname = \"a\"\nzones = [\"us-east5-a\", \"us-east5-b\"]\n{filling}\n[tpu.create]\n{create}"
        );
        let config = tpu_watchdog::config::parse("w.toml".as_ref(), &text, &|_| None).unwrap();
        config.settings.slots["a"].create.clone()
    };
    let zone = "projects/p/locations/us-east5-b";
    let learned = json!({"acceleratorType": "v6e-8", "runtimeVersion": "r", "schedulingConfig": {"spot": true}});
    let learned = NodeSpec::learn(&learned).unwrap();
    let named = of("queued_resource = \"q\"", "reservation = \"llm\"");
    let asked = Value::Object(learned.overlaid(&named).body().clone());
    let (body, alpha) = create_body(&asked, zone, "a", false);
    assert_eq!(body["reservationName"], format!("{zone}/reservations/llm"));
    assert_eq!((&body["guaranteed"], body.get("spot")), (&json!({"reserved": true}), None));
    assert!(alpha, "v2 has no guaranteed.reserved");

    // Of a node it stands with the rest of its capacity, for v2alpha1 alone.
    let plain = learned.overlaid(&of("", "reservation = \"llm\""));
    let mut node = Value::Object(plain.body().clone());
    assert_eq!(node["schedulingConfig"], json!({"reserved": true, "reservationName": "llm"}));
    assert!(needs_alpha(&node));
    capacity::name_reservation(node.get_mut("schedulingConfig"), zone);
    assert_eq!(node["schedulingConfig"]["reservationName"], format!("{zone}/reservations/llm"));

    // The name that was learned of the same one is kept, shows no drift, and goes along into another zone.
    let shared = "projects/host/locations/us-east5-b/reservations/llm";
    node["schedulingConfig"]["reservationName"] = json!(shared);
    let known = NodeSpec::learn(&node).unwrap();
    let same = of("", "reservation = \"llm\"");
    assert!(known.drift(&same).is_empty());
    assert_eq!(
        known.drift(&of("", "reservation = \"other\"")),
        ["schedulingConfig.reservationName"]
    );
    let moved = known.in_zone("us-east5-a").overlaid(&same);
    let name = &moved.body()["schedulingConfig"]["reservationName"];
    assert_eq!(name, "projects/host/locations/us-east5-a/reservations/llm");
}

#[test]
fn capacity_that_the_config_only_clears_is_no_drift_where_there_is_none() {
    let learned =
        NodeSpec::learn(&json!({"acceleratorType": "v6e-8", "runtimeVersion": "r"})).unwrap();
    let clears = json!({"spot": null, "preemptible": null, "reserved": null});
    let overlay =
        Overlay { fields: [("schedulingConfig".to_owned(), clears)].into(), ..Overlay::default() };
    assert!(learned.drift(&overlay).is_empty());
}
