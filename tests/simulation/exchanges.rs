//! What stands in a store call and in its answer.

use crate::embedded_redis::read_command;

/// A question to the script that was answered with numbers.
#[derive(Debug)]
pub struct Answered {
    pub operation: Vec<u8>,
    /// The key of the store's record, and the epoch that it is in.
    pub record: String,
    pub epoch: u64,
    /// The keys of levels, and the units that each granted.
    pub grants: Vec<(String, u64)>,
}

/// Whether a body gives units back.
pub fn gives_back(mut body: &[u8]) -> bool {
    let mut commands = std::iter::from_fn(|| read_command(&mut body));
    commands.any(|command| command.iter().any(|argument| argument == b"return"))
}

/// Script calls in a body.
pub fn evaluations(mut body: &[u8]) -> usize {
    let commands = std::iter::from_fn(|| read_command(&mut body));
    commands.filter(|command| command[0] == b"EVALSHA").count()
}

/// The levels for which a body asks units with the script's operation `lease`; none where it sends the
/// script, because then it asks again.
pub fn leased_for_the_first_time(mut body: &[u8]) -> Vec<String> {
    let mut keys = Vec::new();
    while let Some(command) = read_command(&mut body) {
        if command[0] == b"SCRIPT" {
            return vec![];
        }
        if command[0] == b"EVALSHA" {
            let count: usize = str::from_utf8(&command[2]).unwrap().parse().unwrap();
            if command[3 + count + 1] == b"lease" {
                let names = command[4..3 + count].iter();
                keys.extend(names.map(|key| String::from_utf8(key.clone()).unwrap()));
            }
        }
    }
    keys
}

/// What a key begins with, which says what lies together.
pub fn tag_of(key: &str) -> &str {
    key.split_once("}:1:").unwrap().0
}

/// The name of the limit that a level's key is of.
pub fn limit_of(key: &str) -> &str {
    let (_, rest) = key.split_once("}:1:").unwrap();
    rest.split(':').next().unwrap()
}

/// The script calls of a body that these replies answer.
pub fn answered(mut body: &[u8], mut replies: &[u8]) -> Vec<Answered> {
    let mut list = Vec::new();
    while let Some(command) = read_command(&mut body) {
        let Some(integers) = integers(&mut replies) else { return list };
        if command[0] != b"EVALSHA" || integers.is_empty() {
            continue;
        }
        let keys: usize = str::from_utf8(&command[2]).unwrap().parse().unwrap();
        // The store's record is the first key, and five numbers about it come first.
        let mut names =
            command[3..3 + keys].iter().map(|key| String::from_utf8(key.clone()).unwrap());
        let (record, epoch) = (names.next().unwrap(), integers[0]);
        let units = integers[5..].iter().step_by(5).copied();
        let operation = command[3 + keys + 1].clone();
        list.push(Answered { operation, record, epoch, grants: names.zip(units).collect() });
    }
    list
}

/// The integers of the first reply; none where it has others. None at all where it is not whole.
fn integers(rest: &mut &[u8]) -> Option<Vec<u64>> {
    let line = |rest: &mut &[u8]| -> Option<Vec<u8>> {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let line = rest[..end].to_vec();
        *rest = &rest[end + 2..];
        Some(line)
    };
    let number = |line: &[u8]| str::from_utf8(&line[1..]).unwrap().parse::<u64>().unwrap();
    let head = line(rest)?;
    match head[0] {
        b'*' => (0..number(&head)).map(|_| line(rest).map(|line| number(&line))).collect(),
        b'$' => {
            line(rest)?;
            Some(vec![])
        }
        _ => Some(vec![]),
    }
}
