//! Reports of other modules that trapped, hung or answered twice, each against this one: what the answers
//! of the store's cluster may look like, and who is answered how often.

use module_host::{Fate, Machine, Program, Proxy, ROOT, header_map, store};

/// A strict limit of the fleet, and a limit of two an hour on the node, whose upstream's answers are watched.
fn document(on_store_error: &str) -> String {
    format!(
        r#"{{
  "auth_failures": {{"per_client": {{"failures": 3, "window": "1m"}}}},
  "limits": [
    {{"name": "fleet", "scope": "global", "consistency": "strict", "on_store_error": "{on_store_error}",
     "match": {{"path_prefix": "/fleet"}}, "tenant": {{"requests": 100, "window": "1m"}}}},
    {{"name": "node", "match": {{"path_prefix": "/node"}}, "tenant": {{"requests": 0, "window": "1h"}}}}
  ],
  "store": {{"cluster": "redis", "timeout": "50ms"}}
}}"#
    )
}

/// A worker, to which nothing has happened yet.
fn proxy(on_store_error: &str) -> Proxy {
    let mut machine = Machine::new(&document(on_store_error));
    machine.response_headers = header_map(&[(b":status", b"401")]);
    machine.properties.insert(b"source\0address".to_vec(), b"192.0.2.7:5000".to_vec());
    let (mut proxy, taken) = Proxy::start(&Program::load(), machine).unwrap();
    assert!(taken, "{:?}", proxy.vm.machine().log);
    // What it asks for by itself is no part of this.
    proxy.wake().unwrap();
    proxy.answer_calls("200", |_| Vec::new()).unwrap();
    proxy.vm.machine_mut().take_called();
    proxy
}

fn request(proxy: &mut Proxy, path: &[u8]) -> (u32, Fate) {
    let headers = [(b":method".as_slice(), b"GET".as_slice()), (b":path", path)];
    let tenant = (b"x-tenant-id".as_slice(), b"acme".as_slice());
    proxy.vm.machine_mut().request_headers = header_map(&[headers[0], headers[1], tenant]);
    proxy.request().unwrap()
}

/// A request that waits for the store, whose call is under way.
fn waiting(proxy: &mut Proxy) -> u32 {
    let (stream, fate) = request(proxy, b"/fleet");
    assert_eq!(fate, Fate::Paused);
    proxy.wake().unwrap();
    assert!(!proxy.vm.machine().events.calls.is_empty());
    stream
}

/// Ends all calls with these headers, or none at all, and this body.
fn answer(proxy: &mut Proxy, headers: &[(&[u8], &[u8])], body: &[u8]) {
    for call in std::mem::take(&mut proxy.vm.machine_mut().events.calls) {
        let machine = proxy.vm.machine_mut();
        machine.call_headers = header_map(headers);
        machine.call_body = body.to_vec();
        let [headers, body] =
            [headers.len(), body.len()].map(|count| u32::try_from(count).unwrap());
        let numbers = [ROOT, call.token, headers, body, 0];
        proxy.vm.call("proxy_on_http_call_response", &numbers).unwrap();
    }
    proxy.wake().unwrap();
}

/// How many replies were sent and how many requests let go since the last time.
fn replies_and_resumes(proxy: &mut Proxy) -> [usize; 2] {
    let called = proxy.vm.machine_mut().take_called();
    ["proxy_send_local_response", "proxy_continue_stream"]
        .map(|name| called.get(name).copied().unwrap_or(0))
}

fn errors(proxy: &mut Proxy, kind: &str) -> u64 {
    proxy.pass_millis(210).unwrap();
    let label = format!(".result={kind}");
    let metrics = proxy.vm.machine().metrics.iter();
    metrics.filter(|(name, _)| name.ends_with(&label)).map(|(_, count)| count).sum()
}

/// VMX-1 a: a client that leaves before there is any answer, whatever it waited for.
#[test]
fn vmx_1_a_client_that_leaves_before_any_answer() {
    let mut proxy = proxy("deny");
    let passed = request(&mut proxy, b"/other").0;
    let refused = request(&mut proxy, b"/node").0;
    let waits = waiting(&mut proxy);
    let unasked = request(&mut proxy, b"/fleet").0;
    replies_and_resumes(&mut proxy);
    for stream in [passed, refused, waits, unasked] {
        proxy.end(stream).unwrap();
    }
    proxy.wake().unwrap();
    proxy.answer_calls("200", store::granting).unwrap();
    proxy.pass_millis(300).unwrap();
    assert_eq!(replies_and_resumes(&mut proxy), [0, 0], "nobody is there to be answered");
    let stream = waiting(&mut proxy);
    proxy.answer_calls("200", store::granting).unwrap();
    assert_eq!(proxy.vm.machine().streams.outcomes.get(&stream), Some(&1));
}

/// VMX-1 b: answers of the store's cluster that are none, Envoy's own among them.
#[test]
fn vmx_1_b_answers_to_calls_that_are_none() {
    type Headers<'a> = &'a [(&'a [u8], &'a [u8])];
    let text = b"upstream connect error or disconnect/reset before headers".as_slice();
    let cases: [(Headers<'_>, &[u8], &str); 7] = [
        (&[], b"", "reset"),
        (&[], b"+OK\r\n", "reset"),
        (&[(b"content-type", b"text/plain")], b"+OK\r\n", "reset"),
        (&[(b":status", b"200")], b"", "truncated"),
        (&[(b":status", b"200")], b"*9\r\n:1\r\n:1\r\n:0\r\n:17", "truncated"),
        (&[(b":status", b"503"), (b"content-type", b"text/plain")], text, "unreachable"),
        (&[(b":status", b"504")], b"upstream request timeout", "timeout"),
    ];
    for (on_store_error, told) in [("deny", [1, 0]), ("allow", [0, 1])] {
        for (headers, body, kind) in cases {
            let case = format!("{on_store_error}, {headers:?}, {}", body.escape_ascii());
            let mut proxy = proxy(on_store_error);
            let before = errors(&mut proxy, kind);
            proxy.vm.machine_mut().events.calls.clear();
            proxy.vm.machine_mut().take_called();
            let stream = waiting(&mut proxy);
            answer(&mut proxy, headers, body);
            assert_eq!(replies_and_resumes(&mut proxy), told, "{case}");
            assert!(errors(&mut proxy, kind) > before, "{case}: not counted as {kind}");
            proxy.end(stream).unwrap();
            let stream = waiting(&mut proxy);
            proxy.vm.machine_mut().take_called();
            proxy.answer_calls("200", store::granting).unwrap();
            proxy.wake().unwrap();
            assert_eq!(replies_and_resumes(&mut proxy), [0, 1], "{case}: the next one");
            assert!(proxy.vm.machine().streams.outcomes.get(&stream) == Some(&1), "{case}");
        }
    }
}

/// VMX-1 c: the host has no attribute, header map or body to give.
#[test]
fn vmx_1_c_properties_that_are_absent() {
    let mut proxy = proxy("deny");
    proxy.vm.machine_mut().properties.clear();
    proxy.vm.machine_mut().response_headers = header_map(&[]);
    let (stream, fate) = request(&mut proxy, b"/other");
    assert_eq!(fate, Fate::Passed);
    proxy.response(stream).unwrap();
    proxy.end(stream).unwrap();
    proxy.vm.machine_mut().request_headers = header_map(&[]);
    let (stream, _) = proxy.request().unwrap();
    proxy.end(stream).unwrap();
}

/// VMX-2 a: a request is refused, and then the refusal itself passes the response callback, which would
/// refuse as well: nothing more is sent.
#[test]
fn vmx_2_a_a_refusal_is_answered_once() {
    let mut proxy = proxy("deny");
    let (stream, fate) = request(&mut proxy, b"/node");
    assert_eq!(fate, Fate::Answered);
    proxy.response(stream).unwrap();
    proxy.end(stream).unwrap();
    proxy.pass_millis(300).unwrap();
    assert_eq!(replies_and_resumes(&mut proxy), [1, 0]);
}

/// VMX-2 b: a request is refused in the callback of the store's answer.
#[test]
fn vmx_2_b_a_refusal_by_the_store_is_answered_once() {
    let mut proxy = proxy("deny");
    let stream = waiting(&mut proxy);
    proxy.answer_calls("200", store::refusing).unwrap();
    proxy.response(stream).unwrap();
    proxy.end(stream).unwrap();
    proxy.pass_millis(300).unwrap();
    assert_eq!(replies_and_resumes(&mut proxy), [1, 0]);
}

/// VMX-2 c: the store answers after the request was refused without it.
#[test]
fn vmx_2_c_a_late_answer_of_the_store_changes_nothing() {
    let mut proxy = proxy("deny");
    let stream = waiting(&mut proxy);
    proxy.vm.machine_mut().advance_millis(60);
    proxy.vm.call("proxy_on_tick", &[ROOT]).unwrap();
    proxy.wake().unwrap();
    assert_eq!(replies_and_resumes(&mut proxy), [1, 0], "refused at its deadline");
    proxy.response(stream).unwrap();
    proxy.answer_calls("200", store::granting).unwrap();
    proxy.wake().unwrap();
    proxy.end(stream).unwrap();
    proxy.pass_millis(300).unwrap();
    assert_eq!(replies_and_resumes(&mut proxy), [0, 0]);
    assert_eq!(proxy.vm.machine().streams.outcomes.get(&stream), Some(&1));
}

/// VMX-2 d: a request is refused while the store is asked about another one.
#[test]
fn vmx_2_d_a_refusal_while_a_call_is_under_way() {
    let mut proxy = proxy("deny");
    let first = waiting(&mut proxy);
    let (second, fate) = request(&mut proxy, b"/node");
    assert_eq!(fate, Fate::Answered);
    assert_eq!(replies_and_resumes(&mut proxy), [1, 0]);
    proxy.response(second).unwrap();
    proxy.answer_calls("200", store::granting).unwrap();
    proxy.wake().unwrap();
    proxy.pass_millis(300).unwrap();
    assert_eq!(replies_and_resumes(&mut proxy), [0, 1], "the first one goes on, once");
    assert_eq!(proxy.vm.machine().streams.outcomes.get(&first), Some(&1));
}
