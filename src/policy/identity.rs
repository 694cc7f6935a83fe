//! Who a request belongs to: tenant and credential, read from headers and hashed at once, and the
//! client that sent it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::request::trim;
use super::{Attributes, ClientPolicy, RequestView, Values};

/// How a request's tenant, credential and client are found.
#[derive(Debug)]
pub struct IdentityPolicy {
    /// The tenant's rules.
    pub tenant: TenantPolicy,
    /// The credential's rules.
    pub credential: CredentialPolicy,
    /// The client's rules.
    pub client: ClientPolicy,
    /// How all are hashed.
    pub digester: Digester,
}

/// How a request's tenant is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantPolicy {
    /// The header that names the tenant, in lower case.
    pub header: String,
    /// What a request without a tenant means.
    pub missing: Missing,
    /// The tenant to which the tenant level does not apply.
    pub default_tenant: String,
    /// The longest tenant name in bytes; a longer one is refused.
    pub max_length: usize,
}

/// What a request without a tenant means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The tenant level does not apply.
    Skip,
    /// 400 `identity_missing`.
    Reject,
    /// All such requests share one tenant bucket.
    Anonymous,
}

/// How a request's credential is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialPolicy {
    /// Where it may stand; the first source that is present counts.
    pub from: Vec<CredentialSource>,
    /// What a request without a credential means.
    pub missing: MissingCredential,
    /// The longest credential in bytes; a longer one is refused.
    pub max_length: usize,
}

/// What a request without a credential means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingCredential {
    /// The credential level does not apply.
    Skip,
    /// 400 `identity_missing`.
    Reject,
}

/// A header in which a credential may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialSource {
    /// The header's name in lower case.
    pub header: String,
    /// The authentication scheme that must come before the credential, in lower case.
    pub scheme: Option<String>,
}

/// What stands for a tenant, credential or client everywhere beyond the request: its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(pub [u8; 32]);

/// Hashes identities: SHA-256, or HMAC-SHA-256 (RFC 2104) with the configured key.
#[derive(Clone)]
pub struct Digester(Option<Hmac<Sha256>>);

/// Who a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// The tenant's name, where the request has one.
    pub tenant_name: Option<&'a str>,
    /// Whose tenant level applies; none where it is skipped.
    pub tenant: Option<Subject>,
    /// Whose credential level applies; none where it is skipped.
    pub credential: Option<Subject>,
    /// Whose client level applies; none where nobody asked for it.
    pub client: Option<Subject>,
}

/// Why nobody can be held to account for a request. All are 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityRefusal {
    /// There is none where one is required.
    Missing(IdentityPart),
    /// There is more than one value.
    Ambiguous(IdentityPart),
    /// The value cannot be a name.
    Invalid(IdentityPart),
}

/// Which half of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityPart {
    /// The tenant.
    Tenant,
    /// The credential.
    Credential,
}

impl Identity<'_> {
    /// Of a request that says nothing usable about itself. Its client is known all the same.
    #[must_use]
    pub const fn unknown(client: Option<Subject>) -> Self {
        Self { tenant_name: None, tenant: None, credential: None, client }
    }
}

impl IdentityPolicy {
    /// Finds out where the request comes from, if the peer was asked for. Every request has a
    /// client; where the host cannot tell the peer, it is the one without a name.
    #[must_use]
    pub fn client(&self, request: &RequestView<'_>, attributes: &Attributes) -> Option<Subject> {
        let peer = attributes.peer.as_ref()?;
        Some(self.client.subject(self.client.find(request, peer), &self.digester))
    }

    /// Finds out who the request of `client` belongs to.
    ///
    /// # Errors
    ///
    /// [`IdentityRefusal`] where the policy requires an identity that the request does not have,
    /// or where it has one that is not usable.
    pub fn identify<'a>(
        &self,
        request: &RequestView<'a>,
        client: Option<Subject>,
    ) -> Result<Identity<'a>, IdentityRefusal> {
        let tenant_name = self.tenant.find(request)?;
        let tenant = match tenant_name {
            Some(name) if name == self.tenant.default_tenant => None,
            Some(name) => Some(self.digester.digest(name.as_bytes())),
            None => match self.tenant.missing {
                Missing::Skip => None,
                Missing::Reject => return Err(IdentityRefusal::Missing(IdentityPart::Tenant)),
                // No name is empty, so nobody else has this digest.
                Missing::Anonymous => Some(self.digester.digest(b"")),
            },
        };
        let credential = match self.credential.find(request)? {
            Some(credential) => Some(self.digester.digest_of(&credential)),
            None => match self.credential.missing {
                MissingCredential::Skip => None,
                MissingCredential::Reject => {
                    return Err(IdentityRefusal::Missing(IdentityPart::Credential));
                }
            },
        };
        Ok(Identity { tenant_name, tenant, credential, client })
    }
}

impl TenantPolicy {
    /// The tenant's name; none where it is absent, empty or blank.
    fn find<'a>(&self, request: &RequestView<'a>) -> Result<Option<&'a str>, IdentityRefusal> {
        let value = match request.values(&self.header) {
            Values::None | Values::One(b"") => return Ok(None),
            Values::One(value) => value,
            Values::Several => return Err(IdentityRefusal::Ambiguous(IdentityPart::Tenant)),
        };
        let invalid = IdentityRefusal::Invalid(IdentityPart::Tenant);
        if value.len() > self.max_length {
            return Err(invalid);
        }
        // A lossy reading would merge tenants, so what is no text is refused.
        let name = str::from_utf8(value).map_err(|_| invalid)?;
        if name.chars().any(char::is_control) { Err(invalid) } else { Ok(Some(name)) }
    }
}

/// A credential in its one spelling: the scheme in lower case where the source names none, and the
/// secret as it was sent.
struct Credential<'a> {
    scheme: Option<String>,
    secret: &'a [u8],
}

impl CredentialPolicy {
    /// The first credential that is present.
    fn find<'a>(
        &self,
        request: &RequestView<'a>,
    ) -> Result<Option<Credential<'a>>, IdentityRefusal> {
        for source in &self.from {
            let value = match request.values(&source.header) {
                Values::None | Values::One(b"") => continue,
                Values::One(value) => value,
                Values::Several => {
                    return Err(IdentityRefusal::Ambiguous(IdentityPart::Credential));
                }
            };
            if value.len() > self.max_length {
                return Err(IdentityRefusal::Invalid(IdentityPart::Credential));
            }
            if let Some(credential) = source.read(value) {
                return Ok(Some(credential));
            }
        }
        Ok(None)
    }
}

impl CredentialSource {
    fn read<'a>(&self, value: &'a [u8]) -> Option<Credential<'a>> {
        let plain = Credential { scheme: None, secret: value };
        if let Some(wanted) = &self.scheme {
            let (scheme, secret) = split_scheme(value)?;
            let same = scheme.eq_ignore_ascii_case(wanted.as_bytes()) && !secret.is_empty();
            return same.then_some(Credential { scheme: None, secret });
        }
        if !matches!(self.header.as_str(), "authorization" | "proxy-authorization") {
            return Some(plain);
        }
        match split_scheme(value) {
            Some((_, b"")) => None,
            Some((scheme, secret)) => {
                let scheme = String::from_utf8_lossy(scheme).to_ascii_lowercase();
                Some(Credential { scheme: Some(scheme), secret })
            }
            None => Some(plain),
        }
    }
}

/// The authentication schemes of the HTTP registry that one meets without a credential behind them.
const SCHEMES: [&str; 8] =
    ["basic", "bearer", "digest", "dpop", "hoba", "mutual", "negotiate", "privatetoken"];

/// Scheme and credentials (RFC 9110, 11.4). A word alone is a scheme without credentials if it is
/// the name of one, else no scheme at all.
fn split_scheme(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some(end) = value.iter().position(|byte| matches!(byte, b' ' | b'\t')) else {
        let known = SCHEMES.iter().any(|name| value.eq_ignore_ascii_case(name.as_bytes()));
        return known.then_some((value, b"".as_slice()));
    };
    let (scheme, secret) = value.split_at_checked(end)?;
    Some((scheme, trim(secret)))
}

impl Subject {
    /// Two independent parts of the digest.
    #[must_use]
    pub fn halves(&self) -> (u64, u64) {
        let part = |bytes: Option<&[u8; 8]>| u64::from_le_bytes(bytes.copied().unwrap_or_default());
        let (first, rest) = self.0.split_at(8);
        (part(first.first_chunk()), part(rest.first_chunk()))
    }
}

impl Digester {
    /// Hashes with `key`, or without one where it is none.
    #[must_use]
    pub fn new(key: Option<&[u8]>) -> Self {
        // HMAC takes a key of any length, so this never fails.
        Self(key.and_then(|key| Hmac::new_from_slice(key).ok()))
    }

    /// Whether it hashes with a key.
    #[must_use]
    pub const fn is_keyed(&self) -> bool {
        self.0.is_some()
    }

    /// What stands for `bytes`.
    #[must_use]
    pub fn digest(&self, bytes: &[u8]) -> Subject {
        self.digest_parts(&[bytes])
    }

    fn digest_of(&self, credential: &Credential<'_>) -> Subject {
        match &credential.scheme {
            None => self.digest(credential.secret),
            Some(scheme) => self.digest_parts(&[scheme.as_bytes(), b" ", credential.secret]),
        }
    }

    fn digest_parts(&self, parts: &[&[u8]]) -> Subject {
        match &self.0 {
            Some(keyed) => {
                let mut mac = keyed.clone();
                parts.iter().for_each(|part| mac.update(part));
                Subject(mac.finalize().into_bytes().into())
            }
            None => {
                let mut hash = Sha256::new();
                parts.iter().for_each(|part| hash.update(part));
                Subject(hash.finalize().into())
            }
        }
    }
}

impl std::fmt::Debug for Digester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Digester(keyed)" } else { "Digester(plain)" })
    }
}
