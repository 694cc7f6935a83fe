//! How long prepaid units of a level may be spent, and what the store therefore enforces on grants.

use crate::limiter::{GcraQuota, Quota, WindowQuota};
use crate::units::Span;

/// Parts of a level's period for which a parcel lasts.
const LIVES_PER_PERIOD: u64 = 32;

/// The longest life of a parcel: even where windows are long, what is not needed goes back soon.
const LIFE_MAX: Span = Span::from_secs(5);

/// The shortest life for which asking ahead of need is worth while.
const LIFE_MIN: Span = Span::from_millis(20);

/// How long a parcel lasts that is meant for those who wait for it, at least and at most: time for the
/// answer to come, as long as it may take with the default of `store.timeout`, and to be handed over.
const HAND_OVER_MIN: Span = Span::from_millis(60);
const HAND_OVER_MAX: Span = Span::from_secs(1);

/// The part of a burst that is kept in reserve at most.
const RESERVE_MAX: u64 = 4;

/// Levels with room for fewer requests are granted only what is waited for.
const REQUESTS_MIN: u64 = 16;

/// How a level is leased. It follows from the quota alone, so all nodes agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// How long a parcel may be spent.
    life: Span,
    /// Whether units are asked for that nobody waits for.
    ahead: bool,
    /// What the store enforces on grants, so that spending obeys the level's own quota.
    charged: Quota,
}

impl LeaseTerms {
    /// The terms of a level.
    ///
    /// A unit granted at `T` is spent before `T + life`. A window therefore counts grants for one
    /// life longer than its own length. A GCRA level keeps in reserve what leaks within one, if that is
    /// little and leaves room for a `cost`; else its units come back more slowly: so that spends of
    /// one unit each that are all delayed by one life are no closer than they may be.
    #[must_use]
    pub fn of(quota: &Quota, cost: u64) -> Self {
        let part = quota.period().as_nanos().checked_div(LIVES_PER_PERIOD).unwrap_or(0);
        let part = Span::from_nanos(part).min(LIFE_MAX);
        let requests = quota.capacity().checked_div(cost.max(1)).unwrap_or(0);
        let ahead = requests >= REQUESTS_MIN && part >= LIFE_MIN;
        let life = if ahead { part } else { part.clamp(HAND_OVER_MIN, HAND_OVER_MAX) };
        let charged = match *quota {
            Quota::Window(WindowQuota { requests, window }) => {
                // Whole milliseconds stay exact in the store.
                let window = Span::from_millis(window.plus(life).as_millis_ceil());
                Quota::Window(WindowQuota { requests, window })
            }
            Quota::Gcra(gcra) => Quota::Gcra(delayed(gcra, life, cost)),
            // Requests in flight are counted on each node, never leased.
            as_it_is @ Quota::InFlight(_) => as_it_is,
        };
        Self { life, ahead, charged }
    }

    /// What the store enforces on grants.
    #[must_use]
    pub const fn charged(&self) -> &Quota {
        &self.charged
    }

    /// How long a parcel may be spent.
    #[must_use]
    pub const fn life(&self) -> Span {
        self.life
    }

    /// Whether units are asked for that nobody waits for.
    #[must_use]
    pub const fn ahead(&self) -> bool {
        self.ahead
    }
}

/// What the store enforces where each unit may be spent one life after it was granted.
fn delayed(quota: GcraQuota, life: Span, cost: u64) -> GcraQuota {
    let reserve = quota.leaked_within(life);
    let burst = quota.burst.saturating_sub(reserve);
    if burst >= cost && reserve.saturating_mul(RESERVE_MAX) <= quota.burst {
        return GcraQuota { burst, ..quota };
    }
    let longer = life.as_nanos().saturating_mul(quota.rate);
    GcraQuota { per: quota.per.plus(Span::from_nanos(longer)), ..quota }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(requests: u64, millis: u64) -> Quota {
        Quota::Window(WindowQuota { requests, window: Span::from_millis(millis) })
    }

    #[test]
    fn the_store_counts_a_window_for_one_life_longer() {
        let terms = LeaseTerms::of(&window(100, 3200), 1);
        assert_eq!(terms.life, Span::from_millis(100));
        assert_eq!(terms.charged, window(100, 3300));
        let gcra = GcraQuota { rate: 100, per: Span::from_secs(1), burst: 320 };
        let terms = LeaseTerms::of(&Quota::Gcra(gcra), 1);
        assert_eq!(terms.charged, Quota::Gcra(GcraQuota { burst: 310, ..gcra }));
    }

    /// Goal: however long a unit is spent after it was granted, a small level's replies are in time at
    /// the default timeout, and a long window pays little.
    #[test]
    fn small_levels_last_for_a_reply() {
        for (millis, life) in [(100, 60), (3_200, 100), (60_000, 1_000)] {
            let terms = LeaseTerms::of(&window(5, millis), 1);
            assert_eq!(terms.life(), Span::from_millis(life), "{millis}");
            assert_eq!(terms.charged, window(5, millis + life));
        }
    }

    /// Goal: whatever delays units of a rate by up to one life, no interval holds more than it may.
    #[test]
    fn delayed_units_obey_the_rate() {
        for (rate, burst, cost) in [(1, 1, 1), (3, 4, 1), (40, 5, 2), (12, 12, 12), (900, 15, 1)] {
            let quota = GcraQuota { rate, per: Span::from_secs(1), burst };
            let terms = LeaseTerms::of(&Quota::Gcra(quota), cost);
            let Quota::Gcra(charged) = terms.charged else { panic!("a rate") };
            assert!(charged.burst >= cost, "{quota:?} bans a request");
            let life = u128::from(terms.life().as_nanos());
            let within = |quota: &GcraQuota, nanos: u128| {
                u128::from(quota.burst)
                    + nanos * u128::from(quota.rate) / u128::from(quota.per.as_nanos())
            };
            // Grants of an interval longer by one life may be spent within it.
            for nanos in (0..4_000_000_000).step_by(7_777_777) {
                let spent = within(&charged, nanos + life);
                assert!(spent <= within(&quota, nanos), "{quota:?} in {nanos} ns");
            }
        }
    }
}
