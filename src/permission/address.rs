//! The address that a call fetches, as rules and grants compare it. Pure.

use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub url: String,
    pub scheme: String,
    pub host: String,
    /// `None` for the default port.
    pub port: Option<u16>,
    pub path: String,
    /// `path` after [`plain`], because most servers treat other spellings as the same path.
    pub plain_path: String,
}

/// Normalises a path as servers may: percent signs, `;` parameters, empty parts and `..`. The query is only
/// decoded.
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

/// Decodes percent signs until none are left, because some servers decode twice.
pub(super) fn decode(text: &str) -> String {
    let mut text = text.to_owned();
    loop {
        match percent_decode_str(&text).decode_utf8_lossy() {
            decoded if decoded.len() < text.len() => text = decoded.into_owned(),
            _ => return text,
        }
    }
}

impl Address {
    pub fn authority(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    pub fn real_port(&self) -> u16 {
        self.port.unwrap_or(if self.scheme == "https" { 443 } else { 80 })
    }

    /// Scheme, host and port: the scope of an "always" answer.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_path_spellings_have_a_single_plain_form() {
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
