//! The address that a call fetches, taken apart for rules and answers. Pure.

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
    /// The same without percent signs: another spelling of a path is the same path to most servers.
    pub plain_path: String,
}

impl Address {
    /// The server with its port, where that is not the scheme's own: `docs.rs`, `localhost:8080`.
    pub fn authority(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// Scheme, server and port: what an answer for good covers.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority())
    }
}
