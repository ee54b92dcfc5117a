//! The world of a story as the APIs show it: nodes, listings, answers to calls, checkpoints, reports of
//! workers.

use super::*;

impl Player {
    /// `NAME=STATE[/HEALTH][#N][+MARK]`: incarnation N (1 unless told); `#new` is the node that the
    /// last create asked for. The marks are `off` (the label that opts it out), `bare` (without its
    /// metadata), and `until:4h` (an announced maintenance goes on until then).
    pub fn poll(&mut self, nodes: &[&str]) {
        self.listing(nodes, None);
    }

    pub fn listing(&mut self, nodes: &[&str], failed: Option<Failure>) {
        let shown: Vec<Arc<NodeView>> = nodes
            .iter()
            .filter_map(|node| node.split_once('='))
            .map(|(name, shown)| self.node(name, shown))
            .collect();
        let mut zones: Vec<String> =
            self.fleet.settings.slots.values().flat_map(|slot| slot.zones.clone()).collect();
        zones.sort();
        zones.dedup();
        let listings = zones
            .into_iter()
            .map(|zone| {
                let here = shown.iter().filter(|view| view.zone == zone).cloned().collect();
                Listing {
                    zone,
                    result: failed.clone().map_or(Ok((here, Vec::new()).into()), Err),
                    requests: None,
                }
            })
            .collect();
        self.input(Input::Polled(Box::new(Poll { began: self.now, listings, jobs: vec![] })));
    }

    pub fn node(&mut self, name: &str, shown: &str) -> Arc<NodeView> {
        let (shown, mark) = shown.split_once('+').unwrap_or((shown, ""));
        let (shown, which) = shown.split_once('#').unwrap_or((shown, "1"));
        let (state, health) = shown.split_once('/').unwrap_or((shown, ""));
        let record = self.fleet.slots.get(name).or_else(|| self.fleet.left.get(name));
        let zone = record.expect("a slot, present or former").zone.clone();
        let (mut raw, id, created) = if which == "new" {
            let (body, at) = self
                .created
                .get(name)
                .cloned()
                .unwrap_or_else(|| panic!("no create of {name} yet:\n{}", self.out));
            (body, format!("new-{}", elapsed(self.began, at).as_secs()), at)
        } else {
            let number: u64 =
                which.parse().unwrap_or_else(|_| panic!("{which:?} is no incarnation"));
            let created = after(
                "2026-01-01T00:00:00Z".parse().expect("a time"),
                Duration::from_secs(number * 3600),
            );
            (
                json!({"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}),
                number.to_string(),
                created,
            )
        };
        raw["name"] = json!(format!("projects/p/locations/{zone}/nodes/{name}"));
        (raw["id"], raw["createTime"], raw["state"]) =
            (json!(id), json!(created.to_string()), json!(state));
        raw["networkEndpoints"] = json!([{}]);
        if !health.is_empty() {
            raw["health"] = json!(health);
        }
        match mark.split_once(':').unwrap_or((mark, "")) {
            ("", _) => {}
            ("off", _) => raw["labels"] = json!({"tpu-watchdog": "off"}),
            ("bare", _) => raw["metadata"] = json!({}),
            ("until", time) => {
                let end = after(self.began, duration(time)).to_string();
                raw["upcomingMaintenance"] =
                    json!({"maintenanceStatus": "ONGOING", "windowEndTime": end});
            }
            other => panic!("{other:?} is no mark"),
        }
        Arc::new(NodeView::parse(raw).expect("a node"))
    }

    /// A GET that was sent at `began` is answered now.
    pub fn got(&mut self, slot: &str, reading: Reading, began: Timestamp) {
        // A stray's GET is answered in the same words.
        let asked = |look: &String| look.split_once('/').is_some_and(|(_, name)| name == slot);
        let stray = self.fleet.looked_for.iter().find(|look| asked(look)).cloned();
        let name = slot.to_owned();
        self.input(match stray.as_ref().and_then(|key| key.split_once('/')) {
            Some((zone, _)) => Input::StrayGot { zone: zone.into(), name, began, reading },
            None => Input::Got { slot: name, began, reading },
        });
    }

    pub fn answered(&mut self, slot: &str, outcome: CallOutcome) {
        let mut strays = self.fleet.ledger.strays.values();
        let stray = strays.find(|stray| stray.name == slot && stray.is_being_removed());
        let relaunch = self.fleet.slots.get(slot).and_then(|record| record.job.relaunch.as_ref());
        let generation = relaunch.map(|relaunch| relaunch.order.generation);
        let name = slot.to_owned();
        self.input(match (stray.map(|stray| stray.zone.clone()), generation) {
            (Some(zone), _) => Input::StrayCalled { zone, name, patch: false, outcome },
            (None, Some(generation)) => Input::Ordered { slot: name, generation, outcome },
            (None, None) => Input::Called { slot: name, outcome },
        });
    }

    pub fn operated(&mut self, slot: &str, state: OperationState) {
        self.input(Input::Operated {
            slot: slot.into(),
            operation: OPERATION.into(),
            result: Ok(state),
        });
    }

    /// Objects of these names that no rule takes for a complete checkpoint, older than the job.
    pub fn not_understood(&mut self, slot: &str, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let oldest = Some("2026-01-01T00:00:00Z".parse().expect("a time"));
        let other = Some(NotComplete { names, oldest });
        self.listed(slot, CheckpointSurvey { other, ..CheckpointSurvey::default() });
    }

    pub fn surveyed(&mut self, slot: &str, steps: &[&str]) {
        let location = self.location(slot);
        let newest = steps.iter().filter_map(|step| step.parse().ok()).max();
        let newest = newest.map(|step: u64| Checkpoint { step, uri: format!("{location}/{step}") });
        self.listed(slot, CheckpointSurvey { newest, ..CheckpointSurvey::default() });
    }

    fn listed(&mut self, slot: &str, survey: CheckpointSurvey) {
        let (location, result) = (self.location(slot), Ok(survey));
        self.input(Input::Surveyed { slot: slot.into(), began: self.now, location, result });
    }

    fn location(&self, slot: &str) -> String {
        let job = self.fleet.settings.slots[slot].job.as_ref().expect("a job");
        job.checkpoint.as_ref().expect("checkpoints").uri.clone()
    }

    /// The only worker's boot beacon, heartbeat counter, step and exit; it follows the order of its
    /// node.
    pub fn workers(
        &mut self,
        slot: &str,
        beat: &str,
        step: Option<&str>,
        exit: Option<(&str, String)>,
    ) {
        let record = &self.fleet.slots[slot];
        let written = self.created.get(slot).map(|(body, _)| body["metadata"][RUN_KEY].clone());
        let run = written.and_then(|run| serde_json::from_str(run.as_str()?).ok());
        let generation = run.map_or(record.heard_from(), |run: RunOrder| run.generation);
        let beacon = |value: i64, text: &str| Beacon {
            boot_id: "b".into(),
            generation,
            attempt: 0,
            value,
            text: text.into(),
        };
        let number = |text: &str| text.parse().ok().map(|value| beacon(value, ""));
        let report = WorkerReport {
            boot: Some(beacon(1, "v2")),
            heartbeat: number(beat),
            step: step.and_then(number),
            exit: exit.map(|(code, text)| beacon(code.parse().expect("a code"), &text)),
            ..WorkerReport::default()
        };
        self.reported(slot, report);
    }

    /// Its guest attributes are read.
    pub fn reported(&mut self, slot: &str, report: WorkerReport) {
        let of = self.fleet.slots[slot].incarnation.clone().expect("a node");
        let (began, result) = (self.now, Ok(vec![report]));
        self.input(Input::Attributes { slot: slot.into(), of, began, result });
    }
}
