//! States of the whole fleet that an operator must not miss: the same words on the page and on a terminal.

use jiff::Timestamp;

use crate::model::time::{elapsed, span};
use crate::model::view::{BreakerState, StatusDocument};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Banner {
    /// Whether an operator has to act.
    pub urgent: bool,
    /// A sentence, with the command that ends it.
    pub text: String,
}

/// All of a fleet, the urgent ones first.
pub fn banners(document: &StatusDocument, now: Timestamp) -> Vec<Banner> {
    let mut all = Vec::new();
    if document.breaker == BreakerState::Open {
        let why = document.breaker_why.as_deref().unwrap_or("see the log");
        let text = format!(
            "the storm breaker is open {why}; what it holds is neither deleted nor cancelled until: tpu-watchdog breaker reset"
        );
        all.push(Banner { urgent: true, text });
    }
    let of = document.acting.as_ref();
    let other = of.filter(|of| of.config.as_ref().is_some_and(|of| *of != document.config));
    if let Some(acting) = other.filter(|_| !document.config.is_empty()) {
        let pid = acting.pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
        let text = format!(
            "the config was changed, and {}{pid} has not loaded it: what is shown goes by the new one, what is done by the old one. To load it: \
             systemctl reload tpu-watchdog, or SIGHUP",
            acting.host
        );
        all.push(Banner { urgent: true, text });
    }
    if let Some(pause) = &document.paused {
        let until = pause.until.filter(|at| *at > now);
        let until =
            until.map_or(String::new(), |at| format!(" for {} more", span(elapsed(now, at))));
        let why = pause.reason.as_ref().map_or(String::new(), |why| format!(": {why}"));
        let text = format!(
            "everything is paused{until}, by {}{why}; to end it: tpu-watchdog resume --all",
            pause.by
        );
        all.push(Banner { urgent: false, text });
    }
    if document.dry_run {
        let text = "dry_run = true: the watchdog decides and changes nothing".to_owned();
        all.push(Banner { urgent: false, text });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_that_the_service_has_not_loaded_is_told_until_it_has() {
        let text = include_str!("../../tests/snapshots/document.json");
        let mut document: StatusDocument = serde_json::from_str(text).unwrap();
        let now = document.observed_at.unwrap();
        let told = |document: &StatusDocument| {
            banners(document, now).iter().any(|banner| banner.text.contains("has not loaded it"))
        };
        for (here, loaded, expected) in [
            ("a", Some("a"), false),
            ("b", Some("a"), true),
            // An earlier version tells no digest.
            ("b", None, false),
            ("", Some("a"), false),
        ] {
            document.config = here.to_owned();
            document.acting.as_mut().unwrap().config = loaded.map(str::to_owned);
            assert_eq!(told(&document), expected, "{here} {loaded:?}");
        }
        document.acting = None;
        assert!(!told(&document), "no service runs");
    }
}
