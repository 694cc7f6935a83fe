//! The section `limits`.

use crate::map::seeded;

use super::error::Fault;
use super::levels::{self, Terms};
use super::reader::{Fields, Node, choose};
use super::{in_flight, matching, names, number};
use crate::policy::{
    Consistency, LEVELS, Limit, LimitId, MAX_LIMITS, Matcher, Mode, OnStateLoss, OnStoreError,
    Scope,
};

/// What `local_fraction` is where it is not given: half, so that two nodes that have lost the store
/// admit no more than the limit between them.
const DEFAULT_LOCAL_FRACTION_PPM: u64 = 500_000;
const MILLION: u64 = 1_000_000;

const FIELDS: [&str; 14] = [
    "name",
    "match",
    "scope",
    "consistency",
    "shared",
    "tenant",
    "credential",
    "client",
    "in_flight",
    "cost",
    "on_store_error",
    "local_fraction",
    "on_state_loss",
    "mode",
];

/// A limit, and where in the document it stands.
#[derive(Debug)]
pub(super) struct PlacedLimit<'a> {
    pub(super) limit: Limit,
    /// Its fields.
    pub(super) fields: Fields<'a>,
    /// Its name as it is written, allowed or not.
    pub(super) written_name: &'a str,
}

/// Reads the section. Without limits a document would let everything pass; that must be said by
/// the mode.
pub(super) fn read<'a>(root: &Fields<'a>, mode: Mode) -> Vec<PlacedLimit<'a>> {
    let fix = "give at least one limit, or write \"mode\": \"off\"";
    let section = match mode {
        Mode::Off => root.get("limits"),
        Mode::Enforce | Mode::Shadow => root.required("limits", fix),
    };
    let Some(section) = section else { return Vec::new() };
    let fix_if_empty = (mode != Mode::Off).then_some(fix);
    let items = section.list(MAX_LIMITS, fix_if_empty).unwrap_or_default();
    let has_store = root.has("store");
    let limits: Vec<_> = items.iter().filter_map(|item| read_limit(item, has_store)).collect();
    check_names(&limits);
    limits
}

fn read_limit<'a>(item: &Node<'a>, has_store: bool) -> Option<PlacedLimit<'a>> {
    let fields = item.object(&FIELDS)?;
    let name = fields.required("name", "give it a name, as in \"name\": \"dns\"");
    let written_name = name.as_ref().and_then(Node::as_text).unwrap_or_default();
    if let Some(node) = name {
        node.text(names::limit_name);
    }
    let matcher = fields.get("match").map_or_else(Matcher::default, |node| matching::read(&node));
    let scope = read_scope(&fields, has_store);
    let cost = fields.get("cost").and_then(|node| node.whole(1..=number::MAX_EXACT)).unwrap_or(1);
    let terms = Terms { scope, cost };
    if !LEVELS.iter().any(|level| fields.has(level.name())) {
        check_in_flight_alone(&fields, scope);
    }
    let limit = Limit {
        name: written_name.into(),
        id: LimitId::of(written_name),
        fallback_id: LimitId::of_fallback(written_name),
        in_flight_id: LimitId::of_in_flight(written_name),
        matcher,
        scope: scope.unwrap_or(Scope::Node),
        consistency: read_consistency(&fields),
        levels: levels::read(&fields, terms),
        overrides: seeded(0),
        in_flight: fields
            .get("in_flight")
            .map(|node| in_flight::read(&node, None))
            .unwrap_or_default(),
        in_flight_overrides: seeded(0),
        cost,
        on_store_error: read_on_store_error(&fields, scope),
        on_state_loss: read_on_state_loss(&fields),
        shadow: read_shadow(&fields),
    };
    if scope == Some(Scope::Node) {
        refuse_store_rules(&fields);
    }
    Some(PlacedLimit { limit, fields, written_name })
}

/// A limit may cap requests in flight and do nothing else. Such caps hold on each node.
fn check_in_flight_alone(fields: &Fields<'_>, scope: Option<Scope>) {
    if !fields.has("in_flight") {
        let fix = "add at least one of \"shared\", \"tenant\", \"credential\", \"client\" and \"in_flight\"";
        fields.fail_whole(Fault::new("has no level, so it limits nothing", fix));
    } else if scope == Some(Scope::Global) {
        let fix = "remove it, or add a level with a quota";
        let rule = "does nothing here: \"in_flight\" holds on each node";
        fields.fail("scope", Fault::new(rule, fix));
    }
}

/// The scope, or none where it cannot be told.
fn read_scope(fields: &Fields<'_>, has_store: bool) -> Option<Scope> {
    let Some(node) = fields.get("scope") else { return Some(Scope::Node) };
    let scope = node.choice(&[("node", Scope::Node), ("global", Scope::Global)]);
    if scope == Some(Scope::Global) && !has_store {
        let fix = "add \"store\": {\"cluster\": \"…\"} beside \"limits\", or write \"node\"";
        node.fail(Fault::new("needs a store, and the document has none", fix));
    }
    scope
}

fn read_consistency(fields: &Fields<'_>) -> Consistency {
    const CHOICES: [(&str, Consistency); 2] =
        [("leased", Consistency::Leased), ("strict", Consistency::Strict)];
    let consistency = fields.get("consistency").and_then(|node| node.choice(&CHOICES));
    consistency.unwrap_or(Consistency::Leased)
}

fn read_on_state_loss(fields: &Fields<'_>) -> OnStateLoss {
    const CHOICES: [(&str, OnStateLoss); 2] =
        [("rebuild", OnStateLoss::Rebuild), ("hold", OnStateLoss::Hold)];
    let chosen = fields.get("on_state_loss").and_then(|node| node.choice(&CHOICES));
    chosen.unwrap_or(OnStateLoss::Rebuild)
}

fn read_on_store_error(fields: &Fields<'_>, scope: Option<Scope>) -> OnStoreError {
    let fraction_ppm = fields
        .get("local_fraction")
        .and_then(|node| node.number(read_fraction))
        .unwrap_or(DEFAULT_LOCAL_FRACTION_PPM);
    let local = OnStoreError::Local { fraction_ppm };
    let options = [("local", local), ("allow", OnStoreError::Allow), ("deny", OnStoreError::Deny)];
    let chosen = fields.get("on_store_error").and_then(|node| node.choice(&options));
    let chosen = chosen.unwrap_or(local);
    if chosen != local && scope != Some(Scope::Node) && fields.has("local_fraction") {
        let fix = "remove it, or write \"on_store_error\": \"local\"";
        fields.fail("local_fraction", Fault::new("does nothing with this on_store_error", fix));
    }
    chosen
}

/// A share above zero and of at most one, in millionths.
fn read_fraction(number: &serde_json::Number) -> Result<u64, Fault> {
    let fraction = number::fraction(number)?;
    if fraction.numerator > fraction.denominator {
        return Err(Fault::new("is above 1", "write the node's share of the limit, as in 0.5"));
    }
    let part = MILLION.checked_div(fraction.denominator).unwrap_or_default();
    Ok(fraction.numerator.saturating_mul(part))
}

fn read_shadow(fields: &Fields<'_>) -> bool {
    let shadow = fields.get("mode").and_then(|node| {
        node.text(|text| match text {
            "off" => Err(Fault::new(
                "is a mode of the whole document, not of one limit",
                "write \"shadow\", or remove the limit",
            )),
            _ => choose(text, &[("enforce", false), ("shadow", true)]),
        })
    });
    shadow.unwrap_or(false)
}

/// A limit of the node never asks the store.
fn refuse_store_rules(fields: &Fields<'_>) {
    for name in ["consistency", "on_store_error", "local_fraction", "on_state_loss"] {
        if fields.has(name) {
            let fix = "remove it, or write \"scope\": \"global\"";
            fields.fail(name, Fault::new("does nothing on a limit of scope \"node\"", fix));
        }
    }
}

/// The numbers under which a limit's usage is kept.
const fn numbers(placed: &PlacedLimit<'_>) -> [LimitId; 3] {
    [placed.limit.id, placed.limit.fallback_id, placed.limit.in_flight_id]
}

/// Usage is kept under numbers made of the name, so all must be one limit's alone.
fn check_names(limits: &[PlacedLimit<'_>]) {
    for (index, placed) in limits.iter().enumerate() {
        let ids = numbers(placed);
        if ids.contains(&LimitId::of_auth_failures()) {
            let rule = "hashes to the number under which failed authentications are counted";
            placed.fields.fail("name", Fault::new(rule, "change a letter of it"));
        }
        for (earlier_index, earlier) in limits.iter().take(index).enumerate() {
            if placed.written_name.is_empty() || earlier.written_name.is_empty() {
                continue;
            }
            let clash = numbers(earlier).iter().any(|number| ids.contains(number));
            let fault = if placed.written_name == earlier.written_name {
                let rule = format!("is the name of limits[{earlier_index}] as well");
                Fault::new(rule, "give each limit a name of its own")
            } else if clash {
                let rule =
                    format!("hashes to the same number as the name of limits[{earlier_index}]");
                Fault::new(rule, "change a letter of one of them")
            } else {
                continue;
            };
            placed.fields.fail("name", fault);
            break;
        }
    }
}
