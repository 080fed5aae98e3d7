//! Address patterns in rules: `SCHEME://SERVER:PORT/PATH`, of which only the server is required. Pure.
//!
//! Servers are normalised like those of addresses: lower case, ASCII names, canonical numbers, no trailing dot.
//! A server that cannot be normalised would never match, so it is an error. In a path, `*` also matches slashes.

use globset::{GlobBuilder, GlobMatcher};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use url::Url;

use super::Address;
use super::address::{decode, plain};

const WILDCARDS: [char; 4] = ['*', '?', '[', '{'];

/// Characters that a path contains only percent-encoded.
const PATH_ENCODE_SET: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');

#[derive(Debug, Clone)]
pub(super) struct AddressPattern {
    scheme: GlobMatcher,
    server: ServerPattern,
    /// `None` matches every port for deny and ask, and only the scheme's default port for allow.
    port: Option<GlobMatcher>,
    path: Option<PathPattern>,
}

#[derive(Debug, Clone)]
enum ServerPattern {
    Exact(String),
    Glob(GlobMatcher),
}

#[derive(Debug, Clone)]
struct PathPattern {
    /// Matches the path as sent, percent-encoded.
    sent: GlobMatcher,
    /// Matches the decoded and normalised path (see [`plain`]).
    plain: GlobMatcher,
    /// True if no normalised path can match.
    is_never_plain: bool,
}

impl AddressPattern {
    pub(super) fn parse(pattern: &str) -> Result<Self, String> {
        let (scheme, rest) = pattern.split_once("://").unwrap_or(("*", pattern));
        let (authority, path) = rest.find('/').map_or((rest, None), |at| (&rest[..at], Some(&rest[at..])));
        let scheme = glob(&scheme.to_lowercase())?;
        if !["http", "https"].iter().any(|known| scheme.is_match(known)) {
            return Err("its scheme is neither http nor https".into());
        }
        let (name, port) = split_port(authority);
        let port = port.map(port_pattern).transpose()?;
        Ok(Self { scheme, server: server(name)?, port, path: path.map(path_pattern).transpose()? })
    }

    /// Returns an error if the pattern never matches strictly, as an allow rule requires.
    pub(super) fn check_strict(&self) -> Result<(), String> {
        match &self.path {
            Some(path) if path.is_never_plain => {
                Err("an allow rule compares paths without empty parts, \".\", \"..\" and \";\": write the \
                     path without them"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// With `strictly` (for allow rules), a non-default port matches only if the pattern names a port, and the
    /// path must match both as sent and in its plain form.
    pub(super) fn covers(&self, address: &Address, strictly: bool) -> bool {
        let is_server = match &self.server {
            ServerPattern::Exact(name) => *name == address.host,
            ServerPattern::Glob(glob) => glob.is_match(&address.host),
        };
        let is_port = match &self.port {
            Some(port) => port.is_match(address.real_port().to_string()),
            None => !strictly || address.port.is_none(),
        };
        let is_path = self.path.as_ref().is_none_or(|path| {
            let (sent, plain) = (path.sent.is_match(&address.path), path.plain.is_match(&address.plain_path));
            if strictly { sent && plain } else { sent || plain }
        });
        self.scheme.is_match(&address.scheme) && is_server && is_port && is_path
    }
}

fn glob(pattern: &str) -> Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(pattern).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| error.to_string())
}

/// Colons within brackets belong to an IPv6 address.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (authority, None),
    }
}

fn server(name: &str) -> Result<ServerPattern, String> {
    let name = name.trim_end_matches('.');
    if name.is_empty() {
        return Err("it names no server".into());
    }
    let is_ipv6 = name.starts_with('[') && name.contains(':') && !name.contains(['*', '?', '{']);
    if name.contains(['@', '#', '\\'])
        || name.contains(char::is_whitespace)
        || (name.contains(':') && !is_ipv6)
    {
        return Err(format!("{name:?} is not a server name"));
    }
    if !is_ipv6 && name.contains(WILDCARDS) {
        // The start of a query, after a server without a slash.
        if name.contains(['=', '&', '%']) {
            return Err(format!("{name:?} is not a server name"));
        }
        if !name.is_ascii() {
            return Err(format!(
                "{name:?} combines a wildcard with non-ASCII letters: use the ASCII form (xn--…)"
            ));
        }
        return glob(&name.to_ascii_lowercase()).map(ServerPattern::Glob);
    }
    let url = Url::parse(&format!("http://{name}/"))
        .map_err(|error| format!("{name:?} is not a server name: {error}"))?;
    let host = url.host_str().map(|host| host.trim_end_matches('.')).filter(|host| !host.is_empty());
    host.map(|host| ServerPattern::Exact(host.to_owned()))
        .ok_or_else(|| format!("{name:?} is not a server name"))
}

fn port_pattern(port: &str) -> Result<GlobMatcher, String> {
    if port.contains(WILDCARDS) {
        return glob(port);
    }
    let number: u16 = port.parse().map_err(|_| format!("{port:?} is not a port"))?;
    glob(&number.to_string())
}

fn path_pattern(path: &str) -> Result<PathPattern, String> {
    let sent = utf8_percent_encode(path, PATH_ENCODE_SET).to_string();
    // A decoded character may be invalid as a glob; then the pattern is used as written.
    let plain = glob(&decode(&with_literals(path))).or_else(|_| glob(path))?;
    Ok(PathPattern { sent: glob(&sent)?, plain, is_never_plain: is_never_plain(path) })
}

/// Percent-encoded characters are literal, although a glob gives them a meaning.
fn with_literals(path: &str) -> String {
    let literals = [("%2A", "[*]"), ("%3F", "[?]"), ("%5B", "[[]"), ("%7B", "[{]"), ("%7D", "[}]")];
    literals.iter().fold(path.to_owned(), |path, (escape, literal)| {
        path.replace(escape, literal).replace(&escape.to_ascii_lowercase(), literal)
    })
}

/// Checks what precedes the first wildcard; what follows may be matched by a query.
fn is_never_plain(path: &str) -> bool {
    let literal = match path.find(WILDCARDS).or_else(|| path.find('\\')) {
        Some(wildcard) => &path[..wildcard],
        None => path,
    };
    // A wildcard may complete the last part.
    let whole_parts = if literal == path { literal } else { &literal[..=literal.rfind('/').unwrap_or(0)] };
    literal.contains(';') || plain(whole_parts) != decode(whole_parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(pattern: &str, url: &str, strictly: bool) -> bool {
        let url = Url::parse(url).unwrap();
        let path = url[url::Position::BeforePath..].to_owned();
        let address = Address {
            url: url.to_string(),
            scheme: url.scheme().into(),
            host: url.host_str().unwrap().into(),
            port: url.port(),
            plain_path: super::super::address::plain(&path),
            path,
        };
        AddressPattern::parse(pattern).unwrap().covers(&address, strictly)
    }

    #[test]
    fn host_patterns_match_every_usual_spelling() {
        for (pattern, url) in [
            ("https://x.example:443/*", "https://x.example/a"),
            ("x.example:443", "https://x.example/a"),
            ("x.example:443", "http://x.example:443/a"),
            ("*.example:443/*", "https://x.example/a"),
            ("HTTPS://X.Example./*", "https://x.example/a"),
            ("bücher.example", "https://xn--bcher-kva.example/"),
            ("[2606:4700:0::1111]", "http://[2606:4700::1111]/a"),
            ("http://[::1]:8080/*", "http://[::1]:8080/a"),
            ("0x7f.1", "http://127.0.0.1/"),
            ("x.example:*", "https://x.example:8443/"),
            ("x.example:*", "https://x.example/"),
            ("[xy].example", "https://x.example/"),
            ("{x,y}.example", "https://y.example/"),
            ("x.example/café/*", "https://x.example/caf%C3%A9/a"),
            ("x.example/caf%C3%A9/*", "https://x.example/café/a"),
        ] {
            assert!(covers(pattern, url, false) && covers(pattern, url, true), "{pattern} {url}");
        }
        for (pattern, url) in [
            ("https://x.example:443/*", "https://x.example:8443/a"),
            ("x.example:443", "http://x.example/a"),
            ("[2606:4700::1111]", "http://[2606:4700::1112]/"),
            ("x.example/a/*", "https://x.example/b/"),
        ] {
            assert!(!covers(pattern, url, false) && !covers(pattern, url, true), "{pattern} {url}");
        }
        assert!(covers("x.example", "https://x.example:8443/", false));
        assert!(!covers("x.example", "https://x.example:8443/", true));
    }

    #[test]
    fn invalid_address_patterns_are_rejected() {
        for (pattern, why) in [
            ("", "names no server"),
            ("/etc/**", "names no server"),
            ("ftp://x/*", "neither http nor https"),
            ("https://u@x/*", "not a server name"),
            ("https://x y/*", "not a server name"),
            ("x.example:1:2", "not a server name"),
            ("[x:y].example", "not a server name"),
            ("x.example?q=*", "not a server name"),
            ("https://x:port/*", "is not a port"),
            ("https://x:99999/*", "is not a port"),
            ("https://[::g]/*", "not a server name"),
            ("*.bücher.example", "xn--"),
            ("{src/a,src/b}", "unclosed alternate group"),
        ] {
            let reason = AddressPattern::parse(pattern).unwrap_err();
            assert!(reason.contains(why), "{pattern}: {reason}");
        }
    }

    #[test]
    fn path_that_never_matches_strictly_is_reported() {
        for path in ["/a;v=1/*", "/a;*", "/a//b", "/a/../b", "/a/./*", "//", "/a/.", "/a/%2e%2e/b"] {
            AddressPattern::parse(&format!("x.example{path}")).unwrap().check_strict().unwrap_err();
        }
        for (path, url) in [
            ("/", "/"),
            ("/*", "/a"),
            ("/a/", "/a/"),
            ("/a/.*", "/a/.b"),
            ("/a/..*", "/a/..b"),
            ("/a*//b", "/a?u=//b"),
            ("/caf%C3%A9/*", "/café/a"),
            ("/{a,b}/c", "/b/c"),
        ] {
            let pattern = format!("x.example{path}");
            AddressPattern::parse(&pattern).unwrap().check_strict().unwrap();
            assert!(covers(&pattern, &format!("https://x.example{url}"), true), "{path} {url}");
        }
    }

    #[test]
    fn encoded_wildcards_of_a_path_are_literal() {
        for encoded in ["%2A", "%2a"] {
            let pattern = format!("x.example/a{encoded}b");
            assert!(covers(&pattern, &format!("https://x.example/a{encoded}b"), true));
            assert!(!covers(&pattern, "https://x.example/axxb", false));
        }
        assert!(covers("x.example/a*b", "https://x.example/axxb", true));
    }
}
