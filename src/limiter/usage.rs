//! What one subject has used of one level, whichever form the level has.

use serde::{Deserialize, Serialize};

use super::{GcraUsage, InFlightUsage, Quota, WindowUsage};
use crate::units::{Instant, Span};

/// What one subject has used of one level of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Usage {
    /// Of a sliding window.
    Window(WindowUsage),
    /// Of a GCRA level.
    Gcra(GcraUsage),
    /// Of a cap on requests in flight.
    InFlight(InFlightUsage),
}

/// What a level says to a request, and what a person may be told about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the units fit.
    pub admitted: bool,
    /// The most units that fit at one instant.
    pub capacity: u64,
    /// Units that are left, after this request if it is admitted.
    pub remaining: u64,
    /// Zero if admitted; else the time after which the units fit if nobody else comes, or the
    /// level's whole period where they can never fit.
    pub retry_after: Span,
    /// The time after which the level is wholly free if nobody else comes.
    pub reset_after: Span,
}

impl Usage {
    /// No usage at all.
    #[must_use]
    pub fn none(quota: &Quota) -> Self {
        match quota {
            Quota::Window(_) => Self::Window(WindowUsage::default()),
            Quota::Gcra(_) => Self::Gcra(GcraUsage::default()),
            Quota::InFlight(_) => Self::InFlight(InFlightUsage::default()),
        }
    }

    /// Says whether `cost` units fit at `now`. Changes nothing.
    #[must_use]
    pub fn peek(&self, quota: &Quota, cost: u64, now: Instant) -> Verdict {
        match (self, quota) {
            (Self::Window(usage), Quota::Window(quota)) => usage.peek(quota, cost, now),
            (Self::Gcra(usage), Quota::Gcra(quota)) => usage.peek(quota, cost, now),
            (Self::InFlight(usage), Quota::InFlight(quota)) => usage.peek(*quota, cost, now),
            _ => self.in_form_of(quota).peek(quota, cost, now),
        }
    }

    /// Charges `cost` units, whether or not they fit, and returns the time at which they stand:
    /// `now`, or the latest time that this usage has seen. Slots of requests in flight are not
    /// charged but [asserted](InFlightUsage::assert).
    pub fn charge(&mut self, quota: &Quota, cost: u64, now: Instant) -> Instant {
        self.take_form_of(quota);
        match (self, quota) {
            (Self::Window(usage), Quota::Window(quota)) => usage.charge(quota, cost, now),
            (Self::Gcra(usage), Quota::Gcra(quota)) => usage.charge(quota, cost, now),
            _ => now,
        }
    }

    /// Takes back `cost` units that [`charge`](Self::charge) said stand at `charged_at`, or what is
    /// left of them.
    pub fn refund(&mut self, quota: &Quota, cost: u64, charged_at: Instant, now: Instant) {
        match (self, quota) {
            (Self::Window(usage), Quota::Window(quota)) => {
                usage.refund(quota, cost, charged_at, now);
            }
            (Self::Gcra(usage), Quota::Gcra(quota)) => usage.refund(quota, cost, charged_at, now),
            // The configuration changed the form in between; the units leave by themselves.
            _ => {}
        }
    }

    /// The time from which this usage no longer matters.
    #[must_use]
    pub fn expires_at(&self, quota: &Quota) -> Instant {
        match (self, quota) {
            (Self::Window(usage), Quota::Window(quota)) => usage.expires_at(quota),
            (Self::Gcra(usage), Quota::Gcra(quota)) => usage.expires_at(quota),
            (Self::InFlight(usage), Quota::InFlight(_)) => usage.expires_at(),
            _ => self.in_form_of(quota).expires_at(quota),
        }
    }

    /// The same usage in less memory, never less strict.
    pub fn coarsen(&mut self) {
        if let Self::Window(usage) = self {
            usage.coarsen();
        }
    }

    /// Usage at least as strict as this one and as `other`, at every later time and under every
    /// quota.
    #[must_use]
    pub fn envelope(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Gcra(one), Self::Gcra(other)) => Self::Gcra(one.envelope(other)),
            (Self::InFlight(one), Self::InFlight(other)) => Self::InFlight(one.envelope(other)),
            _ => {
                let units = self.units().max(other.units());
                Self::Window(WindowUsage::spent_at(self.latest().max(other.latest()), units))
            }
        }
    }

    /// All units that are kept, whether or not they still count.
    fn units(&self) -> u64 {
        match self {
            Self::Window(usage) => usage.units(),
            Self::Gcra(usage) => usage.units_at_last(),
            Self::InFlight(usage) => usage.used(Instant::ORIGIN),
        }
    }

    /// The latest time that this usage has seen.
    fn latest(&self) -> Instant {
        match self {
            Self::Window(usage) => usage.clamp(Instant::ORIGIN),
            Self::Gcra(usage) => usage.clamp(Instant::ORIGIN),
            Self::InFlight(_) => Instant::ORIGIN,
        }
    }

    /// This usage in the form of `quota`. Where the configuration changed the form, all that is kept
    /// counts as spent when it was last charged: stricter than before, never freer.
    fn in_form_of(&self, quota: &Quota) -> Self {
        match (self, quota) {
            (Self::Window(_), Quota::Window(_))
            | (Self::Gcra(_), Quota::Gcra(_))
            | (Self::InFlight(_), Quota::InFlight(_)) => self.clone(),
            // Slots are kept under a number of their own, so nothing ever changes into their form.
            (_, Quota::InFlight(_)) => Self::none(quota),
            (_, Quota::Gcra(gcra)) => {
                let units = self.units().min(gcra.burst);
                Self::Gcra(GcraUsage::spent_at(gcra, self.latest(), units))
            }
            (_, Quota::Window(window)) => {
                let units = self.units().min(window.requests);
                Self::Window(WindowUsage::spent_at(self.latest(), units))
            }
        }
    }

    fn take_form_of(&mut self, quota: &Quota) {
        if !matches!(
            (&*self, quota),
            (Self::Window(_), Quota::Window(_))
                | (Self::Gcra(_), Quota::Gcra(_))
                | (Self::InFlight(_), Quota::InFlight(_))
        ) {
            *self = self.in_form_of(quota);
        }
    }
}

impl Verdict {
    /// The verdict of a level that is wholly free.
    #[must_use]
    pub fn admission(quota: &Quota) -> Self {
        let capacity = quota.capacity();
        Self {
            admitted: true,
            remaining: capacity,
            retry_after: Span::ZERO,
            ..Self::refusal(quota)
        }
    }

    /// The verdict of a level that has no room at all.
    #[must_use]
    pub fn refusal(quota: &Quota) -> Self {
        Self {
            admitted: false,
            capacity: quota.capacity(),
            remaining: 0,
            retry_after: quota.period(),
            reset_after: quota.period(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{GcraQuota, WindowQuota};

    /// Goal: usage survives a change of the limit's form, and does not outlive its period.
    #[test]
    fn cfg_2_a_change_of_form_keeps_usage_and_lets_it_go_in_time() {
        let second = Span::from_secs(1);
        let window = Quota::Window(WindowQuota { requests: 5, window: second });
        let gcra = Quota::Gcra(GcraQuota { rate: 5, per: second, burst: 5 });
        for (before, after) in [(window, gcra), (gcra, window)] {
            let mut usage = Usage::none(&before);
            usage.charge(&before, 5, Instant::ORIGIN);
            let at = |millis| Instant::ORIGIN.plus(Span::from_millis(millis));
            assert!(!usage.peek(&after, 1, at(10)).admitted);
            assert!(!usage.peek(&after, 5, at(900)).admitted);
            assert!(usage.peek(&after, 5, at(1000)).admitted);
        }
    }
}
