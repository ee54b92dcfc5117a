//! The custom role, held against the calls that the program makes.

use std::collections::BTreeSet;
use std::path::Path;

use tpu_watchdog::simulator::http::Logged;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::cloud_run::lint;
use crate::harness::{POLICY, Rig, ZONE, job};
use crate::{deploy, have};

/// The permission of a call, by <https://docs.cloud.google.com/iam/docs/roles-permissions/tpu>;
/// none where it has none there.
fn permission(logged: &Logged) -> Option<&'static str> {
    let path = logged.path.split('?').next().unwrap();
    Some(match (logged.method.as_str(), path) {
        ("POST", path) if path.ends_with(":getGuestAttributes") => return None,
        ("GET", path) if path.ends_with("/operations") => "tpu.operations.list",
        ("GET", path) if path.contains("/operations/") => "tpu.operations.get",
        ("GET", path) if path.ends_with("/nodes") => "tpu.nodes.list",
        ("GET", path) if path.contains("/nodes/") => "tpu.nodes.get",
        ("POST", path) if path.ends_with("/nodes") => "tpu.nodes.create",
        ("DELETE", path) if path.contains("/nodes/") => "tpu.nodes.delete",
        ("PATCH", path) if path.contains("/nodes/") => "tpu.nodes.update",
        // They have no permissions of their own: see the role's README.
        ("GET", path) if path.ends_with("/queuedResources") => "tpu.nodes.list",
        ("GET", path) if path.contains("/queuedResources/") => "tpu.nodes.get",
        ("POST", path) if path.ends_with("/queuedResources") => "tpu.nodes.create",
        ("DELETE", path) if path.contains("/queuedResources/") => "tpu.nodes.delete",
        other => panic!("no permission is known for {other:?}: add it to the role and its README"),
    })
}

fn is_a_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic())
}

fn role() -> BTreeSet<String> {
    let text = std::fs::read_to_string(deploy("iam/role.yaml")).unwrap();
    text.lines().filter_map(|l| l.strip_prefix("- ")).map(str::to_owned).collect()
}

#[test]
fn the_role_has_exactly_what_the_calls_need() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    rig.trouble("a", Trouble::JobCrashes, None);
    rig.wait_for_log("every worker follows generation");
    let log = rig.simulator.log();
    let used: BTreeSet<String> = log
        .iter()
        .filter(|l| l.path.starts_with("/v2"))
        .filter_map(permission)
        .map(str::to_owned)
        .collect();
    // Asked for only with credentials, or only when a TPU is missing.
    let seldom = ["tpu.acceleratortypes.get", "tpu.operations.list", "tpu.runtimeversions.get"];
    let needed: BTreeSet<String> = used.into_iter().chain(seldom.map(str::to_owned)).collect();
    assert_eq!(needed, role());
    // Every kind of call that the client has was among them.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/google");
    let files = std::fs::read_dir(folder).unwrap();
    let client: String =
        files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let collections = [
        "nodes.",
        "operations.",
        "runtimeVersions.",
        "acceleratorTypes.",
        "projects.",
        "serviceAccounts.",
    ];
    let called: BTreeSet<&str> = client
        .split('"')
        .filter(|s| collections.iter().any(|c| s.strip_prefix(c).is_some_and(is_a_name)))
        .collect();
    let expected = [
        "acceleratorTypes.get",
        "nodes.create",
        "nodes.delete",
        "nodes.get",
        "nodes.getGuestAttributes",
        "nodes.list",
        "nodes.patch",
        // With `on_success = "stop"` alone: the README says so, the role lacks it.
        "nodes.stop",
        // By `drill` alone, with the credentials of the person who runs it.
        "nodes.simulateMaintenanceEvent",
        "operations.get",
        "operations.list",
        "projects.testIamPermissions",
        "runtimeVersions.get",
        "serviceAccounts.testIamPermissions",
    ];
    assert_eq!(called, BTreeSet::from(expected));
}

#[test]
fn the_role_is_enough_for_queued_resources() {
    let create = "[tpu.create]\naccelerator_type = \"v4-8\"\nruntime_version = \"tpu-ubuntu2204-base\"\nspot = true\n";
    let slot =
        format!("[[tpu]]\nname = \"a\"\nqueued_resource = \"qr\"\nzone = \"{ZONE}\"\n{create}");
    let mut rig = Rig::new("", POLICY, &slot);
    // Whatever else the simulator knows is refused.
    let role = role();
    let other =
        ["tpu.nodes.stop", "tpu.nodes.start", "tpu.nodes.reset", "tpu.acceleratortypes.list"];
    assert!(other.iter().all(|right| !role.contains(*right)));
    rig.simulator.with(|cloud| cloud.denied.extend(other.map(str::to_owned)));
    rig.start();
    rig.wait_until("it is granted", || rig.node("a").is_some_and(|node| node.state == "READY"));
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    let log = rig.simulator.log();
    let calls = log.iter().filter(|logged| logged.path.starts_with("/v2"));
    let used: BTreeSet<String> = calls.filter_map(permission).map(str::to_owned).collect();
    assert!(used.is_subset(&role), "{used:?}");
    let asked = |method: &str| {
        let is_it = |l: &&Logged| l.method == method && l.path.contains("/queuedResources");
        log.iter().filter(is_it).count()
    };
    assert!(asked("GET") > 0 && asked("POST") == 2 && asked("DELETE") == 1);
}

#[test]
fn each_permission_is_explained() {
    let readme = std::fs::read_to_string(deploy("iam/README.md")).unwrap();
    for permission in role() {
        assert!(readme.contains(&format!("| `{permission}` |")), "{permission}");
    }
    for right in ["iam.serviceAccounts.actAs", "storage.objects.get"] {
        assert!(readme.contains(right), "{right}");
    }
}

#[test]
fn gcloud_knows_the_commands_of_the_readmes() {
    if !have("gcloud") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut commands = Vec::new();
    for file in ["deploy/iam/README.md", "deploy/cloud-run/README.md", "docs/runbook.md"] {
        let text = std::fs::read_to_string(root.join(file)).unwrap().replace("\\\n", " ");
        let blocks = text
            .lines()
            .filter_map(|l| l.strip_prefix("    "))
            .map(|l| l.split("  #").next().unwrap().trim().to_owned());
        // In running text a command without its arguments is only a name.
        let inline =
            text.split('`').skip(1).step_by(2).filter(|c| c.contains(" --")).map(str::to_owned);
        commands
            .extend(blocks.chain(inline).filter(|c| c.starts_with("gcloud ") && !c.contains('…')));
    }
    commands.sort();
    commands.dedup();
    assert!(commands.len() > 15, "{commands:?}");
    lint(&commands);
}
