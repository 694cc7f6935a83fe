//! A real Envoy that runs the reference configuration with a test's plugin JSON.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::client::{Request, Response};
use super::process::{Process, TempDir, poll_until};
use super::reference::{Configuration, RedisAddress, Values};
use super::upstream::Upstream;
use super::{stats, tools};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const UPDATE_TIMEOUT: Duration = Duration::from_secs(20);
const LOG_TIMEOUT: Duration = Duration::from_secs(10);
/// How late a count may come.
const METRICS_LAG: Duration = Duration::from_millis(150);

/// A running Envoy, killed when it goes out of scope. Several may run at once.
pub struct Envoy {
    // Fields end in this order: the process before its files.
    process: Process,
    directory: TempDir,
    settings: Builder,
    own_upstream: Option<Upstream>,
    admin_port: u16,
    port: u16,
}

/// What an Envoy is started with.
#[derive(Clone, Debug)]
pub struct Builder {
    plugin: String,
    workers: u32,
    upstream_port: Option<u16>,
    redis: Option<RedisAddress>,
    fixed_listener: bool,
    drain_seconds: u32,
    changes: Vec<(String, String)>,
    trap: bool,
}

/// Envoy ended, or refused its listener, before it was ready.
#[derive(Debug)]
pub struct StartFailure {
    /// All that it wrote.
    pub log: String,
}

/// What Envoy did with a new plugin JSON.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Update {
    /// All workers use it for new connections.
    Accepted,
    /// The old one stays. Holds what Envoy wrote about it.
    Rejected(String),
}

// === impl Builder ===

impl Builder {
    /// Worker threads; 2 where this is not called.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// Forwards to `port`. Where this is not called, Envoy has an upstream of its own.
    #[must_use]
    pub fn upstream_port(mut self, port: u16) -> Self {
        self.upstream_port = Some(port);
        self
    }

    /// Adds the tunnel to the Redis at this Unix socket.
    #[must_use]
    pub fn redis_unix(mut self, socket: impl Into<PathBuf>) -> Self {
        self.redis = Some(RedisAddress::Unix(socket.into()));
        self
    }

    /// Adds the tunnel to Redis with the cluster of a file of `envoy/redis`, in which each
    /// `FAIRSHARE_REDIS_<name>` has a value.
    #[must_use]
    pub fn redis_by(mut self, file: &str, values: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let values = values.iter().map(owned).collect();
        self.redis = Some(RedisAddress::By { file: file.to_owned(), values });
        self
    }

    /// Puts the listener into the bootstrap, as users do: a plugin JSON that is refused keeps Envoy
    /// from starting, and there are no updates. Without it the listener is in a watched file.
    #[must_use]
    pub fn fixed_listener(mut self) -> Self {
        self.fixed_listener = true;
        self
    }

    /// Changes the text of the reference configuration's listener. What is to be replaced must be
    /// there.
    #[must_use]
    pub fn replacing(mut self, from: &str, to: &str) -> Self {
        self.changes.push((from.to_owned(), to.to_owned()));
        self
    }

    /// For how long an old configuration lives on beside a new one; 1 s where this is not called.
    #[must_use]
    pub fn drain_seconds(mut self, seconds: u32) -> Self {
        self.drain_seconds = seconds;
        self
    }

    /// Takes the module that traps where a request has the header `x-fairshare-test-trap`.
    #[must_use]
    pub fn trapping_module(mut self) -> Self {
        self.trap = true;
        self
    }

    /// Starts it and waits until it serves, or fails the test.
    pub fn start(self) -> Envoy {
        self.try_start().unwrap_or_else(|failure| panic!("Envoy did not start:\n{}", failure.log))
    }

    /// Starts it and waits until it serves, or tells why it does not.
    pub fn try_start(self) -> Result<Envoy, StartFailure> {
        let own_upstream = self.upstream_port.is_none().then(Upstream::start);
        let directory = TempDir::new("envoy");
        let settings = Self {
            upstream_port: self.upstream_port.or(own_upstream.as_ref().map(Upstream::port)),
            ..self
        };
        let configuration = settings.render(&directory);
        fs::write(directory.file("envoy.yaml"), configuration.bootstrap).expect("envoy.yaml");
        if !settings.fixed_listener {
            settings.put_listener(&directory, &configuration.listener);
        }
        let process = settings.run(&directory);
        let (admin_port, port) = (0, 0);
        let mut envoy = Envoy { process, directory, settings, own_upstream, admin_port, port };
        envoy.wait_until_ready()?;
        Ok(envoy)
    }

    fn run(&self, directory: &TempDir) -> Process {
        let mut command = Command::new(tools::envoy());
        command.current_dir(directory.path());
        command.args(["-c", "envoy.yaml", "--admin-address-path", "admin"]);
        command.args(["--concurrency", &self.workers.to_string(), "--disable-hot-restart"]);
        command.args(["--service-node", "fairshare-test", "--service-cluster", "fairshare-test"]);
        command.args(["--drain-time-s", &self.drain_seconds.to_string()]);
        command.args(["--file-flush-interval-msec", "50", "-l", "warn"]);
        command.args(["--component-log-level", "wasm:info"]);
        Process::start(command, directory.file("envoy.log"))
    }

    fn render(&self, directory: &TempDir) -> Configuration {
        let listener_file = directory.file("listener.yaml");
        Values {
            upstream_port: self.upstream_port.expect("start() sets it"),
            module: if self.trap { tools::trapping_module() } else { tools::module() },
            plugin: &self.plugin,
            access_log: &directory.file("access.log"),
            redis: self.redis.as_ref(),
            listener_file: (!self.fixed_listener).then_some(&listener_file),
            changes: &self.changes,
        }
        .render()
    }

    /// Envoy sees a file that is moved into place, and never half of one.
    fn put_listener(&self, directory: &TempDir, listener: &str) {
        fs::write(directory.file("listener.next"), listener).expect("the listener's file");
        fs::rename(directory.file("listener.next"), directory.file("listener.yaml"))
            .expect("the listener's file");
    }
}

// === impl Envoy ===

impl Envoy {
    /// An Envoy with this plugin JSON: a `serde_json::Value`, or any text.
    pub fn builder(plugin: impl ToString) -> Builder {
        Builder {
            plugin: plugin.to_string(),
            workers: 2,
            upstream_port: None,
            redis: None,
            fixed_listener: false,
            drain_seconds: 1,
            changes: Vec::new(),
            trap: false,
        }
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The upstream that came with it.
    pub fn upstream(&self) -> &Upstream {
        self.own_upstream.as_ref().expect("an upstream of its own")
    }

    /// Sends a request on a new connection.
    pub fn send(&self, request: &Request) -> Response {
        request.send(self.port)
    }

    /// Gives it a new plugin JSON and waits until Envoy has taken or refused it. Connections that
    /// were open before keep the old one until they close.
    pub fn update_plugin(&mut self, plugin: impl ToString) -> Update {
        let plugin = plugin.to_string();
        assert!(!self.settings.fixed_listener, "a fixed listener has no updates");
        assert_ne!(plugin, self.settings.plugin, "Envoy does nothing where nothing changes");
        let old = std::mem::replace(&mut self.settings.plugin, plugin);
        let (before, log_length) = (self.stats(), self.log().len());
        let configuration = self.settings.render(&self.directory);
        self.settings.put_listener(&self.directory, &configuration.listener);
        let grown =
            |stats: &str, name: &str| stats::value(stats, name) - stats::value(&before, name);
        let accepted = poll_until(UPDATE_TIMEOUT, || {
            let stats = self.stats();
            if grown(&stats, "listener_manager.lds.update_rejected") > 0 {
                return Some(false);
            }
            // Each worker reports the listener that it has put to work.
            let workers = grown(&stats, "listener_manager.listener_create_success");
            (workers >= u64::from(self.settings.workers)).then_some(true)
        });
        match accepted.expect("Envoy takes or refuses the update") {
            true => Update::Accepted,
            false => {
                self.settings.plugin = old;
                Update::Rejected(self.log()[log_length..].to_owned())
            }
        }
    }

    /// The counter or gauge `name` of `/stats`; 0 where there is none.
    pub fn stat(&self, name: &str) -> u64 {
        stats::value(&self.stats(), name)
    }

    /// The sum of the Prometheus series of `name` that carry all of `labels`.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        std::thread::sleep(METRICS_LAG);
        stats::sum(&self.prometheus(), name, labels)
    }

    /// The text of `/stats`.
    pub fn stats(&self) -> String {
        self.admin("GET", "/stats?usedonly").expect("Envoy's admin interface")
    }

    /// The text of `/stats/prometheus`.
    pub fn prometheus(&self) -> String {
        self.admin("GET", "/stats/prometheus").expect("Envoy's admin interface")
    }

    /// Asks the admin interface; `None` where it does not answer 200.
    pub fn admin(&self, method: &str, target: &str) -> Option<String> {
        let response = Request::new(method, target).try_send(self.admin_port).ok()?;
        (response.status == 200).then(|| response.text())
    }

    /// All that Envoy and the plugin have written so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Waits for a line of the log that contains `text`, or fails the test.
    pub fn log_line(&self, text: &str) -> String {
        self.wait_for_line("envoy.log", text)
    }

    /// Waits for a line of the access log that contains `text`, or fails the test.
    pub fn access_log_line(&self, text: &str) -> String {
        self.wait_for_line("access.log", text)
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.process.resident_bytes()
    }

    fn wait_for_line(&self, file: &str, text: &str) -> String {
        let path = self.directory.file(file);
        let find = || {
            let content = fs::read(&path).unwrap_or_default();
            let content = String::from_utf8_lossy(&content);
            content.lines().find(|line| line.contains(text)).map(str::to_owned)
        };
        poll_until(LOG_TIMEOUT, find)
            .unwrap_or_else(|| panic!("no line of {file} contains {text:?}"))
    }

    fn wait_until_ready(&mut self) -> Result<(), StartFailure> {
        let ready = poll_until(START_TIMEOUT, || {
            if self.process.ended().is_some() {
                return Some(false);
            }
            self.admin_port = fs::read_to_string(self.directory.file("admin"))
                .ok()?
                .rsplit_once(':')?
                .1
                .trim()
                .parse()
                .ok()?;
            self.admin("GET", "/ready")?;
            if self.stat("listener_manager.lds.update_rejected") > 0 {
                return Some(false);
            }
            self.port =
                stats::listener_port(&self.admin("GET", "/listeners?format=json")?, "fairshare")?;
            Some(true)
        });
        match ready {
            Some(true) => Ok(()),
            Some(false) => Err(StartFailure { log: self.log() }),
            None => panic!("Envoy is not ready after {START_TIMEOUT:?}"),
        }
    }
}
