//! What happens to nodes, zones, stores, clocks and people, when and for how long.

use std::time::Duration;

use tpu_watchdog::model::command::CommandKind;
use tpu_watchdog::model::hold::HoldReason;
use tpu_watchdog::simulator::shape::time;
use tpu_watchdog::simulator::trouble::{Event, Trouble};

use crate::fault::Fault;
use crate::process::wall;
use crate::setup::*;
use crate::world::{Task, World};

/// One thing that happens.
#[derive(Debug, Clone)]
pub enum Accident {
    /// This fault strikes somewhere, and will again.
    Strike(Fault, Ms),
    Heal {
        zone: String,
        name: String,
    },
    Lose {
        zone: String,
        name: String,
    },
    Sicken {
        zone: String,
        name: String,
    },
    Silence {
        zone: String,
        name: String,
    },
    /// Its job ends before its next step.
    Crash {
        zone: String,
        name: String,
    },
    /// It is gone: what a person's delete comes to.
    Vanish {
        zone: String,
        name: String,
    },
    /// Sick and well in turn, so many times more.
    Flap {
        zone: String,
        name: String,
        left: u32,
    },
    OptIn {
        zone: String,
        name: String,
    },
    Unstick(String),
    /// An operator gives this command.
    Command(CommandKind),
}

/// Faults that strike by themselves, with the mean time between two strikes in minutes.
const BY_THEMSELVES: [(Fault, u32); 26] = [
    (Fault::JobCrashes, 40),
    (Fault::Crash, 60),
    (Fault::Pause, 90),
    (Fault::ClockJump, 120),
    (Fault::Reload, 90),
    (Fault::Commands, 40),
    (Fault::Unreachable, 60),
    (Fault::StrangeValues, 60),
    (Fault::Sickness, 25),
    (Fault::Flapping, 90),
    (Fault::Preemption, 30),
    (Fault::Vanishing, 60),
    (Fault::PersonStops, 120),
    (Fault::PersonReplaces, 90),
    (Fault::PersonDeletes, 90),
    (Fault::OptOut, 120),
    (Fault::Silence, 60),
    (Fault::Outage, 150),
    (Fault::StockOut, 90),
    (Fault::Quota, 120),
    (Fault::RightsTaken, 150),
    (Fault::BadScript, 150),
    (Fault::StuckJob, 100),
    (Fault::CheckpointsTaken, 100),
    (Fault::JobEnds, 200),
    (Fault::DiskFull, 100),
];

impl World {
    /// Puts the first strikes on the agenda.
    pub fn plan_accidents(&mut self) {
        let all: Vec<(Fault, u32)> =
            BY_THEMSELVES.into_iter().filter(|(fault, _)| self.setup.has(*fault)).collect();
        for (fault, ordinary) in all {
            let minutes = i64::from(self.setup.pace(fault, ordinary));
            // The first is early: a world that knows a fault meets it.
            let at = self.rng.i64(MINUTE..(minutes * MINUTE).min(self.setup.chaos / 2));
            self.at(at, Task::Accident(Accident::Strike(fault, minutes)));
        }
        if self.setup.has(Fault::StoreFails) {
            let at = self.rng.i64(MINUTE..HOUR);
            let minutes = self.setup.pace(Fault::StoreFails, 80).into();
            self.at(at, Task::Accident(Accident::Strike(Fault::StoreFails, minutes)));
        }
    }

    fn any_slot(&mut self) -> Option<(String, String)> {
        let names: Vec<(String, String)> = self
            .cloud
            .nodes
            .keys()
            .filter(|(_, name)| self.setup.bodies.contains_key(name))
            .cloned()
            .collect();
        if names.is_empty() { None } else { Some(names[self.rng.usize(0..names.len())].clone()) }
    }

    fn trouble(&mut self, what: Trouble, zone: &str, name: &str, lasts: Option<Ms>) {
        self.tell(|| format!("{name}: {what:?} for {lasts:?} ms"));
        // Of those without an end every other one is announced to have one, which passes.
        let announced = what == Trouble::Window && lasts.is_none() && self.now / 1000 % 2 == 0;
        let lasts = lasts.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        self.cloud.trouble(Event {
            at: Duration::ZERO,
            node: name.into(),
            zone: zone.into(),
            what,
            lasts,
        });
        let node =
            self.cloud.nodes.get_mut(&(zone.to_owned(), name.to_owned())).filter(|_| announced);
        if let Some(upcoming) = node.and_then(|node| node.upcoming.as_mut()) {
            let end = wall(self.now + (5 + self.now / 1000 % 90) * MINUTE, 0);
            upcoming["windowEndTime"] = time(end).into();
        }
    }

    fn sickness(&mut self) -> Trouble {
        [
            Trouble::Maintenance,
            Trouble::Window,
            Trouble::Repairing,
            Trouble::Restarting,
            Trouble::FailedRepair,
            Trouble::Unresponsive,
            Trouble::RuntimeUnhealthy,
            Trouble::MeshFailure,
        ][self.rng.usize(0..8)]
    }

    /// For a while, or for good.
    fn a_while(&mut self) -> Option<Ms> {
        match self.rng.u32(0..4) {
            0 | 1 => None,
            2 => Some(self.rng.i64(MINUTE..8 * MINUTE)),
            _ => Some(self.rng.i64(8 * MINUTE..90 * MINUTE)),
        }
    }

    pub fn accident(&mut self, accident: Accident) {
        match accident {
            Accident::Strike(fault, minutes) => {
                if !self.calm {
                    self.strike(fault);
                    let wait = self.rng.i64(MINUTE..2 * minutes * MINUTE);
                    self.at(self.now + wait, Task::Accident(Accident::Strike(fault, minutes)));
                }
            }
            Accident::Heal { zone, name } => self.trouble(Trouble::Heal, &zone, &name, None),
            Accident::Vanish { zone, name } => self.trouble(Trouble::Vanish, &zone, &name, None),
            Accident::OptIn { zone, name } => {
                self.network.relabelled(&zone, &name);
                let node = self.cloud.nodes.get_mut(&(zone, name));
                if let Some(labels) =
                    node.and_then(|n| n.body.get_mut("labels")).and_then(|l| l.as_object_mut())
                {
                    labels.remove("tpu-watchdog");
                }
            }
            Accident::Unstick(name) => {
                self.stuck.remove(&name);
            }
            Accident::Command(kind) => self.command(kind),
            _ if self.calm => {}
            Accident::Lose { zone, name } => self.trouble(Trouble::Preempt, &zone, &name, None),
            Accident::Sicken { zone, name } => {
                let (what, lasts) = (self.sickness(), self.a_while());
                let node = self.cloud.nodes.get(&(zone.clone(), name.clone()));
                let of_the_runtime = [Trouble::Unresponsive, Trouble::RuntimeUnhealthy];
                match of_the_runtime.contains(&what) && node.is_some_and(|n| n.uid % 2 == 0) {
                    true => self.trouble(Trouble::JobHangs, &zone, &name, None),
                    false => self.trouble(what, &zone, &name, lasts),
                }
            }
            Accident::Silence { zone, name } => self.trouble(Trouble::Silence, &zone, &name, None),
            Accident::Crash { zone, name } => self.trouble(Trouble::JobCrashes, &zone, &name, None),
            Accident::Flap { zone, name, left } => {
                let sick = self.rng.i64(20_000..6 * MINUTE);
                self.trouble(Trouble::Unresponsive, &zone, &name, Some(sick));
                if left > 0 {
                    let wait = sick + self.rng.i64(20_000..3 * MINUTE);
                    self.at(
                        self.now + wait,
                        Task::Accident(Accident::Flap { zone, name, left: left - 1 }),
                    );
                }
            }
        }
    }

    fn strike(&mut self, fault: Fault) {
        // What strikes a replacement or a process is counted where it does.
        if !matches!(fault, Fault::BadScript | Fault::StuckJob) {
            self.struck(fault);
        }
        let pid = self.rng.usize(0..self.processes.len());
        let long = self.rng.i64(5 * MINUTE..60 * MINUTE);
        let zone = ZONES[self.rng.usize(0..ZONES.len())].to_owned();
        match fault {
            Fault::Crash => {
                // Every other one is told to leave, at any moment.
                if self.processes[pid].is_up() && self.rng.bool() {
                    self.crash(pid);
                } else if self.processes[pid].is_up() {
                    self.tell(|| format!("watchdog {pid} is told to stop"));
                    let tag = self.processes[pid].tag(pid);
                    self.at(self.now, Task::Stop(tag));
                }
                return;
            }
            Fault::Pause => {
                if self.processes[pid].is_up() {
                    self.pause(pid);
                }
                return;
            }
            Fault::ClockJump => {
                let by = match self.rng.u32(0..3) {
                    0 => self.rng.i64(-20_000..20_000),
                    1 => self.rng.i64(-HOUR..HOUR),
                    _ => self.rng.i64(-300_000..300_000),
                };
                self.tell(|| format!("the clock of watchdog {pid} is set by {by} ms"));
                self.processes[pid].offset += by;
                self.processes[pid].clock_set = self.now;
                return;
            }
            Fault::Reload => return self.change_config(pid),
            Fault::Commands => return self.give_a_command(),
            Fault::Unreachable => {
                self.network.unreachable.insert(zone, self.now + long);
                return;
            }
            Fault::Quota => {
                let until = wall(self.now + long, 0);
                self.cloud
                    .quota
                    .insert(zone, (until, "Quota limit 'TPUs' has been exceeded.".into()));
                return;
            }
            Fault::StockOut => return self.trouble(Trouble::StockOut, &zone, "-", Some(long)),
            Fault::RightsTaken => {
                let since = self.rights_taken().unwrap_or(self.now);
                self.rights = (since, self.now + 5 * long);
                self.tell(|| "the right to create TPUs is taken".to_owned());
                return;
            }
            Fault::BadScript => {
                self.bad_script_until = self.now + long;
                return;
            }
            Fault::StoreFails => {
                self.store_down_until = self.now + self.rng.i64(1_000..3 * MINUTE);
                return;
            }
            Fault::DiskFull => {
                self.store_full_until = self.now + self.rng.i64(MINUTE..15 * MINUTE);
                self.tell(|| "the disk is full".to_owned());
                return;
            }
            Fault::Outage => return self.outage(),
            _ => {}
        }
        let Some((zone, name)) = self.any_slot() else { return };
        match fault {
            Fault::StrangeValues => {
                let lasts = Some(self.rng.i64(MINUTE..60 * MINUTE));
                let what = if self.rng.bool() { Trouble::Strange } else { Trouble::StrangeState };
                self.trouble(what, &zone, &name, lasts);
            }
            Fault::Sickness => self.accident(Accident::Sicken { zone, name }),
            Fault::Flapping => self.accident(Accident::Flap { zone, name, left: 12 }),
            Fault::Preemption => {
                let what = if self.rng.bool() { Trouble::Preempt } else { Trouble::Terminate };
                self.trouble(what, &zone, &name, None);
            }
            Fault::Vanishing => self.trouble(Trouble::Vanish, &zone, &name, None),
            Fault::PersonStops => {
                let what = if self.rng.bool() { Trouble::Stop } else { Trouble::Hide };
                let lasts = Some(self.rng.i64(10 * MINUTE..4 * HOUR));
                self.trouble(what, &zone, &name, lasts);
            }
            Fault::PersonReplaces => {
                self.trouble(Trouble::Replace, &zone, &name, None);
                let (now, known) = (self.now, self.known(&name));
                (known.theirs, known.others) = (true, Some(now));
            }
            Fault::PersonDeletes => {
                self.trouble(Trouble::Deleting, &zone, &name, None);
                let wait = self.rng.i64(20_000..50 * MINUTE);
                self.at(self.now + wait, Task::Accident(Accident::Vanish { zone, name }));
            }
            Fault::OptOut => {
                self.trouble(Trouble::OptOut, &zone, &name, None);
                self.network.relabelled(&zone, &name);
                self.at(self.now + 3 * long, Task::Accident(Accident::OptIn { zone, name }));
            }
            Fault::Silence => self.trouble(Trouble::Silence, &zone, &name, None),
            Fault::StuckJob => {
                let newest = self.newest_step(&name);
                self.stuck.insert(name.clone(), newest);
                self.trouble(Trouble::Preempt, &zone, &name, None);
                let wait = self.rng.i64(HOUR..6 * HOUR);
                self.at(self.now + wait, Task::Accident(Accident::Unstick(name)));
            }
            Fault::CheckpointsTaken => {
                self.take_checkpoints(&name);
                // What is lost beside them is recreated from what is left.
                if self.rng.bool() {
                    self.trouble(Trouble::Preempt, &zone, &name, None);
                }
            }
            Fault::JobEnds => {
                let what = if self.rng.bool() { Trouble::JobEnds } else { Trouble::JobFails };
                self.trouble(what, &zone, &name, None);
            }
            Fault::JobCrashes => self.accident(Accident::Crash { zone, name }),
            _ => unreachable!("{fault} strikes elsewhere"),
        }
    }

    /// A part of the fleet at once, in one way.
    fn outage(&mut self) {
        let share = self.rng.f64() * 0.9 + 0.1;
        let (what, lasts) = if self.rng.u32(0..3) == 0 {
            (Trouble::Preempt, None)
        } else {
            (self.sickness(), self.a_while())
        };
        let all: Vec<(String, String)> = self
            .cloud
            .nodes
            .keys()
            .filter(|(_, name)| self.setup.bodies.contains_key(name))
            .cloned()
            .collect();
        for (zone, name) in all {
            if self.rng.f64() < share {
                self.trouble(what, &zone, &name, lasts);
            }
        }
    }

    /// The faults stop. A part stays broken for good.
    pub fn calm_down(&mut self) {
        self.calm = true;
        self.calm_since = Some(self.now);
        self.tell(|| "from now on nothing fails by itself".to_owned());
        (self.store_down_until, self.store_full_until, self.bad_script_until) = (0, 0, 0);
        self.rights = (0, 0);
        self.network.unreachable.clear();
        self.cloud.quota.clear();
        self.cloud.refusals.clear();
        self.cloud.dead_on_arrival.clear();
        self.cloud.ungathered.clear();
        self.stuck.clear();
        if self.setup.end == self.setup.chaos {
            return;
        }
        if let Some(zone) = self.setup.broken_zone.clone() {
            self.trouble(Trouble::StockOut, &zone, "-", None);
        }
        // Some heal now; what stays sick is there to be recovered.
        let all: Vec<(String, String)> = self.cloud.nodes.keys().cloned().collect();
        for (zone, name) in all {
            let state = self.cloud.nodes[&(zone.clone(), name.clone())].state;
            let stopped = matches!(state, "STOPPED" | "HIDDEN");
            if name != "bystander"
                && !stopped
                && !matches!(state, "CREATING" | "DELETING" | "PREEMPTED" | "TERMINATED")
                && self.rng.u32(0..3) == 0
            {
                self.trouble(Trouble::Heal, &zone, &name, None);
            }
            // A person's delete comes to its end.
            if state == "DELETING" {
                self.at(self.now + 2 * MINUTE, Task::Accident(Accident::Vanish { zone, name }));
            }
        }
        for pid in 0..self.processes.len() {
            self.processes[pid].config = 0;
            self.processes[pid].paused_until = self.processes[pid].paused_until.min(self.now);
            if !self.processes[pid].is_up() {
                self.at(self.now, Task::Start(pid));
            } else {
                self.processes[pid].config = 1;
                self.change_config(pid);
            }
        }
        self.command(CommandKind::Resume { slot: None, adopt: false });
        let names: Vec<String> = self.setup.settings.slots.keys().cloned().collect();
        for name in names {
            self.command(CommandKind::Resume { slot: Some(name), adopt: false });
        }
        self.command(CommandKind::BreakerReset);
        // The holder dies once more: another one, or itself again, must follow. By then nothing is
        // slow any more.
        if self.setup.seed.is_multiple_of(2)
            && let Some(pid) = self.processes.iter().position(|p| p.leading().is_some())
        {
            self.at(self.now + MINUTE, Task::Crash(pid));
        }
    }

    /// A person looks at what says that it waits for one, and lets it go on. Nothing else is
    /// helped.
    pub fn reset(&mut self) {
        let (fleet, _) = self.what_is_known();
        if fleet.ledger.breaker.is_some() {
            self.command(CommandKind::BreakerReset);
        }
        let hold = |name: &String| {
            fleet.slots.get(name).and_then(|r| r.decision.as_ref()).and_then(|d| d.hold)
        };
        let waiting: Vec<(String, HoldReason)> = fleet
            .slots
            .keys()
            .filter_map(|name| {
                Some((name.clone(), hold(name).filter(|hold| hold.needs_a_person())?))
            })
            .collect();
        for (slot, hold) in waiting {
            // Something older than what is recorded is taken where a person says so.
            let from = (hold == HoldReason::CheckpointWentBack)
                .then(|| self.newest_step(&slot).unwrap_or(0));
            self.command(CommandKind::Retry { slot, from });
        }
        // Somebody pauses one for a while.
        let slot = self.setup.settings.slots.keys().next().cloned();
        self.command(CommandKind::Pause { slot: slot.clone(), until: None });
        self.at(
            self.now + 10 * MINUTE,
            Task::Accident(Accident::Command(CommandKind::Resume { slot, adopt: false })),
        );
    }
}
