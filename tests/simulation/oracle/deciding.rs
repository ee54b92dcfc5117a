//! Looks at what a turn decided: every delete, in the moment in which it is decided.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tpu_watchdog::model::action::Action;
use tpu_watchdog::model::condition::{Condition, Kind};
use tpu_watchdog::model::event::{Event, What};
use tpu_watchdog::model::fleet::{Fleet, elapsed};
use tpu_watchdog::model::hold::HoldReason;
use tpu_watchdog::model::node::Incarnation;
use tpu_watchdog::model::recovery::Phase;
use tpu_watchdog::model::slot::SlotRecord;

use super::Oracle;
use super::evidence::{Grace, Shown};
use super::sending::ordered;
use super::watch::{Get, Watch};
use crate::process::Tag;
use crate::setup::Ms;

/// A trial in spite of refusals comes so long after the last one.
const TRIAL: Duration = Duration::from_secs(30 * 60);

/// What `max_judged_recreates_per_hour` counts.
pub const HOURLY: Duration = Duration::from_secs(3600);

/// A recorded checkpoint is gone when complete listings have lacked it for so long.
const WENT_BACK: Duration = Duration::from_secs(10 * 60);

/// What holds a slot, by the last decision about it.
pub fn hold(fleet: &Fleet, slot: &str) -> Option<HoldReason> {
    fleet.memory.get(slot).and_then(|memory| memory.decision.as_ref()).and_then(|decision| decision.hold)
}

/// Whether a slot counts under `max_unavailable`, by the words of S6.
pub fn counts(record: &SlotRecord, hold: Option<HoldReason>) -> bool {
    let Some(recovery) = &record.recovery else { return false };
    // One that goes on to its next zone at once does not wait for capacity.
    let short = recovery.phase == Phase::Gone
        && recovery.not_before.is_some()
        && recovery.refusal.as_ref().is_some_and(|(class, _)| matches!(class.name(), "stock_out" | "quota" | "rate"));
    let at_rest = matches!(record.verdict.condition, Condition::Stopped | Condition::JobFailed | Condition::Finished);
    let waits = hold.is_some_and(|hold| !matches!(hold.name(), "backoff" | "create_limit" | "unclear"));
    recovery.kind == Kind::Judged && !short && !at_rest && !waits
}

impl Oracle {
    /// A turn is over; nothing of it is written yet.
    #[allow(clippy::too_many_arguments)]
    pub fn decided(
        &mut self,
        tag: Tag,
        fleet: &Fleet,
        events: &[Event],
        then: &[Action],
        now: Ms,
        wall: Timestamp,
        clock_set: Ms,
    ) {
        for event in events {
            if let What::InvariantViolation { invariant } = &event.what {
                let slot = event.slot.clone().unwrap_or_default();
                self.check("guard", &slot, false, || format!("the safety check found a defect ({invariant}): {}", event.message));
            }
        }
        let dry_run = fleet.settings.dry_run;
        self.check("S7", "-", !dry_run || then.is_empty(), || format!("in dry run something is to be sent: {then:?}"));
        if self.holder != Some(tag) {
            return;
        }
        for event in events {
            let Some(slot) = &event.slot else { continue };
            let (Some(watch), Some(record)) = (self.slots.get_mut(slot), fleet.slots.get(slot)) else { continue };
            match event.what {
                What::Condemned { .. } => {
                    watch.zone.clone_from(&record.zone);
                    watch.retried = false;
                }
                What::Recovered { .. } => {
                    watch.zone.clone_from(&record.zone);
                    watch.evidence.forget_what_was_seen();
                }
                // The node is gone, or another one: what was seen says nothing about the next.
                What::Phase { to: Phase::Gone, .. } | What::Withdrawn { .. } => watch.evidence.forget_what_was_seen(),
                _ => {}
            }
        }
        for event in events {
            match (&event.what, &event.slot) {
                (What::Recovered { .. }, Some(slot)) => self.recovered(slot, now),
                (What::RecoveryFailure { reason, .. }, Some(slot)) if reason == "stock_out" => {
                    let zone = self.slots.get(slot).map(|watch| watch.created_in.clone()).unwrap_or_default();
                    self.refusals.entry(self.key(&zone, slot)).or_default().ever = true;
                }
                (What::Phase { to, .. }, Some(slot)) if *to == Phase::Gone => self.owes(slot, true),
                (What::Withdrawn { .. }, Some(slot)) => self.owes(slot, false),
                (What::Decision { reason, .. }, Some(slot)) => self.held(fleet, slot, reason, wall),
                (What::BreakerOpened { slots }, _) => self.opened(fleet, *slots, wall),
                (What::Condemned { .. }, Some(slot)) => {
                    let configured = self.configured.get(&tag.pid).is_some_and(|names| names.contains(slot));
                    self.check("S17", slot, configured, || "it is condemned, and is not configured".to_owned());
                }
                (What::JobFinished, Some(slot)) if fleet.slots.get(slot).is_some_and(|record| record.recovery.is_none()) => {
                    self.owes(slot, false);
                }
                (What::SetAside { .. }, Some(slot)) => {
                    if let Some(watch) = self.slots.get_mut(slot) {
                        (watch.newest_checkpoint, watch.passed_over_at) = (None, now);
                        let again = std::mem::replace(&mut watch.passed, true);
                        self.check("S16", slot, !again, || "a checkpoint is passed over once more".to_owned());
                    }
                }
                _ => {}
            }
        }
        let mut judged = Vec::new();
        for action in then {
            if let Action::Create { slot, .. } = action {
                let gone = self.slots.get(slot).is_some_and(|watch| watch.gone);
                self.check("S4", slot, gone, || "nothing says that the node is gone".to_owned());
                self.checkpoint(slot, action);
                self.of_nothing(tag, fleet, events, slot, now, wall, clock_set);
            }
            if let Action::Delete { slot, incarnation, .. } = action {
                let is_judged = self.delete(tag, fleet, slot, incarnation, now, wall, clock_set);
                self.audit(tag, events, slot, is_judged, clock_set);
                if is_judged {
                    judged.push(slot.clone());
                }
            }
        }
        self.budget(fleet, events, &judged, wall);
    }

    /// What the log gives as the evidence of a delete is what was read.
    fn audit(&mut self, tag: Tag, events: &[Event], slot: &str, judged: bool, clock_set: Ms) {
        let told = events.iter().filter(|event| event.slot.as_deref() == Some(slot)).find_map(|event| match &event.what {
            What::Intent { call, evidence, .. } if call == "delete" => evidence.clone(),
            _ => None,
        });
        let Some(watch) = self.slots.get(slot) else { return };
        // An answer that came late may confirm it, too, though it was overtaken.
        let confirms = |get: &&Get| get.tag == tag && told.as_ref().is_some_and(|told| told.confirmed_at == get.began);
        let Some(get) = watch.got.iter().find(confirms).or(watch.gets.get(&tag.pid)).cloned() else { return };
        let evidence = &watch.evidence;
        let reads = evidence.reads + evidence.recalled + evidence.absences + evidence.reads_aside();
        // Reads beside a delete are no diagnosis: time goes on across them.
        let sick_for = evidence.sick_for.max(evidence.lost_for) + self.settings.poll.max_gap;
        let inside = matches!(get.shown, Some((_, Shown::Healthy)));
        let holds = told.as_ref().is_some_and(|told| {
            let kind = if judged { Kind::Judged } else { Kind::Lost };
            let confirmed = told.confirmed_at == get.began || clock_set >= get.asked;
            let counted =
                told.reads <= reads && told.sick_seconds <= sick_for.as_secs_f64() && told.observed.contains(&get.state);
            told.kind == kind && confirmed && (counted || inside)
        });
        self.check("S18", slot, holds, || format!("the log says {told:?}; {get:?}, {reads} reads, sick for {sick_for:?}"));
    }

    /// A slot is held, or something else was decided, for this reason.
    fn held(&mut self, fleet: &Fleet, slot: &str, reason: &str, wall: Timestamp) {
        if matches!(reason, "attempts" | "preemptions" | "no_progress") {
            let retried = self.slots.get(slot).is_some_and(|watch| watch.retried);
            self.check("L7", slot, !retried, || format!("a person has just given it its attempts back: {reason}"));
        }
        // Whose guard it is, and whether it guards judged slots alone.
        let (name, judged_alone) = match reason {
            "breaker" => ("S8", true),
            "quiet_hours" => ("S7", true),
            "max_unavailable" | "judged_per_hour" => ("S6", true),
            "zone_short" | "replacements_fail" => ("S14", true),
            "paused" | "opted_out" => ("S7", false),
            "attempts" | "preemptions" => ("S13", false),
            "checkpoint_went_back" => return self.went_back(slot, wall),
            _ => return,
        };
        let Some(record) = fleet.slots.get(slot) else { return };
        let dead = name == "S14" && record.verdict.condition == Condition::FailedRepair;
        self.check("S14", slot, !dead, || format!("it is dead, eats quota, and waits for {reason}"));
        let owed = record.recovery.as_ref().is_some_and(|r| r.phase == Phase::Gone);
        self.check(name, slot, !owed, || format!("a create that is owed is held: {reason}"));
        let lost = record.verdict.condition.kind() == Some(Kind::Lost);
        self.check(name, slot, !(lost && judged_alone), || format!("it is lost, and waits for {reason}"));
        if reason == "zone_short" {
            let key = self.key(&record.zone, slot);
            let refused = self.refusals.get(&key).is_some_and(|refusals| refusals.ever);
            self.check("S14", slot, refused, || format!("no create in {key} ever met a stock-out"));
        }
        if reason == "max_unavailable" {
            // Before this turn or after it: within it some begin to count, and some do no more.
            let counted = |record: &&SlotRecord| self.counted.contains(&record.name) || counts(record, hold(fleet, &record.name));
            let (count, limit) = (fleet.slots.values().filter(counted).count(), self.limit(fleet));
            self.check("S6", slot, count >= limit, || format!("it waits for {count} slots in recovery, {limit} are allowed"));
        }
    }

    fn went_back(&mut self, slot: &str, wall: Timestamp) {
        let Some(watch) = self.slots.get(slot) else { return };
        let since = watch.lacks_since;
        self.check("S15", slot, since.is_some_and(|since| elapsed(since, wall) >= WENT_BACK), || {
            format!("its recorded checkpoint has been gone from complete listings since {since:?}, it is {wall}")
        });
    }

    /// The storm breaker opens: so many slots can have been judged within its window.
    fn opened(&mut self, fleet: &Fleet, told: usize, wall: Timestamp) {
        let storm = self.settings.storm;
        // What was ripe at a read may be judged as late as the next one.
        let recent = storm.window + self.settings.poll.max_gap;
        let judged = |watch: &&Watch| {
            let (last, _) = watch.evidence.times();
            // And is judged by that read until there is another, also by somebody whose clock says that it is long ago.
            let counts = |at: Timestamp| elapsed(at, wall) < recent || last.is_some_and(|last| at >= last);
            watch.evidence.judged_at.is_some_and(|at| counts(at) && self.reset_no_later.is_none_or(|reset| at > reset))
        };
        let count = self.slots.values().filter(judged).count();
        let desired = fleet.slots.values().filter(|record| !record.leaving).count();
        let enough = |count: usize| count >= storm.min && count as f64 * 100.0 >= storm.percent * desired as f64;
        self.check("S8", "-", enough(count) && enough(told), || {
            format!("the storm breaker opens for {told} of {desired} slots, {count} can have been judged; {storm:?}")
        });
    }

    fn limit(&self, fleet: &Fleet) -> usize {
        fleet.settings.max_unavailable.of(fleet.slots.values().filter(|record| !record.leaving).count())
    }

    pub fn owes(&mut self, slot: &str, owes: bool) {
        if let Some(watch) = self.slots.get_mut(slot) {
            watch.owes_create = owes;
        }
    }

    /// A create starts from nothing older than the newest complete checkpoint that was listed.
    fn checkpoint(&mut self, slot: &str, action: &Action) {
        let Action::Create { body, .. } = action else { return };
        let step = ordered(body).step;
        let newest = self.slots.get(slot).and_then(|watch| watch.newest_checkpoint);
        self.check("S15", slot, step >= newest, || format!("it starts from step {step:?}, step {newest:?} was listed"));
    }

    /// A create that no delete of ours goes before: the node is missing, and a GET says so.
    #[allow(clippy::too_many_arguments)]
    fn of_nothing(&mut self, tag: Tag, fleet: &Fleet, events: &[Event], slot: &str, now: Ms, wall: Timestamp, clock_set: Ms) {
        let missing =
            |e: &Event| e.slot.as_deref() == Some(slot) && matches!(e.what, What::Condemned { cause: Condition::Missing, .. });
        let (true, Some(watch)) = (events.iter().any(missing), self.slots.get(slot)) else { return };
        let get = watch.gets.get(&tag.pid).cloned().filter(|get| get.tag == tag);
        let (opted_out, first) = (watch.opted_out, !watch.open);
        let absent = get.as_ref().is_some_and(|get| get.shown.is_none());
        let fresh = get.as_ref().is_some_and(|get| now - get.asked <= 5_000 || clock_set >= get.asked);
        let after = watch.last_sent.is_none_or(|sent| get.as_ref().is_some_and(|get| get.asked >= sent));
        self.check("S4", slot, absent && fresh, || format!("no GET of the last 5 s says 404: {get:?}, it is {now} ms"));
        self.check("S2", slot, after, || "the GET was asked for before our last mutation".to_owned());
        self.check("S7", slot, !opted_out, || "the label of its last node opts it out".to_owned());
        let paused = self.is_paused(tag, slot, wall);
        self.check("S7", slot, !paused, || "it is paused".to_owned());
        let Some(watch) = self.slots.get(slot) else { return };
        let evidence = &watch.evidence;
        let (absent_for, reads) = (evidence.lost_for, evidence.absences + evidence.reads + evidence.recalled);
        let (grace, confirmations) = (evidence.policy.grace.missing, evidence.policy.confirmations);
        self.check("S3", slot, absent_for >= grace && reads >= confirmations, || {
            format!("missing for {absent_for:?} of {grace:?}, {reads} of {confirmations} reads")
        });
        let wanted = fleet.settings.slots.get(slot).is_some_and(|s| s.policy.create_missing) || !first;
        self.check("S4", slot, wanted, || "what is missing is left to a person here".to_owned());
    }

    /// One delete. Returns whether its slot was judged.
    #[allow(clippy::too_many_arguments)]
    fn delete(
        &mut self,
        tag: Tag,
        fleet: &Fleet,
        slot: &str,
        target: &Incarnation,
        now: Ms,
        wall: Timestamp,
        clock_set: Ms,
    ) -> bool {
        let Some(watch) = self.slots.get(slot) else {
            self.check("S17", slot, false, || "a node that is not configured is to be deleted".to_owned());
            return false;
        };
        let leaving = !self.configured.get(&tag.pid).is_some_and(|names| names.contains(slot));
        let Some(get) = watch.gets.get(&tag.pid).cloned().filter(|get| get.tag == tag) else {
            self.check("S1", slot, false, || "no GET verified it".to_owned());
            return false;
        };
        if let Some(watch) = self.slots.get_mut(slot) {
            watch.doomed = watch.evidence.is_dead_inside();
        }
        let Some(watch) = self.slots.get(slot) else { return false };
        let age = now - get.asked;
        let (incarnation, shown) = get.shown.clone().unwrap_or((None, Shown::Unknown));
        let last_sent = watch.last_sent;
        self.check("S17", slot, !leaving, || "it has left the config".to_owned());
        self.check("S1", slot, incarnation.as_ref() == Some(target), || {
            format!("the GET showed {incarnation:?}, the target is {target}")
        });
        self.check("S1", slot, age <= 5_000 || clock_set >= get.asked, || format!("the GET that verifies it is {age} ms old"));
        self.check("S2", slot, last_sent.is_none_or(|sent| get.asked >= sent), || {
            format!("the GET was asked for at {} ms, our last mutation left at {last_sent:?}", get.asked)
        });
        let Some(watch) = self.slots.get(slot) else { return false };
        let evidence = &watch.evidence;
        let sick_for = evidence.sick_for;
        let (reads, absences) = (evidence.reads + evidence.recalled + evidence.reads_aside(), evidence.absences);
        let wanted = evidence.policy.confirmations;
        let (dead_inside, heard) = (evidence.is_dead_inside(), watch.heard.get(&tag.pid).filter(|(of, _)| *of == tag));
        let heard = heard.map(|(_, asked)| *asked);
        let inside = evidence.inside();
        let ripe = evidence.ripe_since;
        let opted_out = watch.opted_out;
        let mut repair = false;
        let judged = match &shown {
            Shown::Lost => {
                let reads = reads + absences;
                self.check("S3", slot, reads >= wanted, || format!("lost over {reads} of {wanted} reads"));
                false
            }
            Shown::Sick { grace, at_work, until } => {
                let own = evidence.grace(*grace);
                let progress = fleet.slots.get(slot).and_then(|record| record.job.progress_at);
                let needed = evidence.longest_grace(*grace, progress);
                let (announced, since) = (evidence.is_announced(*until, progress, wall), evidence.since());
                repair = *grace == Grace::FailedRepair;
                self.check("S10", slot, !at_work || sick_for >= own, || {
                    format!("the API works on it, for {sick_for:?} of {own:?} ({grace:?})")
                });
                self.check("S3", slot, sick_for >= needed && reads >= wanted, || {
                    format!("{grace:?}: sick for {sick_for:?} of {needed:?}, {reads} of {wanted} reads")
                });
                self.check("S3", slot, !announced, || {
                    format!("its maintenance is announced to end at {until:?}; sick since {since:?}")
                });
                true
            }
            Shown::Healthy => {
                self.check("S5", slot, dead_inside, || format!("it is shown healthy, and its workers report: {inside}"));
                // A TPU that came to life since its last report is one at work.
                let fresh = heard.is_some_and(|asked| now - asked <= 10_000 || clock_set >= asked);
                self.check("S5", slot, fresh, || format!("its workers' reports were asked for at {heard:?}, it is {now} ms"));
                let after = last_sent.is_none_or(|sent| heard.is_some_and(|asked| asked >= sent));
                self.check("S2", slot, after, || {
                    format!("its workers' reports are of {heard:?}, our last mutation of {last_sent:?}")
                });
                true
            }
            Shown::Wanted | Shown::Unknown => false,
        };
        self.check("S10", slot, shown != Shown::Wanted, || "somebody stopped, hid or deletes it".to_owned());
        self.check("S4", slot, get.shown.is_some(), || "it is absent".to_owned());
        self.check("S5", slot, shown != Shown::Unknown, || "its state is not known".to_owned());
        self.check("S7", slot, !opted_out, || "its label opts it out".to_owned());
        let paused = self.is_paused(tag, slot, wall);
        self.check("S7", slot, !paused, || "it is paused".to_owned());
        if judged {
            self.guards_of_judged(fleet, slot, repair, ripe, wall);
        }
        judged
    }

    fn guards_of_judged(&mut self, fleet: &Fleet, slot: &str, repair: bool, ripe: Option<Timestamp>, wall: Timestamp) {
        let quiet = self.settings.slots.get(slot).and_then(|s| s.policy.quiet_hours.first()).map(|hours| {
            // From the full hour in its expression, daily or every so many hours.
            let hour = hours.cron.split(' ').nth(2).unwrap_or("0");
            let every: i64 = hour.strip_prefix("*/").map_or(24, |hours| hours.parse().unwrap_or(24)) * 3600;
            let start: i64 = hour.parse().unwrap_or(0);
            let time = wall.to_zoned(TimeZone::UTC).time();
            let seconds = i64::from(time.hour()) * 3600 + i64::from(time.minute()) * 60 + i64::from(time.second());
            (seconds - start * 3600).rem_euclid(every) < i64::try_from(hours.lasts.as_secs()).unwrap_or(0)
        });
        if let Some(quiet) = quiet {
            self.check("S7", slot, !quiet, || format!("these are quiet hours: {wall}"));
        }
        let open = self.breaker_open;
        self.check("S8", slot, !open, || "the storm breaker is open".to_owned());
        // Whoever was condemned while it was ripe within the window was counted.
        let storm = self.settings.storm;
        let desired = self.settings.slots.len();
        let threshold = storm.min.max((storm.percent * desired as f64 / 100.0).ceil() as usize);
        let again = self.slots.get(slot).is_some_and(|watch| watch.open);
        let mut names: Vec<&String> =
            self.gusts.iter().filter(|(at, _)| *at <= wall && elapsed(*at, wall) < storm.window).map(|(_, name)| name).collect();
        // Others are ripe, too, and held or waiting for their GET: they are judged all the same.
        let others = fleet.slots.values().filter(|record| {
            let (condition, Some(watch)) = (record.verdict.condition, self.slots.get(&record.name)) else { return false };
            let recently = watch
                .evidence
                .ripe_since
                .is_some_and(|at| at <= wall && elapsed(at, wall) < storm.window && self.reset_at.is_none_or(|reset| at > reset));
            let window = record.seen.as_ref().is_some_and(|seen| seen.window_end.is_some());
            let reserved = record.seen.as_ref().is_some_and(|seen| seen.reserved);
            // Of all that was seen the longest grace applies.
            let graces = &watch.evidence.policy.grace;
            let over = record
                .suspicion
                .as_ref()
                .is_some_and(|s| s.seen.iter().chain([&condition]).all(|seen| s.sick_for >= graces.of(*seen, reserved)));
            recently && over && !window && record.recovery.is_none() && condition.kind() == Some(Kind::Judged)
        });
        names.extend(others.map(|record| &record.name));
        names.sort();
        names.dedup();
        let ripe = ripe.filter(|ripe| self.reset_at.is_none_or(|reset| *ripe > reset));
        let fresh = ripe.is_some_and(|at| elapsed(at, wall) < storm.window) && !again && !names.iter().any(|name| *name == slot);
        let (count, names) = (names.len() + usize::from(fresh), format!("{names:?}"));
        self.check("S8", slot, !fresh || count < threshold, || {
            format!(
                "{count} slots of {desired} were judged within {:?} (before it: {names}), and the breaker is closed",
                storm.window
            )
        });
        if repair {
            return;
        }
        let zone = fleet.slots.get(slot).map(|r| r.zone.clone()).unwrap_or_default();
        let key = self.key(&zone, slot);
        let Some(refusals) = self.refusals.get(&key) else { return };
        let (refused_at, trial_at, trial) = (refusals.refused_at, refusals.trial_at, refusals.trial.clone());
        let unfit: Vec<&(Timestamp, String)> = refusals.unfit.iter().filter(|(at, _)| elapsed(*at, wall) < TRIAL * 2).collect();
        let last_unfit = unfit.iter().map(|(at, _)| *at).max();
        let several = unfit.iter().any(|(_, name)| unfit.iter().any(|(_, other)| other != name));
        if let Some(refused) = refused_at {
            // The trial itself, whose delete did not come about, goes on.
            let own = trial.as_deref() == Some(slot);
            let early = refused <= wall && elapsed(refused, wall) < TRIAL && !(own && trial_at > Some(refused));
            let second = !own && trial_at.is_some_and(|trial| trial > refused && trial <= wall && elapsed(trial, wall) < TRIAL);
            self.check("S14", slot, !early && !second, || {
                format!("creates in {key} were refused at {refused}, a trial was at {trial_at:?}")
            });
        }
        let tried = trial.as_deref() == Some(slot) && trial_at > last_unfit;
        if let Some(last) = last_unfit.filter(|_| several && !tried) {
            self.check("S14", slot, last > wall || elapsed(last, wall) >= TRIAL, || {
                format!("replacements of two slots in {key} failed to boot, the last at {last}")
            });
        }
    }

    /// S6: judged slots in recovery, those of this turn included; and how many are condemned in an hour.
    fn budget(&mut self, fleet: &Fleet, events: &[Event], judged: &[String], wall: Timestamp) {
        let new: Vec<&String> = judged.iter().filter(|slot| !self.counted.contains(slot)).collect();
        if new.is_empty() {
            return;
        }
        let is_condemned =
            |slot: &String| events.iter().any(|e| e.slot.as_ref() == Some(slot) && matches!(e.what, What::Condemned { .. }));
        let condemned = new.iter().filter(|slot| is_condemned(slot)).count();
        let before = self.judged.iter().filter(|at| **at <= wall && elapsed(**at, wall) < HOURLY).count();
        let limit = self.settings.max_judged_recreates_per_hour;
        self.check("S6", new[0], condemned == 0 || before + condemned <= limit, || {
            format!("{before} judged slots were condemned within an hour, and now {condemned}: {limit} are allowed")
        });
        let limit = self.limit(fleet);
        let others = fleet.slots.values().filter(|record| {
            counts(record, hold(fleet, &record.name)) && !new.contains(&&record.name) && self.counted.contains(&record.name)
        });
        let (others, new, slot) = (others.count(), new.len(), new[0].clone());
        self.check("S6", &slot, others + new <= limit, || {
            format!("{others} judged slots are in recovery, {new} are condemned, {limit} are allowed")
        });
    }
}
