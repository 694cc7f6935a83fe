//! From the plugin's JSON to a [`Policy`], or to every error in it.
//!
//! [`parse`] is the one way in. A document passes through three forms: bytes, a tree that still
//! holds everything that was written, and the compiled policy. Each section of the document has a
//! file that reads its part of the tree, fills in the defaults and checks it against the others.
//! Nothing stops at the first error.
//!
//! ```
//! let document = br#"{"limits": [{"name": "dns", "tenant": {"requests": 5, "window": 10}}]}"#;
//! let errors = fairshare::config::parse(document).unwrap_err();
//! assert_eq!(
//!     fairshare::config::render_errors(&errors),
//!     "limits[0].tenant.window: 10: is a number without a unit; add one, as in \"window\": \"10s\"",
//! );
//! ```

mod advice;
mod auth_failures;
mod bindings;
mod describe;
mod document;
mod duration;
mod error;
mod identity;
mod in_flight;
mod levels;
mod limits;
mod matching;
mod names;
mod nearest;
mod number;
mod overrides;
mod place;
mod quota;
mod reader;
mod store;

pub use advice::poor_leases;
pub use describe::describe;
pub use document::MAX_DOCUMENT_BYTES;
pub use error::{ConfigError, MAX_ERRORS, render_errors};

use error::ErrorSink;
use limits::PlacedLimit;
use reader::{Fields, Node};

use crate::policy::{
    AuthFailures, HeaderPolicy, Level, Matcher, Mode, Policy, RateLimitHeaders, Wanted,
};

const DEFAULT_NAMESPACE: &str = "default";

/// Reads a document: the policy that it describes, or every error in it.
///
/// # Errors
///
/// Everything that is wrong with the document, in the order of its sections, at most
/// [`MAX_ERRORS`] entries and one that counts the rest. A document is used whole or not at all.
pub fn parse(bytes: &[u8]) -> Result<Policy, Vec<ConfigError>> {
    let document = document::parse(bytes).map_err(|error| vec![error])?;
    let sink = ErrorSink::default();
    let policy = read(&Node::root(&document, &sink));
    match (policy, sink.take_errors()) {
        (Some(policy), errors) if errors.is_empty() => Ok(policy),
        (_, errors) => Err(errors),
    }
}

/// Reads the sections. What is returned stands only if nothing was reported.
fn read(root: &Node<'_>) -> Option<Policy> {
    let fields = root.object(&[
        "mode",
        "fair_share",
        "namespace",
        "identity",
        "exempt",
        "auth_failures",
        "limits",
        "overrides",
        "store",
        "headers",
    ])?;
    let mode = fields.get("mode").and_then(|node| {
        node.choice(&[("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)])
    });
    let mode = mode.unwrap_or(Mode::Enforce);
    let fair_share = fields.get("fair_share").and_then(|node| node.boolean()).unwrap_or(true);
    let namespace = fields.get("namespace").and_then(|node| node.text(names::plain_name));
    let identity = identity::read(fields.get("identity").map(|node| node.as_secret()).as_ref());
    let exempt = fields.get("exempt").map(|node| matching::read_exempt(&node));
    let auth_failures = fields.get("auth_failures").and_then(|node| auth_failures::read(&node));
    let mut limits = limits::read(&fields, mode);
    if let Some(node) = fields.get("overrides") {
        overrides::read(&node, &mut limits, &identity.tenant);
    }
    let exempt = exempt.unwrap_or_default();
    let wanted = wanted(&limits, &exempt, auth_failures.as_ref());
    Some(Policy {
        mode,
        fair_share,
        namespace: namespace.unwrap_or(DEFAULT_NAMESPACE).to_owned(),
        identity,
        exempt,
        auth_failures,
        limits: limits.into_iter().map(|placed| placed.limit).collect(),
        store: fields.get("store").and_then(|node| store::read(&node.as_secret())),
        headers: read_headers(&fields),
        wanted,
    })
}

/// What is looked at beside headers.
fn wanted(
    limits: &[PlacedLimit<'_>],
    exempt: &[Matcher],
    auth_failures: Option<&AuthFailures>,
) -> Wanted {
    let mut limits = limits.iter().map(|placed| &placed.limit);
    let on_route = |matcher: &Matcher| matcher.route.is_some();
    Wanted {
        peer: auth_failures.is_some() || limits.clone().any(|limit| limit.has(Level::Client)),
        route: auth_failures.is_some_and(|rule| on_route(&rule.matcher))
            || exempt.iter().any(on_route)
            || limits.any(|limit| on_route(&limit.matcher)),
    }
}

/// The section `headers`: which response headers are written.
fn read_headers(root: &Fields<'_>) -> HeaderPolicy {
    const RATE_LIMIT: [(&str, RateLimitHeaders); 3] = [
        ("always", RateLimitHeaders::Always),
        ("refused", RateLimitHeaders::Refused),
        ("never", RateLimitHeaders::Never),
    ];
    let fields =
        root.get("headers").and_then(|node| node.object(&["rate_limit", "x_envoy_ratelimited"]));
    let field = |name| fields.as_ref().and_then(|fields| fields.get(name));
    HeaderPolicy {
        rate_limit: field("rate_limit")
            .and_then(|node| node.choice(&RATE_LIMIT))
            .unwrap_or(RateLimitHeaders::Always),
        envoy_ratelimited: field("x_envoy_ratelimited")
            .and_then(|node| node.boolean())
            .unwrap_or(true),
    }
}
