use super::*;
use crate::limiter::WindowQuota;

const T: Instant = Instant::from_nanos(1_000_000_000_000);

fn window(requests: u64, millis: u64) -> Quota {
    Quota::Window(WindowQuota { requests, window: Span::from_millis(millis) })
}

fn told(retry_millis: u64) -> Verdict {
    Verdict {
        admitted: retry_millis == 0,
        capacity: 100,
        remaining: 50,
        retry_after: Span::from_millis(retry_millis),
        reset_after: Span::from_secs(1),
    }
}

fn at(millis: u64) -> Instant {
    T.plus(Span::from_millis(millis))
}

#[test]
fn small_and_short_levels_are_granted_only_what_is_waited_for() {
    for quota in [window(15, 10_000), window(1000, 100)] {
        let mut lease = Lease::new(quota, 1);
        assert_eq!(lease.ask(3, T), Want { firm: 3, ahead: 0 });
        assert!(!lease.is_low(T));
    }
}

#[test]
fn a_parcel_lives_from_before_it_was_asked_for() {
    let mut lease = Lease::new(window(100, 3200), 1);
    lease.take(10, 7, told(0), at(0), at(40));
    assert_eq!(lease.units(at(99)), 10);
    assert_eq!(lease.units(at(100)), 0);
    assert!(matches!(lease.peek(1, at(100)), LeaseVerdict::Short(verdict) if verdict.admitted));
}

#[test]
fn a_refusal_is_remembered_until_it_could_pass() {
    let mut lease = Lease::new(window(100, 3200), 1);
    lease.take(0, 7, told(300), at(0), at(10));
    assert!(matches!(lease.peek(1, at(309)), LeaseVerdict::Refused(verdict)
        if verdict.retry_after == Span::from_millis(1)));
    assert!(matches!(lease.peek(1, at(310)), LeaseVerdict::Short(verdict) if verdict.admitted));
    assert!(lease.is_blank(at(310)));
}

#[test]
fn what_is_asked_ahead_follows_demand() {
    let mut lease = Lease::new(window(6400, 3200), 1);
    assert_eq!(lease.ask(1, at(0)), Want { firm: 1, ahead: 100 });
    lease.take(101, 7, told(0), at(0), at(1));
    for _ in 0..50 {
        lease.spend(1, at(20));
    }
    assert_eq!(lease.ask(1, at(30)), Want { firm: 1, ahead: 0 }, "one is under way");
    lease.answered();
    lease.answered();
    // 50 units in 50 ms are 100 in one life of 100 ms. 51 are still there, and 50 will be spent in time;
    // one is granted to whoever asks.
    assert_eq!(lease.ask(0, at(50)), Want { firm: 0, ahead: 49 });
}

/// Goal: however many answers come at once, parcels are few, and nothing that they granted is lost.
#[test]
fn parcels_are_bounded_and_keep_their_units() {
    let mut lease = Lease::new(window(6400, 3200), 1);
    for clock_us in 1..=100 {
        lease.take(2, clock_us, told(0), at(clock_us / 20), at(10));
    }
    assert!(lease.parcels.len() <= PARCELS_MAX);
    assert_eq!(lease.units(at(99)), 200);
    // What was joined is as old as the oldest of it.
    let back = lease.leftovers(Span::from_secs(1), at(100));
    assert_eq!(back.map(|parcel| parcel.granted_at_us), Some(1));
    assert!(lease.units(at(100)) <= 2 * 3);
}

/// Goal: what another one gives back serves a small level soon, not after its whole window.
#[test]
fn a_refusal_of_a_long_window_is_soon_put_to_the_test() {
    let mut lease = Lease::new(window(1, 3_600_000), 1);
    lease.take(0, 7, told(3_600_000), at(0), at(0));
    assert!(matches!(lease.peek(1, at(999)), LeaseVerdict::Refused(verdict)
        if verdict.retry_after == Span::from_millis(3_599_001)));
    let later = lease.peek(1, at(1000));
    assert!(matches!(later, LeaseVerdict::Short(verdict)
        if !verdict.admitted && verdict.retry_after == Span::from_millis(3_599_000)));
    assert!(!lease.is_blank(at(3_599_999)), "it can still be told");
    assert!(lease.is_blank(at(3_600_000)));
}

#[test]
fn what_is_not_spent_can_go_back() {
    let mut lease = Lease::new(window(100, 3200), 1);
    lease.take(10, 7, told(0), at(0), at(1));
    lease.spend(4, at(2));
    assert_eq!(lease.leftovers(Span::from_secs(1), at(50)), None);
    let back = lease.leftovers(Span::from_secs(1), at(100));
    assert_eq!(back.map(|parcel| (parcel.units, parcel.granted_at_us)), Some((6, 7)));
    assert!(lease.is_blank(at(100)));
}

/// Goal: the answer is there before the units are over, however far the store is, and a near one is
/// asked no more often than it must.
#[test]
fn a_far_store_is_asked_sooner() {
    // A life is 100 ms; a unit is spent each millisecond.
    for (round_trip, asked_at) in [(1, 76), (6, 76), (20, 60), (40, 50), (90, 50)] {
        let mut lease = Lease::new(window(6400, 3200), 1);
        lease.ask(0, at(0));
        lease.answered();
        lease.take(100, 7, told(0), at(0), at(round_trip));
        let low = (round_trip..100).find(|millis| {
            lease.spend(1, at(*millis));
            lease.is_low(at(*millis))
        });
        let low = low.expect("before they are over");
        assert!(low.abs_diff(asked_at.max(round_trip)) <= 2, "{round_trip} ms: after {low} ms");
    }
}

/// Goal: who is refused elsewhere keeps no units from going back.
#[test]
fn what_is_undone_was_never_spent() {
    let mut lease = Lease::new(window(100, 320_000), 1);
    lease.take(10, 7, told(0), at(0), at(1));
    lease.spend(1, at(2));
    let before = format!("{lease:?}");
    let spend = lease.spend(3, at(5)).expect("units");
    lease.unspend(spend);
    assert_eq!(format!("{lease:?}"), before);
}

/// Goal: a key with a request now and then, as many do, has units when it comes, and is asked about
/// once for each life.
#[test]
fn a_slow_key_waits_seldom_and_asks_seldom() {
    let mut lease = Lease::new(window(1000, 3200), 1);
    let (mut waits, mut questions, mut granted) = (0, 0, 0);
    let mut ask = |lease: &mut Lease, firm: u64, millis: u64| {
        let Want { ahead, .. } = lease.ask(firm, at(millis));
        lease.answered();
        let units = firm.max(1) + ahead;
        (questions, granted) = (questions + 1, granted + units);
        lease.take(units, millis, told(0), at(millis), at(millis));
    };
    for millis in (0..40_000).step_by(17) {
        if lease.spend(1, at(millis)).is_none() {
            waits += 1;
            ask(&mut lease, 1, millis);
            lease.spend(1, at(millis)).expect("what was granted");
        }
        if lease.is_low(at(millis)) {
            ask(&mut lease, 0, millis);
        }
        lease.leftovers(Span::from_secs(1), at(millis));
    }
    assert!(waits <= 3 && questions <= 600 && granted <= 7000, "{waits} {questions} {granted}");
}

/// Goal: a level of the smallest size that is leased ahead is asked for before it is used up.
#[test]
fn a_level_of_few_units_is_low_before_it_is_empty() {
    let mut lease = Lease::new(window(60, 3200), 1);
    lease.take(4, 7, told(0), at(0), at(0));
    for millis in [10, 11, 12, 13] {
        lease.spend(1, at(millis)).expect("units");
    }
    assert!(lease.is_low(at(13)));
}
