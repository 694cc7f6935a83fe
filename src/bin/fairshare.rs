//! The command line; see [`fairshare::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    fairshare::cli::main()
}
