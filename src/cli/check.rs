//! `check`: the config alone, offline.

use super::table::fleet;
use super::{ConfigFile, Outcome, load, print, screen};
use crate::config;
use crate::model::spec::NodeSpec;
use crate::resource::training::{body, possible};

pub fn check(at: &ConfigFile) -> Outcome {
    let config = load(at)?;
    let slots = config.settings.slots.values();
    let tpus: Vec<_> = slots.filter(|slot| slot.filling.training().is_none()).collect();
    let jobs = tpus.iter().filter(|slot| slot.job.is_some()).count();
    let with = if tpus.is_empty() { String::new() } else { format!(", {jobs} with a job") };
    print(&format!(
        "{} is fine: project {}, {}{with}\n",
        at.path().display(),
        config.settings.project,
        fleet(&config.settings)
    ));
    // Only a note: the file may be there for the service alone.
    if let Some(Err(message)) = config.listen_token_file.as_deref().map(config::read_token) {
        print(&format!("note: as the present user sees it, {message}; `run` does not start so\n"));
    }
    for slot in config.settings.slots.values() {
        let create = slot.filling.training().and_then(|of| of.create.as_ref());
        let spec = create.map(|create| NodeSpec::new(body::first(("", &slot.name), create)));
        if let Some(advice) = spec.as_ref().and_then(possible::advice) {
            let note = format!("note: {}: {advice}", slot.name);
            print(&screen::paragraph(&note, screen::width()));
        }
    }
    for slot in config
        .settings
        .slots
        .values()
        .filter(|slot| slot.job.as_ref().is_some_and(|job| job.command.is_some()))
    {
        if slot.create.startup_script.is_none() {
            let note = format!(
                "note: {} has a command and no startup_script. A recreated TPU has an empty boot disk: what the command needs must come \
                 from the TPU's own startup-script; `plan` says whether it has one",
                slot.name
            );
            print(&screen::paragraph(&note, screen::width()));
        }
    }
    Ok(())
}
