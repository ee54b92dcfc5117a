//! `completions` and `man`, from the command line itself.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Failed, Outcome, print};

/// The binary.
const NAME: &str = "tpu-watchdog";

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub fn completions(args: &CompletionsArgs) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut text);
    print(&String::from_utf8_lossy(&text));
    Ok(())
}

/// The page of the program, and those of its commands below it.
pub fn man() -> Outcome {
    let mut command = Cli::command();
    command.build();
    let mut text = Vec::new();
    let mut render = |command: clap::Command| {
        clap_mangen::Man::new(command)
            .render(&mut text)
            .map_err(|error| Failed::Work(format!("the man page can't be written: {error}")))
    };
    render(command.clone())?;
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        render(command.clone())?;
    }
    print(&String::from_utf8_lossy(&text));
    Ok(())
}
