use std::process::Command;

use fairshare::config;

use crate::fake_host::{Outcome, Process};
use crate::{Block, blocks, expect_none, pages, tree};

#[test]
fn documents_are_valid() {
    let mut documents = 0;
    for page in pages() {
        for block in blocks(&page).into_iter().filter(|block| block.language == "json") {
            documents += 1;
            if let Err(errors) = config::parse(block.text.as_bytes()) {
                panic!("{}:\n{}", block.place, config::render_errors(&errors));
            }
        }
    }
    assert!(documents >= 4, "only {documents} blocks are documents");
}

#[test]
fn subcommands_exist() {
    let mut unknown = Vec::new();
    for page in pages() {
        for block in blocks(&page).into_iter().filter(|block| block.language == "sh") {
            for line in block.text.lines() {
                let Some(arguments) = line.strip_prefix("fairshare ") else { continue };
                let subcommand = arguments.split(' ').next().unwrap();
                let help = Command::new(env!("CARGO_BIN_EXE_fairshare"))
                    .args([subcommand, "--help"])
                    .output()
                    .unwrap();
                if !help.status.success() {
                    unknown.push(format!("{}: {line}", block.place));
                }
            }
        }
    }
    expect_none("subcommands that do not exist", &unknown);
}

/// The README begins with two commands, what they print, and a refusal in between.
#[test]
fn the_quick_start_has_its_parts() {
    let languages: Vec<String> =
        quick_start().into_iter().map(|block| block.language).take(5).collect();
    assert_eq!(languages, ["sh", "text", "text", "sh", "text"]);
}

fn quick_start() -> Vec<Block> {
    blocks(&tree::read("README.md"))
}

/// The first command is the one that the tests try, and prints what it is said to print.
#[test]
fn the_first_command_prints_what_the_readme_shows() {
    let blocks = quick_start();
    let (up, test) = (tree::read("envoy/up.sh").text, tree::read("envoy/test.sh").text);
    assert_eq!(blocks[0].text.trim_end(), "./envoy/up.sh");
    assert!(test.contains("\n  ./envoy/up.sh --detach\n"), "test.sh tries the demonstration");
    let greeting = blocks[1]
        .text
        .replace("http://127.0.0.1:10000", "$proxy")
        .replace("http://127.0.0.1:9901", "$admin")
        .replace("$admin/stats/prometheus | grep", "%s/stats/prometheus | grep")
        .replace("envoy/plugin/default.json", "${plugin#\"$PWD\"/}")
        .replace("target/run", "$RUN_DIR");
    for line in greeting.lines().filter(|line| !line.is_empty()) {
        assert!(up.contains(line.trim_end()), "up.sh does not print this: {line}");
    }
}

/// The refusal in the README is what the demonstration's sixth request gets, to the byte.
#[test]
fn the_refusal_is_the_real_one() {
    let shown = quick_start().swap_remove(2).text;
    let plugin = tree::read("envoy/plugin/no-redis.json").text;
    let mut process = Process::new(&plugin, 1).unwrap();
    let headers: [(&[u8], &[u8]); 3] =
        [(b":method", b"GET"), (b":path", b"/"), (b"x-tenant-id", b"acme")];
    let mut outcomes: Vec<Outcome> = (0..6).map(|_| process.start(&headers).1).collect();
    let Some(Outcome::Answered(reply)) = outcomes.pop() else { panic!("the sixth is refused") };
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Passed(_))));
    let fields = reply.headers.iter().map(|(name, value)| format!("{name}: {value}\n"));
    let fields: String = fields.collect();
    let body = String::from_utf8(reply.body).unwrap();
    assert_eq!(shown, format!("HTTP/1.1 {} Too Many Requests\n{fields}\n{body}\n", reply.status));
}

/// The second command is the whole of the checks, and the README shows all of its steps.
#[test]
fn the_second_command_has_the_steps_that_the_readme_shows() {
    let blocks = quick_start();
    assert_eq!(blocks[3].text.trim_end(), "./envoy/test.sh");
    let test = tree::read("envoy/test.sh").text;
    let body = test.split("\nrun_all() {").nth(1).unwrap().split("\n}").next().unwrap();
    let name =
        |line: &str| line.trim().strip_prefix("step \"")?.split('"').next().map(String::from);
    let steps: Vec<String> = body.lines().filter_map(name).collect();
    let lines = blocks[4].text.lines().filter_map(|line| line.split_once(" ok "));
    let shown: Vec<&str> = lines.map(|(name, _)| name.trim_end()).collect();
    assert_eq!(shown, steps);
    assert!(blocks[4].text.contains(&format!("all {} passed", steps.len())));
}

/// A block that names a file of the reference configuration shows lines of it, in its order.
#[test]
fn parts_of_the_reference_configuration_are_parts_of_it() {
    let mut shown = 0;
    for page in pages() {
        for block in blocks(&page) {
            let Some((file, part)) =
                block.text.strip_prefix("# from ").and_then(|text| text.split_once('\n'))
            else {
                continue;
            };
            shown += 1;
            let reference = tree::read(file).text;
            let mut lines = reference.lines().map(str::trim);
            for line in part.lines().map(str::trim) {
                assert!(lines.any(|known| known == line), "{}: not there: {line}", block.place);
            }
        }
    }
    assert!(shown > 0);
}

/// Every way to Redis has its place on the page about them.
#[test]
fn every_way_to_redis_is_described() {
    let page = tree::read("docs/redis.md").text;
    let files = std::fs::read_dir(tree::root().join("envoy/redis")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let missing: Vec<String> =
        names.filter(|name| !page.contains(&format!("| `envoy/redis/{name}` |"))).collect();
    expect_none("files that docs/redis.md does not have in its table", &missing);
}

/// The README shows the table of the page, and the page has the rows that the command knows.
#[test]
fn the_table_of_versions_is_one_table() {
    let table = |page: &str| {
        let text = tree::read(page).text;
        let table = text.split("<!-- compat ").nth(1).expect("the table's begin");
        let table = table.split("<!-- end of compat -->").next().unwrap();
        table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let page = table("docs/compatibility.md");
    assert_eq!(table("README.md"), page);
    let script = tree::read("envoy/compat.sh").text;
    let list = |name: &str| {
        let list = script.split(&format!("{name}=(")).nth(1).expect("a list").split(')').next();
        list.unwrap().split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let envoys = list("COMPAT_ENVOYS").into_iter().map(|version| format!("envoy-{version}"));
    let stores = list("COMPAT_ROWS").into_iter().skip(1);
    let mut shown = Vec::new();
    for row in page.iter().skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[6], "0", "a case fails: {row}");
        shown.push(cells[1].trim_matches('`').to_owned());
    }
    assert_eq!(shown, envoys.chain(stores).collect::<Vec<_>>());
}
