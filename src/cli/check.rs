//! `fairshare check`: what a configuration means, or everything that is wrong with it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::{Outcome, Streams};
use crate::config;
use crate::policy::Policy;

/// Checks the document in `file`.
pub(super) fn run(
    file: &Path,
    mut streams: Streams<impl Read, impl Write, impl Write>,
) -> io::Result<Outcome> {
    match parse(file, &mut streams)? {
        Ok(policy) => {
            streams.output.write_all(config::describe(&policy).as_bytes())?;
            Ok(Outcome::Good)
        }
        Err(outcome) => Ok(outcome),
    }
}

/// The policy of the document in `file`; where there is none, says why.
pub(super) fn parse(
    file: &Path,
    streams: &mut Streams<impl Read, impl Write, impl Write>,
) -> io::Result<Result<Policy, Outcome>> {
    let document = match read(file, &mut streams.input) {
        Ok(document) => document,
        Err(error) => {
            writeln!(streams.errors, "fairshare: cannot read {}: {error}", file.display())?;
            return Ok(Err(Outcome::Failed));
        }
    };
    let errors = match config::parse(&document) {
        Ok(policy) => return Ok(Ok(policy)),
        Err(errors) => errors,
    };
    writeln!(streams.errors, "{}", config::render_errors(&errors))?;
    let plural = if errors.len() == 1 { "" } else { "s" };
    writeln!(streams.errors, "{}: {} error{plural}", file.display(), errors.len())?;
    Ok(Err(Outcome::BadInput))
}

/// The whole file, or one byte more than any document may have, which the parser then refuses.
fn read(file: &Path, input: &mut impl Read) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(config::MAX_DOCUMENT_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut document = Vec::new();
    if file == Path::new("-") {
        input.take(limit).read_to_end(&mut document)?;
    } else {
        File::open(file)?.take(limit).read_to_end(&mut document)?;
    }
    Ok(document)
}
