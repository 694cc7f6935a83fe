//! The committed inputs, run through their targets: cheap, and always on.

use std::fs;
use std::path::Path;

use fairshare_fuzz::TARGETS;

/// All corpora together stay small.
const BYTES_MAX: usize = 300_000;

#[test]
fn nothing_in_the_corpora_is_found() {
    let mut bytes = 0;
    for (name, target) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut count = 0;
        for entry in entries {
            let path = entry.expect("an entry").path();
            let input = fs::read(&path).expect("a file");
            bytes += input.len();
            count += 1;
            println!("{}", path.display());
            target(&input);
        }
        assert!(count >= 5, "{name} has {count} inputs");
    }
    assert!(bytes <= BYTES_MAX, "{bytes} bytes: minimise with ./envoy/fuzz.sh --minimise");
}
