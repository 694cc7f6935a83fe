use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Rig, by, expect, merged, node_limit, statuses, window};
use crate::support::client::Request;

/// IDN-1: two tenant lines are refused, equal or not, and charged to nobody.
pub fn duplicate_tenant_header_is_refused(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"tenant": window(2, "1m")}))).unwrap();
    for second in ["globex", "acme"] {
        let refused = rig.send(&by("acme").tenant(second));
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json()["code"], "identity_ambiguous");
        assert_eq!(refused.header("retry-after"), None);
    }
    expect(rig, &by("acme"), 2, 1);
    expect(rig, &by("globex"), 2, 1);
}

/// IDN-4: any header may hold any bytes; a tenant that is no text is refused, never misread.
pub fn non_utf8_headers_never_trap(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"tenant": window(60, "1m"), "credential": window(60, "1m")})))
        .unwrap();
    expect(rig, &by("acme").header("user-agent", b"bot\xa1\xb1"), 1, 0);
    for tenant in [b"ac\xffme", b"ac\xfeme"] {
        let refused = rig.send(&Request::get("/").tenant(tenant));
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json()["code"], "identity_invalid");
    }
    let odd_key = by("acme").header("x-api-key", b"\xff\xfe\x80");
    expect(rig, &odd_key, 1, 0);
    expect(rig, &by("acme").header("x-forwarded-for", b"\xff, 1.2.3.4"), 1, 0);
    expect(rig, &by("acme"), 50, 0);
}

/// IDN-3: absent, empty and blank are one case, and the policy decides it.
pub fn idn_3_missing_tenant_follows_its_policy(rig: &mut dyn Rig) {
    let missing = |policy: &str| {
        merged(
            node_limit(json!({"shared": window(5, "1m"), "tenant": window(2, "1m")})),
            json!({"identity": {"tenant": {"missing": policy}}, "namespace": policy}),
        )
    };
    rig.update(&missing("reject")).unwrap();
    let without =
        [Request::get("/"), Request::get("/").tenant(""), Request::get("/").tenant("   ")];
    for request in &without {
        let refused = rig.send(request);
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("identity_missing")));
    }
    rig.update(&missing("anonymous")).unwrap();
    let anonymous: Vec<u16> = without.iter().map(|request| rig.send(request).status).collect();
    assert_eq!(anonymous, [200, 200, 429]);
    expect(rig, &by("acme"), 2, 1);
}

/// IDN-5: header names have no case, in the configuration or on the wire.
pub fn header_names_have_no_case(rig: &mut dyn Rig) {
    rig.update(&merged(
        node_limit(json!({"tenant": window(1, "1m")})),
        json!({"identity": {"tenant": {"header": "X-Customer", "missing": "reject"}}}),
    ))
    .unwrap();
    expect(rig, &Request::get("/").header("X-CUSTOMER", "acme"), 1, 0);
    expect(rig, &Request::get("/").header("x-customer", "acme"), 0, 1);
}

/// IDN-6: a name beyond the bound is refused, and no two identities share a bucket.
pub fn long_names_are_refused_and_separators_do_not_collide(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"tenant": window(1, "1m"), "credential": window(1, "1m")})))
        .unwrap();
    for length in [128, 129, 8192] {
        let status = rig.send(&by(&"x".repeat(length))).status;
        assert_eq!(status, if length <= 128 { 200 } else { 400 });
    }
    expect(rig, &by("a:b").header("x-api-key", "c"), 1, 0);
    expect(rig, &by("a").header("x-api-key", "b:c"), 1, 0);
    assert_eq!(rig.send(&by("a b\tc").header("x-api-key", "d")).status, 400);
}

/// CRD-1: a second credential beside the first, on a line of its own or behind a comma, as the proxy
/// joins such lines, is ambiguous and no way around the first one's bucket.
pub fn joined_credentials_are_refused(rig: &mut dyn Rig) {
    rig.update(&node_limit(json!({"credential": window(2, "1m")}))).unwrap();
    let plain = Request::get("/").header("authorization", "Bearer k1");
    expect(rig, &plain, 2, 1);
    let refused = rig.send(&plain.clone().header("authorization", "Bearer x1"));
    assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("identity_ambiguous")));
    let joined = Request::get("/").header("authorization", "Bearer k1,x2");
    assert_eq!(rig.send(&joined).status, 400);
}

/// CRD-1: one credential has one bucket, however its scheme and blanks are spelt.
pub fn crd_1_one_credential_has_one_bucket(rig: &mut dyn Rig) {
    rig.update(&merged(
        node_limit(json!({"credential": {"rate": 1, "per": "1m", "burst": 2}})),
        json!({"identity": {"credential": {"from": [{"header": "authorization"}]}}}),
    ))
    .unwrap();
    let mut status =
        |value: &str| rig.send(&Request::get("/").header("authorization", value)).status;
    let spellings = ["Bearer k1", "bearer k1", "BEARER  k1", "Bearer k1 ", "Bearer\tk1"];
    assert_eq!(spellings.map(&mut status), [200, 200, 429, 429, 429]);
    assert_eq!(status("Bearer K1"), 200);
    // A scheme alone, or nothing, is no credential: no such level, again and again.
    assert_eq!(["Bearer", "bearer ", "", "Bearer"].map(&mut status), [200; 4]);
    // A bare word is a credential of its own, and so is one of another scheme.
    assert_eq!(["k1", "k1", "k1"].map(&mut status), [200, 200, 429]);
    assert_eq!(["Basic dTpw", "basic dTpw", "Basic dTpw"].map(&mut status), [200, 200, 429]);
}

/// The SHA-256 of a credential, as `sha256sum` prints it.
fn sha256(credential: &str) -> String {
    Sha256::digest(credential).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A bound credential decides the tenant, whether or not the request names one; a tenant that differs
/// is refused. The other credentials may name whom they like.
pub fn bound_credential_decides_tenant(rig: &mut dyn Rig) {
    let document = |hash_key: Value| {
        let identity = json!({
            "tenant": {"missing": "reject"},
            "credential": {"from": [{"header": "x-api-key"}, {"header": "authorization"}]},
            "bindings": [
                {"credential_sha256": sha256("k1"), "tenant": "acme"},
                {"credential_sha256": sha256("bearer K2").to_uppercase(), "tenant": "acme"},
                {"credential_sha256": sha256("ours"), "tenant": "default"},
            ],
        });
        merged(
            node_limit(json!({"tenant": window(4, "1m")})),
            json!({"identity": merged(identity, hash_key)}),
        )
    };
    let keyed = |key: &str| Request::get("/").header("x-api-key", key);
    for hash_key in [json!({}), json!({"hash_key": "a-hash-key-of-some-length"})] {
        rig.update(&document(hash_key)).unwrap();
        let before = rig.metric("refusals", &[("code", "tenant_mismatch")]);
        let mismatch = rig.send(&keyed("k1").tenant("globex"));
        assert_eq!(mismatch.status, 403);
        assert_eq!(mismatch.json()["code"], "tenant_mismatch");
        assert_eq!(
            (mismatch.header("retry-after"), mismatch.json()["limit"].clone()),
            (None, Value::Null)
        );
        assert!(!mismatch.text().contains("acme") && !mismatch.text().contains("globex"));
        assert_eq!(rig.send(&keyed("k1").tenant("Acme")).status, 403);
        assert_eq!(rig.send(&keyed("k1").tenant("default")).status, 403);
        let grpc = keyed("k1").tenant("globex").header("content-type", "application/grpc");
        assert_ne!(rig.send(&grpc).status, 429);
        assert_eq!(rig.metric("refusals", &[("code", "tenant_mismatch")]) - before, 4);
        // All of these are acme's, and none of the refusals above was charged to anyone.
        let bearer = Request::get("/").header("authorization", "BEARER  K2");
        assert_eq!(statuses(rig, &keyed("k1"), 1), [200]);
        assert_eq!(statuses(rig, &bearer, 1), [200]);
        assert_eq!(statuses(rig, &keyed("k1").tenant("acme"), 1), [200]);
        assert_eq!(statuses(rig, &by("acme").header("x-api-key", "free"), 2), [200, 429]);
        assert_eq!(statuses(rig, &keyed("k1"), 1), [429]);
        expect(rig, &by("globex").header("x-api-key", "free"), 4, 1);
        // The tenant that skips the tenant level can be bound as well; nobody else has no tenant.
        expect(rig, &keyed("ours"), 6, 0);
        assert_eq!(rig.send(&keyed("free")).json()["code"], "identity_missing");
        assert_eq!(rig.send(&Request::get("/").header("authorization", "Bearer k2")).status, 400);
    }
}

/// A credential under a tenant's override has a bucket of its own there, so using it as another
/// tenant frees nothing.
pub fn an_overridden_credential_level_counts_by_itself(rig: &mut dyn Rig) {
    rig.update(&merged(
        node_limit(json!({"credential": window(2, "1s")})),
        json!({"overrides": {"acme": {"dns": {"credential": window(3, "1h")}}}}),
    ))
    .unwrap();
    let keyed = |tenant: &str| by(tenant).header("x-api-key", "k1");
    expect(rig, &keyed("acme"), 3, 1);
    rig.wait(std::time::Duration::from_millis(1100));
    expect(rig, &keyed("other"), 2, 1);
    expect(rig, &keyed("acme"), 0, 1);
}
