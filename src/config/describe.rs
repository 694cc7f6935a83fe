//! What was understood of a document, in plain words and with every default spelt out.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::advice::poor_leases;
use crate::limiter::{Quota, WindowQuota};
use crate::policy::{
    AuthFailures, Consistency, CredentialSource, HeaderPolicy, IdentityPolicy, LEVELS, Levels,
    Limit, Matcher, Missing, MissingCredential, Mode, OnStateLoss, OnStoreError, Policy,
    RateLimitHeaders, Scope, StorePolicy, TenantSource, Topology,
};

/// The policy in plain words, several lines of them. Shows no secret.
#[must_use]
pub fn describe(policy: &Policy) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_policy(&mut text, policy);
    text
}

fn write_policy(text: &mut String, policy: &Policy) -> fmt::Result {
    writeln!(text, "mode: {}", mode(policy.mode))?;
    let fair_share = match policy.fair_share {
        true => "on, all levels of each limit are enforced",
        false => "off, only the shared level of each limit is enforced",
    };
    writeln!(text, "fair share: {fair_share}")?;
    writeln!(text, "namespace: {}", policy.namespace)?;
    write_identity(text, &policy.identity)?;
    match policy.exempt.as_slice() {
        [] => writeln!(text, "exempt: nothing")?,
        matchers => {
            let matchers: Vec<String> = matchers.iter().map(requests).collect();
            writeln!(text, "exempt: {}", matchers.join("; "))?;
        }
    }
    if let Some(rule) = &policy.auth_failures {
        write_auth_failures(text, rule)?;
    }
    for limit in &policy.limits {
        write_limit(text, limit)?;
    }
    if policy.limits.is_empty() {
        writeln!(text, "limits: none")?;
    }
    write_store(text, policy.store.as_ref())?;
    write_headers(text, policy.headers)
}

const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce, requests over a limit are refused",
        Mode::Shadow => "shadow, requests over a limit are counted as such and let through",
        Mode::Off => "off, nothing is counted and nothing is refused",
    }
}

fn write_identity(text: &mut String, identity: &IdentityPolicy) -> fmt::Result {
    let tenant = &identity.tenant;
    let named_by = match &tenant.source {
        TenantSource::Header(name) => format!("header {name}"),
        TenantSource::Metadata(keys) => format!("dynamic metadata {}", keys.join(" / ")),
    };
    writeln!(text, "tenant: {named_by}, at most {} bytes", tenant.max_length)?;
    let missing = match tenant.missing {
        Missing::Skip => "no tenant level applies",
        Missing::Reject => "the request is refused with 400",
        Missing::Anonymous => "all such requests share one tenant level",
    };
    writeln!(text, "  without one: {missing}")?;
    match tenant.default_tenant.as_str() {
        "" => writeln!(text, "  no tenant skips the tenant level")?,
        name => writeln!(text, "  the tenant {name:?} skips the tenant level")?,
    }
    let credential = &identity.credential;
    let sources: Vec<String> = credential.from.iter().map(source).collect();
    let sources = sources.join(", else ");
    writeln!(text, "credential: {sources}, at most {} bytes", credential.max_length)?;
    let missing = match credential.missing {
        MissingCredential::Skip => "no credential level applies",
        MissingCredential::Reject => "the request is refused with 400",
    };
    writeln!(text, "  without one: {missing}")?;
    match identity.bindings.len() {
        0 => {}
        1 => writeln!(text, "bindings: 1 credential belongs to its tenant")?,
        count => writeln!(text, "bindings: {count} credentials belong to their tenants")?,
    }
    let client = &identity.client;
    let from = match client.trusted_hops {
        0 => "the peer's address".to_owned(),
        hops => format!("address {hops} from the right of x-forwarded-for, else the peer's"),
    };
    writeln!(text, "client: {from}, IPv6 by its first {} bits", client.ipv6_prefix)?;
    let hashing = match identity.digester.is_keyed() {
        true => "HMAC-SHA-256 with the hash key",
        false => "SHA-256, without a key",
    };
    writeln!(text, "identities leave the process as: {hashing}")
}

fn source(source: &CredentialSource) -> String {
    match &source.scheme {
        Some(scheme) => format!("header {} with the scheme {scheme}", source.header),
        None => format!("header {}", source.header),
    }
}

/// Which requests a predicate means.
fn requests(matcher: &Matcher) -> String {
    let mut parts = Vec::new();
    parts.extend(matcher.path.as_ref().map(|path| format!("the path {path}")));
    parts.extend(matcher.path_prefix.as_ref().map(|prefix| {
        let prefix = prefix.trim_end_matches('/');
        match prefix {
            "" => "all paths".to_owned(),
            _ => format!("the path {prefix} and all below it"),
        }
    }));
    if !matcher.methods.is_empty() {
        parts.push(format!("the method {}", matcher.methods.join(" or ")));
    }
    for (name, value) in &matcher.headers {
        parts.push(format!("the header {name}: {value}"));
    }
    parts.extend(matcher.route.as_ref().map(|route| format!("the route {route:?}")));
    match parts.is_empty() {
        true => "all requests".to_owned(),
        false => format!("requests with {}", parts.join(", and ")),
    }
}

fn write_auth_failures(text: &mut String, rule: &AuthFailures) -> fmt::Result {
    let statuses: Vec<String> = rule.statuses.iter().map(ToString::to_string).collect();
    writeln!(text, "failed authentications: answers with {}", statuses.join(", "))?;
    writeln!(text, "  applies to: {}", requests(&rule.matcher))?;
    let WindowQuota { requests, window } = rule.per_client;
    writeln!(text, "  a client with {requests} in any {window} is refused with 429")
}

fn write_limit(text: &mut String, limit: &Limit) -> fmt::Result {
    let scope = match limit.scope {
        Scope::Node => "counted in this Envoy process, for all its workers together",
        Scope::Global => "counted in the store, for all Envoys that share it",
    };
    writeln!(text, "limit {}: {scope}", limit.name)?;
    writeln!(text, "  applies to: {}", requests(&limit.matcher))?;
    write_levels(text, "  ", &limit.levels)?;
    write_levels(text, "  in flight, ", &limit.in_flight)?;
    let tenants: BTreeSet<&String> =
        limit.overrides.keys().chain(limit.in_flight_overrides.keys()).collect();
    for tenant in tenants {
        writeln!(text, "  for the tenant {tenant:?} instead:")?;
        if let Some(levels) = limit.overrides.get(tenant) {
            write_levels(text, "    ", levels)?;
        }
        if let Some(caps) = limit.in_flight_overrides.get(tenant) {
            write_levels(text, "    in flight, ", caps)?;
        }
    }
    writeln!(text, "  cost: {} a request", limit.cost)?;
    if limit.scope == Scope::Global {
        let decided = match limit.consistency {
            Consistency::Leased => "leased, from units that the store grants ahead of need",
            Consistency::Strict => "strict, each request in the store",
        };
        writeln!(text, "  decided: {decided}")?;
        let poor: BTreeSet<String> = poor_leases(limit).iter().map(ToString::to_string).collect();
        for line in poor {
            writeln!(text, "    advice: {line}")?;
        }
        writeln!(text, "  store out of reach: {}", on_store_error(limit.on_store_error))?;
        let lost = match limit.on_state_loss {
            OnStateLoss::Rebuild => "rebuild, the nodes tell it what was granted to them",
            OnStateLoss::Hold => "hold, nothing is granted while lost units could count",
        };
        writeln!(text, "  store lost its state: {lost}")?;
    }
    let mode = match limit.shadow {
        true => "shadow, requests over it are counted as such and let through",
        false => "enforce",
    };
    writeln!(text, "  mode: {mode}")
}

fn write_levels(text: &mut String, start: &str, levels: &Levels) -> fmt::Result {
    for level in LEVELS {
        if let Some(quota) = levels.get(level) {
            writeln!(text, "{start}{level}: {}", allowance(&quota))?;
        }
    }
    Ok(())
}

/// What a quota allows, in units of cost.
fn allowance(quota: &Quota) -> String {
    let nothing = if quota.capacity() == 0 { " (refuses everything)" } else { "" };
    match quota {
        Quota::Window(quota) => format!("{} in any {}{nothing}", quota.requests, quota.window),
        Quota::Gcra(quota) => {
            format!("{} per {}, burst {}{nothing}", quota.rate, quota.per, quota.burst)
        }
        Quota::InFlight(quota) => format!("{} at a time on each node{nothing}", quota.requests),
    }
}

fn on_store_error(rule: OnStoreError) -> String {
    match rule {
        OnStoreError::Local { fraction_ppm } => {
            format!("local, each node enforces {} of the limit", percent(fraction_ppm))
        }
        OnStoreError::Allow => "allow, the limit is not enforced".to_owned(),
        OnStoreError::Deny => "deny, the request is refused with 503".to_owned(),
    }
}

/// Millionths as per cent, exactly.
fn percent(ppm: u64) -> String {
    let whole = ppm.checked_div(10_000).unwrap_or_default();
    let rest = ppm.checked_rem(10_000).unwrap_or_default();
    let decimals = format!(".{rest:04}");
    format!("{whole}{}%", decimals.trim_end_matches('0').trim_end_matches('.'))
}

fn write_store(text: &mut String, store: Option<&StorePolicy>) -> fmt::Result {
    let Some(store) = store else { return writeln!(text, "store: none") };
    let given = |given: bool| if given { "set" } else { "none" };
    let nodes = match store.topology {
        Topology::Single => "one primary",
        Topology::Cluster => "a Redis Cluster",
    };
    writeln!(text, "store: cluster {:?}, {nodes}", store.cluster)?;
    writeln!(text, "  timeout: {}", store.timeout)?;
    writeln!(text, "  keys begin with: {}", store.key_prefix)?;
    match store.username.as_str() {
        "" => writeln!(text, "  user: the store's default")?,
        name => writeln!(text, "  user: {name:?}")?,
    }
    writeln!(text, "  password: {}", given(!store.password.0.is_empty()))
}

fn write_headers(text: &mut String, headers: HeaderPolicy) -> fmt::Result {
    let rate_limit = match headers.rate_limit {
        RateLimitHeaders::Always => "on all answers",
        RateLimitHeaders::Refused => "on refusals",
        RateLimitHeaders::Never => "never",
    };
    let envoy = if headers.envoy_ratelimited { "on refusals" } else { "never" };
    writeln!(text, "headers RateLimit and RateLimit-Policy: {rate_limit}")?;
    writeln!(text, "header x-envoy-ratelimited: {envoy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_exact() {
        let cases = [(1_000_000, "100%"), (500_000, "50%"), (125_000, "12.5%"), (1, "0.0001%")];
        for (ppm, text) in cases {
            assert_eq!(percent(ppm), text);
        }
    }
}
