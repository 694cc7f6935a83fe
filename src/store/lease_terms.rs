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

/// Levels with room for fewer requests are granted only what is waited for.
const REQUESTS_MIN: u64 = 16;

const MILLION: u64 = 1_000_000;

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
    /// life longer than its own length. A GCRA level keeps in reserve what leaks within one, if that
    /// leaves room for a `cost`; else its units come back more slowly, too.
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

    /// The part of `quota`, whose terms these are, that can be admitted under demand that never lets up,
    /// in millionths: the store counts a window, or what a unit takes to come back, as so much longer.
    #[must_use]
    pub fn share_ppm(&self, quota: &Quota) -> u64 {
        let (own, counted) = match (quota, self.charged) {
            (Quota::Window(own), Quota::Window(charged)) => (own.window, charged.window),
            (Quota::Gcra(own), Quota::Gcra(charged)) => (own.per, charged.per),
            _ => return MILLION,
        };
        let parts = u128::from(own.as_nanos()).saturating_mul(u128::from(MILLION));
        let share = parts.checked_div(u128::from(counted.as_nanos()));
        share.and_then(|share| u64::try_from(share).ok()).unwrap_or(MILLION)
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
///
/// What is spent within `t` was granted within `t + life`. So a burst that is smaller by what leaks
/// within a life is exact at the full rate. Where that has no room for a request, the store grants one
/// at a time. Let `n` be the requests in the burst and `l` those that the rate lets through within a
/// life: fewer than `1 + l` are in the burst. At `n / (1 + l)` of the rate, fewer than `n` come back
/// within a life, so no more than `n` are granted in one; and by the time of each later one as much
/// has leaked as it needs.
fn delayed(quota: GcraQuota, life: Span, cost: u64) -> GcraQuota {
    let burst = quota.burst.saturating_sub(quota.leaked_within(life));
    if burst >= cost {
        return GcraQuota { burst, ..quota };
    }
    let cost = cost.max(1);
    let requests = u128::from(quota.burst.checked_div(cost).unwrap_or(0).max(1));
    let leaked = u128::from(life.as_nanos()).saturating_mul(u128::from(quota.rate));
    let whole = u128::from(quota.per.as_nanos()).saturating_add(leaked.div_ceil(u128::from(cost)));
    // Whole microseconds stay exact in the store.
    let per_us = whole.div_ceil(requests).div_ceil(1000);
    let per = Span::from_micros(u64::try_from(per_us).unwrap_or(u64::MAX));
    GcraQuota { per, burst: quota.burst.min(cost), ..quota }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Usage;
    use crate::units::Instant;

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

    /// Rates, bursts and costs: with a reserve, and with too little room for one.
    const RATES: [(u64, u64, u64); 12] = [
        (1, 1, 1),
        (3, 4, 1),
        (40, 5, 2),
        (12, 12, 12),
        (12, 13, 12),
        (900, 15, 1),
        (100, 2, 1),
        (100, 10, 1),
        (100, 10, 4),
        (1000, 20, 1),
        (1000, 50, 7),
        (1000, 1000, 100),
    ];

    fn rate((rate, burst, _): (u64, u64, u64)) -> GcraQuota {
        GcraQuota { rate, per: Span::from_secs(1), burst }
    }

    fn charged(quota: GcraQuota, cost: u64) -> (GcraQuota, Span) {
        let terms = LeaseTerms::of(&Quota::Gcra(quota), cost);
        let Quota::Gcra(charged) = terms.charged else { panic!("a rate") };
        (charged, terms.life())
    }

    /// Goal: whatever delays requests of a rate by up to one life, no interval holds more than it may.
    #[test]
    fn delayed_units_obey_the_rate() {
        for case @ (_, _, cost) in RATES {
            let quota = rate(case);
            let (charged, life) = charged(quota, cost);
            assert!(charged.burst >= cost, "{quota:?} bans a request");
            let within = |quota: &GcraQuota, nanos: u128| {
                let leaked = nanos * u128::from(quota.rate) / u128::from(quota.per.as_nanos());
                (u128::from(quota.burst) + leaked) / u128::from(cost)
            };
            // Grants of an interval longer by one life may be spent within it.
            for nanos in (0..4_000_000_000).step_by(777_777) {
                let spent = within(&charged, nanos + u128::from(life.as_nanos()));
                assert!(spent <= within(&quota, nanos), "{quota:?} in {nanos} ns");
            }
        }
    }

    /// Goal: the same for what the limiter grants to demand that never lets up, where what was granted
    /// within each life is all spent at its end.
    #[test]
    fn what_is_granted_and_delayed_obeys_the_rate() {
        for case @ (_, _, cost) in RATES {
            let quota = rate(case);
            let (granting, life) = charged(quota, cost);
            let (granting, limit) = (Quota::Gcra(granting), Quota::Gcra(quota));
            for phase in 1..8 {
                let phase = life.as_nanos() / 8 * phase;
                let (mut grants, mut spends) = (Usage::none(&granting), Usage::none(&limit));
                let mut held = 0;
                for micros in (0..3_000_000).step_by(250) {
                    let now = Instant::ORIGIN.plus(Span::from_micros(1_000_000_000 + micros));
                    // All that is held is spent together, once in each life; later, singly.
                    let turn = (now.as_nanos() + phase) % life.as_nanos() < 250_000;
                    while held > 0 && (turn || micros > 1_500_000) {
                        assert!(
                            spends.peek(&limit, cost, now).admitted,
                            "{quota:?} at {micros} us"
                        );
                        spends.charge(&limit, cost, now);
                        held -= 1;
                    }
                    while grants.peek(&granting, cost, now).admitted {
                        grants.charge(&granting, cost, now);
                        held += 1;
                    }
                }
            }
        }
    }

    /// Goal: a level loses no more of its rate than it must: nothing where the burst has room for what
    /// leaks within a life and a request.
    #[test]
    fn a_rate_is_granted_in_full_where_its_burst_has_room_for_a_life() {
        let of = |case: (u64, u64, u64)| charged(rate(case), case.2).0;
        assert_eq!(of((100, 10, 1)), GcraQuota { burst: 4, ..rate((100, 10, 1)) });
        assert_eq!(of((1000, 100, 1)), GcraQuota { burst: 40, ..rate((1000, 100, 1)) });
        // Of 20 and 61 requests, 20/61 of the rate.
        let per = Span::from_micros(3_050_000);
        let quota = Quota::Gcra(rate((1000, 20, 1)));
        assert_eq!(LeaseTerms::of(&quota, 1).share_ppm(&quota), 327_868);
        let short = window(100, 50);
        assert_eq!(LeaseTerms::of(&short, 1).share_ppm(&short), 454_545);
        assert_eq!(of((1000, 20, 1)), GcraQuota { per, burst: 1, ..rate((1000, 20, 1)) });
    }
}
