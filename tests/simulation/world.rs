//! The world: a virtual clock, the simulated cloud, a network that loses things, and the watchdogs
//! in it. No threads, no real time, no network: what happens next is the first entry of the agenda.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use fastrand::Rng;
use tpu_watchdog::driver::message::{Message, StoreCall};
use tpu_watchdog::driver::poll::Plan;
use tpu_watchdog::driver::term::Term;
use tpu_watchdog::model::action::{Action, Input, Look};
use tpu_watchdog::model::filling::Filling;
use tpu_watchdog::model::relaunch::Patch;
use tpu_watchdog::model::settings::{Settings, Share};
use tpu_watchdog::report::audit::Audit;
use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::things::Timing;
use tpu_watchdog::simulator::things::Workload;

use crate::accidents::Accident;
use crate::fault::Fault;
use crate::network::Network;
use crate::process::*;
use crate::proof::Violation;
use crate::setup::*;
use crate::shelf::Shelf;
use crate::truth::Truth;

/// What happens at a moment.
pub enum Task {
    Start(usize),
    /// A process is woken, if it still wants to be then.
    Wake(Tag, Ms),
    /// It reads its config again.
    Reload(Tag),
    /// It is told to stop.
    Stop(Tag),
    /// A call to the store reaches it: when it was made, how long its answer takes.
    AtStore(Tag, Box<StoreCall>, Ms, Ms),
    /// The store's answer.
    Answered(Tag, Box<Message>),
    /// A read reaches the API.
    Serve(Tag, Box<Look>, Ms),
    ServePoll(Tag, Plan, Ms),
    Deliver(Tag, Box<Input>, Ms),
    /// A mutation is about to leave.
    Send(Tag, Term, Box<Action>),
    /// It reaches the API; late ones, and second ones.
    Arrive(Tag, Box<Action>, Arrival),
    Crash(usize),
    Accident(Accident),
    /// The faults are over.
    Calm,
    /// A person resets what is still open.
    Reset,
    /// Long after everything should be well.
    Settled,
}

/// How a mutation arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub sent: Ms,
    pub answered: bool,
    pub late: bool,
    pub again: bool,
}

pub struct World {
    pub setup: Setup,
    pub now: Ms,
    pub rng: Rng,
    pub cloud: Cloud,
    pub network: Network,
    pub shelf: Shelf,
    pub processes: Vec<Process>,
    pub violation: Option<Violation>,
    /// How often each invariant was looked at.
    pub checked: BTreeMap<&'static str, u64>,
    pub truth: Truth,
    pub audit: Audit,
    /// Who took the lock last, and since when.
    pub holder: Option<Tag>,
    pub held_since: Ms,
    /// Since when no process has held the lock although one stands by.
    pub alone_since: Option<Ms>,
    pub calm_since: Option<Ms>,
    /// The world has not changed for long: nothing may be mutated any more.
    pub settled: bool,
    /// A hash of everything that has arrived at the API.
    pub arrivals: Arrivals,
    pub configs: Vec<Settings>,
    pub calm: bool,
    pub strikes: BTreeMap<Fault, u32>,
    /// Until then the store fails, or is full.
    pub store_down_until: Ms,
    pub store_full_until: Ms,
    /// Slots whose job never gets away from this step.
    pub stuck: BTreeMap<String, Option<u64>>,
    /// Until then no replacement boots.
    pub bad_script_until: Ms,
    /// Since when, and until when, the right to create TPUs is taken.
    pub rights: (Ms, Ms),
    pub trace: Option<Vec<String>>,
    agenda: BTreeMap<(Ms, u64), Task>,
    counter: u64,
    pub turns: u64,
}

/// How a world ended.
#[derive(Default)]
pub struct Outcome {
    pub violation: Option<Violation>,
    pub trace: Vec<String>,
    pub strikes: BTreeMap<Fault, u32>,
    pub checked: BTreeMap<&'static str, u64>,
    pub turns: u64,
    pub arrivals: Arrivals,
}

/// How many mutations have arrived, and a hash of all of them: when, of which slot, what, where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrivals {
    pub count: u64,
    pub hash: u64,
}

impl Arrivals {
    /// As in arrivals.txt.
    pub fn line(&self, seed: u64) -> String {
        format!("{seed} {} {:016x}", self.count, self.hash)
    }

    /// FNV-1a over what arrives: the same on every machine and in every version.
    pub fn arrives(&mut self, now: Ms, action: &Action) {
        // Of a slot's own node these say nothing more.
        let node = format!(", nodes: {:?}", [action.slot()]);
        let plain = [", filling: Node", ", force: false", ", stray: false", &node];
        let what =
            plain.iter().fold(format!("{now} {action:?}\n"), |text, of| text.replace(of, ""));
        let before = if self.count == 0 { 0xcbf2_9ce4_8422_2325 } else { self.hash };
        self.hash = what
            .bytes()
            .fold(before, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        self.count += 1;
    }
}

/// Plays a world to its end, or to the first violation. A panic is one, too: its seed is told like
/// that of any other.
pub fn play(setup: Setup, trace: bool) -> Outcome {
    let played = std::panic::catch_unwind(AssertUnwindSafe(|| play_out(setup, trace)));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let message = text
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        Outcome {
            violation: Some(Violation { name: "no panic", slot: "-".to_owned(), message }),
            ..Outcome::default()
        }
    })
}

fn play_out(setup: Setup, trace: bool) -> Outcome {
    let mut world = World::new(setup, trace);
    world.run();
    Outcome {
        violation: world.violation.take(),
        trace: world.trace.take().unwrap_or_default(),
        strikes: std::mem::take(&mut world.strikes),
        checked: std::mem::take(&mut world.checked),
        turns: world.turns,
        arrivals: world.arrivals,
    }
}

impl World {
    fn new(setup: Setup, trace: bool) -> World {
        let seconds = std::time::Duration::from_secs;
        let timing = Timing {
            create: seconds(90),
            delete: seconds(40),
            change: seconds(20),
            boot: seconds(30),
            beat: seconds(60),
            refusal: seconds(20),
        };
        let mut cloud = Cloud::new(timing);
        cloud.advance(wall(0, 0));
        for (name, slot) in &setup.settings.slots {
            if let Some(job) = &slot.job {
                let checkpoint = job.checkpoint.as_ref().map(|c| c.uri.clone()).unwrap_or_default();
                let workload =
                    Workload { checkpoint, step: seconds(setup.step), every: 2, at_step: 100 };
                cloud.workloads.insert(name.clone(), workload);
            }
            let body = setup.bodies[name].clone();
            if let Filling::QueuedResource(id) = &slot.filling {
                cloud.grant(&slot.zones[0], id, name, &body);
                continue;
            }
            cloud.add_node(&slot.zones[0], name, body, true);
            let node = cloud
                .nodes
                .get_mut(&(slot.zones[0].clone(), name.clone()))
                .expect("it was just added");
            match setup.origins[name] {
                Origin::Queued => {
                    node.queued_resource = Some("projects/p/locations/z/queuedResources/q".into())
                }
                Origin::V1 => node.made_by = "V1",
                Origin::Plain | Origin::Owned => {}
            }
        }
        // Somebody else's nodes, in the same zones: nobody may touch them.
        for zone in ZONES {
            let body = setup.bodies.values().next().cloned().unwrap_or_default();
            cloud.add_node(zone, "bystander", body, true);
        }
        let mut other = setup.settings.clone();
        let mut draw = rng(setup.seed, "other config");
        if other.slots.len() > 1 {
            let gone = other
                .slots
                .keys()
                .nth(draw.usize(0..other.slots.len()))
                .cloned()
                .unwrap_or_default();
            other.slots.remove(&gone);
        }
        other.max_unavailable = Share::Count(draw.usize(1..4));
        other.dry_run |= draw.u32(0..4) == 0;
        let mut world = World {
            rng: rng(setup.seed, "events"),
            now: 0,
            cloud,
            network: Network::new(&setup),
            shelf: Shelf::new(setup.sqlite),
            processes: setup.watchdogs.iter().map(|kind| Process::new(*kind)).collect(),
            violation: None,
            checked: BTreeMap::new(),
            truth: Truth::default(),
            audit: Audit::default(),
            holder: None,
            held_since: 0,
            alone_since: None,
            calm_since: None,
            settled: false,
            arrivals: Arrivals::default(),
            configs: vec![setup.settings.clone(), other],
            calm: false,
            strikes: BTreeMap::new(),
            store_down_until: 0,
            store_full_until: 0,
            stuck: BTreeMap::new(),
            bad_script_until: 0,
            rights: (0, 0),
            trace: trace.then(Vec::new),
            agenda: BTreeMap::new(),
            counter: 0,
            turns: 0,
            setup,
        };
        for pid in 0..world.processes.len() {
            let at = world.rng.i64(0..20_000);
            world.at(at, Task::Start(pid));
        }
        world.at(world.setup.chaos, Task::Calm);
        if world.setup.end > world.setup.chaos {
            world.at(world.setup.chaos + 5 * HOUR, Task::Reset);
            world.at(world.setup.end - 2 * HOUR, Task::Settled);
        }
        world.plan_accidents();
        world
    }

    fn run(&mut self) {
        while self.violation.is_none() {
            let Some(entry) = self.agenda.first_entry() else { break };
            let (at, _) = *entry.key();
            if at > self.setup.end {
                break;
            }
            let task = entry.remove();
            self.now = self.now.max(at);
            self.cloud.advance(wall(self.now, 0));
            self.happen(task);
            self.cloud.nodes.chronicle(wall(self.now, 0));
        }
        if self.violation.is_none() && self.setup.end > self.setup.chaos {
            self.judge_the_end();
        }
    }

    /// A line of the story.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let time = format!(
                "{:>3}:{:02}:{:06.3}",
                self.now / HOUR,
                self.now % HOUR / MINUTE,
                (self.now % MINUTE) as f64 / 1000.0
            );
            trace.push(format!("{time} {}", line()));
        }
    }

    pub fn at(&mut self, at: Ms, task: Task) {
        self.counter += 1;
        self.agenda.insert((at.max(self.now), self.counter), task);
    }

    pub fn soon(&mut self, least: Ms, most: Ms, task: Task) {
        let wait = self.rng.i64(least..=most);
        self.at(self.now + wait, task);
    }

    /// Whether this fault strikes now: a coin that is only tossed where the world knows the fault.
    pub fn strikes(&mut self, fault: Fault, one_in: u32) -> bool {
        if self.calm
            || !self.setup.has(fault)
            || self.rng.u32(0..self.setup.pace(fault, one_in)) != 0
        {
            return false;
        }
        self.struck(fault);
        true
    }

    pub fn struck(&mut self, fault: Fault) {
        *self.strikes.entry(fault).or_default() += 1;
    }

    /// Whether the process that this is for still lives and is awake; what is for a
    /// paused one comes later.
    fn awake(&mut self, tag: Tag, task: Task) -> Option<Task> {
        let process = &self.processes[tag.pid];
        if process.life != tag.life || !process.is_up() {
            return None;
        }
        if process.paused_until > self.now {
            let until = process.paused_until;
            self.at(until, task);
            return None;
        }
        Some(task)
    }

    fn happen(&mut self, task: Task) {
        let task = match &task {
            Task::Wake(tag, _)
            | Task::Reload(tag)
            | Task::Stop(tag)
            | Task::Answered(tag, _)
            | Task::Send(tag, ..)
            | Task::Deliver(tag, ..) => {
                let tag = *tag;
                match self.awake(tag, task) {
                    Some(task) => task,
                    None => return,
                }
            }
            _ => task,
        };
        match task {
            Task::Start(pid) => self.start(pid),
            Task::Wake(tag, at) => {
                if self.processes[tag.pid].wake_at == Some(at) {
                    self.processes[tag.pid].wake_at = None;
                    self.drive(tag.pid, Message::Woke);
                }
            }
            Task::Reload(tag) => self.reload(tag),
            Task::Stop(tag) => self.drive(tag.pid, Message::Stop),
            Task::AtStore(tag, call, began, back) => self.at_store(tag, *call, began, back),
            Task::Answered(tag, answer) => self.drive(tag.pid, *answer),
            Task::Serve(tag, look, asked) => self.serve(tag, *look, asked),
            Task::ServePoll(tag, plan, asked) => self.serve_poll(tag, plan, asked),
            Task::Deliver(tag, input, asked) => self.deliver(tag, *input, asked),
            Task::Send(tag, term, action) => self.send(tag, &term, *action),
            Task::Arrive(tag, action, arrival) => self.arrive(tag, *action, arrival),
            Task::Crash(pid) => {
                if self.processes[pid].is_up() {
                    self.crash(pid);
                }
            }
            Task::Accident(accident) => self.accident(accident),
            Task::Calm => self.calm_down(),
            Task::Reset => self.reset(),
            Task::Settled => self.settled = true,
        }
    }
}

/// A mutation in a line.
pub fn brief(action: &Action) -> String {
    match action {
        Action::Delete { slot, incarnation, .. } => format!("DELETE {slot} {incarnation}"),
        Action::Create { slot, zone, body, .. } => {
            let run = body
                .pointer("/metadata/tpu-watchdog-run")
                .and_then(|r| r.as_str())
                .unwrap_or_default();
            format!("CREATE {slot} in {zone} {run}")
        }
        Action::Patch { slot, patch: Patch::Order(order), .. } => {
            format!("ORDER {slot} {}", order.text())
        }
        Action::Patch { slot, patch: Patch::Release, .. } => format!("RELEASE {slot}"),
        Action::Patch { slot, patch: Patch::Stop, .. } => format!("STOP {slot}"),
    }
}
