//! That what a page tells its reader to run is there: tests by their names, and scripts by their words.

use crate::{blocks, code_spans, expect_none, pages, prose, tree};

/// A test of some package.
struct Test {
    /// Its directory, from the root of the repository.
    package: String,
    /// The file that cargo knows it by; empty for the library's own.
    target: String,
    /// With the modules that it is in.
    name: String,
}

/// All tests of all packages.
fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for file in tree::rust() {
        let path = file.path.trim_end_matches(".rs");
        let (package, target, module) = match path.rsplit_once("tests/") {
            Some((package, rest)) => {
                let (target, module) = rest.split_once('/').unwrap_or((rest, ""));
                (package.trim_end_matches('/'), target, module)
            }
            None => match path.rsplit_once("src/") {
                Some((package, module)) => (package.trim_end_matches('/'), "", module),
                None => continue,
            },
        };
        for name in test_functions(&file.text) {
            let name = format!("{}::{name}", module.replace('/', "::"));
            let name = name.trim_start_matches("::").to_owned();
            let (package, target) = (package.to_owned(), target.to_owned());
            tests.push(Test { package, target, name });
        }
    }
    tests
}

fn test_functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[test]\n").skip(1).filter_map(|rest| {
        let line = rest.lines().find(|line| !line.trim_start().starts_with("#["))?;
        line.trim_start().strip_prefix("fn ")?.split('(').next()
    })
}

/// Every command on all pages, one for each line of a block and for each span, with its place.
fn commands() -> Vec<(String, String)> {
    let mut commands = Vec::new();
    for page in pages() {
        for block in blocks(&page).into_iter().filter(|block| block.language == "sh") {
            commands.extend(block.text.lines().map(|line| (block.place.clone(), line.to_owned())));
        }
        for (number, line) in prose(&page) {
            let place = format!("{}:{number}", page.path);
            commands.extend(code_spans(line).map(|span| (place.clone(), span.to_owned())));
        }
    }
    commands
}

/// The words of a command, up to what the shell does not hand to it.
fn words(text: &str) -> Vec<&str> {
    let end = |word: &&str| !word.starts_with('#') && *word != "&&" && *word != "--";
    text.split_whitespace().take_while(end).collect()
}

/// What of a `cargo test` is not there; none where it is.
fn missing_tests(arguments: &str, tests: &[Test]) -> bool {
    let (mut package, mut targets, mut filter) = (None, vec![], "");
    let mut words = words(arguments).into_iter();
    while let Some(word) = words.next() {
        match word {
            "--test" => targets.extend(words.next()),
            "--manifest-path" => package = words.next(),
            word if word.starts_with("--") => {}
            word => filter = word,
        }
    }
    let package = package.map(|path| path.trim_end_matches("Cargo.toml").trim_end_matches('/'));
    let is_there = |target: Option<&str>| {
        tests.iter().any(|test| {
            package.is_none_or(|package| package == test.package)
                && target.is_none_or(|target| target == test.target)
                && test.name.contains(filter)
        })
    };
    match targets[..] {
        [] => !is_there(None),
        _ => !targets.into_iter().all(|target| is_there(Some(target))),
    }
}

/// Whether a script of `envoy` does not know its words, or knows no test that is called so.
fn missing_words(script: &str, arguments: &str, tests: &[Test]) -> bool {
    let text = tree::read(&format!("envoy/{script}")).text;
    let words = words(arguments);
    let options = words.iter().filter(|word| word.starts_with("--"));
    if options.into_iter().any(|option| !text.contains(&format!("{option})"))) {
        return true;
    }
    let (Some(what), "test.sh") = (words.first(), script) else { return false };
    let target = match *what {
        "e2e" | "compat" => "e2e",
        "chaos" => "containers",
        _ => "",
    };
    let rows = tree::read("envoy/compat.sh").text;
    let is_row = |word: &str| *what == "compat" && rows.contains(word.trim_start_matches("envoy-"));
    let is_name =
        |word: &str| tests.iter().any(|test| test.target == target && test.name.contains(word));
    !text.contains(&format!("\n  {what})\n"))
        || words[1..].iter().any(|word| !is_row(word) && !is_name(word))
}

fn is_missing(command: &str, tests: &[Test]) -> bool {
    if let Some((_, arguments)) = command.split_once("cargo test") {
        return missing_tests(arguments, tests);
    }
    let Some((_, call)) = command.split_once("./envoy/") else { return false };
    let (script, arguments) = call.split_once(' ').unwrap_or((call, ""));
    script.ends_with(".sh") && missing_words(script, arguments, tests)
}

#[test]
fn commands_find_what_they_name() {
    let (tests, commands) = (tests(), commands());
    let missing = commands.iter().filter(|(_, command)| is_missing(command, &tests));
    let missing: Vec<String> =
        missing.map(|(place, command)| format!("{place}: {command}")).collect();
    expect_none("commands that find nothing to run", &missing);
}

/// Each promise has a command, and what the page calls a test is one.
#[test]
fn every_promise_has_its_command() {
    let (tests, page) = (tests(), tree::read("docs/guarantees.md"));
    let rows = page.text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut wrong = Vec::new();
    let mut promises = 0;
    for row in rows {
        promises += 1;
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let command = cells.last().unwrap().trim();
        let rest = command.strip_prefix("the same");
        let is_known = |span: &str| match span.strip_prefix("--test ") {
            Some(target) => tests.iter().any(|test| test.target == target),
            None => span.starts_with("cargo test") || span.starts_with("./"),
        };
        let spans: Vec<&str> = code_spans(command).collect();
        let has_one = rest.is_some() || !spans.is_empty();
        if cells.len() != 4 || !has_one || !spans.into_iter().all(is_known) {
            wrong.push(row.to_owned());
        }
    }
    expect_none("promises without a command", &wrong);
    assert!(promises > 20, "only {promises} promises");
    let settings = tree::read("docs/config.md").text;
    for (number, line) in prose(&page) {
        for span in code_spans(line).filter(|span| span.matches('_').count() > 1) {
            let is_name = span.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
            let is_other =
                span.starts_with("fairshare_") || settings.contains(&format!("`{span}`"));
            let is_test = tests.iter().any(|test| test.name.rsplit("::").next() == Some(span));
            assert!(!is_name || is_other || is_test, "line {number}: {span} is no test");
        }
    }
}
