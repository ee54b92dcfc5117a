//! Gauges of what stands in the way: holds, refused creates, strays. By slot, too, so that an alert
//! on one slot can leave out what another alert tells of it, or what does not concern its kind.

use prometheus::{IntGaugeVec, Opts, Registry};

use crate::model::hold::HoldReason;
use crate::model::view::StatusDocument;

/// The gauges.
pub struct Obstacles {
    recoveries_held: IntGaugeVec,
    slot_held: IntGaugeVec,
    creates_refused: IntGaugeVec,
    slot_create_refused: IntGaugeVec,
    slot_protected: IntGaugeVec,
    slot_recoveries: IntGaugeVec,
    slot_unprotected: IntGaugeVec,
    slot_kind: IntGaugeVec,
    durable_progress_expected: IntGaugeVec,
    orphans: IntGaugeVec,
}

impl Obstacles {
    /// Registers them.
    ///
    /// # Errors
    /// Only when two metrics share a name, which a test rules out.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Obstacles {
            recoveries_held: gauges(
                "recoveries_held",
                "Slots that are held, by reason.",
                &["reason"],
            )?,
            slot_held: gauges(
                "slot_held",
                "1 for the present reason to hold a slot.",
                &["slot", "reason"],
            )?,
            creates_refused: gauges(
                "creates_refused",
                "Pending creates by the reason of their last refusal.",
                &["reason"],
            )?,
            slot_create_refused: gauges(
                "slot_create_refused",
                "1 for the reason that the slot's pending create was last refused.",
                &["slot", "reason"],
            )?,
            slot_protected: gauges(
                "slot_protected",
                "1 while the slot would be recreated if it were lost now.",
                &["slot"],
            )?,
            slot_unprotected: gauges(
                "slot_unprotected",
                "1 while the slot would not be recreated if it were lost now, and no operator chose that.",
                &["slot"],
            )?,
            slot_recoveries: gauges(
                "slot_recoveries_24h",
                "Recoveries of a slot that began within the last 24 h, for any cause.",
                &["slot"],
            )?,
            slot_kind: gauges("slot_kind", "1 for what fills the slot.", &["slot", "kind"])?,
            durable_progress_expected: gauges(
                "durable_progress_expected",
                "1 where the config names a checkpoint location, so that the job is to save there.",
                &["slot"],
            )?,
            orphans: gauges(
                "orphans",
                "Strays: what the watchdog asked for and no slot owns.",
                &["kind"],
            )?,
        })
    }

    /// Follows the published status. Slots come and go with the config: one that left it must not
    /// stay on the page.
    pub fn set(&self, status: &StatusDocument) {
        for reason in HoldReason::ALL {
            let held = status.tpus.iter().filter(|s| s.hold.as_deref() == Some(reason.name()));
            self.recoveries_held.with_label_values(&[reason.name()]).set(held.count() as i64);
        }
        for family in [
            &self.slot_held,
            &self.creates_refused,
            &self.slot_create_refused,
            &self.slot_protected,
            &self.slot_recoveries,
            &self.slot_unprotected,
            &self.slot_kind,
            &self.durable_progress_expected,
        ] {
            family.reset();
        }
        for slot in &status.tpus {
            let name = slot.name.as_str();
            self.slot_protected.with_label_values(&[name]).set(i64::from(slot.protected));
            let open = !slot.protected && !slot.unprotected_by_choice;
            self.slot_unprotected.with_label_values(&[name]).set(i64::from(open));
            self.slot_recoveries.with_label_values(&[name]).set(slot.recoveries_24h as i64);
            self.slot_kind.with_label_values(&[name, slot.kind.as_str()]).set(1);
            if let Some(job) = &slot.job {
                let expected = i64::from(job.expected);
                self.durable_progress_expected.with_label_values(&[name]).set(expected);
            }
            if let Some(reason) = slot.hold.as_deref() {
                self.slot_held.with_label_values(&[slot.name.as_str(), reason]).set(1);
            }
            if let Some(reason) = slot.refused.as_deref() {
                self.creates_refused.with_label_values(&[reason]).inc();
                self.slot_create_refused.with_label_values(&[slot.name.as_str(), reason]).set(1);
            }
        }
        for kind in ["node", "queued_resource", "training_job"] {
            let strays = status.strays.iter().filter(|stray| stray.kind() == kind);
            self.orphans.with_label_values(&[kind]).set(strays.count() as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use prometheus::TextEncoder;

    use super::*;
    use crate::model::view::StrayView;

    fn lines(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[test]
    fn strays_are_counted_and_gone_when_they_are() {
        let registry = Registry::new();
        let obstacles = Obstacles::new(&registry).unwrap();
        let stray = StrayView {
            name: "a".into(),
            zone: "us-central2-b".into(),
            state: Some("READY".into()),
            since: Timestamp::UNIX_EPOCH,
            why: "its slot was forgotten".into(),
            queued_resource: None,
            is_job: false,
            removal: None,
        };
        let request = StrayView { queued_resource: Some("q".into()), ..stray.clone() };
        let strays = vec![stray, request.clone(), request];
        let mut status = StatusDocument { strays, ..StatusDocument::default() };
        obstacles.set(&status);
        assert!(lines(&registry).contains("orphans{kind=\"node\"} 1"));
        assert!(lines(&registry).contains("orphans{kind=\"queued_resource\"} 2"));
        status.strays.clear();
        obstacles.set(&status);
        assert!(lines(&registry).contains("orphans{kind=\"node\"} 0"));
    }

    #[test]
    fn a_document_of_an_earlier_version_has_no_strays() {
        let text = "{\"observed_at\":null,\"breaker\":\"closed\",\"tpus\":[]}";
        assert!(serde_json::from_str::<StatusDocument>(text).unwrap().strays.is_empty());
    }
}
