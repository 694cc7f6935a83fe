//! What a pipeline holds, for stores that only pretend.

/// The commands of a pipeline, as far as they are whole.
pub fn commands(mut pipeline: &[u8]) -> Vec<Vec<Vec<u8>>> {
    std::iter::from_fn(|| take_command(&mut pipeline)).collect()
}

/// The reply `each` to every command of a pipeline.
pub fn reply_to_each(pipeline: &[u8], each: &[u8]) -> Vec<u8> {
    each.repeat(commands(pipeline).len())
}

/// Whether the pipeline sends the script itself.
pub fn sends_the_script(pipeline: &[u8]) -> bool {
    commands(pipeline).iter().any(|command| command[0] == b"SCRIPT")
}

fn take_command(pipeline: &mut &[u8]) -> Option<Vec<Vec<u8>>> {
    let count = take_number(pipeline, b'*')?;
    (0..count).map(|_| take_argument(pipeline)).collect()
}

fn take_argument(pipeline: &mut &[u8]) -> Option<Vec<u8>> {
    let length = take_number(pipeline, b'$')?;
    let argument = pipeline.get(..length)?.to_vec();
    *pipeline = pipeline.get(length + 2..)?;
    Some(argument)
}

fn take_number(pipeline: &mut &[u8], kind: u8) -> Option<usize> {
    let end = pipeline.windows(2).position(|window| window == b"\r\n")?;
    let digits = pipeline[..end].strip_prefix(&[kind])?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    *pipeline = &pipeline[end + 2..];
    Some(number)
}
