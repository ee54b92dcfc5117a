//! What runs on simulated nodes: workers that speak the supervisor's protocol and follow its table of
//! phases, make steps and write checkpoints.

use std::time::Duration;

use serde_json::Value;

use super::cloud::Cloud;
use super::things::{Hindrance, Node, Object};
use crate::model::ids::{RUN_KEY, RunOrder};
use crate::model::job_phase::JobPhase;
use crate::resource::spec::is_supervised;

/// Its boot beacon says so of the supervisor.
const VERSION: &str = "v4";
/// Hosts that get no order start again by themselves after this (the supervisor's ALONE).
const ALONE: Duration = Duration::from_secs(600);

/// The hosts of a node come up: the supervisor sends its boot beacon and starts the job from the
/// order's checkpoint.
pub fn boot(cloud: &mut Cloud, zone: &str, name: &str, uid: u64) {
    let workload = cloud.workloads.get(name).cloned();
    let ungathered = cloud.ungathered.get(name).copied();
    let Some(node) = cloud.same(zone, name, uid) else { return };
    if node.state != "READY" {
        return;
    }
    let metadata = |key: &str| {
        node.body
            .get("metadata")
            .and_then(|m| m.get(key))
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let supervised =
        node.body.get("metadata").and_then(Value::as_object).is_some_and(is_supervised);
    let order: RunOrder = serde_json::from_str(metadata(RUN_KEY)).unwrap_or_default();
    let first = node.run.boots == 0;
    node.run.boots += 1;
    node.run.stopped = false;
    ends_hanging(node);
    node.run.hindrance.take_if(|hindrance| *hindrance == Hindrance::Chips);
    node.run.supervised = supervised;
    node.run.held = order.wait;
    if first {
        node.run.ungathered = ungathered;
        let adopted = workload.as_ref().map_or(0, |w| w.at_step);
        node.run.step = if supervised { order.step.unwrap_or(0) } else { adopted };
        node.run.order = order;
    } else if supervised && order.generation > node.run.order.generation {
        // It was ordered while its hosts were down.
        node.run.follow(order);
    } else if let Some(saved) = workload.map(|w| node.run.step / w.every.max(1) * w.every.max(1)) {
        // A reboot loses what was not saved.
        node.run.step = saved;
    }
    cloud.ungathered.remove(name);
    report(cloud, zone, name, uid, "boot", 1, "");
}

/// The run order in the metadata has changed: a newer generation ends the run and starts from its
/// checkpoint, as supervisor 2 does.
pub fn ordered(cloud: &mut Cloud, zone: &str, name: &str, uid: u64) {
    let Some(node) = cloud.same(zone, name, uid) else { return };
    let metadata = node.body.get("metadata");
    let text = metadata.and_then(|metadata| metadata.get(RUN_KEY)).and_then(Value::as_str);
    let order: RunOrder = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let up = node.state == "READY" && node.run.boots > 0 && !node.run.stopped;
    if !up || !node.run.supervised || order.generation < node.run.order.generation {
        return;
    }
    let hosts = node.attributes.len();
    let mut boots = (0..hosts).map(|host| boot_id(uid, host, node.run.boots));
    let reboots = boots.any(|boot| order.reboot.contains(&boot));
    if reboots {
        node.run.boots += 1;
        node.run.ungathered.take_if(|mends| *mends);
    }
    // Only what does not run yet is kept from it.
    node.run.held &= order.wait;
    if order.generation == node.run.order.generation {
        // Flags: what runs goes on.
        let read = reboots || order.wait != node.run.order.wait;
        let asked = order.notice && !node.run.order.notice;
        node.run.order = order;
        let saves = asked && matches!(node.run.phase(), JobPhase::Running);
        let step = node.run.step;
        if read {
            report(cloud, zone, name, uid, "boot", 1, "");
        }
        if let Some(job) = cloud.workloads.get(name).filter(|_| saves).cloned() {
            save(cloud, &job.checkpoint, step);
        }
        return;
    }
    ends_hanging(node);
    node.run.follow(order);
    report(cloud, zone, name, uid, "boot", 1, "");
}

/// A run that hung has ended.
fn ends_hanging(node: &mut Node) {
    if std::mem::take(&mut node.run.hangs) {
        node.health = Some("HEALTHY".into());
    }
}

/// One heartbeat interval passes. Returns whether there will be another one.
pub fn beat(cloud: &mut Cloud, zone: &str, name: &str, uid: u64) -> bool {
    let workload = cloud.workloads.get(name).cloned();
    let interval = cloud.timing.beat;
    let Some(node) = cloud.same(zone, name, uid) else { return false };
    if node.state != "READY" || node.run.stopped {
        // A later boot starts the beat again.
        return false;
    }
    if workload.is_none() && !node.run.supervised {
        // No client would ever see it.
        return false;
    }
    node.run.beats += 1;
    let beats = i64::try_from(node.run.beats).unwrap_or(i64::MAX);
    let (phase, hosts, hangs) = (node.run.phase(), node.attributes.len(), node.run.hangs);
    let words = node.run.words(hosts);
    report(cloud, zone, name, uid, "heartbeat", beats, words);
    match phase {
        JobPhase::Done => report(cloud, zone, name, uid, "exit", 0, "done"),
        JobPhase::Failed => {
            report(cloud, zone, name, uid, "log", 1, "0\nTraceback\nValueError: shapes differ");
            report(cloud, zone, name, uid, "exit", 1, "final after 5 restarts");
        }
        JobPhase::Exited => {
            let node = cloud.same(zone, name, uid);
            let waits = node.is_some_and(|node| {
                crashed(node, uid, beats);
                node.run.waited += interval;
                hosts == 1 || node.run.order.wait || node.run.waited < ALONE
            });
            if !waits {
                start_alone(cloud, zone, name, uid);
            }
        }
        JobPhase::Compile | JobPhase::Running | JobPhase::Saving if !hangs => {
            work(cloud, zone, name, uid, interval);
        }
        _ => {}
    }
    true
}

/// A run has crashed on one host; the others of several hang in it.
fn crashed(node: &mut Node, uid: u64, beats: i64) {
    let hosts = node.attributes.len();
    let host = usize::try_from(uid).unwrap_or(0) % hosts;
    let (words, end) = match hosts {
        1 => ("stale_order", "stale_order ran=734"),
        _ => {
            ("waiting for an order", "waits: for a newer order, or 600 s, then for the other hosts")
        }
    };
    report_of(node, uid, host, "heartbeat", beats, words);
    report_of(node, uid, host, "log", 139, "0\nFatal error: Segmentation fault");
    report_of(node, uid, host, "exit", 139, end);
}

/// No order came: hosts that all wait start together, each from what the job saved last.
fn start_alone(cloud: &mut Cloud, zone: &str, name: &str, uid: u64) {
    let every = cloud.workloads.get(name).map_or(1, |workload| workload.every.max(1));
    let Some(node) = cloud.same(zone, name, uid) else { return };
    let run = &mut node.run;
    (run.exit, run.stepped, run.waited) = (None, false, Duration::ZERO);
    (run.step, run.part) = (run.step / every * every, Duration::ZERO);
    run.restarts += 1;
    report(cloud, zone, name, uid, "boot", 1, "");
}

/// The job makes its steps of one heartbeat interval, and saves.
fn work(cloud: &mut Cloud, zone: &str, name: &str, uid: u64, interval: Duration) {
    let Some(workload) = cloud.workloads.get(name).cloned() else { return };
    let Some(node) = cloud.same(zone, name, uid) else { return };
    let before = node.run.step;
    let total = node.run.part + interval;
    let steps = total.as_nanos() / workload.step.as_nanos().max(1);
    node.run.step += u64::try_from(steps).unwrap_or(0);
    node.run.part = total - workload.step * u32::try_from(steps).unwrap_or(0);
    let step = node.run.step;
    if step > before {
        node.run.stepped = true;
        report(cloud, zone, name, uid, "step", i64::try_from(step).unwrap_or(i64::MAX), "");
    }
    let every = workload.every.max(1);
    if step / every > before / every {
        save(cloud, &workload.checkpoint, step / every * every);
    }
}

fn boot_id(uid: u64, host: usize, boots: u32) -> String {
    format!("boot-{uid}-{host}-{boots}")
}

fn report(cloud: &mut Cloud, zone: &str, name: &str, uid: u64, key: &str, value: i64, text: &str) {
    let Some(node) = cloud.same(zone, name, uid) else { return };
    for host in 0..node.attributes.len() {
        report_of(node, uid, host, key, value, text);
    }
}

/// The same of one host.
fn report_of(node: &mut Node, uid: u64, host: usize, key: &str, value: i64, text: &str) {
    let run = &node.run;
    if !run.supervised {
        return;
    }
    let (boots, generation, hosts) = (run.boots, run.order.generation, node.attributes.len());
    let index = match (run.ungathered, hosts) {
        (None, _) => (node.first_host + host).to_string(),
        (_, 1) => "-".to_owned(),
        _ => node.first_host.to_string(),
    };
    let attempt = run.restarts + u32::from(!run.phase().is_before_a_run());
    let waits = if run.order.wait { " wait" } else { "" };
    let said = if key == "boot" { format!("{VERSION} i{index}{waits}") } else { text.to_owned() };
    let value = format!("{} {generation}.{attempt} {value} {said}", boot_id(uid, host, boots));
    node.attributes[host].insert(format!("tpu-watchdog/{key}"), value.trim_end().to_owned());
}

/// An Orbax checkpoint, whole: data first, the commit file last.
pub fn save(cloud: &mut Cloud, uri: &str, step: u64) {
    let base = uri.strip_prefix("gs://").unwrap_or(uri).trim_end_matches('/').to_owned();
    let updated = cloud.now();
    for file in ["default/d/0", "_CHECKPOINT_METADATA", "commit_success.txt"] {
        cloud.objects.insert(format!("{base}/{step}/{file}"), Object::sized(64, updated));
    }
}
