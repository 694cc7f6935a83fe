//! `fairshare digest`: what stands for a tenant or a client in logs, shared data and Redis.

use std::io::{self, Read, Write};
use std::path::Path;

use super::{Outcome, Streams, check};
use crate::policy::{Attributes, HeaderMap, Policy, RequestView, Subject};

/// Prints the digest of `name` under the configuration in `config`.
pub(super) fn run(
    name: &str,
    is_client: bool,
    config: &Path,
    mut streams: Streams<impl Read, impl Write, impl Write>,
) -> io::Result<Outcome> {
    let policy = match check::parse(config, &mut streams)? {
        Ok(policy) => policy,
        Err(outcome) => return Ok(outcome),
    };
    let Subject(digest) = match is_client {
        true => client(name, &policy),
        false => policy.identity.digester.digest(name.as_bytes()),
    };
    for byte in digest {
        write!(streams.output, "{byte:02x}")?;
    }
    writeln!(streams.output)?;
    Ok(Outcome::Good)
}

/// What stands for the client that Envoy would call `name`.
fn client(name: &str, policy: &Policy) -> Subject {
    let request = RequestView::new(HeaderMap::new(&[]), &Attributes::NONE);
    let rules = &policy.identity.client;
    let digester = &policy.identity.digester;
    rules.subject(rules.find(&request, name.as_bytes()), |bytes| digester.digest(bytes))
}
