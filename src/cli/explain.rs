//! `explain`: an error text, a hold, a condition or a slot in plain words.

use clap::Args;
use jiff::Timestamp;

use super::screen::{HEAD, labelled, paint, print, width};
use super::{ConfigFile, Failed, Outcome, wire};
use crate::core::view::at_rest;
use crate::model::condition::Condition;
use crate::model::hold::HoldReason;
use crate::model::view::SlotView;
use crate::report::meanings::{self, Meaning};
use crate::report::of_jobs;
use crate::report::sentence::sentence;
use crate::report::steps;
use crate::resource::texts::{self, Action, Blame, Text};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tpu-watchdog explain cannot_create\n  tpu-watchdog explain llama-v4-32\n  \
                        tpu-watchdog explain 'There is no more capacity in the zone \"us-central2-b\"'"
)]
pub struct ExplainArgs {
    /// A slot, the name of a hold or condition, or an error text.
    #[arg(required = true, value_name = "TEXT|SLOT")]
    text: Vec<String>,
}

pub async fn explain(at: &ConfigFile, args: &ExplainArgs) -> Outcome {
    let text = args.text.join(" ");
    if let Some(section) = steps::alert(&text) {
        print(&format!("{}\n{section}\n", paint(HEAD, &text)));
        return Ok(());
    }
    let meanings = named(&text);
    if !meanings.is_empty() {
        meanings.into_iter().for_each(|(of, meaning)| print(&told(&of, meaning)));
        return Ok(());
    }
    // A name may be a slot's; without a config, or without a state, it is a text like others.
    if let Some(slot) = slot(at, &text).await {
        print(&of_slot(&slot, Timestamp::now()));
        return Ok(());
    }
    if at.load().is_ok_and(|config| config.settings.slots.contains_key(&text)) {
        let what = "is a slot of the config, and no run has read it yet; see tpu-watchdog plan";
        return Err(Failed::Work(format!("{text} {what}")));
    }
    let by_class = || texts::all().find(|row| row.class == text.to_lowercase());
    match by_class().or_else(|| texts::explain(&text)) {
        Some(found) => {
            print(&of_text(&text, found));
            Ok(())
        }
        None => {
            // A name may be that of a slot whose config can't be read.
            let unread = at.load().err().filter(|_| at.path().exists());
            let unread = unread.map_or_else(String::new, |_| {
                format!(
                    "; {} can't be used, so its slots are not known: tpu-watchdog check",
                    at.path().display()
                )
            });
            Err(Failed::Work(format!(
                "{text:?} is no slot, hold, condition, step, alert, or error text that is known{}{unread}",
                hint(&text)
            )))
        }
    }
}

/// The meaning of a word of the API or of this program that is neither a hold nor a condition.
fn word(name: &str) -> Option<Meaning> {
    let (means, next) = match name {
        "suspended" => (
            "The queued resource has ended: Google took its capacity back, its flex-start time is over, or a user suspended it.",
            "Nothing if the service ended it: it is deleted and asked for again. One that a user suspended is held: `status SLOT` says which.",
        ),
        "stray" | "strays" | "orphan" | "orphans" => (
            "A TPU or a queued resource that the watchdog asked for and that no slot owns now.",
            "`status` names each with its reason; `tpu-watchdog sweep NAME --yes` deletes one.",
        ),
        "flex_start" => (
            "Capacity that starts when there is some and ends by itself, 7 days later at most.",
            "The recipe is in docs/recipes.md.",
        ),
        _ => return None,
    };
    Some(Meaning { means, next })
}

/// The next step where a text is not known word for word.
fn hint(text: &str) -> &'static str {
    let text = text.to_lowercase();
    let mentions = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if mentions(&["quota", "limit", "resource_exhausted"]) {
        return ". It mentions a quota or a limit: see gcloud beta quotas info list --service tpu.googleapis.com --project PROJECT, and \
                tpu-watchdog sweep for what holds quota and serves no slot";
    }
    if mentions(&["permission", "denied", "forbidden"]) {
        return ". It mentions a permission: run tpu-watchdog doctor";
    }
    match text.contains(' ') {
        true => "; give the whole line of the error",
        false => "; words are defined in docs/concepts.md",
    }
}

/// The meanings of a name: of a hold, of a condition, of a step of a recovery.
fn named(text: &str) -> Vec<(String, Meaning)> {
    // As `status` writes it, with blanks, or in a word of its own.
    let name = text.to_lowercase().replace([' ', '-'], "_");
    let condition = match name.as_str() {
        "runtime_sick" => "runtime_unhealthy",
        "incomplete" => "gang_incomplete",
        "set_up_failed" => "setup_failed",
        // Words of the API.
        "timeout" => "unresponsive",
        "unhealthy_tensorflow" => "runtime_unhealthy",
        "unhealthy_maintenance" | "repairing" => "maintenance",
        "restarting" | "reimaging" => "starting",
        "unknown" => "failed_repair",
        "waiting_for_resources" | "provisioning" | "accepted" => "waiting",
        "suspending" => "going",
        "failed" => "request_failed",
        other => other,
    };
    let hold = HoldReason::ALL.into_iter().find(|hold| hold.name() == steps::hold_of(&name));
    let hold = hold.map(meanings::hold);
    // `status` says so of a node whose create is refused, too.
    let backoff = Some(meanings::hold(HoldReason::Backoff)).filter(|_| name == "waiting");
    let of_condition = Condition::ALL.into_iter().find(|of| of.name() == condition);
    let of_condition = of_condition.map(meanings::condition);
    let phase = steps::phase_of(&name).map(steps::phase);
    let all = [
        (hold, ", as the reason of a hold"),
        (of_condition, ", as a condition"),
        (backoff, ", of a TPU whose create is refused"),
        (phase, ", as a step of a recovery"),
        (steps::standing(&name), ""),
        (word(&name), ""),
    ];
    let found: Vec<_> = all.into_iter().filter_map(|(of, kind)| Some((of?, kind))).collect();
    let several = found.len() > 1;
    let head = |kind: &str| format!("{text}{}", if several { kind } else { "" });
    found.into_iter().map(|(meaning, kind)| (head(kind), meaning)).collect()
}

async fn slot(at: &ConfigFile, name: &str) -> Option<SlotView> {
    let config = at.load().ok().filter(|config| config.settings.slots.contains_key(name))?;
    let storage = wire::storage_for(&config, &config.state).ok()?;
    let mut store = wire::open_store_read_only(&config.state, &storage).await.ok()??;
    let stored = store.load().await.ok()?;
    let (settings, now) = (wire::settings(&config), Timestamp::now());
    let document = at_rest(&settings, stored.slots, stored.ledger, None, now);
    document.tpus.into_iter().find(|slot| slot.name == name)
}

fn told(name: &str, Meaning { means, next }: Meaning) -> String {
    let width = width();
    let head = format!("{}\n", paint(HEAD, name));
    head + &labelled("means", means, width) + &labelled("next", next, width)
}

fn of_slot(slot: &SlotView, now: Timestamp) -> String {
    let whole = sentence(slot, now).whole(now);
    let meaning = meaning(slot);
    let head = format!("{}: {whole}\n", paint(HEAD, &slot.name));
    let width = width();
    let mut text = head + &labelled("means", meaning.means, width);
    text += &labelled("next", &meaning.next.replace("SLOT", &slot.name), width);
    // The words of a refusal or of a job's end are explained as well.
    let words = [slot.refusal.as_deref(), Some(slot.evidence.as_str())];
    if let Some(found) = words.into_iter().flatten().find_map(texts::explain) {
        text += &labelled("its text", found.advice, width);
    }
    text
}

/// The one that tells most: of a hold, of the recovery that is under way, of the choice that keeps it
/// unprotected, of its condition.
fn meaning(slot: &SlotView) -> Meaning {
    let by_name = |name: &str| HoldReason::ALL.into_iter().find(|hold| hold.name() == name);
    let hold = slot.hold.as_deref().and_then(by_name);
    let phase = slot.phase.as_deref().and_then(steps::phase_of).filter(|_| hold.is_none());
    if let Some(phase) = phase {
        return steps::phase(phase);
    }
    let hold = hold.or_else(|| slot.unprotected_by.as_deref().and_then(by_name));
    let of_job = match hold {
        Some(hold) => of_jobs::hold(hold),
        None => of_jobs::condition(slot.condition),
    };
    of_job
        .filter(|_| slot.is_job())
        .unwrap_or_else(|| hold.map_or_else(|| meanings::condition(slot.condition), meanings::hold))
}

/// An error text.
pub fn of_text(text: &str, found: &Text) -> String {
    let width = width();
    let first = text.lines().next().unwrap_or_default();
    let head: String = first.chars().take(100).collect();
    let mut out = format!("{}\n", paint(HEAD, &head));
    out += &labelled("means", found.advice, width);
    out += &labelled("blame", blame(found.blame), width);
    out += &labelled("remedy", remedy(found.action), width);
    out += &labelled("class", found.class, width);
    if let Some(only) = found.only_by_create {
        let spot = if only.spot { ", of Spot capacity" } else { "" };
        let code = only.code;
        let text = format!("only as the end of a create's operation with code {code}{spot}");
        out += &labelled("holds", &text, width);
    }
    out
}

fn blame(blame: Blame) -> &'static str {
    match blame {
        Blame::Capacity => "Google has no capacity",
        Blame::Infra => "the machine, the network or the service",
        Blame::Code => "the training program",
        Blame::Config => "the request or the permissions",
        Blame::Victim => "another worker is the cause",
    }
}

fn remedy(action: Action) -> &'static str {
    match action {
        Action::Again => "it is retried later, in the same zone",
        Action::Next => "the next zone, if there is one; otherwise it is retried later",
        Action::Hold => "waiting does not help: fix the cause",
        Action::Read => "the state is read back before anything is decided",
        Action::Clean => "free the chips, then restart the job",
        Action::Relaunch => "restart the job; the restart does not count against it",
        Action::RelaunchCounted => "restart the job; the restart counts against it",
        Action::Replace => "replace the TPU",
        Action::Stop => "a restart does not help: fix the program",
        Action::Cause => "look for the cause in the lines of the other workers",
        Action::Save => "the machine is about to end: save a checkpoint now",
        Action::Note => "nothing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::strip;

    #[test]
    fn every_hold_and_condition_is_explained_with_a_next_step() {
        for name in HoldReason::ALL.iter().map(|hold| hold.name()) {
            let text = told(name, named(name)[0].1);
            assert!(text.contains("means") && text.contains("next"), "{text}");
        }
        for condition in Condition::ALL {
            assert!(named(condition.name()).iter().all(|(_, meaning)| !meaning.means.is_empty()));
        }
        let heads = |text: &str| named(text).into_iter().map(|(head, _)| head).collect::<Vec<_>>();
        assert_eq!(heads("waiting").len(), 2, "{:?}", heads("waiting"));
        assert_eq!(heads("missing").len(), 2, "{:?}", heads("missing"));
        assert_eq!(heads("deleting").len(), 3, "{:?}", heads("deleting"));
        for word in [
            "suspended",
            "stray",
            "flex-start",
            "removing",
            "gone",
            "launched",
            "not found",
            "specification",
            "protected",
        ] {
            assert_eq!(heads(word), [word]);
        }
        assert!(heads("what is this").is_empty());
    }

    #[test]
    fn a_text_that_is_not_known_has_a_next_step_by_its_subject() {
        for (text, next) in [
            (
                "You have reached PreemptibleTPUV5sLitepodPerProjectPerZoneForTPUAPI limit",
                "a quota",
            ),
            ("The caller does not have permission", "tpu-watchdog doctor"),
            ("gibberish", "docs/concepts.md"),
            ("some line of a log", "the whole line"),
        ] {
            assert!(hint(text).contains(next), "{text}: {}", hint(text));
        }
    }

    #[test]
    fn a_text_of_the_table_tells_its_cause_and_remedy() {
        let text =
            "There is no more capacity in the zone \"us-central2-b\"; you can try in another zone";
        let told = strip(&of_text(text, texts::explain(text).unwrap()));
        for words in ["Google has no capacity", "the next zone", "stock_out"] {
            assert!(told.contains(words), "{told}");
        }
        for row in texts::all() {
            let told = strip(&of_text("a text", row));
            let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in [row.advice, blame(row.blame), remedy(row.action), row.class] {
                assert!(words.contains(part), "{part} is not in\n{told}");
            }
        }
    }
}
