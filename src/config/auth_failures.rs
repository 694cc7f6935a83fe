//! The section `auth_failures`: clients that fail to authenticate again and again.

use std::ops::RangeInclusive;

use super::error::Fault;
use super::matching;
use super::reader::Node;
use crate::limiter::WindowQuota;
use crate::policy::{AuthFailures, Matcher};

/// What an answer to a failed authentication has as its status.
const DEFAULT_STATUSES: [u16; 2] = [401, 403];

const STATUS_BOUNDS: RangeInclusive<u64> = 400..=599;
const MAX_STATUSES: usize = 32;

/// Beyond this nobody is guessing any more.
const MAX_FAILURES: u64 = 1_000_000;

/// Reads the section.
pub(super) fn read(section: &Node<'_>) -> Option<AuthFailures> {
    let fields = section.object(&["per_client", "statuses", "match"])?;
    let fix = "say how many, as in {\"failures\": 60, \"window\": \"1m\"}";
    let per_client = fields.required("per_client", fix);
    let per_client = per_client.and_then(|node| read_per_client(&node));
    let statuses = fields.get("statuses").map(|node| read_statuses(&node));
    let matcher = fields.get("match").map_or_else(Matcher::default, |node| matching::read(&node));
    Some(AuthFailures {
        matcher,
        per_client: per_client?,
        statuses: statuses.unwrap_or_else(|| DEFAULT_STATUSES.to_vec()),
    })
}

fn read_per_client(node: &Node<'_>) -> Option<WindowQuota> {
    let fields = node.object(&["failures", "window"])?;
    let failures = fields
        .required("failures", "say how many, as in \"failures\": 60")
        .and_then(|node| node.whole(1..=MAX_FAILURES));
    let window = fields
        .required("window", "say in which time, as in \"window\": \"1m\"")
        .and_then(|node| node.duration("s"));
    Some(WindowQuota { requests: failures?, window: window? })
}

fn read_statuses(node: &Node<'_>) -> Vec<u16> {
    let fix = "name at least one, or remove it to mean 401 and 403";
    let mut statuses = Vec::new();
    for item in node.list(MAX_STATUSES, Some(fix)).unwrap_or_default() {
        let Some(Ok(status)) = item.whole(STATUS_BOUNDS).map(u16::try_from) else { continue };
        if statuses.contains(&status) {
            item.fail(Fault::new("is already there", "keep one of them"));
        }
        statuses.push(status);
    }
    statuses
}
