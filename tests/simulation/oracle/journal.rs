//! Looks at what has become durable: the event log is the audit, and what is not in it did not happen.

use jiff::Timestamp;
use tpu_watchdog::model::condition::{Condition, Kind};
use tpu_watchdog::model::event::{Event, Evidence, What};
use tpu_watchdog::model::fleet::elapsed;
use tpu_watchdog::model::lever::Pull;
use tpu_watchdog::model::recovery::Phase;

use super::Oracle;
use crate::setup::Ms;

impl Oracle {
    /// A commit is on the disk.
    pub fn written(&mut self, events: &[Event], pulled: &[String], now: Ms) {
        for id in pulled {
            let lever = self.levers.remove(id).filter(|_| !self.void.remove(id));
            match lever.map(|lever| lever.pull) {
                Some(Pull::Pause { slot, until }) => _ = self.paused.insert(slot, until),
                Some(Pull::Resume { slot, .. }) => _ = self.paused.remove(&slot),
                _ => {}
            }
        }
        for event in events {
            match (&event.what, event.slot.clone()) {
                (What::BreakerOpened { .. }, _) => self.breaker_open = true,
                (what, Some(slot)) => self.happened(what, slot, event.at, now),
                _ => {}
            }
        }
    }

    fn happened(&mut self, what: &What, slot: String, at: Timestamp, now: Ms) {
        let Some(watch) = self.slots.get_mut(&slot) else { return };
        match what {
            What::Intent { call, zone, evidence, .. } => {
                watch.intent = Some(what.clone());
                let owed = watch.result_owed;
                watch.result_owed = true;
                self.intents += 1;
                self.check("S11", &slot, !owed, || {
                    "the log has no result of its last call, and the next one is intended".to_owned()
                });
                // Also one whose first delete did not come about: it is the trial once more.
                let is_trial = |e: &Evidence| e.kind == Kind::Judged && e.condition != Condition::FailedRepair;
                if call == "delete" && evidence.as_ref().is_some_and(is_trial) {
                    let refusals = self.refusals.entry(self.key(zone, &slot)).or_default();
                    (refusals.trial_at, refusals.trial) = (Some(at), Some(slot));
                }
            }
            // An answer alone is no result: that is how it ended, or what was read back.
            What::Outcome { call, result, incarnation } => {
                watch.result_owed &= matches!(result.as_str(), "unknown" | "accepted");
                let holds = match &watch.intent {
                    Some(What::Intent { call: intended, incarnation: target, .. }) if call == "delete" => {
                        intended == call && target == incarnation
                    }
                    _ => true,
                };
                let intent = watch.intent.clone();
                self.check("S18", &slot, holds, || format!("the log says {result} of {incarnation:?} after {intent:?}"));
            }
            What::SetAside { .. } => {
                // The condemnation that it belongs to follows in the same commit, and ends a run from nothing.
                watch.fruitless = -1;
                watch.set_aside = true;
            }
            What::Condemned { cause, kind, .. } => self.condemned(*cause, *kind, slot, at),
            What::Phase { to: Phase::Booted | Phase::Launched, .. } => watch.booted = true,
            What::Phase { to: Phase::Creating, .. } => watch.creating_since = Some(at),
            What::Recovered { .. } => {
                (watch.open, watch.booted) = (false, false);
                self.recovered(&slot, now);
            }
            What::Withdrawn { .. } => (watch.open, watch.booted, watch.result_owed) = (false, false, false),
            What::JobFinished => (watch.open, watch.booted) = (false, false),
            What::RecoveryFailure { reason, .. } if reason == "stock_out" => {
                let zone = watch.created_in.clone();
                self.refusals.entry(self.key(&zone, &slot)).or_default().refused_at = Some(at);
            }
            _ => {}
        }
    }

    fn condemned(&mut self, cause: Condition, kind: Kind, slot: String, at: Timestamp) {
        let Some(watch) = self.slots.get_mut(&slot) else { return };
        let policy = &watch.evidence.policy.attempts;
        let (allowed, window) = (if kind == Kind::Judged { policy.max } else { policy.preemptions }, policy.window);
        // Lost ones slide out of the window; judged ones stay as they were at the last of them, until somebody or health clears them.
        let last = watch.attempts.iter().filter(|(_, of)| *of == kind && kind == Kind::Judged).map(|(attempt, _)| *attempt).max();
        let until = last.unwrap_or(at);
        let used = watch.attempts.iter().filter(|(attempt, of)| *of == kind && elapsed(*attempt, until) < window).count();
        watch.attempts.retain(|(attempt, of)| *of != kind || elapsed(*attempt, at) < window);
        watch.attempts.push((at, kind));
        let created = watch.last_sent;
        // Sent away may be a replacement, or once more the node whose delete failed.
        let recreated = std::mem::take(&mut watch.recreated);
        let unfit = watch.open && recreated && !watch.booted && !watch.forgiven && kind == Kind::Judged;
        let ripe = watch.evidence.ripe_since;
        // It failed when it was ripe, although other guards may have held it since.
        let failed_at = watch.evidence.first_judged.map_or(at, |first| first.min(at));
        let first = !watch.open;
        if first {
            watch.creating_since = None;
        }
        (watch.open, watch.booted) = (true, false);
        // A run that was seen at work and made no new step ends: S16 counts it where the job is what failed.
        let about_the_job = matches!(cause, Condition::Silent | Condition::RuntimeUnhealthy);
        if about_the_job && watch.run_began && !watch.progressed {
            watch.fruitless += 1;
        }
        (watch.run_began, watch.progressed) = (false, false);
        let (fruitless, zone) = (watch.fruitless, watch.zone.clone());
        let limit = self.settings.slots.get(&slot).and_then(|s| s.job.as_ref()).map(|job| i64::from(job.no_progress));
        self.check("S13", &slot, used < allowed, || {
            format!("{used} recoveries were begun within {window:?}, {allowed} are allowed")
        });
        if let Some(limit) = limit.filter(|_| about_the_job) {
            self.check("S16", &slot, fruitless < limit, || format!("run {fruitless} without a new step is followed by another"));
        }
        if kind == Kind::Judged {
            self.judged.push(at);
        }
        if kind == Kind::Judged && cause != Condition::FailedRepair {
            let key = self.key(&zone, &slot);
            let refusals = self.refusals.entry(key).or_default();
            (refusals.trial_at, refusals.trial) = (Some(at), Some(slot.clone()));
            // Whether one that was recovered since then came before or after its grace was over is not known here.
            if unfit && refusals.recovered_at < created {
                refusals.unfit.push((failed_at, slot.clone()));
            }
        }
        // What a person saw when closing the breaker opens it no more.
        let ripe = ripe.filter(|ripe| self.reset_at.is_none_or(|reset| *ripe > reset));
        if let (Kind::Judged, true, Some(ripe)) = (kind, first, ripe) {
            self.gusts.push((ripe, slot));
        }
    }

    /// What was refused, or failed, before its create counts no more; a refusal that is newer does.
    pub fn recovered(&mut self, slot: &str, now: Ms) {
        self.owes(slot, false);
        let Some((zone, since)) = self.slots.get(slot).map(|watch| (watch.zone.clone(), watch.creating_since)) else { return };
        let refusals = self.refusals.entry(self.key(&zone, slot)).or_default();
        let before = std::mem::take(refusals);
        (refusals.recovered_at, refusals.ever) = (Some(now), before.ever);
        if before.refused_at.is_some_and(|refused| since.is_none_or(|since| refused >= since)) {
            (refusals.refused_at, refusals.trial_at, refusals.trial) = (before.refused_at, before.trial_at, before.trial);
        }
    }
}
