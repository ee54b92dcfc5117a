//! One poll through the core, at 10 and 1,000 slots: all well, and all sick under the storm breaker.
//! Prints the median time of a poll, decisions about every slot included.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tpu_watchdog::core::step;
use tpu_watchdog::model::action::{Input, Listing, Poll};
use tpu_watchdog::model::fleet::{Fleet, Ledger};
use tpu_watchdog::model::node::NodeView;
use tpu_watchdog::model::settings::{
    Overlay, Policy, PollSettings, Settings, Share, SlotSettings, Storm,
};

const ZONE: &str = "us-central2-b";
const POLLS: usize = 200;

fn main() {
    for slots in [10, 1000] {
        for (what, health) in [("well", "HEALTHY"), ("sick", "TIMEOUT")] {
            println!("{slots} slots, all {what}: {:.3} ms a poll", poll(slots, health));
        }
    }
}

fn poll(slots: usize, health: &str) -> f64 {
    let names: Vec<String> = (0..slots).map(|i| format!("tpu-{i:04}")).collect();
    let settings = settings(&names);
    let mut now: jiff::Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
    let mut fleet = Fleet::new(settings.clone(), Default::default(), Ledger::default());
    step(&mut fleet, Input::Configured(Box::new(settings)), now);
    let nodes: Vec<Arc<NodeView>> = names
        .iter()
        .map(|name| {
            let raw = json!({
                "name": format!("projects/p/locations/{ZONE}/nodes/{name}"), "id": "1",
                "createTime": "2026-01-01T00:00:00Z", "state": "READY", "health": health,
                "acceleratorType": "v4-8", "runtimeVersion": "r", "networkEndpoints": [{}],
            });
            Arc::new(NodeView::parse(raw).unwrap())
        })
        .collect();
    let mut times: Vec<f64> = (0..POLLS)
        .map(|_| {
            now += Duration::from_secs(30);
            let result = Ok((nodes.clone(), Vec::new()).into());
            let listings = vec![Listing { zone: ZONE.into(), result, requests: None }];
            let input = Input::Polled(Box::new(Poll { began: now, listings, jobs: vec![] }));
            let began = Instant::now();
            std::hint::black_box(step(&mut fleet, input, now));
            began.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[POLLS / 2]
}

fn settings(names: &[String]) -> Settings {
    let seconds = Duration::from_secs;
    let slot = |name: &String| {
        let slot = SlotSettings {
            filling: Default::default(),
            name: name.clone(),
            zones: vec![ZONE.to_owned()],
            create: Overlay::default(),
            job: None,
            policy: Policy::default(),
            supervisor: None,
        };
        (name.clone(), slot)
    };
    Settings {
        digest: String::new(),
        project: "p".into(),
        owner: "me".into(),
        label: None,
        decided_by: "bench".into(),
        dry_run: false,
        alpha: false,
        poll: PollSettings {
            every: seconds(30),
            operations: seconds(5),
            timeout: seconds(20),
            max_gap: seconds(300),
        },
        max_unavailable: Share::Percent(25.0),
        removes_dead: false,
        max_judged_recreates_per_hour: 20,
        storm: Storm::default(),
        slots: names.iter().map(slot).collect(),
    }
}
