//! Caps on requests in flight, of a limit or of an override.

use super::error::Fault;
use super::overrides::not_overridable;
use super::reader::Node;
use crate::limiter::{InFlightQuota, Quota};
use crate::policy::{LEVELS, Level, Levels};

/// What an override is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overridden<'a> {
    /// The limit's own caps.
    pub(super) caps: &'a Levels,
    /// Where the limit stands.
    pub(super) limit_path: &'a str,
}

/// Reads the caps of a limit, or those that replace them for one tenant.
pub(super) fn read(node: &Node<'_>, overridden: Option<Overridden<'_>>) -> Levels {
    let names = LEVELS.map(Level::name);
    let (known, path) = match overridden {
        Some(of) => (&["tenant", "credential"][..], format!("{}.in_flight", of.limit_path)),
        None => (&names[..], node.path()),
    };
    let fields = node.object_explaining(known, |name| match overridden {
        Some(_) => not_overridable(name, &path),
        None => None,
    });
    let Some(fields) = fields else { return Levels::default() };
    if fields.is_empty() {
        let fix = "give a number for at least one level, as in {\"tenant\": 100}";
        fields.fail_whole(Fault::new("caps nothing", fix));
    }
    let caps = Levels::from_fn(|level| {
        let requests = fields.get(level.name())?.whole(0..=u64::MAX)?;
        Some(Quota::InFlight(InFlightQuota { requests }))
    });
    // One tenant can never have more in flight than everyone together.
    let shared = overridden.map_or(&caps, |of| of.caps).shared;
    if let (Some(shared), Some(tenant)) = (shared, caps.tenant)
        && tenant.capacity() > shared.capacity()
    {
        let most = shared.capacity();
        let fix = format!("lower it to at most {most}, or raise {path}.shared");
        fields.fail("tenant", Fault::new(format!("is above the shared cap ({most})"), fix));
    }
    caps
}
