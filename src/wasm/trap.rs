//! A trap on request, for tests of what a trap leaves behind. The feature `test-trap` builds it in;
//! the module that is shipped is built without.

use crate::policy::HeaderMap;

/// The header that asks for it.
const HEADER: &[u8] = b"x-fairshare-test-trap";

/// Traps where the request asks for it.
pub(super) fn where_asked(headers: &[u8]) {
    if HeaderMap::new(headers).pairs().any(|(name, _)| name == HEADER) {
        ::log::error!("fairshare: trapped for a test");
        core::arch::wasm32::unreachable();
    }
}
