//! All leases of one worker, by level of limit and subject.

use super::lease::{Lease, LeaseVerdict};
use super::parcel::{Parcel, Spend};
use super::{CHARGES_MAX, Want};
use crate::limiter::Verdict;
use crate::map::{Map, seeded};
use crate::policy::{Charge, LevelKey};
use crate::units::{Instant, Span};

/// The most leases that a worker holds: about 12 MiB, as the table doubles its room when it grows and
/// a lease keeps up to four parcels. Where it is full, one of [`CANDIDATES`] each is given up with its units:
/// the one that was neither asked for nor used for the longest time.
const LEASES_MAX: usize = 16_384;
const CANDIDATES: usize = 8;

/// Where nobody has spent any for so long, units go back.
const IDLE: Span = Span::from_secs(1);

/// Leases of which units go back in one go, as one message. The next go begins behind them, so each has
/// its turn.
const RETURNS_MAX: usize = CHARGES_MAX;

/// The leases of one worker.
#[derive(Clone, Debug)]
pub struct Leases {
    table: Map<LevelKey, Held>,
    /// Leases of the table that had their turn to give units back.
    turn: usize,
    events: LeaseEvents,
}

#[derive(Clone, Debug)]
struct Held {
    charge: Charge,
    lease: Lease,
}

/// What leases say to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// Every level had units, and they are spent. Some level may be running low.
    Admitted(Vec<Spend>, bool),
    /// Some level has none, and the store has said until when. Nothing is spent.
    Refused(Vec<Verdict>),
    /// The store is to be asked about these. Nothing is spent.
    Short(Vec<Charge>),
}

/// Units since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseEvents {
    /// Granted by the store.
    pub granted: u64,
    /// Spent by requests.
    pub spent: u64,
    /// Gone back to the store.
    pub returned: u64,
    /// Lost: neither spent nor gone back.
    pub expired: u64,
}

impl LeaseEvents {
    const NONE: Self = Self { granted: 0, spent: 0, returned: 0, expired: 0 };
}

impl Leases {
    /// No leases. `seed` should be random.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { table: seeded(seed), turn: 0, events: LeaseEvents::NONE }
    }

    /// Decides all charges, and spends their units if every level has them.
    pub fn decide(&mut self, charges: &[Charge], now: Instant) -> LeaseOutcome {
        self.spend(charges, now).unwrap_or_else(|| self.look(charges, now))
    }

    /// Spends the units of all charges; of none, where some level has not enough.
    fn spend(&mut self, charges: &[Charge], now: Instant) -> Option<LeaseOutcome> {
        let (mut spends, mut low) = (Vec::with_capacity(charges.len()), false);
        for charge in charges {
            let lease = self.table.get_mut(&LevelKey::of(charge)).map(|held| &mut held.lease);
            let spend = lease.and_then(|lease| {
                let spend = lease.spend(charge.cost, now)?;
                low |= lease.is_low(now);
                Some(spend)
            });
            let Some(spend) = spend else {
                self.unspend(charges, &spends);
                return None;
            };
            spends.push(spend);
        }
        Some(LeaseOutcome::Admitted(spends, low))
    }

    /// Who is to be asked about charges for which there are no units, if the store has not refused
    /// some of them.
    pub fn look(&self, charges: &[Charge], now: Instant) -> LeaseOutcome {
        let (mut verdicts, mut short) = (Vec::with_capacity(charges.len()), Vec::new());
        let mut refused = false;
        for charge in charges {
            verdicts.push(match self.peek(charge, now) {
                LeaseVerdict::Admitted => Verdict::admission(&charge.quota),
                LeaseVerdict::Refused(verdict) => {
                    refused = true;
                    verdict
                }
                // Whoever is refused by another level is told of the longer wait as well.
                LeaseVerdict::Short(verdict) => {
                    short.push(*charge);
                    verdict
                }
            });
        }
        match refused {
            true => LeaseOutcome::Refused(verdicts),
            false => LeaseOutcome::Short(short),
        }
    }

    /// Notes that a request was let through with what [`decide`](Self::decide) spent on it.
    pub fn used(&mut self, charges: &[Charge]) {
        let costs = charges.iter().map(|charge| charge.cost);
        self.events.spent = costs.fold(self.events.spent, u64::saturating_add);
    }

    /// Gives back what [`decide`](Self::decide) spent on a request that is not let through.
    pub fn unspend(&mut self, charges: &[Charge], spends: &[Spend]) {
        for (charge, spend) in charges.iter().zip(spends) {
            let held = self.table.get_mut(&LevelKey::of(charge));
            let back = held.map_or(0, |held| held.lease.unspend(*spend));
            let lost = charge.cost.saturating_sub(back);
            self.events.expired = self.events.expired.saturating_add(lost);
        }
    }

    /// The charges for which to ask ahead of need, where one of them is running low.
    #[must_use]
    pub fn refillable(&self, charges: &[Charge], now: Instant) -> Vec<Charge> {
        let joins = |charge: &&Charge| {
            self.table.get(&LevelKey::of(charge)).is_some_and(|held| held.lease.joins(now))
        };
        charges.iter().filter(joins).cloned().collect()
    }

    /// What to ask for, where `waiting` requests wait for these charges.
    pub fn ask(&mut self, charges: &[Charge], waiting: u64, now: Instant) -> Vec<Want> {
        charges
            .iter()
            .map(|charge| self.lease(charge).ask(charge.cost.saturating_mul(waiting), now))
            .collect()
    }

    /// Notes that a question about these charges is over, whatever came of it.
    pub fn answered(&mut self, charges: &[Charge]) {
        for charge in charges {
            if let Some(held) = self.table.get_mut(&LevelKey::of(charge)) {
                held.lease.answered();
            }
        }
    }

    /// Takes what the store granted for `charge` to a question sent at `sent_at`.
    pub fn take(
        &mut self,
        charge: &Charge,
        (units, clock_us): (u64, u64),
        told: Verdict,
        sent_at: Instant,
        now: Instant,
    ) {
        self.lease(charge).take(units, clock_us, told, sent_at, now);
        self.events.granted = self.events.granted.saturating_add(units);
    }

    /// What is to be told of `charge` to a request that is refused anyway: the store's last refusal, until
    /// the time at which it said that there would be room.
    #[must_use]
    pub fn refusal(&self, charge: &Charge, now: Instant) -> Option<Verdict> {
        match self.peek(charge, now) {
            LeaseVerdict::Refused(verdict) | LeaseVerdict::Short(verdict) => {
                (!verdict.admitted).then_some(verdict)
            }
            LeaseVerdict::Admitted => None,
        }
    }

    fn peek(&self, charge: &Charge, now: Instant) -> LeaseVerdict {
        let unknown =
            || LeaseVerdict::Short(Verdict { admitted: true, ..Verdict::refusal(&charge.quota) });
        let held = self.table.get(&LevelKey::of(charge));
        held.map_or_else(unknown, |held| held.lease.peek(charge.cost, now))
    }

    /// Remembers that the store refused `charge`, if its level is one that did.
    pub fn remember(&mut self, charge: &Charge, told: Verdict, now: Instant) {
        if !told.admitted {
            self.lease(charge).take(0, 0, told, now, now);
        }
    }

    /// Takes out parcels that can go back to the store, those of which `may_return` is true, and
    /// forgets leases that hold nothing.
    pub fn leftovers(
        &mut self,
        now: Instant,
        may_return: impl Fn(&Charge) -> bool,
    ) -> Vec<(Charge, Parcel)> {
        let (mut over, mut seen) = (Vec::new(), 0usize);
        let start = if self.turn < self.table.len() { self.turn } else { 0 };
        for Held { charge, lease } in self.table.values_mut().skip(start) {
            if over.len() >= RETURNS_MAX {
                break;
            }
            seen = seen.saturating_add(1);
            if !may_return(charge) {
                continue;
            }
            over.extend(lease.leftovers(IDLE, now).map(|parcel| (*charge, parcel)));
        }
        self.turn = start.saturating_add(seen);
        self.table.retain(|_, held| !held.lease.is_blank(now));
        over
    }

    /// Notes that parcels have gone back, or that they are lost.
    pub const fn returned(&mut self, units: u64, arrived: bool) {
        let events = &mut self.events;
        let count = if arrived { &mut events.returned } else { &mut events.expired };
        *count = count.saturating_add(units);
    }

    /// The events since the last call.
    pub fn take_events(&mut self) -> LeaseEvents {
        std::mem::take(&mut self.events)
    }

    /// Gives up an eighth of all leases. Whoever finds no room looks through the whole table, so this makes
    /// room for the next two thousand.
    fn make_room(&mut self) {
        let mut victims = Vec::with_capacity(LEASES_MAX.div_ceil(CANDIDATES));
        let mut leases = self.table.iter();
        let touched_at = |(_, held): &(&LevelKey, &Held)| held.lease.touched_at();
        while let Some((victim, _)) = leases.by_ref().take(CANDIDATES).min_by_key(touched_at) {
            victims.push(*victim);
        }
        for victim in victims {
            let units = self.table.remove(&victim).map_or(0, |held| held.lease.all_units());
            self.events.expired = self.events.expired.saturating_add(units);
        }
    }

    fn lease(&mut self, charge: &Charge) -> &mut Lease {
        let key = LevelKey::of(charge);
        if self.table.len() >= LEASES_MAX && !self.table.contains_key(&key) {
            self.make_room();
        }
        let held = self.table.entry(key).or_insert_with(|| Held {
            charge: *charge,
            lease: Lease::new(charge.quota, charge.cost),
        });
        &mut held.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Quota, WindowQuota};
    use crate::policy::{Level, LimitId, Subject};

    const KEYS: u8 = 250;

    fn charge(number: u8) -> Charge {
        Charge {
            place: 0,
            id: LimitId::of("fleet"),
            level: Level::Tenant,
            subject: Some(Subject([number; 32])),
            quota: Quota::Window(WindowQuota { requests: 100, window: Span::from_secs(1) }),
            cost: 1,
        }
    }

    /// Goal: nobody comes back before a level has room that was not asked again because another refused.
    #[test]
    fn rsp_1_an_old_refusal_is_told_although_it_decides_no_more() {
        let refusal = |millis| Verdict {
            retry_after: Span::from_millis(millis),
            reset_after: Span::from_millis(millis),
            ..Verdict::refusal(&charge(1).quota)
        };
        let (long, short) = (charge(1), charge(2));
        let start = Instant::ORIGIN.plus(Span::from_secs(1000));
        let now = start.plus(Span::from_secs(5));
        let mut leases = Leases::new(7);
        leases.remember(&long, refusal(60_000), start);
        leases.leftovers(now, |_| true);
        let outcome = leases.decide(&[long], now);
        assert_eq!(outcome, LeaseOutcome::Short(vec![long]), "it is asked again");
        leases.remember(&short, refusal(700), now);
        let LeaseOutcome::Refused(verdicts) = leases.decide(&[long, short], now) else {
            panic!("the second level refuses");
        };
        let told = verdicts.iter().filter(|verdict| !verdict.admitted);
        let told: Vec<_> = told.map(|verdict| verdict.retry_after.as_millis_ceil()).collect();
        assert_eq!(told, [55_000, 700]);
        assert_eq!(leases.refusal(&long, now), Some(refusal(55_000)));
        // Its time is over.
        let later = start.plus(Span::from_secs(61));
        leases.remember(&short, refusal(700), later);
        let LeaseOutcome::Refused(verdicts) = leases.decide(&[long, short], later) else {
            panic!("the second level refuses");
        };
        assert_eq!(
            verdicts.iter().map(|verdict| verdict.admitted).collect::<Vec<_>>(),
            [true, false]
        );
        assert_eq!(leases.refusal(&long, later), None);
        leases.leftovers(later.plus(Span::from_secs(1)), |_| true);
        assert_eq!(leases.table.len(), 0, "nothing is kept of either");
    }

    /// Goal: keys that others invent cost a busy one nothing, and nobody much.
    #[test]
    fn a_flood_of_keys_pushes_out_those_that_nobody_uses() {
        let told = Verdict::admission(&charge(0).quota);
        let mut leases = Leases::new(7);
        let mut now = Instant::ORIGIN.plus(Span::from_secs(1000));
        let quota = Quota::Window(WindowQuota { requests: 100, window: Span::from_secs(60) });
        let busy = Charge { quota, ..charge(1) };
        leases.take(&busy, (u64::from(u32::MAX), 0), told, now, now);
        for number in 0..3 * LEASES_MAX {
            now = now.plus(Span::from_nanos(1000));
            let id = LimitId::of(&number.to_string());
            leases.take(&Charge { id, ..charge(2) }, (2, 0), told, now, now);
            assert!(leases.table.len() <= LEASES_MAX);
            assert!(matches!(leases.decide(&[busy], now), LeaseOutcome::Admitted(..)), "{number}");
        }
        assert!(leases.table.len() > LEASES_MAX - LEASES_MAX / CANDIDATES, "no more than need be");
        let LeaseEvents { granted, expired, .. } = leases.take_events();
        let all = |held: &Held| held.lease.all_units();
        let kept =
            leases.table.values().map(all).sum::<u64>() - all(&leases.table[&LevelKey::of(&busy)]);
        assert_eq!(granted - u64::from(u32::MAX), kept + expired, "every unit is accounted for");
    }

    /// Goal: where every key leaves units behind all the time, each has its turn to give them back.
    #[test]
    fn units_of_many_keys_do_not_pile_up() {
        let told = Verdict {
            admitted: true,
            capacity: 100,
            remaining: 50,
            retry_after: Span::ZERO,
            reset_after: Span::from_secs(1),
        };
        let mut leases = Leases::new(7);
        let mut now = Instant::ORIGIN.plus(Span::from_secs(1000));
        for round in 1..=100 {
            for charge in (0..KEYS).map(charge) {
                leases.take(&charge, (2, round), told, now, now);
                let _ = leases.decide(&[charge], now);
            }
            now = now.plus(Span::from_millis(100));
            leases.leftovers(now, |_| true);
        }
        let kept = leases.table.values().map(|held| held.lease.all_units()).sum::<u64>();
        assert!(kept <= 2 * u64::from(KEYS), "{kept} units");
    }
}
