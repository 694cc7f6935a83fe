//! The command line: the same code that runs in the proxy, for people at a terminal.
//!
//! Exit codes, of every command: 0 where all is well, 1 where the input is wrong, 2 where the
//! command could not be carried out (its arguments, or a file that cannot be read).

mod check;
mod digest;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Shared-plus-per-tenant rate limits for Envoy: tools for its configuration.
#[derive(Debug, Parser)]
#[command(name = "fairshare", version, help_expected = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a plugin configuration: print what it means, or every error in it.
    Check {
        /// The JSON file; "-" reads standard input.
        file: PathBuf,
    },
    /// Print what stands for a tenant in logs and in Redis: the SHA-256 of its name, with the
    /// configuration's hash key if it has one.
    Digest {
        /// The tenant, as it stands in requests.
        name: String,
        /// The plugin configuration; "-" reads standard input.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// The name is a client's address instead.
        #[arg(long)]
        client: bool,
    },
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Good,
    BadInput,
    Failed,
}

/// The standard streams.
#[derive(Debug)]
struct Streams<I, O, E> {
    input: I,
    output: O,
    errors: E,
}

/// Runs the command that the arguments of this process name.
#[must_use]
pub fn main() -> ExitCode {
    // Ends the process with code 2 where the arguments are wrong.
    let arguments = Arguments::parse();
    let streams = Streams { input: io::stdin(), output: io::stdout(), errors: io::stderr() };
    let outcome = run(&arguments, streams);
    // What fails here is writing, for instance because the reader of a pipe has left.
    ExitCode::from(outcome.unwrap_or(Outcome::Failed))
}

fn run(
    arguments: &Arguments,
    streams: Streams<impl Read, impl Write, impl Write>,
) -> io::Result<Outcome> {
    match &arguments.command {
        Command::Check { file } => check::run(file, streams),
        Command::Digest { name, config, client } => digest::run(name, *client, config, streams),
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Good => 0,
            Outcome::BadInput => 1,
            Outcome::Failed => 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_argument_is_documented() {
        Arguments::command().debug_assert();
    }
}
