//! House rules that neither the compiler nor clippy can see.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    reason = "a test may fail"
)]

/// The repository's files.
mod tree;

use tree::SourceFile;

/// A file holds one idea, its tests included.
const FILE_LINES_MAX: usize = 400;

/// A function can be read without scrolling.
const FUNCTION_LINES_MAX: usize = 70;

/// Which modules each module may use. Arrows point down only; `host` is the filter's own view of
/// the proxy, so the two are one layer.
const MAY_USE: [(&str, &[&str]); 10] = [
    ("units", &[]),
    ("map", &[]),
    ("limiter", &["units"]),
    ("policy", &["map", "limiter", "units"]),
    ("config", &["store", "policy", "limiter", "map", "units"]),
    ("store", &["map", "policy", "limiter", "units"]),
    ("host", &["filter", "store", "policy", "limiter", "units"]),
    ("filter", &["map", "host", "store", "policy", "limiter", "units"]),
    ("wasm", &["map", "filter", "host", "config", "store", "policy", "limiter", "units"]),
    ("cli", &["filter", "host", "config", "store", "policy", "limiter", "units"]),
];

/// The modules that talk to the world. All others are given what they need.
const SHELLS: [&str; 2] = ["wasm", "cli"];

/// What only the shells may name.
const EFFECTS: [&str; 12] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::sync",
    "std::thread",
    "std::time",
    "println!",
    "eprintln!",
    "proxy_wasm::",
    "thread_local!",
];

/// The files that may have unsafe code: the host's functions, and the names of the callbacks.
const UNSAFE_FILES: [&str; 2] = ["src/wasm/abi.rs", "src/wasm/exports.rs"];

/// Reports all that breaks a rule at once.
fn expect_none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

/// The module of the library to which a file belongs; none for the crate's root and the binary.
fn module(path: &str) -> Option<&str> {
    let first = path.strip_prefix("src/")?.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!["lib", "bin"].contains(&name)).then_some(name)
}

/// The lines of code with their numbers, without comments.
fn code(file: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    file.text.lines().enumerate().map(|(index, line)| {
        let code = line.split_once("//").filter(|(before, _)| !before.ends_with(':'));
        (index + 1, code.map_or(line, |(code, _)| code))
    })
}

#[test]
fn files_are_short() {
    let long = |file: &SourceFile| {
        let lines = file.text.lines().count();
        (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines", file.path))
    };
    let rule = format!("a file has at most {FILE_LINES_MAX} lines; split it by idea");
    expect_none(&rule, &tree::rust().iter().filter_map(long).collect::<Vec<_>>());
}

#[test]
fn functions_are_short() {
    let mut long = Vec::new();
    for file in tree::rust() {
        for (start, length) in functions(&file.text) {
            if length > FUNCTION_LINES_MAX {
                long.push(format!("{}:{start}: {length} lines", file.path));
            }
        }
    }
    expect_none(&format!("a function has at most {FUNCTION_LINES_MAX} lines"), &long);
}

/// Where each function starts, and how many lines it has. Formatted code closes a function with a
/// brace below its first word.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let indentation = &line[..line.len() - line.trim_start().len()];
        if !is_function(line.trim_start()) || line.ends_with('}') {
            continue;
        }
        let end = lines[index..].iter().position(|line| {
            line.strip_prefix(indentation)
                .is_some_and(|rest| rest == "}" || (!rest.starts_with(' ') && rest.ends_with(';')))
        });
        functions.push((index + 1, end.map_or(1, |end| end + 1)));
    }
    functions
}

fn is_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_modifier = |word: &&str| {
        word.starts_with("pub") || ["const", "async", "unsafe", "in", "extern"].contains(word)
    };
    words.find(|word| !is_modifier(word)) == Some("fn")
}

#[test]
fn the_length_of_a_function_is_found() {
    let text = "fn a() {\n    x\n}\n\n    pub(super) const fn b(\n        y: u8,\n    ) -> u8 {\n        y\n    }\nfn c();\nfn d() {}\n";
    assert_eq!(functions(text), [(1, 3), (5, 5), (10, 1)]);
}

#[test]
fn nothing_is_left_for_later() {
    let words = ["TO-DO", "FIX-ME", "XX-X"].map(|word| word.replace('-', ""));
    let is_word = |text: &str, word: &str| {
        text.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == word)
    };
    let mut left = Vec::new();
    for file in tree::everything() {
        for (index, line) in file.text.lines().enumerate() {
            if words.iter().any(|word| is_word(line, word)) {
                left.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    expect_none("what is to be done is done, or is an issue", &left);
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let mut upward = Vec::new();
    for file in tree::below(&["src"]) {
        let Some(module) = module(&file.path).filter(|_| file.path.ends_with(".rs")) else {
            continue;
        };
        let may_use = MAY_USE.iter().find(|(name, _)| *name == module);
        let (_, below) = may_use.unwrap_or_else(|| panic!("module {module} is not in MAY_USE"));
        for (number, line) in code(&file) {
            for used in line.split("crate::").skip(1) {
                let end = used.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(used.len());
                let used = &used[..end];
                if used != module && !below.contains(&used) {
                    upward.push(format!("{}:{number}: {module} uses {used:?}", file.path));
                }
            }
        }
    }
    expect_none("arrows between modules point down only (see MAY_USE)", &upward);
}

#[test]
fn every_module_of_the_crate_has_its_place() {
    let crate_root = tree::read("src/lib.rs");
    let declared = code(&crate_root).filter_map(|(_, line)| {
        line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')
    });
    let mut declared: Vec<&str> = declared.collect();
    let mut known: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    declared.sort_unstable();
    known.sort_unstable();
    assert_eq!(declared, known);
}

#[test]
fn only_the_shells_have_effects() {
    let mut effects = Vec::new();
    for file in tree::below(&["src"]) {
        if module(&file.path).is_none_or(|module| SHELLS.contains(&module)) {
            continue;
        }
        for (number, line) in code(&file) {
            if let Some(effect) = EFFECTS.iter().find(|effect| line.contains(**effect)) {
                effects.push(format!("{}:{number}: {effect}", file.path));
            }
        }
    }
    expect_none("below wasm and cli, what is needed is a parameter", &effects);
}

#[test]
fn unsafe_code_stays_where_the_host_is() {
    let mut found = Vec::new();
    for file in tree::rust() {
        if UNSAFE_FILES.contains(&file.path.as_str()) || file.path == "tests/tidy.rs" {
            continue;
        }
        for (number, line) in code(&file) {
            let words = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "allow(unsafe"];
            if words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    expect_none(&format!("unsafe code stands in {UNSAFE_FILES:?} alone"), &found);
}

#[test]
fn no_file_speaks_of_the_machine_it_was_written_on() {
    let places = ["work", "root", "home", "Users"].map(|name| format!("/{name}/"));
    let mut found = Vec::new();
    for file in tree::everything() {
        for (index, line) in file.text.lines().enumerate() {
            if places.iter().any(|place| line.contains(place)) {
                found.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    expect_none("paths are the repository's own, or the reader's", &found);
}
