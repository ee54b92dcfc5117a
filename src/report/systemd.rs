//! The service manager's protocol (`sd_notify(3)`): readiness, one line of what is going on, and a
//! watchdog that is fed by the loop's progress alone. Without `NOTIFY_SOCKET` nothing is sent.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use super::published::{Lock, Snapshot};
use crate::model::condition::Condition;

/// Tells the service manager. Does nothing by default.
#[derive(Debug, Default)]
pub struct Notify {
    on: bool,
    watchdog: Option<Duration>,
    told: RefCell<String>,
    fed: Cell<Option<Instant>>,
}

impl Notify {
    /// As the environment of a service says.
    pub fn service() -> Self {
        Notify { on: true, watchdog: sd_notify::watchdog_enabled(), ..Notify::default() }
    }

    /// Started, or done with reloading.
    pub fn ready(&self) {
        self.send(&[NotifyState::Ready]);
    }

    /// The config is read again.
    pub fn reloading(&self) {
        // The time tells systemd which reload this answers.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            self.send(&[NotifyState::Reloading, now]);
        }
    }

    /// On the way out.
    pub fn stopping(&self) {
        self.send(&[NotifyState::Stopping]);
    }

    /// The line in `systemctl status`, when it changed.
    pub fn status(&self, snapshot: &Snapshot) {
        if !self.on {
            return;
        }
        let line = line(snapshot);
        if *self.told.borrow() != line {
            self.send(&[NotifyState::Status(&line)]);
            self.told.replace(line);
        }
    }

    /// The loop got on. Sent at most four times within the watchdog's time.
    pub fn alive(&self) {
        let Some(watchdog) = self.watchdog else { return };
        if self.fed.get().is_none_or(|at| at.elapsed() >= watchdog / 4) {
            self.fed.set(Some(Instant::now()));
            self.send(&[NotifyState::Watchdog]);
        }
    }

    /// The loop must turn at least this often for the watchdog to be fed in time.
    pub fn interval(&self) -> Option<Duration> {
        self.watchdog.map(|time| time / 3)
    }

    fn send(&self, states: &[NotifyState]) {
        if self.on
            && let Err(error) = sd_notify::notify(states)
        {
            tracing::debug!("the service manager could not be told: {error}");
        }
    }
}

/// The present status, in one line.
fn line(snapshot: &Snapshot) -> String {
    let tpus = &snapshot.status.tpus;
    let healthy = tpus.iter().filter(|s| s.condition == Condition::Healthy).count();
    let recovering = tpus.iter().filter(|s| s.phase.is_some()).count();
    let held = tpus.iter().filter(|s| s.hold.is_some()).count();
    let prefix = match &snapshot.lock {
        Lock::StandingBy(holder) => format!("standing by for {holder}: "),
        Lock::Held if snapshot.store_failing => {
            "the journal can't be written, nothing is done: ".to_owned()
        }
        Lock::Held if snapshot.polls == 0 => "first poll: ".to_owned(),
        _ => String::new(),
    };
    let dry_run = if snapshot.dry_run { ", dry run" } else { "" };
    format!(
        "{prefix}{healthy} of {} healthy, {recovering} recovering, {held} held{dry_run}",
        tpus.len()
    )
}
