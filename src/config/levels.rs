//! The levels of a limit or of an override, and how they must stand to each other.

use super::error::Fault;
use super::quota::{self, PlacedQuota};
use super::reader::Fields;
use crate::limiter::{GcraQuota, Quota};
use crate::policy::{Levels, Scope};

/// What a limit asks of each of its quotas.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// None where it could not be told.
    pub(super) scope: Option<Scope>,
    /// Units that one request spends.
    pub(super) cost: u64,
}

/// Reads the levels of a limit.
pub(super) fn read(fields: &Fields<'_>, terms: Terms) -> Levels {
    let level = |name| fields.get(name).and_then(|node| quota::read(&node, terms));
    let (shared, tenant) = (level("shared"), level("tenant"));
    let (credential, client) = (level("credential"), level("client"));
    if let (Some(shared), Some(tenant)) = (&shared, &tenant) {
        check_within_shared(tenant, &shared.quota, &shared.fields.path());
    }
    let quota = |placed: PlacedQuota<'_>| placed.quota;
    Levels {
        shared: shared.map(quota),
        tenant: tenant.map(quota),
        credential: credential.map(quota),
        client: client.map(quota),
    }
}

/// Reports a tenant level that allows one tenant more than the shared level allows everyone: it
/// could never be reached, so one of the two is a mistake. Levels over different windows, or of
/// different forms, both mean something together.
pub(super) fn check_within_shared(tenant: &PlacedQuota<'_>, shared: &Quota, shared_path: &str) {
    match (&tenant.quota, shared) {
        (Quota::Window(tenant_quota), Quota::Window(shared)) => {
            let (requests, window) = (shared.requests, shared.window);
            if tenant_quota.window == window && tenant_quota.requests > requests {
                let rule = format!(
                    "is above the shared level ({requests}) over the same window of {window}"
                );
                let fix =
                    format!("lower it to at most {requests}, or raise {shared_path}.requests");
                tenant.fields.fail("requests", Fault::new(rule, fix));
            }
        }
        (Quota::Gcra(quota), Quota::Gcra(shared)) => {
            check_rate(tenant, quota, shared, shared_path);
            if quota.burst > shared.burst {
                let rule =
                    tenant.burst_rule(&format!("is above the shared burst ({})", shared.burst));
                let fix =
                    format!("lower it to at most {}, or raise {shared_path}.burst", shared.burst);
                tenant.fields.fail("burst", Fault::new(rule, fix));
            }
        }
        _ => {}
    }
}

fn check_rate(tenant: &PlacedQuota<'_>, quota: &GcraQuota, shared: &GcraQuota, shared_path: &str) {
    // rate/per as a cross product, which is exact.
    let speed = |rate: u64, other_per: &GcraQuota| {
        u128::from(rate).saturating_mul(u128::from(other_per.per.as_nanos()))
    };
    if speed(quota.rate, shared) > speed(shared.rate, quota) {
        let rule = format!("is above the shared rate ({} per {})", shared.rate, shared.per);
        let fix = format!("lower it, or raise {shared_path}.rate");
        tenant.fields.fail("rate", Fault::new(rule, fix));
    }
}
