//! Whatever usage there is under whatever quota, what a level says makes sense.

use fairshare::limiter::{GcraQuota, InFlightQuota, Quota, Usage, WindowQuota};
use fairshare::units::{Instant, Span};

use crate::bytes::Bytes;

/// Reads bytes as a quota, times and usage.
pub fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let quota = match bytes.below(3) {
        0 => Quota::Window(WindowQuota {
            requests: bytes.number(),
            window: Span::from_nanos(bytes.number().max(1)),
        }),
        1 => Quota::Gcra(GcraQuota {
            rate: bytes.number().max(1),
            per: Span::from_nanos(bytes.number().max(1)),
            burst: bytes.number(),
        }),
        _ => Quota::InFlight(InFlightQuota { requests: bytes.number() }),
    };
    let (mut now, step) = (Instant::from_nanos(bytes.number()), Span::from_nanos(bytes.number()));
    let cost = bytes.number();
    let Ok(mut usage) = postcard::from_bytes::<Usage>(bytes.0) else { return };
    let stricter = usage.envelope(&Usage::none(&quota));
    check(&stricter, &quota, cost, now);
    for _ in 0..3 {
        check(&usage, &quota, cost, now);
        let before = usage.peek(&quota, 0, now).remaining;
        let charged_at = usage.charge(&quota, cost, now);
        assert!(usage.peek(&quota, 0, now).remaining <= before, "a charge frees units");
        let before = usage.peek(&quota, 0, now).remaining;
        usage.coarsen();
        assert!(usage.peek(&quota, 0, now).remaining <= before, "less detail frees units");
        usage.refund(&quota, cost / 2, charged_at, now);
        let bytes = postcard::to_allocvec(&usage).expect("it is written");
        assert_eq!(postcard::from_bytes::<Usage>(&bytes).as_ref(), Ok(&usage));
        now = now.plus(step);
    }
}

fn check(usage: &Usage, quota: &Quota, cost: u64, now: Instant) {
    let verdict = usage.peek(quota, cost, now);
    assert_eq!(verdict.admitted, verdict.retry_after.is_zero(), "{verdict:?}");
    assert!(verdict.remaining <= verdict.capacity, "{verdict:?}");
    assert!(!verdict.admitted || cost <= verdict.capacity, "{verdict:?}");
    let _ = usage.expires_at(quota);
}
