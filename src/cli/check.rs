//! `check`: the config alone, offline.

use super::{ConfigArgs, Outcome, load, print};

pub fn check(args: &ConfigArgs) -> Outcome {
    let config = load(args)?;
    let jobs = config.settings.slots.values().filter(|s| s.job.is_some()).count();
    print(&format!(
        "{} is fine: project {}, {} TPUs, {jobs} with a job\n",
        args.config.display(),
        config.settings.project,
        config.settings.slots.len()
    ));
    Ok(())
}
