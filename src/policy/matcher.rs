//! Which requests a limit or an exemption is about.

use super::RequestView;

/// A predicate over a request. Every part that is given must hold; one without parts holds always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// The whole path, without its query.
    pub path: Option<String>,
    /// The path's beginning, ending at a segment's border: `/dns` and `/dns/` mean `/dns`,
    /// `/dns/x` and everything below, but not `/dnsx`.
    pub path_prefix: Option<String>,
    /// One of these methods, in upper case. Empty: any.
    pub methods: Vec<String>,
    /// Headers by lower-case name, each with the one value it must have.
    pub headers: Vec<(String, String)>,
    /// The name of the route that Envoy has chosen.
    pub route: Option<String>,
}

impl Matcher {
    /// Whether the request is meant.
    #[must_use]
    pub fn matches(&self, request: &RequestView<'_>) -> bool {
        self.path_matches(request.path())
            && (self.methods.is_empty()
                || self.methods.iter().any(|method| method.as_bytes() == request.method()))
            && self.headers.iter().all(|(name, value)| request.has_header(name, value.as_bytes()))
            && self
                .route
                .as_ref()
                .is_none_or(|route| request.attributes().route.as_deref() == Some(route.as_bytes()))
    }

    fn path_matches(&self, path: &[u8]) -> bool {
        let exact = self.path.as_ref().is_none_or(|want| want.as_bytes() == path);
        exact && self.path_prefix.as_ref().is_none_or(|prefix| below(prefix.as_bytes(), path))
    }
}

/// Whether `path` is `prefix` or lies below it.
fn below(prefix: &[u8], path: &[u8]) -> bool {
    let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn a_prefix_ends_at_a_segments_border() {
        assert!(below(b"/dns/", b"/dns"));
        assert!(below(b"/dns/", b"/dns/a/b"));
        assert!(below(b"/dns", b"/dns/"));
        assert!(!below(b"/dns/", b"/dnsx"));
        assert!(!below(b"/dns", b"/dn"));
        assert!(below(b"/", b"/anything"));
    }
}
