//! Who a request belongs to: tenant and credential, read from headers and hashed at once, and the
//! client that sent it.

use super::request::trim;
use super::{Bindings, ClientPolicy, Digester, KnownDigests, RequestView, Subject, Values};

/// How a request's tenant, credential and client are found.
#[derive(Debug)]
pub struct IdentityPolicy {
    /// The tenant's rules.
    pub tenant: TenantPolicy,
    /// The credential's rules.
    pub credential: CredentialPolicy,
    /// The client's rules.
    pub client: ClientPolicy,
    /// The credentials that belong to a tenant.
    pub bindings: Bindings,
    /// How all are hashed.
    pub digester: Digester,
}

/// How a request's tenant is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantPolicy {
    /// What names the tenant.
    pub source: TenantSource,
    /// What a request without a tenant means.
    pub missing: Missing,
    /// The tenant to which the tenant level does not apply.
    pub default_tenant: String,
    /// The longest tenant name in bytes; a longer one is refused.
    pub max_length: usize,
}

/// What names a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantSource {
    /// The header of this name, in lower case.
    Header(String),
    /// The dynamic metadata that another filter has set: its namespace, and the keys that lead to the
    /// value.
    Metadata(Vec<String>),
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

/// Why nobody can be held to account for a request. All are 400, but for the last, which is 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityRefusal {
    /// There is none where one is required.
    Missing(IdentityPart),
    /// There is more than one value.
    Ambiguous(IdentityPart),
    /// The value cannot be a name.
    Invalid(IdentityPart),
    /// The credential belongs to another tenant than the request names.
    Mismatch,
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
    /// Finds out where the request comes from, if the peer was asked for.
    #[must_use]
    pub fn client(&self, request: &RequestView<'_>, known: &mut KnownDigests) -> Option<Subject> {
        let peer = request.attributes().peer.as_ref()?;
        let client = self.client.find(request, peer);
        Some(self.client.subject(client, |bytes| known.digest(&self.digester, &[bytes])))
    }

    /// Finds out who the request of `client` belongs to.
    ///
    /// # Errors
    ///
    /// [`IdentityRefusal`] where the policy requires an identity that the request does not have,
    /// or where it has one that is not usable.
    pub fn identify<'a>(
        &'a self,
        request: &RequestView<'a>,
        client: Option<Subject>,
        known: &mut KnownDigests,
    ) -> Result<Identity<'a>, IdentityRefusal> {
        let named = self.tenant.find(request)?;
        let found = self.credential.find(request)?;
        let mut digest = |parts: &[&[u8]]| known.digest(&self.digester, parts);
        let credential = found.as_ref().map(|found| found.digest(&mut digest));
        let bound = found.zip(credential).and_then(|(found, digest)| self.bound(&found, digest));
        let tenant_name = match (bound, named) {
            (Some(bound), Some(named)) if bound != named => return Err(IdentityRefusal::Mismatch),
            (bound, named) => bound.or(named),
        };
        let tenant = match tenant_name {
            Some(name) if name == self.tenant.default_tenant => None,
            Some(name) => Some(digest(&[name.as_bytes()])),
            None => match self.tenant.missing {
                Missing::Skip => None,
                Missing::Reject => return Err(IdentityRefusal::Missing(IdentityPart::Tenant)),
                // No name is empty, so nobody else has this digest.
                Missing::Anonymous => Some(digest(&[b""])),
            },
        };
        if credential.is_none() && self.credential.missing == MissingCredential::Reject {
            return Err(IdentityRefusal::Missing(IdentityPart::Credential));
        }
        Ok(Identity { tenant_name, tenant, credential, client })
    }

    /// The tenant to which a credential of this `digest` is bound. Bindings hold SHA-256, whether or
    /// not the digester has a key.
    fn bound(&self, credential: &Credential<'_>, digest: Subject) -> Option<&str> {
        if self.bindings.is_empty() {
            return None;
        }
        self.bindings.tenant_of(match self.digester.is_keyed() {
            true => credential.digest(|parts| Digester::new(None).digest_parts(parts)),
            false => digest,
        })
    }
}

impl TenantPolicy {
    /// The tenant's name; none where it is absent, empty or blank.
    fn find<'a>(&self, request: &RequestView<'a>) -> Result<Option<&'a str>, IdentityRefusal> {
        let values = match &self.source {
            TenantSource::Header(name) => request.values(name),
            TenantSource::Metadata(_) => {
                request.attributes().tenant.as_deref().map_or(Values::None, Values::one)
            }
        };
        let value = match values {
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

impl Credential<'_> {
    /// By what makes digests of parts.
    fn digest(&self, mut digest: impl FnMut(&[&[u8]]) -> Subject) -> Subject {
        match &self.scheme {
            None => digest(&[self.secret]),
            Some(scheme) => digest(&[scheme.as_bytes(), b" ", self.secret]),
        }
    }
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
            match source.read(value) {
                // The proxy joins repeated lines of these headers with a comma, which no token has.
                Some(Credential { scheme: None, secret })
                    if source.wants_a_token() && secret.contains(&b',') =>
                {
                    return Err(IdentityRefusal::Ambiguous(IdentityPart::Credential));
                }
                Some(credential) => return Ok(Some(credential)),
                None => {}
            }
        }
        Ok(None)
    }
}

impl CredentialSource {
    /// Whether what stands behind the scheme is one token without a comma (RFC 6750, RFC 7617).
    fn wants_a_token(&self) -> bool {
        matches!(self.scheme.as_deref(), Some("bearer" | "basic"))
    }

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
