//! The section `overrides`: what replaces a limit's own quotas and caps for one tenant.

use super::error::Fault;
use super::in_flight::Overridden;
use super::levels::{Terms, check_within_shared};
use super::limits::PlacedLimit;
use super::reader::{Fields, Node};
use super::{in_flight, names, nearest, quota};
use crate::policy::{Levels, TenantPolicy};

/// Reads the section into the limits that it is about.
pub(super) fn read(section: &Node<'_>, limits: &mut [PlacedLimit<'_>], tenants: &TenantPolicy) {
    let Some(fields) = section.map() else { return };
    let max_length = u64::try_from(tenants.max_length).unwrap_or(u64::MAX);
    for (tenant, node) in fields.iter() {
        if let Err(fault) = names::tenant(tenant, max_length) {
            fields.fail_name(tenant, fault);
        }
        read_tenant(tenant, &node, limits, tenants);
    }
}

fn read_tenant(
    tenant: &str,
    node: &Node<'_>,
    limits: &mut [PlacedLimit<'_>],
    tenants: &TenantPolicy,
) {
    let Some(fields) = node.map() else { return };
    if fields.is_empty() {
        node.fail(Fault::new("overrides nothing", "name a limit in it, or remove it"));
    }
    for (name, node) in fields.iter() {
        match limits.iter_mut().find(|placed| placed.written_name == name) {
            Some(placed) => {
                let is_default = tenant == tenants.default_tenant;
                read_override(tenant, &node, placed, is_default);
            }
            None => fields.fail_name(name, unknown_limit(name, limits)),
        }
    }
}

fn unknown_limit(name: &str, limits: &[PlacedLimit<'_>]) -> Fault {
    let names: Vec<&str> = limits.iter().map(|placed| placed.written_name).collect();
    let rule = "is the name of no limit";
    match nearest::to(name, &names) {
        Some(near) => Fault::new(rule, format!("write \"{near}\", or remove it")),
        None => Fault::new(rule, format!("write one of {}, or remove it", nearest::listed(&names))),
    }
}

/// Reads what replaces the levels of `placed` for one tenant.
fn read_override(tenant: &str, node: &Node<'_>, placed: &mut PlacedLimit<'_>, is_default: bool) {
    let limit_path = placed.fields.path();
    let fields = node.object_explaining(&["tenant", "credential", "in_flight"], |name| {
        not_overridable(name, &limit_path)
    });
    let Some(fields) = fields else { return };
    if fields.is_empty() {
        let fix = "give \"tenant\", \"credential\" or \"in_flight\" in it";
        node.fail(Fault::new("overrides nothing", fix));
    }
    if is_default {
        refuse_tenant_level(&fields);
    }
    if let Some(node) = fields.get("in_flight") {
        if let (true, Some(fields)) = (is_default, node.map()) {
            refuse_tenant_level(&fields);
        }
        let of = Overridden { caps: &placed.limit.in_flight, limit_path: &limit_path };
        let caps = in_flight::read(&node, Some(of));
        placed.limit.in_flight_overrides.insert(tenant.to_owned(), caps);
    }
    if let Some(levels) = read_levels(&fields, placed, &limit_path) {
        placed.limit.overrides.insert(tenant.to_owned(), levels);
    }
}

/// What is wrong with overriding `name`, which the limit has at `path`.
pub(super) fn not_overridable(name: &str, path: &str) -> Option<Fault> {
    let rule = match name {
        "shared" => "cannot be overridden: the shared level holds for everyone",
        "client" => "cannot be overridden: a client is one whichever tenant it names",
        _ => return None,
    };
    Some(Fault::new(rule, format!("remove it, or change {path}.{name}")))
}

/// Reports a tenant level for the tenant that has none.
fn refuse_tenant_level(fields: &Fields<'_>) {
    if fields.has("tenant") {
        let rule =
            "never applies: this is identity.tenant.default_tenant, which skips the tenant level";
        fields.fail("tenant", Fault::new(rule, "remove it, or choose another default_tenant"));
    }
}

/// The quotas of an override, if there are any.
fn read_levels(fields: &Fields<'_>, placed: &PlacedLimit<'_>, limit_path: &str) -> Option<Levels> {
    let terms = Terms { scope: Some(placed.limit.scope), cost: placed.limit.cost };
    let level = |name| fields.get(name).and_then(|node| quota::read(&node, terms));
    let (tenant, credential) = (level("tenant"), level("credential"));
    if let (Some(tenant), Some(shared)) = (&tenant, &placed.limit.levels.shared) {
        check_within_shared(tenant, shared, &format!("{limit_path}.shared"));
    }
    (tenant.is_some() || credential.is_some()).then(|| Levels {
        shared: None,
        tenant: tenant.map(|placed| placed.quota),
        credential: credential.map(|placed| placed.quota),
        client: None,
    })
}
