//! The reference configuration `envoy/envoy.yaml`, filled in for one test.
//!
//! Tests run the file that readers are shown. What a test changes is changed in its text, and a
//! change that no longer finds its place fails the test.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::tools::repository;

/// Where Redis listens.
#[derive(Clone, Debug)]
pub enum RedisAddress {
    Unix(std::path::PathBuf),
    /// As a file of `envoy/redis` has it, with these values for its names.
    By {
        file: String,
        values: Vec<(String, String)>,
    },
}

/// Everything that differs between two tests' configurations.
#[derive(Debug)]
pub struct Values<'a> {
    pub upstream_port: u16,
    pub module: &'a Path,
    pub plugin: &'a str,
    pub access_log: &'a Path,
    /// `None` leaves out the tunnel.
    pub redis: Option<&'a RedisAddress>,
    /// Where the listener comes from a file that Envoy watches: that file, in a directory of its own.
    pub listener_file: Option<&'a Path>,
    /// What else is replaced, and by what.
    pub changes: &'a [(String, String)],
}

/// Text of the bootstrap and, where it is apart, of the listener's file.
#[derive(Debug)]
pub struct Configuration {
    pub bootstrap: String,
    pub listener: String,
}

impl Values<'_> {
    pub fn render(&self) -> Configuration {
        let path = repository().join("envoy/envoy.yaml");
        let mut bootstrap = fs::read_to_string(path).expect("envoy/envoy.yaml");
        self.put_redis(&mut bootstrap);
        for (from, to) in self.changes {
            replace(&mut bootstrap, from, to);
        }
        let mut listener = String::new();
        if let Some(file) = self.listener_file {
            listener = as_listener_file(&cut_item(&mut bootstrap, "fairshare"));
            self.fill_in_listener(&mut listener);
            write!(
                bootstrap,
                "\ndynamic_resources:\n  lds_config: {{path_config_source: {{path: {}}}}}\n",
                text(file)
            )
            .expect("writing to a string");
        } else {
            self.fill_in_listener(&mut bootstrap);
        }
        replace(&mut bootstrap, "port_value: ${FAIRSHARE_ADMIN_PORT}", "port_value: 0");
        replace(&mut bootstrap, "${FAIRSHARE_UPSTREAM_PORT}", &self.upstream_port.to_string());
        Configuration { bootstrap, listener }
    }

    /// Puts the way to the test's Redis in, or takes it out.
    fn put_redis(&self, bootstrap: &mut String) {
        match self.redis {
            None => {
                for name in ["redis_tunnel", "fairshare_redis", "redis_nodes", "redis"] {
                    cut_item(bootstrap, name);
                }
            }
            Some(RedisAddress::Unix(socket)) => {
                replace(bootstrap, "${FAIRSHARE_REDIS_SOCKET}", &text(socket));
            }
            Some(RedisAddress::By { file, values }) => {
                let path = repository().join("envoy/redis").join(file);
                let mut cluster = fs::read_to_string(path).expect("a cluster redis");
                for name in cluster.lines().filter_map(|line| line.strip_prefix("  - name: ")) {
                    cut_item(bootstrap, name);
                }
                for (name, value) in values {
                    replace(&mut cluster, &format!("${{FAIRSHARE_REDIS_{name}}}"), value);
                }
                bootstrap.push_str(&cluster);
            }
        }
    }

    fn fill_in_listener(&self, yaml: &mut String) {
        // Envoy takes a free port and reports it.
        replace(yaml, "port_value: ${FAIRSHARE_PORT}", "port_value: 0");
        replace(yaml, r#""${FAIRSHARE_WASM}""#, &quoted(&text(self.module)));
        replace(yaml, r#""${FAIRSHARE_ACCESS_LOG}""#, &quoted(&text(self.access_log)));
        replace(
            yaml,
            "value: ${FAIRSHARE_PLUGIN_JSON}",
            &format!("value: {}", quoted(self.plugin)),
        );
    }
}

fn replace(yaml: &mut String, from: &str, to: &str) {
    assert!(yaml.contains(from), "the reference configuration has no {from} any more");
    *yaml = yaml.replace(from, to);
}

/// Takes the listener or cluster `name` out of `yaml`: its first line and all that is deeper.
fn cut_item(yaml: &mut String, name: &str) -> String {
    let first = format!("  - name: {name}");
    let (mut item, mut rest) = (String::new(), String::new());
    let mut inside = false;
    for line in yaml.lines() {
        inside = if inside { line.is_empty() || line.starts_with("    ") } else { line == first };
        let part = if inside { &mut item } else { &mut rest };
        part.push_str(line);
        part.push('\n');
    }
    assert!(!item.is_empty(), "envoy/envoy.yaml has no item {name} any more");
    *yaml = rest;
    item
}

/// A listener of the bootstrap, as the only resource of a watched file.
fn as_listener_file(item: &str) -> String {
    let mut file = String::from(
        "resources:\n- \"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\n",
    );
    let (first, deeper) = item.split_once('\n').expect("an item has lines");
    file.push_str(&first.replacen("  - ", "  ", 1));
    for line in deeper.lines() {
        file.push('\n');
        file.push_str(line.strip_prefix("  ").unwrap_or(line));
    }
    file
}

/// A YAML string in double quotes, which a JSON string is too.
fn quoted(value: &str) -> String {
    serde_json::to_string(value).expect("a string is JSON")
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}
