//! `once`: one cycle, made for a schedule.

use std::time::{Duration, Instant};

use clap::Args;

use super::{ConfigArgs, Failed, Outcome, load, wire};
use crate::decide::view::needs_a_person;
use crate::model::condition::Condition;

#[derive(Debug, Args)]
pub struct OnceArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Ends before this long has passed, in the middle of a recovery if need be: the next run carries on.
    #[arg(long, value_name = "DURATION", default_value = "9m", value_parser = duration)]
    deadline: Duration,
    /// Exit code 3 when something waits for a person. Schedulers repeat what fails: leave it out there.
    #[arg(long)]
    fail_on_hold: bool,
}

pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write 90s, 9m or \"1h 30m\"");
    let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(span).map_err(|_| wrong())
}

pub async fn once(args: &OnceArgs) -> Outcome {
    let began = jiff::Timestamp::now();
    let deadline = Instant::now() + args.deadline;
    let config = load(&args.config)?;
    let store = wire::open_store(&config)?;
    let owner = store.owner().to_owned();
    let settings = wire::settings(&config, &owner);
    let mut wired = wire::wire(&config, settings, store)?;
    let mut signals = wire::signals(None, owner)?;
    wired.watchdog.once(deadline, &mut signals).await;
    let document = wired.watchdog.document();
    let healthy = document.tpus.iter().filter(|s| s.condition == Condition::Healthy).count();
    let recovering = document.tpus.iter().filter(|s| s.phase.is_some()).count();
    tracing::info!("done: {healthy} of {} healthy, {recovering} recoveries go on in the next run", document.tpus.len());
    if document.observed_at.is_none_or(|at| at < began) {
        return Err(Failed::Work("no poll read every zone; see the lines above".into()));
    }
    if args.fail_on_hold && needs_a_person(&document) { Err(Failed::NeedsAPerson) } else { Ok(()) }
}
