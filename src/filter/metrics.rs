//! The closed list of metrics. The configuration fixes it; traffic never adds to it.
//!
//! Names carry their labels as `.key=value` parts, which Envoy's `stats_tags` turn into labels.
//! Every request adds one to exactly one of the `fairshare_requests` series whose outcome is
//! `admitted`, `refused`, `exempt` or `errored`, so these sum up to all requests. `shadow_refused`
//! comes on top: what limits in shadow mode would have refused.

use crate::policy::{LEVELS, Level, Policy};
use crate::store::StoreError;
use crate::store::leases::LeaseEvents;

/// A metric's place in [`Metrics::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetricId(pub usize);

/// What a metric does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It grows.
    Counter,
    /// It is set.
    Gauge,
    /// It keeps how often which values were recorded.
    Histogram,
}

/// How a request ended, as far as limits are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every level had room; counted at the level with the least left.
    Admitted,
    /// Some level had none; counted at the one that is named in the answer.
    Refused,
    /// A limit in shadow mode would have refused it.
    ShadowRefused,
}

/// Why a request was refused: the `code` of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A window or GCRA level has no room.
    RateLimited,
    /// A cap on requests in flight is full.
    ConcurrencyLimited,
    /// The store is out of reach and the limit says `deny`.
    StoreUnavailable,
    /// No identity where one is required.
    IdentityMissing,
    /// More than one value.
    IdentityAmbiguous,
    /// Not usable as an identity.
    IdentityInvalid,
    /// The credential is bound to another tenant.
    TenantMismatch,
    /// Too many failed authentications from this client.
    AuthThrottled,
}

/// Every metric's number.
#[derive(Debug)]
pub struct Metrics {
    names: Vec<String>,
}

/// What happens to units of leases.
const LEASE_EVENTS: [&str; 4] = ["granted", "spent", "returned", "expired"];

/// The mode, and what comes of looks at the one that the store sets.
const MODE_NAMES: [&str; 4] = [
    "fairshare_mode",
    "fairshare_mode_reads.result=ok",
    "fairshare_mode_reads.result=ignored",
    "fairshare_mode_reads.result=failed",
];

const OUTCOMES: [Outcome; 3] = [Outcome::Admitted, Outcome::Refused, Outcome::ShadowRefused];
const CODES: [Code; 8] = [
    Code::RateLimited,
    Code::ConcurrencyLimited,
    Code::StoreUnavailable,
    Code::IdentityMissing,
    Code::IdentityAmbiguous,
    Code::IdentityInvalid,
    Code::TenantMismatch,
    Code::AuthThrottled,
];

/// Series that do not depend on the configuration, before those that do.
const ADMITTED_WITHOUT_LIMIT: MetricId = MetricId(0);
const EXEMPT: MetricId = MetricId(1);
const ERRORED: MetricId = MetricId(2);
const EVICTIONS: MetricId = MetricId(3);
const GIVEN_UP: MetricId = MetricId(4);
const STORE_OK: MetricId = MetricId(5);
const LEASE_UNITS: [MetricId; 4] = [MetricId(6), MetricId(7), MetricId(8), MetricId(9)];
const IN_FLIGHT: MetricId = MetricId(10);
const STORE_TIME: MetricId = MetricId(11);
const THROTTLED: MetricId = MetricId(12);
const THROTTLED_IN_SHADOW: MetricId = MetricId(13);
const MODE: MetricId = MetricId(14);
const MODE_READS: [MetricId; 3] = [MetricId(15), MetricId(16), MetricId(17)];
const STATE_LOST: MetricId = MetricId(18);
const KEY_LOST: MetricId = MetricId(19);
const FIXED: usize = 20;

impl Code {
    /// The name in answers and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::ConcurrencyLimited => "concurrency_limited",
            Self::StoreUnavailable => "store_unavailable",
            Self::IdentityMissing => "identity_missing",
            Self::IdentityAmbiguous => "identity_ambiguous",
            Self::IdentityInvalid => "identity_invalid",
            Self::TenantMismatch => "tenant_mismatch",
            Self::AuthThrottled => "auth_throttled",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::RateLimited => 0,
            Self::ConcurrencyLimited => 1,
            Self::StoreUnavailable => 2,
            Self::IdentityMissing => 3,
            Self::IdentityAmbiguous => 4,
            Self::IdentityInvalid => 5,
            Self::TenantMismatch => 6,
            Self::AuthThrottled => 7,
        }
    }
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::ShadowRefused => "shadow_refused",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Admitted => 0,
            Self::Refused => 1,
            Self::ShadowRefused => 2,
        }
    }
}

const fn level_index(level: Level) -> usize {
    match level {
        Level::Shared => 0,
        Level::Tenant => 1,
        Level::Credential => 2,
        Level::Client => 3,
    }
}

impl Metrics {
    /// The metrics of a policy.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let request = |limit: &str, level: &str, outcome: &str| {
            format!("fairshare_requests.limit={limit}.level={level}.outcome={outcome}")
        };
        let mut names = vec![
            request("none", "none", "admitted"),
            request("none", "none", "exempt"),
            request("none", "none", "errored"),
            "fairshare_evictions".to_owned(),
            "fairshare_decisions_given_up".to_owned(),
            "fairshare_store_calls.result=ok".to_owned(),
        ];
        names.extend(LEASE_EVENTS.map(|event| format!("fairshare_lease_units.event={event}")));
        names.push("fairshare_in_flight".to_owned());
        names.push("fairshare_store_seconds".to_owned());
        for outcome in [Outcome::Refused, Outcome::ShadowRefused] {
            names.push(request("none", Level::Client.name(), outcome.name()));
        }
        names.extend(MODE_NAMES.map(str::to_owned));
        names.extend(["store", "key"].map(|of| format!("fairshare_state_losses.of={of}")));
        names.extend(CODES.map(|code| format!("fairshare_refusals.code={}", code.name())));
        names.extend(
            StoreError::ALL.map(|error| format!("fairshare_store_calls.result={}", error.name())),
        );
        for limit in &policy.limits {
            for level in LEVELS {
                let of_level =
                    |outcome: Outcome| request(&limit.name, level.name(), outcome.name());
                names.extend(OUTCOMES.map(of_level));
            }
        }
        Self { names }
    }

    /// Every name, in the order of the numbers.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What the metric does.
    #[must_use]
    pub fn kind(&self, metric: MetricId) -> MetricKind {
        match metric {
            IN_FLIGHT | MODE => MetricKind::Gauge,
            STORE_TIME => MetricKind::Histogram,
            _ => MetricKind::Counter,
        }
    }

    /// Requests of the process that hold a slot now.
    #[must_use]
    pub const fn in_flight(&self) -> MetricId {
        IN_FLIGHT
    }

    /// The mode in force: 0 is off, 1 is shadow, 2 is enforce.
    #[must_use]
    pub const fn mode(&self) -> MetricId {
        MODE
    }

    /// Looks at the mode that the store sets, by what came of them; `None` where none was read.
    #[must_use]
    pub const fn mode_reads(&self, followed: Option<bool>) -> MetricId {
        let [ok, ignored, failed] = MODE_READS;
        match followed {
            Some(true) => ok,
            Some(false) => ignored,
            None => failed,
        }
    }

    /// How long calls to the store took, in whole milliseconds.
    #[must_use]
    pub const fn store_time(&self) -> MetricId {
        STORE_TIME
    }

    /// Requests that no limit matched.
    #[must_use]
    pub const fn admitted_without_limit(&self) -> MetricId {
        ADMITTED_WITHOUT_LIMIT
    }

    /// Requests that are never counted.
    #[must_use]
    pub const fn exempt(&self) -> MetricId {
        EXEMPT
    }

    /// Requests that were answered with an error of identity or store.
    #[must_use]
    pub const fn errored(&self) -> MetricId {
        ERRORED
    }

    /// Requests of clients that failed to authenticate too often.
    #[must_use]
    pub const fn throttled(&self, outcome: Outcome) -> MetricId {
        match outcome {
            Outcome::ShadowRefused => THROTTLED_IN_SHADOW,
            Outcome::Admitted | Outcome::Refused => THROTTLED,
        }
    }

    /// Records evicted from the node's slab while they still mattered.
    #[must_use]
    pub const fn evictions(&self) -> MetricId {
        EVICTIONS
    }

    /// Decisions that the node refused because contention outlasted every try.
    #[must_use]
    pub const fn given_up(&self) -> MetricId {
        GIVEN_UP
    }

    /// Losses of the store's state: new epochs.
    #[must_use]
    pub const fn state_lost(&self) -> MetricId {
        STATE_LOST
    }

    /// Losses of single keys in the store.
    #[must_use]
    pub const fn key_lost(&self) -> MetricId {
        KEY_LOST
    }

    /// Decisions that the store answered.
    #[must_use]
    pub const fn store_ok(&self) -> MetricId {
        STORE_OK
    }

    /// The units of leases, by what happened to them.
    #[must_use]
    pub const fn lease_units(&self, events: &LeaseEvents) -> [(MetricId, u64); 4] {
        let [granted, spent, returned, expired] = LEASE_UNITS;
        [
            (granted, events.granted),
            (spent, events.spent),
            (returned, events.returned),
            (expired, events.expired),
        ]
    }

    /// Refusals with this code.
    #[must_use]
    pub fn refusals(&self, code: Code) -> MetricId {
        MetricId(FIXED.saturating_add(code.index()))
    }

    /// Decisions that the store did not answer, by kind.
    #[must_use]
    pub fn store_error(&self, error: StoreError) -> MetricId {
        let index = StoreError::ALL.iter().position(|kind| *kind == error).unwrap_or(0);
        MetricId(FIXED.saturating_add(CODES.len()).saturating_add(index))
    }

    /// Requests that ended at this level of the limit at this place in the policy.
    #[must_use]
    pub fn requests(&self, limit: usize, level: Level, outcome: Outcome) -> MetricId {
        let row = limit.saturating_mul(LEVELS.len()).saturating_add(level_index(level));
        let first = FIXED.saturating_add(CODES.len()).saturating_add(StoreError::ALL.len());
        MetricId(
            row.saturating_mul(OUTCOMES.len())
                .saturating_add(outcome.index())
                .saturating_add(first),
        )
    }
}
