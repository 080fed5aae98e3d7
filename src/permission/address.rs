//! The address that a call fetches, taken apart for rules and answers. Pure.

use percent_encoding::percent_decode_str;

/// An address on the network, in the form in which it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Whole, for people.
    pub url: String,
    /// `https` or `http`.
    pub scheme: String,
    /// The server's name or number in lower case, without a dot at its end.
    pub host: String,
    /// The port, where it is not the scheme's own.
    pub port: Option<u16>,
    /// From the first `/` on, with the query.
    pub path: String,
    /// The same as [`plain`] has it: another spelling of a path is the same path to most servers.
    pub plain_path: String,
}

/// A path as servers may take it, whatever its spelling: without percent signs, parameters behind a `;` and empty parts,
/// and with its `..` carried out. What stands behind a `?` has its percent signs taken out only.
pub fn plain(path: &str) -> String {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let path = decode(path).replace('\\', "/");
    let mut parts: Vec<&str> = Vec::new();
    let mut is_folder = true;
    for part in path.split('/') {
        let part = part.split(';').next().unwrap_or_default();
        is_folder = matches!(part, "" | "." | "..");
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let end = if is_folder && !parts.is_empty() { "/" } else { "" };
    let query = query.map(|query| format!("?{}", decode(query))).unwrap_or_default();
    format!("/{}{end}{query}", parts.join("/"))
}

/// Takes percent signs out until there are none: some servers do it twice.
pub(super) fn decode(text: &str) -> String {
    let mut text = text.to_owned();
    loop {
        // Each time it becomes shorter.
        match percent_decode_str(&text).decode_utf8_lossy() {
            decoded if decoded.len() < text.len() => text = decoded.into_owned(),
            _ => return text,
        }
    }
}

impl Address {
    /// The server with its port, where that is not the scheme's own: `docs.rs`, `localhost:8080`.
    pub fn authority(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// The port, whether or not it is the scheme's own.
    pub fn real_port(&self) -> u16 {
        self.port.unwrap_or(if self.scheme == "https" { 443 } else { 80 })
    }

    /// Scheme, server and port: what an answer for good covers.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_path_have_one_plain_form() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b/", "/a/b/"),
            ("//a///b", "/a/b"),
            ("/a/..%2fsecret/b", "/secret/b"),
            ("/a/%2e%2e%5Csecret", "/secret"),
            ("/a/%252e%252e%252fsecret", "/secret"),
            ("/a/..;x=1/secret;y", "/secret"),
            ("/../..", "/"),
            ("/a/b/..", "/a/"),
            ("/caf%C3%A9?u=https%3A//x/../y", "/café?u=https://x/../y"),
        ] {
            assert_eq!(plain(path), expected, "{path}");
        }
    }
}
