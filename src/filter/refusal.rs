//! What a refused request is told.

use std::cell::OnceCell;

use serde::Serialize;

use super::fields::policy_name;
use super::judgement::Judgement;
use super::{Code, RateLimitFields};
use crate::limiter::WindowQuota;
use crate::policy::{
    AuthFailures, HeaderMap, IdentityPart, IdentityRefusal, Level, Policy, RateLimitHeaders,
    Subject, TenantSource,
};
use crate::units::Span;

/// A local answer, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Header fields, in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// `application/problem+json`, or plain text for gRPC, where it becomes `grpc-message`.
    pub body: Vec<u8>,
    /// What the access log shows as the response code's details.
    pub details: String,
    /// The gRPC status; the host uses it for gRPC requests alone.
    pub grpc_status: i32,
    /// The fields as the host takes them, once they were sent: an answer may be sent often.
    serialized: OnceCell<Vec<u8>>,
}

/// Why a request is refused, and what may help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub code: Code,
    /// The limit that is to blame, by its place in the policy.
    pub place: Option<usize>,
    /// Its level, where one of them had no room.
    pub level: Option<Level>,
    /// Whose level that is; none for the shared one.
    pub subject: Option<Subject>,
    /// A hint that a person can act on.
    pub detail: String,
    /// The time after which a retry may pass.
    pub retry_after: Option<Span>,
    /// The tightest level's fields.
    pub fields: Option<RateLimitFields>,
}

/// The answer's body (RFC 9457).
#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<&'a str>,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<String>,
}

/// How a code is told over HTTP and gRPC.
struct Form {
    status: u16,
    grpc_status: i32,
    r#type: &'static str,
    title: &'static str,
}

impl Reply {
    /// The answer of a filter that has no configuration.
    #[must_use]
    pub fn unconfigured() -> Self {
        Self {
            status: 503,
            headers: Vec::new(),
            body: Vec::new(),
            details: "fairshare_unconfigured".to_owned(),
            grpc_status: 14, // UNAVAILABLE
            serialized: OnceCell::new(),
        }
    }

    /// The header fields in the host's serialized form.
    #[must_use]
    pub fn header_map(&self) -> &[u8] {
        self.serialized.get_or_init(|| {
            let fields = self.headers.iter();
            let pairs = fields.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            HeaderMap::serialize(&pairs.collect::<Vec<_>>())
        })
    }
}

impl Refusal {
    /// The refusal by a level that has no room.
    pub(super) fn no_room(blamed: &Judgement, policy: &Policy) -> Self {
        let Judgement { charge, verdict } = blamed;
        let limit = limit_name(policy, charge.place);
        let whose = match charge.level {
            Level::Shared => "everyone together",
            Level::Tenant => "this tenant",
            Level::Credential => "this credential",
            Level::Client => "this client address",
        };
        let (code, hint) = match charge.quota.is_in_flight() {
            true => (Code::ConcurrencyLimited, "when one of them has ended"),
            false => (Code::RateLimited, "and spread requests out"),
        };
        let detail = if charge.quota.capacity() == 0 {
            format!("Limit {limit} allows {whose} nothing; ask its operator to raise it.")
        } else {
            let seconds = retry_seconds(verdict.retry_after);
            let weight = match charge.cost {
                1 => String::new(),
                cost => format!(", and this one counts as {cost}"),
            };
            let quota = charge.quota;
            format!("Limit {limit} allows {whose} {quota}{weight}; retry in {seconds} s, {hint}.")
        };
        Self {
            code,
            place: Some(charge.place),
            level: Some(charge.level),
            subject: charge.subject,
            detail,
            retry_after: Some(verdict.retry_after),
            fields: Some(RateLimitFields::about(blamed, policy)),
        }
    }

    /// The refusal by a limit that is not to be passed while the store is out of reach.
    pub(super) fn store_unavailable(place: usize, policy: &Policy) -> Self {
        let limit = limit_name(policy, place);
        Self {
            code: Code::StoreUnavailable,
            place: Some(place),
            level: None,
            subject: None,
            detail: format!(
                "Limit {limit} cannot be checked now and is set to refuse then; retry shortly."
            ),
            retry_after: Some(Span::from_secs(1)),
            fields: None,
        }
    }

    /// The refusal of a client that has failed to authenticate too often.
    pub(super) fn auth_throttled(rule: &AuthFailures, client: Subject, retry_after: Span) -> Self {
        let WindowQuota { requests, window } = rule.per_client;
        let seconds = retry_seconds(retry_after);
        Self {
            code: Code::AuthThrottled,
            place: None,
            level: Some(Level::Client),
            subject: Some(client),
            detail: format!(
                "This client address failed to authenticate {requests} times in {window}; \
                 correct the credential, and retry in {seconds} s."
            ),
            retry_after: Some(retry_after),
            fields: None,
        }
    }

    /// The refusal of a request without a usable identity.
    pub(super) fn identity(refusal: IdentityRefusal, policy: &Policy) -> Self {
        let (code, part, what) = match refusal {
            IdentityRefusal::Missing(part) => (Code::IdentityMissing, part, "is required"),
            IdentityRefusal::Ambiguous(part) => {
                (Code::IdentityAmbiguous, part, "stands there more than once; send it once")
            }
            IdentityRefusal::Invalid(part) => {
                (Code::IdentityInvalid, part, "is too long or no plain text")
            }
            IdentityRefusal::Mismatch => (
                Code::TenantMismatch,
                IdentityPart::Tenant,
                "is not the one to which the credential belongs; name that one, or none",
            ),
        };
        let detail = format!("The {} {what}.", place_of(part, policy));
        Self {
            code,
            place: None,
            level: None,
            subject: None,
            detail,
            retry_after: None,
            fields: None,
        }
    }

    /// The answer to send.
    pub(super) fn reply(&self, policy: &Policy, grpc: bool) -> Reply {
        let form = self.code.form();
        let retry_after = self.retry_after.map(retry_seconds);
        let mut headers = Vec::with_capacity(5);
        if let Some(seconds) = retry_after {
            headers.push(("retry-after", seconds.to_string()));
        }
        if policy.headers.rate_limit != RateLimitHeaders::Never {
            let fields = self.fields.iter().flat_map(RateLimitFields::pairs);
            headers.extend(fields.map(|(name, value)| (name, value.to_owned())));
        }
        if policy.headers.envoy_ratelimited {
            headers.push(("x-envoy-ratelimited", "true".to_owned()));
        }
        let body = if grpc {
            self.detail.clone().into_bytes()
        } else {
            headers.push(("content-type", "application/problem+json".to_owned()));
            self.problem(policy, &form, retry_after)
        };
        Reply {
            status: form.status,
            headers,
            body,
            details: format!("fairshare_{}", self.code.name()),
            grpc_status: form.grpc_status,
            serialized: OnceCell::new(),
        }
    }

    fn problem(&self, policy: &Policy, form: &Form, retry_after: Option<u64>) -> Vec<u8> {
        let limit = self.place.map(|place| limit_name(policy, place));
        let level = self.level.map(Level::name);
        let problem = Problem {
            r#type: form.r#type,
            title: form.title,
            status: form.status,
            code: self.code.name(),
            limit,
            level,
            detail: &self.detail,
            retry_after,
            violated_policies: self
                .place
                .zip(self.level)
                .map(|(place, level)| {
                    policy_name(policy, place, level, self.code == Code::ConcurrencyLimited)
                })
                .into_iter()
                .collect(),
        };
        serde_json::to_vec(&problem).unwrap_or_default()
    }
}

impl Code {
    const fn form(self) -> Form {
        match self {
            Self::RateLimited => Form {
                status: 429,
                grpc_status: 8, // RESOURCE_EXHAUSTED
                r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
                title: "Too many requests",
            },
            Self::ConcurrencyLimited => {
                Form { title: "Too many requests in flight", ..Self::RateLimited.form() }
            }
            Self::AuthThrottled => Form {
                r#type: "about:blank",
                title: "Too many failed authentications",
                ..Self::RateLimited.form()
            },
            Self::StoreUnavailable => Form {
                status: 503,
                grpc_status: 14, // UNAVAILABLE
                r#type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                title: "Limit cannot be checked",
            },
            Self::IdentityMissing => Form::bad_request("Identity missing"),
            Self::IdentityAmbiguous => Form::bad_request("Identity ambiguous"),
            Self::IdentityInvalid => Form::bad_request("Identity not usable"),
            Self::TenantMismatch => Form {
                status: 403,
                grpc_status: 7, // PERMISSION_DENIED
                r#type: "about:blank",
                title: "Credential of another tenant",
            },
        }
    }
}

impl Form {
    const fn bad_request(title: &'static str) -> Self {
        Self { status: 400, grpc_status: 3, r#type: "about:blank", title } // INVALID_ARGUMENT
    }
}

/// Where a part of the identity is looked for.
fn place_of(part: IdentityPart, policy: &Policy) -> String {
    match (part, &policy.identity.tenant.source) {
        (IdentityPart::Tenant, TenantSource::Header(name)) => format!("tenant in header {name}"),
        (IdentityPart::Tenant, TenantSource::Metadata(keys)) => {
            format!("tenant in metadata {}", keys.join("."))
        }
        (IdentityPart::Credential, _) => {
            let sources = &policy.identity.credential.from;
            let names: Vec<_> = sources.iter().map(|source| source.header.as_str()).collect();
            format!("credential in header {}", names.join(" or "))
        }
    }
}

fn limit_name(policy: &Policy, place: usize) -> &str {
    policy.limits.get(place).map_or("", |limit| &limit.name)
}

/// `Retry-After` in whole seconds, rounded up, at least one.
fn retry_seconds(wait: Span) -> u64 {
    wait.as_secs_ceil().max(1)
}
