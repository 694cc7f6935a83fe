//! Any bytes are a policy or one line for each error, the same each time.

use fairshare::config::{self, MAX_ERRORS};

/// The longest line of an error.
const LINE_BYTES_MAX: usize = 2000;

/// Reads bytes as a document.
pub fn run(bytes: &[u8]) {
    match (config::parse(bytes), config::parse(bytes)) {
        (Ok(policy), Ok(again)) => {
            assert_eq!(config::describe(&policy), config::describe(&again));
        }
        (Err(errors), Err(again)) => {
            assert!(!errors.is_empty() && errors.len() <= MAX_ERRORS + 1);
            let rendered = config::render_errors(&errors);
            assert_eq!(rendered, config::render_errors(&again));
            assert_eq!(rendered.lines().count(), errors.len());
            for line in errors.iter().map(ToString::to_string) {
                assert!(
                    line.len() <= LINE_BYTES_MAX && !line.contains(char::is_control),
                    "{line:?}"
                );
            }
        }
        _ => panic!("read twice, it is something else"),
    }
}
