//! One file per command; prints, never decides. Exit codes: 0 done, 1 failed, 2 wrong use or
//! config, 3 an operator is needed.

mod acknowledge;
mod bucket;
mod changes;
mod check;
mod demo;
mod describe;
mod doctor;
mod drill;
mod explain;
mod file;
mod findings;
mod flags;
mod generate;
mod history;
mod init;
mod logs;
mod names;
mod once;
mod operator;
mod plan;
pub mod proposal;
mod quota;
mod refusals;
mod rights;
mod run;
pub mod screen;
mod simulator;
mod state;
mod status;
mod sweep;
pub mod table;
mod wire;

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use self::file::ConfigFile;
use crate::config::{self, Config};
use crate::model::beacon::joined;
use crate::report::log::{self, LogFormat};

/// Keeps Cloud TPU training alive: recreates a TPU that did not come back and restarts its job from
/// the newest complete checkpoint.
#[derive(Debug, Parser)]
#[command(name = "tpu-watchdog", version = env!("TPU_WATCHDOG_VERSION"), max_term_width = 110, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Format of the logs on standard error (default: text, or journal under systemd).
    #[arg(long, global = true, value_enum)]
    log: Option<LogFormat>,
    /// The config file (default: ./watchdog.toml, then /etc/tpu-watchdog/watchdog.toml).
    #[arg(short, long, global = true, value_name = "FILE", env = "TPU_WATCHDOG_CONFIG")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the service: polls, recovers, serves metrics. SIGTERM finishes the current commit and
    /// exits; SIGHUP reloads the config.
    Run,
    /// Runs one cycle, for a schedule: keeps polling while a recovery is in flight, and ends before
    /// the deadline.
    Once(once::OnceArgs),
    /// Reads everything, and shows what the watchdog would do now, what it would not, and why. Changes nothing.
    Plan(plan::PlanArgs),
    /// Shows each slot from the journal, with or without a running service.
    Status(status::StatusArgs),
    /// Shows incidents with their causes, phases and losses, and the commands of operators; as JSON also every event.
    History(history::HistoryArgs),
    /// Shows the last lines of a slot's failed runs, even if their TPU is gone.
    Logs(logs::LogsArgs),
    /// Pauses a slot until `resume`: no recovery starts, and a create not yet sent waits.
    Pause(operator::PauseArgs),
    /// Ends a pause.
    Resume(operator::ResumeArgs),
    /// Restores a slot's attempts; a job that has ended starts again on its existing TPU.
    Retry(operator::RetryArgs),
    /// Leaves a slot alone until `retry`: calls off its pending create, and creates nothing for it.
    Forget(operator::ForgetArgs),
    /// Deletes a slot's TPU and creates it again, even if it is healthy.
    Recreate(operator::RecreateArgs),
    /// Restarts a slot's job on its existing TPU, from the newest complete checkpoint.
    Relaunch(operator::RelaunchArgs),
    /// Marks a slot's job as finished: nothing is recreated or restarted until `retry`.
    Done(operator::DoneArgs),
    /// Hands a slot's TPU back: removes the watchdog's keys from its metadata, and leaves it alone
    /// until `retry`.
    Release(operator::ReleaseArgs),
    /// Asks the API for a simulated maintenance event on a slot's TPU, and follows what happens. First
    /// measures whether a changed run order reaches its hosts.
    Drill(drill::DrillArgs),
    /// Shows the storm breaker, or closes it.
    Breaker(operator::BreakerArgs),
    /// Moves the journal to another place, or starts a new one after a loss.
    State(state::StateArgs),
    /// Writes a config for TPUs that exist, then runs doctor and plan.
    Init(init::InitArgs),
    /// Checks everything that a recovery needs: credentials, permissions, buckets, clock, state.
    Doctor(doctor::DoctorArgs),
    /// Shows what uses quota without doing work: dead requests, preempted TPUs, idle ones. Deletes
    /// only what is named, and only with --yes. Needs no config.
    Sweep(sweep::SweepArgs),
    /// Explains a hold, a condition, an error text or a slot's state in plain words.
    Explain(explain::ExplainArgs),
    /// Checks the config alone, offline.
    Check,
    /// Runs the watchdog on a simulated zone with a dozen TPUs and faults, time sped up. Needs
    /// nothing.
    Demo(demo::DemoArgs),
    /// Serves the simulated APIs alone, for tests of other programs.
    Simulator(simulator::SimulatorArgs),
    /// Prints the completions of a shell, on standard output.
    Completions(generate::CompletionsArgs),
    /// Prints the man page, on standard output.
    Man,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
}

/// Why a command did not succeed.
#[derive(Debug)]
enum Failed {
    /// Exit code 1.
    Work(String),
    /// Exit code 2.
    Config(String),
    /// Exit code 3: everything was done, but something waits for an operator.
    NeedsAPerson,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Work(message) | Failed::Config(message) => f.write_str(message),
            Failed::NeedsAPerson => f.write_str("something waits for an operator"),
        }
    }
}

type Outcome = Result<(), Failed>;

/// Runs the command line and gives the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // `plan` and `demo` report on standard output; their logs are for what goes wrong.
    let quiet = match cli.command {
        Command::Demo(_) => Some("error"),
        Command::Plan(_) => Some("warn"),
        _ => None,
    };
    let filter = config::log_filter().or_else(|| quiet.map(str::to_owned));
    let journal = config::logs_to_the_journal();
    let format = cli.log.unwrap_or(if journal { LogFormat::Journal } else { LogFormat::Text });
    log::init(format, filter.as_deref(), config::colours());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return exit(
                Err(Failed::Work(format!("the async runtime can't be made: {error}"))),
                format,
            );
        }
    };
    let named = cli.config.clone();
    let at = ConfigFile::find(cli.config);
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Run => run::run(&at).await,
            Command::Once(args) => once::once(&at, &args).await,
            Command::Plan(args) => plan::plan(&at, &args).await,
            Command::Status(args) => status::status(&at, &args).await,
            Command::History(args) => history::history(&at, &args).await,
            Command::Logs(args) => logs::logs(&at, &args).await,
            Command::Pause(args) => operator::pause(&at, &args).await,
            Command::Resume(args) => operator::resume(&at, &args).await,
            Command::Retry(args) => operator::retry(&at, &args).await,
            Command::Forget(args) => operator::forget(&at, &args).await,
            Command::Recreate(args) => operator::recreate(&at, &args).await,
            Command::Relaunch(args) => operator::relaunch(&at, &args).await,
            Command::Done(args) => operator::done(&at, &args).await,
            Command::Release(args) => operator::release(&at, &args).await,
            Command::Drill(args) => drill::drill(&at, &args).await,
            Command::Breaker(args) => operator::breaker(&at, &args).await,
            Command::State(args) => state::state(&at, &args).await,
            Command::Init(args) => init::init(&args, named.as_deref()).await,
            Command::Doctor(args) => doctor::doctor(&at, &args).await,
            Command::Sweep(args) => sweep::sweep(&at, &args).await,
            Command::Explain(args) => explain::explain(&at, &args).await,
            Command::Check => check::check(&at),
            Command::Demo(args) => demo::demo(&args).await,
            Command::Simulator(args) => simulator::simulator(&args).await,
            Command::Completions(args) => generate::completions(&args),
            Command::Man => generate::man(),
        }
    });
    // Calls still under way are not waited for: their intents are in the journal.
    runtime.shutdown_background();
    exit(outcome, format)
}

fn exit(outcome: Outcome, format: LogFormat) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed::NeedsAPerson) => ExitCode::from(3),
        Err(failed) => {
            match format {
                // When standard error is gone there is no one to tell.
                LogFormat::Text => drop(writeln!(std::io::stderr(), "tpu-watchdog: {failed}")),
                LogFormat::Json | LogFormat::Journal => {
                    tracing::error!("{}", joined(&failed.to_string()))
                }
            }
            ExitCode::from(if matches!(failed, Failed::Config(_)) { 2 } else { 1 })
        }
    }
}

fn load(at: &ConfigFile) -> Result<Config, Failed> {
    at.load()
}

/// Prints on standard output; a closed pipe is not an error.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
