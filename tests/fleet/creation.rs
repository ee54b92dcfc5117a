//! Replacements that die while they are created: nothing of them is forgotten, and no wait for them
//! is endless and silent.

use tpu_watchdog::store::sqlite::SqliteStore;

use crate::world::{World, minutes};

const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "1500ms"
operations = "100ms"
[[tpu]]
name = "spot"
zone = "us-central2-b"
"#;

/// The replacement is preempted 70 ms before its create's operation ends with an error: a poll
/// shows that first.
const SCENARIO: &str = r#"
times = { create = "3s", delete = "DELETE", boot = "1s", beat = "60s" }
[[nodes]]
names = ["spot"]
zone = "us-central2-b"
[[event]]
at = "10s"
node = "spot"
what = "preempt"
"#;

#[test]
fn a_replacement_that_is_preempted_while_it_is_created_is_replaced() {
    // The watchdog believes no earlier than after two minutes that what it forgot is back: this has
    // to be quicker. The create ends at any time between two polls, and the node dies right before
    // that.
    for tenth in 0..15 {
        let scenario = SCENARIO.replace("DELETE", &format!("{}ms", 1000 + tenth * 100));
        let mut world = World::new(CONFIG, &scenario, Box::new(SqliteStore::in_memory().unwrap()));
        world.start("new");
        while !world.sent.iter().any(|sent| sent.method == "POST") {
            world.run_for(10);
        }
        world.run_for(2930);
        world.preempt("us-central2-b", "spot");
        world.run_for(minutes(1));
        let creates = world.sent.iter().filter(|sent| sent.method == "POST").count();
        let state = world.state("spot");
        assert!(
            (2..=3).contains(&creates) && world.is_ready("us-central2-b", "spot"),
            "{tenth}: {creates} creates, {state}\n{}",
            world.log.join("\n")
        );
    }
}
