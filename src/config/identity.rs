//! The section `identity`: where tenant and credential stand in a request.

use super::error::Fault;
use super::reader::{Fields, Node};
use super::{bindings, names};
use crate::policy::{
    ClientPolicy, CredentialPolicy, CredentialSource, Digester, IdentityPolicy, Missing,
    MissingCredential, TenantPolicy, TenantSource,
};

const DEFAULT_TENANT_HEADER: &str = "x-tenant-id";
const DEFAULT_TENANT: &str = "default";

/// The longest tenant name: by default enough for a host name's label twice over, at most what a
/// key built from it can bear.
const DEFAULT_TENANT_MAX_LENGTH: u64 = 128;
const TENANT_MAX_LENGTH_BOUND: u64 = 1024;

/// The way to a value in metadata: its namespace, and keys.
const MIN_METADATA_KEYS: usize = 2;
const MAX_METADATA_KEYS: usize = 8;

/// The longest credential: by default enough for a signed token of ordinary size.
const DEFAULT_CREDENTIAL_MAX_LENGTH: u64 = 4096;
const CREDENTIAL_MAX_LENGTH_BOUND: u64 = 16_384;

/// The most places in which a credential is looked for. Each request looks into all of them.
const MAX_CREDENTIAL_SOURCES: usize = 8;

/// The most proxies between client and Envoy whose word may count.
const TRUSTED_HOPS_BOUND: u64 = 16;

/// What a provider gives one customer at least.
const DEFAULT_IPV6_PREFIX: u64 = 64;

/// A shorter key would not withstand guessing.
const MIN_HASH_KEY_BYTES: usize = 16;

/// Reads the section, or its defaults where it is not given.
pub(super) fn read(section: Option<&Node<'_>>) -> IdentityPolicy {
    let fields = section
        .and_then(|node| node.object(&["tenant", "credential", "client", "bindings", "hash_key"]));
    let part = |name, known: &[&str]| {
        fields.as_ref().and_then(|fields| fields.get(name)).and_then(|node| node.object(known))
    };
    let tenant = part("tenant", &["header", "metadata", "missing", "default_tenant", "max_length"]);
    let credential = part("credential", &["from", "missing", "max_length"]);
    let client = part("client", &["trusted_hops", "ipv6_prefix"]);
    let hash_key = fields.as_ref().and_then(|fields| fields.get("hash_key"));
    let hash_key = hash_key.and_then(|node| node.as_secret().text(check_hash_key));
    let tenant = read_tenant(tenant.as_ref());
    let bindings = fields.as_ref().and_then(|fields| fields.get("bindings"));
    IdentityPolicy {
        bindings: bindings.map(|node| bindings::read(&node, &tenant)).unwrap_or_default(),
        tenant,
        credential: read_credential(credential.as_ref()),
        client: read_client(client.as_ref()),
        digester: Digester::new(hash_key.map(str::as_bytes)),
    }
}

fn check_hash_key(text: &str) -> Result<&str, Fault> {
    if text.len() >= MIN_HASH_KEY_BYTES {
        return Ok(text);
    }
    let rule = format!("is shorter than {MIN_HASH_KEY_BYTES} bytes");
    Err(Fault::new(rule, "use a long random key, or remove it to hash without one"))
}

fn read_tenant(fields: Option<&Fields<'_>>) -> TenantPolicy {
    const MISSING: [(&str, Missing); 3] =
        [("skip", Missing::Skip), ("reject", Missing::Reject), ("anonymous", Missing::Anonymous)];
    let field = |name| fields.and_then(|fields| fields.get(name));
    let missing = field("missing").and_then(|node| node.choice(&MISSING));
    let max_length = field("max_length")
        .and_then(|node| node.whole(1..=TENANT_MAX_LENGTH_BOUND))
        .unwrap_or(DEFAULT_TENANT_MAX_LENGTH);
    let default_tenant = field("default_tenant").and_then(|node| {
        // The empty name is nobody's: no tenant then skips the tenant level.
        node.text(|name| match name {
            "" => Ok(name),
            _ => names::tenant(name, max_length).map(|()| name),
        })
    });
    TenantPolicy {
        source: read_tenant_source(fields),
        missing: missing.unwrap_or(Missing::Skip),
        default_tenant: default_tenant.unwrap_or(DEFAULT_TENANT).to_owned(),
        max_length: length(max_length),
    }
}

fn read_tenant_source(fields: Option<&Fields<'_>>) -> TenantSource {
    let field = |name| fields.and_then(|fields| fields.get(name));
    let header = field("header").and_then(|node| node.text(names::header));
    let default = || DEFAULT_TENANT_HEADER.to_owned();
    let Some(node) = field("metadata") else {
        return TenantSource::Header(header.unwrap_or_else(default));
    };
    if fields.is_some_and(|fields| fields.has("header")) {
        let fix = "keep \"header\", or \"metadata\" where another filter has found the tenant";
        node.fail(Fault::new("stands beside \"header\"", fix));
    }
    let items = node.list(MAX_METADATA_KEYS, None).unwrap_or_default();
    if items.len() < MIN_METADATA_KEYS {
        let fix = "name the namespace and a key, as in [\"envoy.filters.http.jwt_authn\", \"payload\", \"tenant\"]";
        node.fail(Fault::new("leads to no value", fix));
    }
    let keys = items.iter().filter_map(|item| item.text(names::reference));
    TenantSource::Metadata(keys.map(str::to_owned).collect())
}

fn read_credential(fields: Option<&Fields<'_>>) -> CredentialPolicy {
    const MISSING: [(&str, MissingCredential); 2] =
        [("skip", MissingCredential::Skip), ("reject", MissingCredential::Reject)];
    let field = |name| fields.and_then(|fields| fields.get(name));
    CredentialPolicy {
        from: field("from").map_or_else(default_sources, |node| read_sources(&node)),
        missing: field("missing")
            .and_then(|node| node.choice(&MISSING))
            .unwrap_or(MissingCredential::Skip),
        max_length: length(
            field("max_length")
                .and_then(|node| node.whole(1..=CREDENTIAL_MAX_LENGTH_BOUND))
                .unwrap_or(DEFAULT_CREDENTIAL_MAX_LENGTH),
        ),
    }
}

fn read_client(fields: Option<&Fields<'_>>) -> ClientPolicy {
    let number = |name, bounds, default| {
        let node = fields.and_then(|fields| fields.get(name));
        node.and_then(|node| node.whole(bounds)).unwrap_or(default)
    };
    ClientPolicy {
        trusted_hops: length(number("trusted_hops", 0..=TRUSTED_HOPS_BOUND, 0)),
        ipv6_prefix: u8::try_from(number("ipv6_prefix", 1..=128, DEFAULT_IPV6_PREFIX))
            .unwrap_or(u8::MAX),
    }
}

/// An API key in a header of its own, or else a bearer token.
fn default_sources() -> Vec<CredentialSource> {
    let source = |header: &str, scheme: Option<&str>| CredentialSource {
        header: header.to_owned(),
        scheme: scheme.map(str::to_owned),
    };
    vec![source("x-api-key", None), source("authorization", Some("bearer"))]
}

fn read_sources(node: &Node<'_>) -> Vec<CredentialSource> {
    let fix = "name at least one header, or remove it to look into x-api-key and authorization";
    let items = node.list(MAX_CREDENTIAL_SOURCES, Some(fix)).unwrap_or_default();
    let mut sources: Vec<CredentialSource> = Vec::new();
    for item in items {
        let Some(source) = read_source(&item) else { continue };
        let hidden = |earlier: &CredentialSource| {
            earlier.header == source.header
                && (earlier.scheme.is_none() || earlier.scheme == source.scheme)
        };
        if sources.iter().any(hidden) {
            let rule =
                format!("is never looked at: an earlier source takes all of {}", source.header);
            item.fail(Fault::new(rule, "remove it, or put it before that one"));
        }
        sources.push(source);
    }
    sources
}

fn read_source(item: &Node<'_>) -> Option<CredentialSource> {
    let fields = item.object(&["header", "scheme"])?;
    let header = fields.required("header", "name the header, as in {\"header\": \"x-api-key\"}");
    let header = header.and_then(|node| node.text(names::header));
    let scheme = fields.get("scheme").map(|node| node.text(names::scheme));
    Some(CredentialSource {
        header: header?,
        scheme: match scheme {
            Some(scheme) => Some(scheme?),
            None => None,
        },
    })
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
