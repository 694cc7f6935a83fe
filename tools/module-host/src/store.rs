//! A store that grants what it is asked for, and others that do not.

/// The replies to a pipeline: every question is granted in full.
#[must_use]
pub fn granting(pipeline: &[u8]) -> Vec<u8> {
    replies(pipeline, |question| question.answer(true))
}

/// The replies to a pipeline: every question is refused.
#[must_use]
pub fn refusing(pipeline: &[u8]) -> Vec<u8> {
    replies(pipeline, |question| question.answer(false))
}

/// The replies to a pipeline of a store that has lost the script.
#[must_use]
pub fn without_script(pipeline: &[u8]) -> Vec<u8> {
    replies(pipeline, |_| "-NOSCRIPT No matching script\r\n".to_owned())
}

/// A call of the script.
struct Question<'a> {
    operation: &'a str,
    keys: usize,
    arguments: &'a [&'a str],
}

impl Question<'_> {
    /// The store's state, its clock and whether all is granted, and for each key its units and its
    /// verdict.
    fn answer(&self, granted: bool) -> String {
        let mut numbers = vec![1, 1, 0, 1_700_000_000_000_000, u64::from(granted)];
        let verdict = if granted { [1, 100, 0, 1_000_000] } else { [0, 0, 500_000, 1_000_000] };
        let mut arguments = self.arguments.iter();
        for _ in 0..self.keys {
            let wanted = self.charge(&mut arguments);
            numbers.push(if granted { wanted } else { 0 });
            numbers.extend(verdict);
        }
        let lines: Vec<String> = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
        format!("*{}\r\n{}", numbers.len(), lines.concat())
    }

    /// What the question asks for under its next key.
    fn charge<'b>(&self, arguments: &mut impl Iterator<Item = &'b &'b str>) -> u64 {
        let kind = arguments.next().copied().unwrap_or("w");
        let mut number = || arguments.next().and_then(|text| text.parse().ok()).unwrap_or(0u64);
        let cost = number();
        for _ in 0..if kind.eq_ignore_ascii_case("g") { 3 } else { 2 } {
            number();
        }
        match self.operation {
            "decide" => cost,
            "lease" => cost.max(number() + number()),
            "return" => {
                number();
                0
            }
            // A report: five times and as many units.
            _ => {
                (0..10).for_each(|_| {
                    number();
                });
                0
            }
        }
    }
}

fn replies(pipeline: &[u8], answer: impl Fn(&Question<'_>) -> String) -> Vec<u8> {
    let mut out = Vec::new();
    for command in commands(pipeline) {
        let texts: Vec<&str> = command.iter().map(String::as_str).collect();
        let reply = match texts.as_slice() {
            ["AUTH", ..] => "+OK\r\n".to_owned(),
            ["SCRIPT", ..] => "$2\r\nok\r\n".to_owned(),
            ["EVALSHA", _, keys, rest @ ..] => {
                // The first key is the one of the store's record; then come the protocol's version,
                // the operation, and three numbers about the record.
                let keys: usize = keys.parse().expect("a number of keys");
                let operation = rest[keys + 1];
                answer(&Question { operation, keys: keys - 1, arguments: &rest[keys + 5..] })
            }
            _ => "-ERR unknown command\r\n".to_owned(),
        };
        out.extend_from_slice(reply.as_bytes());
    }
    out
}

/// The commands of a pipeline, which the module writes as arrays of texts.
fn commands(pipeline: &[u8]) -> Vec<Vec<String>> {
    let mut rest = pipeline;
    let mut commands = Vec::new();
    while !rest.is_empty() {
        let count = number(&mut rest, b'*');
        let texts = (0..count).map(|_| {
            let length = number(&mut rest, b'$');
            let (text, after) = rest.split_at(length);
            rest = after.strip_prefix(b"\r\n").expect("a line's end");
            String::from_utf8(text.to_vec()).expect("text")
        });
        commands.push(texts.collect());
    }
    commands
}

fn number(rest: &mut &[u8], kind: u8) -> usize {
    let end = rest.windows(2).position(|window| window == b"\r\n").expect("a line");
    let (line, after) = rest.split_at(end);
    *rest = &after[2..];
    let digits = line.strip_prefix(&[kind]).expect("a number of this kind");
    std::str::from_utf8(digits).expect("digits").parse().expect("a number")
}
