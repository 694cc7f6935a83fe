//! The section `identity.bindings`: which tenant a credential belongs to.

use super::error::Fault;
use super::names;
use super::reader::Node;
use crate::policy::{Bindings, MAX_BINDINGS, Subject, TenantPolicy};

/// Hex digits of a SHA-256.
const DIGEST_DIGITS: usize = 64;

/// Reads the section.
pub(super) fn read(section: &Node<'_>, tenants: &TenantPolicy) -> Bindings {
    let mut bindings = Bindings::default();
    for item in section.list(MAX_BINDINGS, None).unwrap_or_default() {
        read_binding(&item, tenants, &mut bindings);
    }
    bindings
}

fn read_binding(item: &Node<'_>, tenants: &TenantPolicy, bindings: &mut Bindings) -> Option<()> {
    // What stands there by mistake may be a credential.
    let fields = item.as_secret().object(&["credential_sha256", "tenant"])?;
    let max_length = u64::try_from(tenants.max_length).unwrap_or(u64::MAX);
    let tenant = fields.required("tenant", "name the tenant to which the credential belongs");
    let check = |name| names::tenant(name, max_length).map(|()| name);
    let tenant = tenant.and_then(|node| node.text(check));
    let fix = "give the credential's SHA-256 in hex";
    let node = fields.required("credential_sha256", fix)?.as_secret();
    let digest = node.text(read_digest)?;
    if !bindings.bind(digest, tenant?) {
        node.fail(Fault::new("is bound already", "keep one binding for each credential"));
    }
    Some(())
}

fn read_digest(text: &str) -> Result<Subject, Fault> {
    let mut digest = [0; DIGEST_DIGITS / 2];
    if text.len() != DIGEST_DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        let rule = format!("is not a SHA-256 of {DIGEST_DIGITS} hex digits");
        return Err(Fault::new(rule, "write it as sha256sum prints it, of the credential alone"));
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
        let pair = str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
    }
    Ok(Subject(digest))
}
