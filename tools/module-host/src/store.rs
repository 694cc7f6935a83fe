//! A store that grants what it is asked for, and others that do not.

/// The replies to a pipeline: every question is granted in full.
#[must_use]
pub fn granting(pipeline: &[u8]) -> Vec<u8> {
    replies(pipeline, |command| {
        let cost = |place: usize| command.cost(place);
        match command.operation {
            "decide" => command.array(1, None, |_| vec![1, 100, 0, 1_000_000]),
            "lease" => {
                command.array(1_700_000_000_000_000, Some(&cost), |_| vec![1, 100, 0, 1_000_000])
            }
            _ => "*1\r\n:1\r\n".to_owned(),
        }
    })
}

/// The replies to a pipeline: every question is refused.
#[must_use]
pub fn refusing(pipeline: &[u8]) -> Vec<u8> {
    replies(pipeline, |command| match command.operation {
        "decide" => command.array(0, None, |_| vec![0, 0, 500_000, 1_000_000]),
        "lease" => {
            command.array(1_700_000_000_000_000, Some(&|_| 0), |_| vec![0, 0, 500_000, 1_000_000])
        }
        _ => "*1\r\n:1\r\n".to_owned(),
    })
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
    /// A first number, and for each key its units, where there are such, and its verdict.
    fn array(
        &self,
        first: u64,
        units: Option<&dyn Fn(usize) -> u64>,
        verdict: impl Fn(usize) -> Vec<u64>,
    ) -> String {
        let mut numbers = vec![first];
        for place in 0..self.keys {
            numbers.extend(units.map(|units| units(place)));
            numbers.extend(verdict(place));
        }
        let lines: Vec<String> = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
        format!("*{}\r\n{}", numbers.len(), lines.concat())
    }

    /// What a lease of the key at `place` asks for, cost and all.
    fn cost(&self, place: usize) -> u64 {
        let mut arguments = self.arguments.iter();
        for _ in 0..place {
            Self::charge(&mut arguments);
        }
        Self::charge(&mut arguments)
    }

    fn charge<'b>(arguments: &mut impl Iterator<Item = &'b &'b str>) -> u64 {
        let kind = arguments.next().copied().unwrap_or("w");
        let mut number = || arguments.next().and_then(|text| text.parse().ok()).unwrap_or(0u64);
        let cost = number();
        let (_, _) = (number(), number());
        if kind == "g" {
            number();
        }
        let (firm, ahead) = (number(), number());
        cost.max(firm + ahead)
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
                let keys: usize = keys.parse().expect("a number of keys");
                let operation = rest[keys + 1];
                answer(&Question { operation, keys, arguments: &rest[keys + 2..] })
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
