use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, Result, Table, Value, Variadic};

use super::keyspace::Keyspace;

/// A Lua with the `redis` table of a script.
pub(super) fn lua(keyspace: &Rc<RefCell<Keyspace>>) -> Result<Lua> {
    let lua = Lua::new();
    let redis = lua.create_table()?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let keyspace = Rc::clone(keyspace);
        let function = lua.create_function(move |lua, arguments: Variadic<Value>| {
            let command: Vec<Vec<u8>> = arguments.iter().map(argument).collect();
            let reply = keyspace.borrow_mut().run(&command);
            let value = to_lua(lua, &mut reply.as_slice())?;
            match (&value, raises) {
                (Value::Table(table), true) if table.contains_key("err")? => {
                    Err(mlua::Error::runtime(table.get::<String>("err")?))
                }
                _ => Ok(value),
            }
        })?;
        redis.set(name, function)?;
    }
    let error_reply = lua.create_function(|lua, line: String| {
        let table = lua.create_table()?;
        table.set("err", line.strip_prefix('-').unwrap_or(&line))?;
        Ok(table)
    })?;
    redis.set("error_reply", error_reply)?;
    lua.globals().set("redis", redis)?;
    Ok(lua)
}

/// Runs the script and returns its reply as it goes over the wire.
pub(super) fn evaluate(
    lua: &Lua,
    script: &Function,
    keys: &[Vec<u8>],
    arguments: &[Vec<u8>],
) -> Vec<u8> {
    let strings = |list: &[Vec<u8>]| -> Result<Table> {
        let strings = list.iter().map(|text| lua.create_string(text));
        lua.create_sequence_from(strings.collect::<Result<Vec<_>>>()?)
    };
    let run = || -> Result<Value> {
        lua.globals().set("KEYS", strings(keys)?)?;
        lua.globals().set("ARGV", strings(arguments)?)?;
        script.call(())
    };
    let mut reply = Vec::new();
    match run() {
        Ok(value) => to_wire(&value, &mut reply),
        Err(failure) => panic!("the script raises an error: {failure}"),
    }
    reply
}

/// An argument of a command. Whole numbers have no point.
fn argument(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => format!("{number:.0}").into_bytes(),
        other => panic!("no argument of a command: {other:?}"),
    }
}

/// The first reply of `rest` as a script sees it.
fn to_lua(lua: &Lua, rest: &mut &[u8]) -> Result<Value> {
    let end = rest.windows(2).position(|window| window == b"\r\n").expect("a whole reply");
    let (kind, line) = (rest[0], &rest[1..end]);
    *rest = &rest[end + 2..];
    let text = std::str::from_utf8(line).expect("text");
    let table_of = |name: &str| {
        let table = lua.create_table()?;
        table.set(name, text)?;
        Ok(Value::Table(table))
    };
    match kind {
        b'+' => table_of("ok"),
        b'-' => table_of("err"),
        b':' => Ok(Value::Integer(text.parse().expect("a number"))),
        b'$' if text == "-1" => Ok(Value::Boolean(false)),
        b'$' => {
            let length: usize = text.parse().expect("a length");
            let string = lua.create_string(&rest[..length])?;
            *rest = &rest[length + 2..];
            Ok(Value::String(string))
        }
        b'*' => {
            let count: usize = text.parse().expect("a count");
            let values = (0..count).map(|_| to_lua(lua, rest)).collect::<Result<Vec<_>>>()?;
            Ok(Value::Table(lua.create_sequence_from(values)?))
        }
        other => panic!("an unknown kind of reply: {other}"),
    }
}

/// A script's result as Redis sends it: numbers are cut to integers, a list ends with its first nil.
fn to_wire(value: &Value, wire: &mut Vec<u8>) {
    match value {
        Value::Integer(number) => wire.extend(format!(":{number}\r\n").bytes()),
        Value::Number(number) => wire.extend(format!(":{:.0}\r\n", number.trunc()).bytes()),
        Value::String(text) => {
            let text = text.as_bytes();
            wire.extend(format!("${}\r\n", text.len()).bytes());
            wire.extend_from_slice(&text);
            wire.extend_from_slice(b"\r\n");
        }
        Value::Boolean(true) => wire.extend_from_slice(b":1\r\n"),
        Value::Table(table) => {
            if let Ok(Some(line)) = table.get::<Option<String>>("err") {
                return wire.extend(format!("-{line}\r\n").bytes());
            }
            let items: Vec<Value> = table.sequence_values().collect::<Result<_>>().expect("a list");
            wire.extend(format!("*{}\r\n", items.len()).bytes());
            items.iter().for_each(|item| to_wire(item, wire));
        }
        _ => wire.extend_from_slice(b"$-1\r\n"),
    }
}
