//! The command line of the trainer.

use std::process::ExitCode;

fn main() -> ExitCode {
    match trainer::cli::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
