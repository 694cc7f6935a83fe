//! Takes comments and blanks out of the Redis script, which the module carries as text and Redis reads
//! from its first line for every decision.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    const SOURCE: &str = "src/store/script.lua";
    println!("cargo::rerun-if-changed={SOURCE}");
    let script = fs::read_to_string(SOURCE)?;
    let lines = script.lines().map(without_blanks).filter(|line| !line.is_empty());
    let text: String = lines.flat_map(|line| [line, "\n".to_owned()]).collect();
    #[expect(clippy::disallowed_methods, reason = "where Cargo says that generated files go")]
    let directory = env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(Path::new(&directory).join("script.lua"), text)
}

/// A line of Lua without its comment, and without blanks where they only part what cannot be mistaken
/// for one. The script has no strings and comments of several lines.
fn without_blanks(line: &str) -> String {
    let mut code = String::new();
    let (mut quote, mut blank) = (None, false);
    let mut rest = line.chars().peekable();
    while let Some(next) = rest.next() {
        match quote {
            None if next == '-' && rest.peek() == Some(&'-') => break,
            None if next.is_whitespace() => {
                blank = true;
                continue;
            }
            None if next == '\'' || next == '"' => quote = Some(next),
            Some(open) if next == open => quote = None,
            _ => {}
        }
        let before = code.chars().next_back();
        if std::mem::take(&mut blank) && before.is_some_and(|before| would_join(before, next)) {
            code.push(' ');
        }
        code.push(next);
    }
    code
}

/// Whether two characters mean something else where no blank is between them: as one word, as the
/// beginning of a comment or of a long string, or as a number with a point.
fn would_join(before: char, next: char) -> bool {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
    is_word(before) && is_word(next) || before == next && "-[=".contains(next)
}
