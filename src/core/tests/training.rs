//! Managed training jobs in virtual time: each end and what follows from it, and S24 under lost answers, lists that lag
//! behind, and crashes.

use std::sync::Arc;

use super::runs::{LOCATION, survey};
use super::*;
use crate::model::filling::Filling;
use crate::model::submission::{JobListing, JobView};
use crate::model::training::{JobKind, NO_REGION, Named, Restart, Training};
use crate::resource::training::{body, reading};

pub const REGION: &str = "us-central1";
pub const OTHER: &str = "europe-west4";

/// Google's service: it keeps every job, and shows it in lists after a while.
pub struct Service {
    pub world: World,
    pub jobs: Vec<(Timestamp, Value)>,
    pub lag: u64,
    /// The steps of its complete checkpoints.
    pub steps: Vec<u64>,
    /// Told apart below the newest of them.
    pub below: String,
    /// They are of a layout that no rule knows, the oldest of this time.
    pub strange: Option<Option<Timestamp>>,
    /// Checkpoints can't be listed.
    pub unlisted: bool,
    /// GETs so far.
    pub gets: u32,
    /// All messages so far.
    pub told: Vec<String>,
    /// All that happened.
    pub events: Vec<What>,
    /// The state of the TPU `tpu`, where there is one.
    pub tpu: Option<&'static str>,
}

pub fn training() -> Settings {
    let mut settings = settings(&["a"]);
    for slot in settings.slots.values_mut() {
        trains(slot, "sft");
    }
    settings
}

/// The slot is the job of this display name.
pub fn trains(slot: &mut SlotSettings, job: &str) {
    slot.zones = vec![REGION.to_owned(), OTHER.to_owned()];
    slot.policy.create_check = false;
    slot.filling = Filling::Training(Arc::new(Training {
        named: Named::DisplayName(job.into()),
        regions: slot.zones.clone(),
        settle: Duration::from_secs(300),
        restart: Restart { no_progress: 9, ..Restart::default() },
        ..Training::default()
    }));
    let checkpoint = Some(crate::model::settings::CheckpointSettings {
        uri: LOCATION.into(),
        format: Some(crate::model::settings::CheckpointFormat::Orbax),
        orbax_mode: Default::default(),
    });
    slot.job = Some(JobSettings { checkpoint, no_progress: u32::MAX, ..JobSettings::default() });
}

pub fn job(name: &str) -> Value {
    let spec = json!({"workerPoolSpecs": [], "scheduling": {"strategy": "SPOT"}, "later": 1});
    json!({"displayName": name, "jobSpec": spec})
}

impl Service {
    /// A job that a person has submitted runs, and is watched.
    pub fn new() -> Service {
        let mut service = Service {
            world: World::new(training()),
            jobs: vec![],
            lag: 0,
            steps: vec![],
            below: String::new(),
            unlisted: false,
            strange: None,
            gets: 0,
            told: vec![],
            events: vec![],
            tpu: None,
        };
        service.make(REGION, job("sft"));
        service.sets("JOB_STATE_RUNNING", None);
        service.poll();
        service
    }

    pub fn make(&mut self, region: &str, mut job: Value) {
        let id = 1000 + self.jobs.len();
        let collection = JobKind::of(&job).collection();
        if job.get("jobId").is_none() {
            job["name"] = json!(format!("projects/77/locations/{region}/{collection}/{id}"));
        }
        job["createTime"] = json!(self.world.now.to_string());
        let legacy = job.get("jobId").is_some();
        job["state"] = json!(if legacy { "RUNNING" } else { "JOB_STATE_RUNNING" });
        self.jobs.push((self.world.now, job));
    }

    /// The newest job is, or ends, so.
    pub fn sets(&mut self, state: &str, error: Option<(i64, &str)>) {
        let now = self.world.now.to_string();
        let (_, job) = self.jobs.last_mut().unwrap();
        let legacy = state.trim_start_matches("JOB_STATE_");
        job["state"] = json!(if job.get("jobId").is_some() { legacy } else { state });
        job["endTime"] = json!(now);
        match error {
            Some((_, message)) if job.get("jobId").is_some() => {
                job["errorMessage"] = json!(message)
            }
            Some((code, message)) => job["error"] = json!({"code": code, "message": message}),
            None => {}
        }
    }

    pub fn shown(&self) -> Vec<JobView> {
        let old = |made: Timestamp| made <= after(self.world.now, Duration::ZERO);
        let lag = Duration::from_secs(self.lag);
        let visible =
            |(made, _): &&(Timestamp, Value)| old(*made) && after(*made, lag) <= self.world.now;
        let parse = |(_, raw): &(Timestamp, Value)| JobView::parse(raw.clone()).unwrap();
        self.jobs.iter().filter(visible).map(parse).collect()
    }

    /// Jobs that live, whatever lists show.
    pub fn live(&self) -> usize {
        let lives = |(_, raw): &&(Timestamp, Value)| {
            JobView::parse(raw.clone()).is_ok_and(|job| !job.has_ended())
        };
        self.jobs.iter().filter(lives).count()
    }

    /// Lists every region, and answers each question that follows.
    pub fn poll(&mut self) {
        let listing = |region: &&str| {
            let lives = |job: &JobView| job.region == **region && !job.has_ended();
            let jobs = self.shown().into_iter().filter(lives).collect();
            JobListing { region: (*region).to_owned(), result: Ok(jobs) }
        };
        let jobs = [REGION, OTHER, NO_REGION].iter().map(listing).collect();
        // Lists take a while.
        let began = self.world.now - jiff::SignedDuration::from_secs(5);
        let shown =
            |state| Arc::new(NodeView::parse(node("tpu", json!({"state": state}))).unwrap());
        let result = Ok((self.tpu.map(shown).into_iter().collect::<Vec<_>>(), vec![]).into());
        let listings = vec![Listing { zone: ZONE.into(), result, requests: None }];
        let poll = Poll { began, listings, jobs };
        self.ask(Input::Polled(Box::new(poll)));
    }

    pub fn ask(&mut self, input: Input) {
        let mut inputs = vec![input];
        let mut actions = Vec::new();
        while let Some(input) = inputs.pop() {
            self.world.input(input);
            self.told.append(&mut self.world.messages.clone());
            self.events.append(&mut self.world.events.clone());
            actions.append(&mut self.world.actions);
            for look in std::mem::take(&mut self.world.looks) {
                inputs.extend(self.answer(look));
            }
        }
        self.world.actions = actions;
    }

    pub fn answer(&mut self, look: Look) -> Option<Input> {
        let began = self.world.now;
        match look {
            Look::Node { slot, filling: Filling::Node, .. } => {
                let state = self.tpu.map(|state| node(&slot, json!({"state": state})));
                let view = state.map(|raw| Arc::new(NodeView::parse(raw).unwrap()));
                let reading = view.map_or(Reading::Absent, Reading::Node);
                Some(Input::Got { slot, began, reading })
            }
            Look::Node { slot, zone, filling, nodes } => {
                self.gets += 1;
                let shown: Vec<JobView> =
                    self.shown().into_iter().filter(|job| job.region == zone).collect();
                let jobs: Vec<&JobView> = shown.iter().collect();
                let of = filling.training().unwrap();
                let reading = reading(of, &slot, &nodes, &jobs, began);
                Some(Input::Got { slot, began, reading })
            }
            Look::Stray { zone, name, filling } => {
                let shown: Vec<JobView> =
                    self.shown().into_iter().filter(|job| job.region == zone).collect();
                let jobs: Vec<&JobView> = shown.iter().collect();
                let reading = reading(filling.training().unwrap(), &name, &[], &jobs, began);
                Some(Input::StrayGot { zone, name, began, reading })
            }
            Look::Checkpoints { slot, location, .. } => {
                let failure = Failure::new(FailureClass::Transient, "HTTP 503");
                let mut shown = survey(&self.steps);
                shown.steps = format!("{:?}{}", self.steps, self.below);
                if let Some(other) = &self.strange {
                    shown = super::harm::strange(*other).unwrap();
                }
                let result = if self.unlisted { Err(failure) } else { Ok(shown) };
                Some(Input::Surveyed { slot, began, location: location.uri, result })
            }
            Look::Operation { slot, operation, .. } => {
                Some(Input::Operated { slot, operation, result: Ok(OperationState::Succeeded) })
            }
            _ => None,
        }
    }

    pub fn minutes(&mut self, minutes: u64) {
        for _ in 0..minutes * 2 {
            self.half_a_minute();
        }
    }

    pub fn half_a_minute(&mut self) {
        self.world.wait(30);
        for (_, job) in &mut self.jobs {
            if job["state"] == "JOB_STATE_CANCELLING" && job.get("cancelled").is_some() {
                job["state"] = json!("JOB_STATE_CANCELLED");
                (job["error"], job["endTime"]) =
                    (json!({"code": 1, "message": "CANCELED"}), json!(self.world.now.to_string()));
            }
        }
        self.poll();
        self.carry_out();
    }

    /// Every submission is carried out, and answered. A TPU that is deleted is gone.
    pub fn carry_out(&mut self) {
        for action in std::mem::take(&mut self.world.actions) {
            if let Action::Delete { incarnation, filling: Filling::Training(_), .. } = &action {
                let id = incarnation.id.clone();
                super::stalls::cancel(self, &action, &id);
                continue;
            }
            let Action::Create { slot, zone, body, filling, .. } = action else {
                self.tpu = None;
                let gone = Failure::new(FailureClass::NotFound, "gone");
                self.ask(Input::Called { slot: "tpu".into(), outcome: CallOutcome::Refused(gone) });
                self.carry_out();
                continue;
            };
            if filling == Filling::Node {
                self.tpu = Some("CREATING");
                continue;
            }
            let of = filling.training().unwrap();
            let mut job = body::submission(&body, of).unwrap();
            assert_eq!((of.kind, of.either), (JobKind::of(&job), false));
            if of.kind == JobKind::Legacy {
                job["jobId"] = json!(body::next_id(&body, 0).unwrap());
            }
            self.make(&zone, job);
            let outcome = CallOutcome::Accepted("projects/p/locations/r/jobs/1".into());
            self.ask(Input::Called { slot, outcome });
            self.carry_out();
        }
    }

    pub fn called(&mut self, outcome: CallOutcome) {
        self.ask(Input::Called { slot: "a".into(), outcome });
    }

    pub fn hold(&self) -> Option<HoldReason> {
        self.world.hold("a")
    }
}

pub const EXIT: &str = "The replica workerpool0-0 exited with a non-zero status of";

#[test]
fn each_end_is_submitted_again_or_held_for_its_reason() {
    use HoldReason::*;
    let internal = Some((13, "Internal error occurred for the current attempt".to_owned()));
    for (state, error, jobs, hold) in [
        ("QUEUED", None, 1, None),
        ("PENDING", None, 1, None),
        ("RUNNING", None, 1, None),
        ("SUCCEEDED", None, 1, None),
        ("FAILED", Some((3, format!("{EXIT} 139."))), 2, None),
        ("FAILED", Some((3, format!("{EXIT} 1."))), 1, Some(JobFailed)),
        (
            "FAILED",
            Some((3, "The replica workerpool0-0 ran out of memory and exited".into())),
            1,
            Some(JobFailed),
        ),
        ("FAILED", Some((8, "Resources are insufficient in region: us-central1.".into())), 2, None),
        ("FAILED", internal.clone(), 2, None),
        ("FAILED", Some((2, "words that no rule knows".into())), 2, None),
        ("EXPIRED", None, 1, Some(TimeLimit)),
        ("CANCELLED", Some((1, "CANCELED".into())), 1, Some(Stopped)),
        ("CANCELLED", None, 1, Some(Stopped)),
        ("CANCELLED", Some((4, "it ran for longer than its timeout".into())), 1, Some(TimeLimit)),
        ("CANCELLING", None, 1, Some(Stopped)),
        ("PAUSED", None, 1, Some(Stopped)),
        ("UPDATING", None, 1, Some(Stopped)),
        ("PARTIALLY_SUCCEEDED", None, 1, Some(Stopped)),
        ("LATER", None, 1, Some(Unclear)),
    ] {
        let mut service = Service::new();
        service.sets(
            &format!("JOB_STATE_{state}"),
            error.as_ref().map(|(code, text)| (*code, text.as_str())),
        );
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (jobs, hold), "{state} {error:?}");
    }
    // A quota is asked again after an hour.
    let mut service = Service::new();
    service
        .sets("JOB_STATE_FAILED", Some((8, "The following quota metrics exceed quota limits: x")));
    service.minutes(30);
    assert_eq!((service.jobs.len(), service.hold()), (1, Some(Quota)));
    service.minutes(35);
    assert_eq!((service.jobs.len(), service.hold()), (2, None));
    // A job that is deleted is a person's.
    let mut service = Service::new();
    service.jobs.clear();
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (0, Some(Deleted)));
}

#[test]
fn s13_submissions_are_counted_until_a_newer_checkpoint() {
    let mut service = Service::new();
    for (count, hold) in [(2, None), (3, None), (4, None), (4, Some(HoldReason::Attempts))] {
        service.sets("JOB_STATE_FAILED", Some((13, "Internal error occurred")));
        service.minutes(10);
        assert_eq!((service.jobs.len(), service.hold()), (count, hold));
    }
    service.steps.push(100);
    service.minutes(10);
    assert_eq!((service.jobs.len(), service.hold()), (5, None), "{:?}", service.world.messages);
}

#[test]
fn two_hundred_jobs_that_lose_a_region_run_in_the_next_and_no_tpu_waits_for_them() {
    let names: Vec<String> = (0..200).map(|n| format!("job-{n}")).collect();
    let mut slots: Vec<&str> = names.iter().map(String::as_str).collect();
    slots.push("tpu");
    let mut settings = settings(&slots);
    for name in &names {
        trains(settings.slots.get_mut(name).unwrap(), name);
    }
    let mut service = Service {
        world: World::new(settings),
        jobs: vec![],
        steps: vec![100],
        tpu: Some("READY"),
        ..Service::new()
    };
    names.iter().for_each(|name| service.make(REGION, job(name)));
    service.minutes(2);
    let words = "Resources are insufficient in region: us-central1.";
    for (_, job) in &mut service.jobs {
        job["state"] = json!("JOB_STATE_FAILED");
        (job["endTime"], job["error"]) =
            (json!(service.world.now.to_string()), json!({"code": 8, "message": words}));
    }
    for turn in 0..20 {
        if turn == 4 {
            service.tpu = Some("PREEMPTED");
        }
        // Two reads, in this poll and the next: then it is created at once.
        assert!(turn < 7 || service.tpu == Some("CREATING"), "the TPU waits in turn {turn}");
        let before = service.gets;
        service.half_a_minute();
        // One read of each job that has just ended: its end is final.
        assert!(service.gets - before <= 200, "{} reads in a poll", service.gets - before);
    }
    let told =
        service.told.iter().filter(|text| text.contains("from there: where that bucket is in"));
    assert_eq!(told.count(), 200);
    let in_other = service.shown().iter().filter(|job| job.region == OTHER).count();
    assert_eq!((in_other, service.live()), (200, 200));
    let before = service.gets;
    service.minutes(5);
    assert_eq!(service.gets, before, "nothing is read that lists show");
}

#[test]
fn s24_lost_answers_lists_that_lag_and_crashes_make_no_second_job_of_a_lineage() {
    let mut dice = 7_u64;
    let mut roll = move |of: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % of
    };
    let (mut lost, mut carried_out) = (0, 0);
    for world in 0..50 {
        let mut service = Service::new();
        let settings = training();
        service.minutes(5);
        service.lag = roll(121);
        for _ in 0..4 {
            service.sets("JOB_STATE_FAILED", Some((0, "STOCKOUT")));
            let before = service.jobs.len();
            for _ in 0..200 {
                service.world.wait(30);
                if service.live() > 0
                    && service.hold().is_none()
                    && service.world.phase("a").is_none()
                {
                    break;
                }
                service.poll();
                let [Action::Create { zone, body, filling, .. }] = &service.world.actions[..]
                else {
                    continue;
                };
                let job = body::submission(body, filling.training().unwrap()).unwrap();
                let zone = zone.clone();
                let arrives = roll(2) == 0;
                if arrives {
                    service.make(&zone, job);
                    assert!(service.live() <= 1, "world {world}: {:?}", service.jobs);
                }
                let failure = Failure::new(FailureClass::Transient, "HTTP 503");
                lost += 1;
                carried_out += u32::from(arrives);
                match roll(3) {
                    0 if arrives => {
                        let name =
                            service.jobs.last().unwrap().1["name"].as_str().unwrap().to_owned();
                        service.called(CallOutcome::Accepted(name));
                    }
                    1 => service.called(CallOutcome::Unknown(failure)),
                    // A crash right after the call: what is not journaled is lost.
                    _ => {
                        let (slots, ledger) =
                            (service.world.fleet.slots.clone(), service.world.fleet.ledger.clone());
                        service.world.fleet = Fleet::new(settings.clone(), slots, ledger);
                        service.ask(Input::Configured(Box::new(settings.clone())));
                    }
                }
            }
            let goes_on = service.live() == 1 && service.jobs.len() > before;
            let why = &service.world.fleet.slots["a"].decision;
            assert!(goes_on, "world {world} goes on: {why:?}");
        }
    }
    assert!(lost > 200 && carried_out > 80, "{lost} {carried_out}");
}
