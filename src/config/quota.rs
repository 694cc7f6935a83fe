//! What a level allows, in either form.

use super::error::Fault;
use super::levels::Terms;
use super::number::{self, Fraction, MAX_EXACT};
use super::reader::{Fields, Node};
use crate::limiter::{GcraQuota, Quota, WindowQuota};
use crate::policy::Scope;
use crate::units::Span;

const DEFAULT_PER: Span = Span::from_secs(1);

/// A decimal rate is kept exact by a longer period. This bound keeps the period far below what a
/// span of time can hold.
const MAX_EXACT_PER: Span = Span::from_secs(100 * 366 * 86_400);

/// The shortest window in the store, whose clock is read in microseconds but asked over a network.
const MIN_GLOBAL_WINDOW: Span = Span::from_millis(1);

/// A quota, and where in the document it stands.
#[derive(Debug)]
pub(super) struct PlacedQuota<'a> {
    pub(super) quota: Quota,
    pub(super) fields: Fields<'a>,
}

/// Reads a level.
pub(super) fn read<'a>(node: &Node<'a>, terms: Terms) -> Option<PlacedQuota<'a>> {
    let fields = node.object(&["requests", "window", "rate", "per", "burst"])?;
    let has_any = |names: &[&str]| names.iter().any(|name| fields.has(name));
    let quota = match (has_any(&["requests", "window"]), has_any(&["rate", "per", "burst"])) {
        (true, false) => read_window(&fields).map(Quota::Window),
        (false, true) => read_gcra(&fields).map(Quota::Gcra),
        (both, _) => {
            let rule = match both {
                true => "mixes a window with a rate",
                false => "allows nothing that could be read",
            };
            let fix = "give \"requests\" and \"window\", or \"rate\" with \"per\" and \"burst\"";
            fields.fail_whole(Fault::new(rule, fix));
            None
        }
    };
    let placed = PlacedQuota { quota: quota?, fields };
    placed.check_cost(terms.cost);
    if terms.scope == Some(Scope::Global) {
        placed.check_exact_in_store();
    }
    Some(placed)
}

fn read_window(fields: &Fields<'_>) -> Option<WindowQuota> {
    let requests = fields
        .required("requests", "say how many, as in \"requests\": 20")
        .and_then(|node| node.whole(0..=u64::MAX));
    let window = fields
        .required("window", "say in which time, as in \"window\": \"1s\"")
        .and_then(|node| node.duration("s"));
    Some(WindowQuota { requests: requests?, window: window? })
}

fn read_gcra(fields: &Fields<'_>) -> Option<GcraQuota> {
    let rate = fields
        .required("rate", "say how many come back in each period, as in \"rate\": 10")
        .and_then(|node| node.number(number::fraction));
    let per = match fields.get("per") {
        Some(node) => node.duration("s"),
        None => Some(DEFAULT_PER),
    };
    let burst = fields.get("burst").map(|node| node.whole(0..=u64::MAX));
    let (rate, per) = (rate?, per?);
    let burst = match burst {
        Some(burst) => burst?,
        None => default_burst(rate),
    };
    let quota = exact_gcra(rate, per, burst);
    if quota.is_none() {
        let rule = format!("cannot be kept exactly over a period of {per}");
        fields.fail("rate", Fault::new(rule, "write fewer decimals, or a shorter period"));
    }
    quota
}

/// One period's worth, rounded up.
const fn default_burst(rate: Fraction) -> u64 {
    // A denominator is never zero; a rate is above zero, so one unit comes out at least.
    match rate.denominator {
        0 => rate.numerator,
        denominator => rate.numerator.div_ceil(denominator),
    }
}

/// A rate of `n/d` in a period is `n` in `d` periods.
fn exact_gcra(rate: Fraction, per: Span, burst: u64) -> Option<GcraQuota> {
    let per = per.as_nanos().checked_mul(rate.denominator).map(Span::from_nanos)?;
    (per <= MAX_EXACT_PER).then_some(GcraQuota { rate: rate.numerator, per, burst })
}

impl PlacedQuota<'_> {
    /// A rule about the burst, which may be a default that nobody wrote.
    pub(super) fn burst_rule(&self, rule: &str) -> String {
        match self.fields.has("burst") {
            true => rule.to_owned(),
            false => format!("is {} by default, which {rule}", self.quota.capacity()),
        }
    }

    /// Nothing at all may be allowed, but not less than a single request.
    fn check_cost(&self, cost: u64) {
        let capacity = self.quota.capacity();
        if capacity == 0 || capacity >= cost {
            return;
        }
        let rule =
            format!("is below the cost of one request ({cost}), so that none would ever pass");
        let fix = format!("raise it to at least {cost}, lower \"cost\", or write 0 to refuse all");
        match self.quota {
            Quota::Window(_) => self.fields.fail("requests", Fault::new(rule, fix)),
            Quota::Gcra(_) => self.fields.fail("burst", Fault::new(self.burst_rule(&rule), fix)),
            Quota::InFlight(_) => {}
        }
    }

    /// The store computes in doubles, which are exact up to a bound. Durations are whole
    /// microseconds in every document, as they are in the store.
    fn check_exact_in_store(&self) {
        let check_units = |name, units: u64| {
            if units > MAX_EXACT {
                let rule = format!("is above {MAX_EXACT}, beyond which the store is not exact");
                let fix = "lower it, or write \"scope\": \"node\"";
                self.fields.fail(name, Fault::new(rule, fix));
            }
        };
        match &self.quota {
            Quota::Window(quota) => {
                check_units("requests", quota.requests);
                if quota.window < MIN_GLOBAL_WINDOW {
                    let rule = format!("is below {MIN_GLOBAL_WINDOW}, the store's shortest window");
                    let fix = "lengthen it, or write \"scope\": \"node\"";
                    self.fields.fail("window", Fault::new(rule, fix));
                }
            }
            Quota::Gcra(quota) => {
                check_units("rate", quota.rate);
                let most = largest_exact_burst(quota);
                if quota.burst > most {
                    let rule = format!("is above {most}, beyond which the store is not exact");
                    let fix = format!(
                        "lower it to at most {most}, shorten the period, or write \"scope\": \"node\""
                    );
                    self.fields.fail("burst", Fault::new(self.burst_rule(&rule), fix));
                }
            }
            Quota::InFlight(_) => {}
        }
    }
}

/// The store counts a bucket in units times microseconds of the period, with rate and period in
/// lowest terms.
fn largest_exact_burst(quota: &GcraQuota) -> u64 {
    let micros = quota.per.as_micros_ceil();
    let common = number::greatest_common_divisor(quota.rate, micros);
    let reduced = micros.checked_div(common).unwrap_or(micros);
    MAX_EXACT.checked_div(reduced).unwrap_or(MAX_EXACT)
}
