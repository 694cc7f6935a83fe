//! A cap on requests in flight: how many may be under way at the same time.
//!
//! The slots that are taken are told by those who hold them: each holder (one configuration in one
//! worker) has one [`Share`], the number of slots that it holds now. A share is never counted up or
//! down by anyone else; its holder writes the whole number over the one before, from its own memory,
//! and writes it again long before it runs out. So a lost or doubled write mends itself, and a holder
//! that vanishes with its slots, as a trapped one does, leaves a share that no one renews: after
//! [`SHARE_LEASE`] it counts no more.

use serde::{Deserialize, Serialize};

use super::{InFlightQuota, Verdict};
use crate::units::{Instant, Span};

/// For how long a share counts after it was written, rounded up to a whole second of the clock.
pub const SHARE_LEASE: Span = Span::from_secs(15);

/// The most shares of one level that are told apart; enough for 256 workers that all hold slots of
/// one subject. Where there are more, the level is taken to be full until the shares run out.
pub const SHARES_MAX: usize = 256;

/// The wait that a full cap proposes. Nobody knows when a request will end.
const RETRY_AFTER: Span = Span::from_secs(1);

/// The holder of what cannot be told apart any more. Holders' own numbers begin above it.
const NOBODY: u64 = 0;

/// The slots that one holder holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    holder: u64,
    held: u64,
    /// The end of its lease, in seconds since the clock's origin: a few bytes, where nanoseconds
    /// would double the share.
    valid_until_secs: u64,
}

/// The slots of one level that are taken, by holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlightUsage {
    shares: Vec<Share>,
}

impl Share {
    /// The share of a holder that holds `held` slots at `now`.
    #[must_use]
    pub const fn new(holder: u64, held: u64, now: Instant) -> Self {
        let valid_until_secs = now.plus(SHARE_LEASE).since(Instant::ORIGIN).as_secs_ceil();
        Self { holder, held, valid_until_secs }
    }

    const fn valid_until(&self) -> Instant {
        Instant::ORIGIN.plus(Span::from_secs(self.valid_until_secs))
    }
}

impl InFlightUsage {
    /// Slots that are taken at `now`.
    #[must_use]
    pub fn used(&self, now: Instant) -> u64 {
        let valid = self.shares.iter().filter(|share| share.valid_until() > now);
        valid.fold(0, |sum, share| sum.saturating_add(share.held))
    }

    pub(super) fn peek(&self, quota: InFlightQuota, cost: u64, now: Instant) -> Verdict {
        let room = quota.requests.saturating_sub(self.used(now));
        let admitted = cost <= room;
        Verdict {
            admitted,
            capacity: quota.requests,
            remaining: if admitted { room.saturating_sub(cost) } else { room },
            retry_after: if admitted { Span::ZERO } else { RETRY_AFTER },
            reset_after: RETRY_AFTER,
        }
    }

    /// Puts a holder's share in the place of the one that it wrote before.
    pub fn assert(&mut self, own: Share, now: Instant) {
        self.shares.retain(|share| share.holder != own.holder && share.valid_until() > now);
        if own.held > 0 {
            self.shares.push(own);
        }
        self.bound();
    }

    /// The time from which no share counts.
    #[must_use]
    pub fn expires_at(&self) -> Instant {
        self.shares.iter().map(Share::valid_until).max().unwrap_or(Instant::ORIGIN)
    }

    /// Usage at least as strict as this one and as `other`, at every later time.
    pub(super) fn envelope(&self, other: &Self) -> Self {
        let mut both = self.clone();
        for new in &other.shares {
            match both.shares.iter_mut().find(|share| share.holder == new.holder) {
                Some(old) => {
                    old.held = old.held.max(new.held);
                    old.valid_until_secs = old.valid_until_secs.max(new.valid_until_secs);
                }
                None => both.shares.push(*new),
            }
        }
        both.bound();
        both
    }

    /// Holders beyond the bound make the level full, which is stricter, until the last of the shares
    /// runs out.
    fn bound(&mut self) {
        if self.shares.len() > SHARES_MAX {
            let until = self.shares.iter().map(|share| share.valid_until_secs).max();
            let full = Share {
                holder: NOBODY,
                held: u64::MAX,
                valid_until_secs: until.unwrap_or(u64::MAX),
            };
            self.shares = vec![full];
        }
    }
}

impl InFlightQuota {
    /// The period that stands for "nobody knows".
    pub(super) const fn period() -> Span {
        RETRY_AFTER
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAP: InFlightQuota = InFlightQuota { requests: 3 };

    fn at(secs: u64) -> Instant {
        Instant::ORIGIN.plus(Span::from_secs(secs))
    }

    fn used_by(shares: &[(u64, u64)], now: Instant) -> InFlightUsage {
        let mut usage = InFlightUsage::default();
        for (holder, held) in shares {
            usage.assert(Share::new(*holder, *held, now), now);
        }
        usage
    }

    #[test]
    fn a_cap_counts_everyones_slots_unknown_holders_included() {
        let usage = used_by(&[(1, 1), (99, 1)], at(100));
        assert!(usage.peek(CAP, 1, at(100)).admitted);
        let usage = used_by(&[(1, 1), (99, 2)], at(100));
        let full = usage.peek(CAP, 1, at(100));
        assert_eq!((full.admitted, full.remaining, full.retry_after), (false, 0, RETRY_AFTER));
    }

    #[test]
    fn a_cap_of_zero_refuses_everything_and_a_lowered_one_until_use_has_fallen() {
        let nothing = InFlightQuota { requests: 0 };
        assert!(!InFlightUsage::default().peek(nothing, 1, at(1)).admitted);
        let mut usage = used_by(&[(1, 5)], at(100));
        for held in [5, 4, 3] {
            usage.assert(Share::new(1, held, at(100)), at(100));
            assert!(!usage.peek(CAP, 1, at(100)).admitted, "{held}");
        }
        usage.assert(Share::new(1, 2, at(100)), at(100));
        assert!(usage.peek(CAP, 1, at(100)).admitted);
    }

    #[test]
    fn a_share_counts_until_its_lease_ends_and_no_longer() {
        let written = Instant::from_nanos(100_000_000_001);
        let usage = used_by(&[(1, 3)], written);
        assert_eq!(usage.used(written.plus(SHARE_LEASE)), 3);
        assert_eq!(usage.used(written.plus(SHARE_LEASE).plus(Span::from_secs(1))), 0);
        assert_eq!(usage.expires_at(), at(116));
    }

    #[test]
    fn a_share_replaces_the_one_before_and_none_held_leaves_nothing() {
        let mut usage = used_by(&[(1, 2), (2, 2), (1, 1)], at(100));
        assert_eq!(usage.used(at(100)), 3);
        usage.assert(Share::new(1, 0, at(100)), at(100));
        usage.assert(Share::new(2, 0, at(100)), at(100));
        assert_eq!(usage, InFlightUsage::default());
    }

    #[test]
    fn more_holders_than_can_be_told_apart_make_the_level_full_for_a_while() {
        let everyone: Vec<(u64, u64)> = (1..=257).map(|holder| (holder, 1)).collect();
        let mut usage = used_by(&everyone, at(100));
        let vast = InFlightQuota { requests: u64::MAX - 1 };
        assert!(!usage.peek(vast, 1, at(114)).admitted);
        usage.assert(Share::new(1, 1, at(115)), at(115));
        assert_eq!(usage.used(at(115)), 1);
    }

    proptest! {
        /// Goal: an envelope is at least as strict as both of its parts, at every later time.
        #[test]
        fn an_envelope_frees_no_one(
            one in prop::collection::vec((1..9u64, 1..5u64, 0..20u64), 0..12),
            other in prop::collection::vec((1..9u64, 1..5u64, 0..20u64), 0..12),
            later in 0..40u64,
        ) {
            let usage = |list: &[(u64, u64, u64)]| {
                let mut usage = InFlightUsage::default();
                for (holder, held, second) in list {
                    usage.assert(Share::new(*holder, *held, at(*second)), Instant::ORIGIN);
                }
                usage
            };
            let (one, other) = (usage(&one), usage(&other));
            let used = one.envelope(&other).used(at(later));
            prop_assert!(used >= one.used(at(later)) && used >= other.used(at(later)));
        }
    }
}
