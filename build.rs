//! Takes comments and indentation out of the Redis script, which the module carries as text and
//! Redis reads from its first line for every decision.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    const SOURCE: &str = "src/store/script.lua";
    println!("cargo::rerun-if-changed={SOURCE}");
    let script = fs::read_to_string(SOURCE)?;
    let lines = script.lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    let text: String = code.flat_map(|line| [line, "\n"]).collect();
    #[expect(clippy::disallowed_methods, reason = "where Cargo says that generated files go")]
    let directory = env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(Path::new(&directory).join("script.lua"), text)
}
