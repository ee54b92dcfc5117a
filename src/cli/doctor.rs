//! `doctor`: whether all that a recovery needs is there, before the night in which it is needed. Reads,
//! and writes nothing but an empty object that it removes (a state in a bucket).

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;

use super::bucket;
use super::findings::{Finding, Told, doubt, fine, missing};
use super::names::no_slot;
use super::proposal::never_seen;
use super::quota::{Compared, Need, compare};
use super::table::fleet;
use super::wire::Clients;
use super::{ConfigFile, Failed, Outcome, load, rights, wire};
use crate::checkpoint::lister;
use crate::checkpoint::probe::Unfit;
use crate::config::{Config, StateLocation};
use crate::core::location;
use crate::model::action::Reading;
use crate::model::failure::FailureClass;
use crate::model::filling::Filling;
use crate::model::lookup::NextCreate;
use crate::model::node::{NodeState, NodeView};
use crate::model::settings::SlotSettings;
use crate::model::slot::SlotRecord;
use crate::model::spec::NodeSpec;
use crate::model::time::{elapsed, span};
use crate::model::training::JobKind;
use crate::report::sentence::none_found;
use crate::resource::training::body;
use crate::store::Stored;

/// A clock that is further off spoils leases, ages and access tokens.
const SKEW_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default, Args)]
#[command(after_help = "Exit code 3: something is missing. Each line with ✗ says how to fix it.")]
pub struct DoctorArgs {
    /// Checks only this slot.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

pub async fn doctor(at: &ConfigFile, args: &DoctorArgs) -> Outcome {
    let config = load(at)?;
    let slots = chosen(&config, args)?;
    let mut told = Told::default();
    let file = at.path().display();
    told.tell(fine(
        "config",
        format!("{file}: {} of {}", fleet(&config.settings), config.settings.project),
    ));
    let clients = wire::clients(&config)?;
    if let Err(none) = clients.preflight(config.settings.poll.timeout).await {
        told.tell(missing("credentials", none.to_string(), None));
        return told.outcome();
    }
    let account = clients.account(config.settings.poll.timeout).await;
    let unnamed = if config.api.anonymous {
        "none are sent"
    } else {
        "your own login, or an unnamed account"
    };
    let who = account.clone().unwrap_or_else(|| unnamed.into());
    told.tell(fine("credentials", format!("{} ({who})", clients.source())));
    if let Some(finding) = hidden_login(clients.is_a_login(), at.is_of_the_service()) {
        told.tell(finding);
    }
    told.tell(clock(&clients, &config).await);
    let account = account.map_or("serviceAccount:ACCOUNT-OF-THE-WATCHDOG".to_owned(), |email| {
        format!("serviceAccount:{email}")
    });
    for finding in rights::permissions(&clients, &config, &account).await {
        told.tell(finding);
    }
    let stored = stored(&clients, &config).await;
    let mut needs = Vec::new();
    for slot in slots {
        let slot = slot.clone().filled(stored.slots.get(&slot.name));
        for finding in of_slot(&clients, &config, &slot, &account, &stored, &mut needs).await {
            told.tell(finding);
        }
    }
    told.tell(state(&clients, &config, &account).await);
    for finding in quotas(&clients, &config, &needs).await {
        told.tell(finding);
    }
    told.outcome()
}

fn chosen<'a>(config: &'a Config, args: &DoctorArgs) -> Result<Vec<&'a SlotSettings>, Failed> {
    let all = &config.settings.slots;
    let Some(name) = &args.node else { return Ok(all.values().collect()) };
    Ok(vec![all.get(name).ok_or_else(|| no_slot(name, all.keys()))?])
}

async fn clock(clients: &Clients, config: &Config) -> Finding {
    match clients.tpu.skew(config.settings.poll.timeout).await {
        None => {
            let text = format!("not compared: {} gave no answer with a Date", config.api.tpu);
            missing("clock", text, None)
        }
        Some((skew, _)) if skew <= SKEW_MAX => fine("clock", "agrees with the API's"),
        Some((skew, ahead)) => {
            let way = if ahead { "ahead of" } else { "behind" };
            let text = format!("{} {way} the API's: ages and leases are wrong", span(skew));
            missing("clock", text, Some("timedatectl set-ntp true".into()))
        }
    }
}

async fn of_slot(
    clients: &Clients,
    config: &Config,
    slot: &SlotSettings,
    account: &str,
    stored: &Stored,
    needs: &mut Vec<Need>,
) -> Vec<Finding> {
    let deadline = Instant::now() + config.settings.poll.timeout;
    let name = &slot.name;
    let record = stored.slots.get(name);
    let zone = record.map(|record| &record.zone).or(slot.zones.first());
    let zone = zone.map_or("", String::as_str);
    let mut all = Vec::new();
    let learned = match read(clients, slot, record, zone, deadline).await {
        Reading::Node(view) => {
            all.push(shown(slot, zone, &view));
            all.extend(hides(slot, &view));
            NodeSpec::learn(&view.raw)
        }
        reading => {
            // The description in the config counts until a job was seen.
            let whose = (config.settings.owner.as_str(), name.as_str());
            let described = slot.filling.training().and_then(|of| body::first(whose, of));
            let seen = record.is_some_and(|record| record.learned_from.is_some());
            let known = record.and_then(|record| record.spec.clone());
            let known = if seen { known } else { described.or(known) };
            match reading {
                Reading::Unread(why) => {
                    all.push(missing(name, format!("{zone}: it could not be read: {why}"), None));
                    if known.is_none() {
                        return all;
                    }
                }
                _ => {
                    let why = absent(clients, slot, (zone, record), deadline).await;
                    all.push(doubt(name, why));
                }
            }
            known
        }
    };
    let is_tpu = !slot.filling.traits().is_job;
    if !is_tpu && learned.is_none() {
        all.extend(checkpoints(clients, slot, false).await);
        return all;
    }
    let spec = learned.clone().unwrap_or_else(NodeSpec::empty).in_zone(zone).overlaid(&slot.create);
    needs.extend((0..spec.slices()).filter(|_| is_tpu).map(|_| Need {
        zone: zone.to_owned(),
        accelerator: spec.accelerator(),
        capacity: spec.capacity(),
    }));
    let settings = wire::settings(config);
    let supervisor = settings.slots.get(name).and_then(|slot| slot.supervisor.as_deref());
    if let Err(why) = spec.acceptable(&settings.owner, name, supervisor) {
        all.push(missing("", format!("it could not be created again: {why}"), None));
    }
    if is_tpu && learned.is_some() && !NodeSpec::has_a_script(learned.as_ref(), &slot.create) {
        let text = "it has no startup script: a recreated TPU has an empty boot disk";
        let cure = "set startup_script = \"FILE\" in its [[tpu]]".to_owned();
        all.push(Finding { cure: Some(cure), ..doubt("", text) });
    }
    let next = NextCreate::of(learned.as_ref(), slot, &zone.to_owned());
    all.extend(could_follow(clients, is_tpu, &next, account, deadline).await);
    let trouble = record.is_some_and(|record| record.job.trouble.is_some());
    all.extend(checkpoints(clients, slot, trouble).await);
    all.extend(bucket::of_job(clients, slot, learned.as_ref(), deadline).await);
    all
}

/// Whether a create could follow, as far as the API says.
async fn could_follow(
    clients: &Clients,
    is_tpu: bool,
    next: &NextCreate,
    account: &str,
    deadline: Instant,
) -> Vec<Finding> {
    let check = match is_tpu {
        true => clients.tpu.create_check(next, deadline).await,
        false => clients.tpu.submission_check(&next.spec, deadline).await,
    };
    let account = account.strip_prefix("serviceAccount:").unwrap_or(account);
    let certain = check.certain.map(|why| missing("", why.replace("WATCHDOG", account), None));
    certain.into_iter().chain(check.doubts.into_iter().map(|why| doubt("", why))).collect()
}

/// The slot's TPU as it is now: its node, or its queued resource with its nodes.
async fn read(
    clients: &Clients,
    slot: &SlotSettings,
    record: Option<&SlotRecord>,
    zone: &str,
    deadline: Instant,
) -> Reading {
    let read = match &slot.filling {
        Filling::Node => {
            let node = clients.tpu.get_node(zone, &slot.name, deadline).await;
            node.map(|view| Reading::Node(Arc::new(view)))
        }
        Filling::QueuedResource(id) => {
            let known = record.map_or(std::slice::from_ref(&slot.name), SlotRecord::nodes);
            clients.tpu.get_filled(zone, id, known, deadline).await
        }
        Filling::Training(of) => {
            let known = record.map_or(std::slice::from_ref(&slot.name), SlotRecord::nodes);
            clients.tpu.get_job(of, (&slot.name, known), zone, deadline).await
        }
    };
    read.unwrap_or_else(|why| match why.class {
        FailureClass::NotFound => Reading::Absent,
        _ => Reading::Unread(why.to_string()),
    })
}

/// How a TPU that is there is.
fn shown(slot: &SlotSettings, zone: &str, view: &NodeView) -> Finding {
    let name = &slot.name;
    let several = match view.members.len() {
        slices @ 2.. if slot.filling.has_nodes() => format!("{slices} x "),
        _ => String::new(),
    };
    let state = match &view.standing {
        Some(verdict) => verdict.evidence.clone(),
        None => view.state.as_str().to_owned(),
    };
    let text = format!("{state} in {zone}, {several}{}", view.accelerator);
    if view.state == NodeState::Ready { fine(name, text) } else { doubt(name, text) }
}

/// v2 shows no reservation of a queued resource, nor how long flex-start capacity lasts: a create would lack them.
fn hides(slot: &SlotSettings, view: &NodeView) -> Option<Finding> {
    if view.alpha || !matches!(slot.filling, Filling::QueuedResource(_)) {
        return None;
    }
    let text = "v2alpha1 did not answer, and v2 hides whether its queued resource is reserved or flex-start: what was learned before counts";
    let cure = "if it is one of these and nothing was learned: reserved = true, or provisioning_model = \"flex-start\" with max_run, in its [tpu.create]";
    Some(Finding { cure: Some(cure.into()), ..doubt("", text) })
}

/// A TPU that is not there; one that was never seen may have its name written wrongly.
async fn absent(
    clients: &Clients,
    slot: &SlotSettings,
    (zone, record): (&str, Option<&SlotRecord>),
    deadline: Instant,
) -> String {
    let unseen = record.is_none_or(|record| record.spec.is_none());
    if let Filling::QueuedResource(id) = &slot.filling {
        let how = if unseen { "[tpu.create] says" } else { "it was learned" };
        return format!("no queued resource {id:?} is in {zone}: it would be asked for as {how}");
    }
    if let Some(of) = slot.filling.training() {
        let gone = match of.kind {
            JobKind::Legacy => {
                ". Where AI Platform Training has ended for this project its answer is the same: then submit the job to Vertex AI"
            }
            JobKind::Custom | JobKind::Tuning => "",
        };
        let nouns: Vec<&str> = of.kinds().map(JobKind::noun).collect();
        let seen = record.filter(|record| record.learned_from.is_some());
        let then = match (seen.map(|record| record.recovery.is_some()), &of.create) {
            (Some(true), _) => "it is being submitted again",
            (Some(false), _) => {
                "its people have deleted it, and `retry` submits it again as it was learned"
            }
            (None, Some(_)) => "it would be submitted as `create` says",
            (None, None) => "nothing is submitted before one was seen",
        };
        return format!(
            "no {} that the config means is in {zone}: {then}{gone}",
            nouns.join(" or ")
        );
    }
    match clients.tpu.list_nodes(zone, deadline).await {
        Ok(list) if unseen => {
            let names: Vec<String> = list.nodes.iter().map(|node| node.node.clone()).collect();
            never_seen(&slot.name, zone, &names)
        }
        _ => format!("no TPU {:?} is in {zone}", slot.name),
    }
}

/// A login that works for the caller is missing for the service: its user has another home.
fn hidden_login(is_a_login: bool, is_of_the_service: bool) -> Option<Finding> {
    (is_a_login && is_of_the_service).then(|| {
        let text = "this user's login: the service runs as another user and does not see it";
        let cure = "nothing on a VM with a service account; elsewhere give the service a key file or a workload identity (deploy/systemd/credentials.conf)";
        Finding { cure: Some(cure.into()), ..doubt("", text) }
    })
}

/// The quota limits, next to what the slots would create.
async fn quotas(clients: &Clients, config: &Config, needs: &[Need]) -> Vec<Finding> {
    let project = &config.settings.project;
    let command =
        format!("gcloud beta quotas info list --service tpu.googleapis.com --project {project}");
    let deadline = Instant::now() + config.settings.poll.timeout;
    let listed = match clients.tpu.quotas(deadline).await {
        Some(Ok(listed)) => listed,
        Some(Err(why)) => {
            let text = format!("the limits could not be read ({why}); see them with: {command}");
            return vec![doubt("quota", text)];
        }
        None => return vec![doubt("quota", format!("not asked; see it with: {command}"))],
    };
    let finding = |compared: Compared| match compared {
        Compared::Shown(text) => fine("quota", text),
        Compared::Unknown(text) => doubt("quota", format!("{text}; see all with: {command}")),
        Compared::Zero(text) => {
            let place =
                "https://console.cloud.google.com/iam-admin/quotas?service=tpu.googleapis.com";
            missing("quota", text, Some(format!("request it at {place}&project={project}")))
        }
    };
    compare(needs, &listed).into_iter().map(finding).collect()
}

/// The journal, where there is one that can be read.
async fn stored(clients: &Clients, config: &Config) -> Stored {
    let store = wire::open_store_read_only(&config.state, &clients.state).await;
    match store {
        Ok(Some(mut store)) => store.load().await.unwrap_or_default(),
        _ => Stored::default(),
    }
}

/// The checkpoint location of a slot: whether it can be listed, and what is in it.
/// `trouble`: the watchdog holds creates for it.
async fn checkpoints(clients: &Clients, slot: &SlotSettings, trouble: bool) -> Option<Finding> {
    let listed = location::listed(slot)?;
    let uri = &listed.uri;
    Some(match lister::survey(listed, &clients.storage, None).await {
        Err(failure) => missing("", failure.message, None),
        Ok(survey) => match (survey.newest, survey.other) {
            (Some(newest), _) => {
                let age = survey.written.map_or(String::new(), |at| {
                    format!(" ({} old)", span(elapsed(at, Timestamp::now())))
                });
                fine("", format!("{uri}: newest complete checkpoint is step {}{age}", newest.step))
            }
            (None, Some(other)) => {
                let names = other.names.join(", ");
                let text = format!("{uri}: no complete checkpoint is recognised; found {names}");
                if trouble { missing("", text, None) } else { doubt("", text) }
            }
            (None, None) => doubt("", none_found(uri, &survey.around)),
        },
    })
}

/// Whether the state can be written.
async fn state(clients: &Clients, config: &Config, account: &str) -> Finding {
    let place = config.state.to_string();
    match &config.state {
        StateLocation::Memory => doubt("state", "memory: ends with the process"),
        StateLocation::Sqlite(path) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(std::path::Path::new("."));
            let writable = |path: &std::path::Path| {
                rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
            };
            if writable(folder) && (!path.exists() || writable(path)) {
                return fine("state", format!("{place}: can be written"));
            }
            let text = format!("{place}: can't be written by this user");
            let cure =
                "run doctor as the user of the service, or as root: sudo tpu-watchdog doctor";
            missing("state", text, Some(cure.into()))
        }
        StateLocation::Object { scheme, bucket, prefix } => {
            match clients.state.probe(scheme, bucket, prefix).await {
                Ok(()) => fine(
                    "state",
                    format!("{place}: can be read, written under a condition, and deleted"),
                ),
                Err(Unfit::Refused(why)) => {
                    let cure = format!(
                        "gcloud storage buckets add-iam-policy-binding {scheme}://{bucket} --role roles/storage.objectUser --member {account}"
                    );
                    missing("state", format!("{place}: {why}"), Some(cure))
                }
                Err(Unfit::Unconditional) => {
                    let text = format!(
                        "{place}: a second create of the same object was not refused, so two watchdogs could lead at once"
                    );
                    missing(
                        "state",
                        text,
                        Some("use a bucket of Cloud Storage, or a local file".into()),
                    )
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sentence::Tone;

    #[test]
    fn a_login_that_the_service_does_not_see_is_told() {
        let told = hidden_login(true, true).unwrap();
        assert!(told.text.contains("does not see it") && told.tone == Tone::Waiting);
        assert!(told.cure.unwrap().contains("credentials.conf"));
        assert!(hidden_login(false, true).or(hidden_login(true, false)).is_none());
    }
}
