//! People who delete a queued resource and make another one under its id, at any moment of a recovery; and reserved capacity,
//! which v2 does not know.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tpu_watchdog::model::condition::Condition;
use tpu_watchdog::store::sqlite::SqliteStore;

use crate::moments::{CONFIG, SCENARIO, ZONES};
use crate::world::{World, minutes};

/// The slot `a` is at work on its queued resource `qr`.
fn at_work(change: impl Fn(&str) -> String) -> World {
    let config = change(CONFIG).replace(", \"us-east5-a\"]", "]");
    let mut world = World::new(&config, SCENARIO, Box::new(SqliteStore::in_memory().unwrap()));
    world.trains("a", 120);
    world.start("one");
    world.run_for(minutes(20));
    assert!(world.is_ready(ZONES[0], "a"), "{}", world.state("a"));
    world
}

impl World {
    fn of_a_person(&mut self, method: &str, body: Option<Value>) -> u16 {
        let parent = format!("v2/projects/p/locations/{}/queuedResources", ZONES[0]);
        let (path, key, value) = match method {
            "POST" => (parent, "queuedResourceId", "qr"),
            _ => (format!("{parent}/qr"), "force", "true"),
        };
        let query: BTreeMap<_, _> = [(key.to_owned(), value.to_owned())].into();
        self.call(method, &path, &query, body).0
    }

    fn made(&self) -> Option<jiff::Timestamp> {
        self.cloud.queued.get(&(ZONES[0].to_owned(), "qr".to_owned())).map(|of| of.created)
    }
}

/// A request as a person makes it.
fn theirs() -> Option<Value> {
    let node = json!({"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"});
    let parent = format!("projects/p/locations/{}", ZONES[0]);
    let spec = json!({"parent": parent, "nodeId": "a", "node": node});
    Some(json!({"tpu": {"nodeSpec": [spec]}, "spot": {}}))
}

#[test]
fn s1_a_request_that_a_person_makes_under_the_id_of_one_that_is_being_replaced_is_never_deleted() {
    let mut made_by_them = 0;
    for (preempted, after) in (0..40).flat_map(|step| [(true, step * 5_000), (false, step * 5_000)])
    {
        let mut world = at_work(str::to_owned);
        if preempted {
            world.preempt(ZONES[0], "a");
            world.run_for(after);
        }
        // At work, or ended; or its delete, or the next one, is under way.
        let before = world.made();
        if world.of_a_person("DELETE", None) != 200 {
            continue;
        }
        // A request that is PROVISIONING stays, although the call is accepted.
        let mut gone = (0..60).map(|_| {
            world.run_for(1_000);
            world.made() != before
        });
        if !gone.any(|gone| gone) {
            continue;
        }
        if !preempted {
            world.run_for(after);
        }
        if world.of_a_person("POST", theirs()) != 200 {
            continue;
        }
        made_by_them += 1;
        let (made, deletes) = (world.made(), world.deletes());
        world.run_for(minutes(40));
        let story =
            || format!("{preempted} {after}: {}\n{}", world.state("a"), world.log.join("\n"));
        assert_eq!(world.made(), made, "{}", story());
        assert_eq!(
            (world.deletes(), world.cloud.harmed_unseen),
            (deletes, 1 - u32::from(preempted)),
            "{}",
            story()
        );
        assert!(world.is_ready(ZONES[0], "a"), "{}", story());
        assert_eq!(world.fleet().slots["a"].verdict.condition, Condition::Healthy, "{}", story());
    }
    assert!(made_by_them >= 20, "{made_by_them}");
}

impl World {
    /// Deletes that the watchdog sent.
    fn deletes(&self) -> usize {
        self.sent.iter().filter(|sent| sent.method == "DELETE").count()
    }
}

#[test]
fn reserved_capacity_is_asked_for_through_the_version_that_knows_it_and_again() {
    let mut world = at_work(|config| config.replace("spot = true", "reserved = true"));
    world.cloud.nodes.get_mut(&(ZONES[0].to_owned(), "a".to_owned())).unwrap().state = "TERMINATED";
    world.run_for(minutes(30));
    assert!(world.is_ready(ZONES[0], "a"), "{}\n{}", world.state("a"), world.log.join("\n"));
    let creates: Vec<_> = world.sent.iter().filter(|sent| sent.method == "POST").collect();
    assert_eq!(creates.len(), 2, "{}", world.log.join("\n"));
    for create in creates {
        assert!(create.path.starts_with("v2alpha1/"), "{}", create.path);
        let body = create.body.as_ref().unwrap();
        assert_eq!(body["guaranteed"], json!({"reserved": true}), "{body}");
    }
}
