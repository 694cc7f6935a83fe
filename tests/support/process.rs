//! Child processes, and directories for their files, that end with the value that owns them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A directory of its own under the system's temporary directory, removed with the value; kept
/// where the test fails, so that its logs can be read.
#[derive(Debug)]
pub struct TempDir(PathBuf);

/// A running child process with its output in a file, killed with the value.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

type Spawned = (Command, Sender<io::Result<Child>>);

// === impl TempDir ===

impl TempDir {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = format!("fairshare-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(directory);
        fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("files of this test: {}", self.0.display());
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

// === impl Process ===

impl Process {
    /// Starts `command` with its output in the file `log`.
    pub fn start(command: Command, log: PathBuf) -> Self {
        let mut command = ending_with_its_parent(command);
        let output = File::create(&log).expect("a log file");
        let errors = output.try_clone().expect("a second handle of the log file");
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = spawn(command).unwrap_or_else(|error| panic!("cannot run setpriv: {error}"));
        Self { child, log }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the state of a child process")
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kibibytes * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            eprintln!("--- end of {}:\n{}", self.log.display(), tail.join("\n"));
        }
    }
}

/// The same command, which the kernel kills when its parent ends, even where that is killed.
fn ending_with_its_parent(command: Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        wrapped.current_dir(directory);
    }
    wrapped
}

/// Starts a child from a thread that lasts as long as this process.
///
/// For the kernel the parent is the *thread* that started a child. Started from here, a child
/// outlives the thread of a test's helper, and yet never outlives the test process.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Spawned>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Spawned>();
        thread::spawn(move || {
            for (mut command, reply) in receiver {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, child) = mpsc::channel();
    spawner.lock().expect("the spawner").send((command, reply)).expect("the spawner's thread");
    child.recv().expect("the spawner's answer")
}

/// Asks `poll` again and again until it gives a value; `None` when `timeout` passes first.
pub fn poll_until<T>(timeout: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = poll() {
            return Some(value);
        }
        if start.elapsed() > timeout {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
}
