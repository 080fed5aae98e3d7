//! Profiles of external agents: where they keep state and settings, the hosts of their models, and their own modes.
//! Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::process::HostPattern;

/// An agent whose command contains the name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentProfile {
    pub name: String,
    pub state_dirs: Vec<ProfilePath>,
    /// Folders that a brokered agent changes where the mode allows changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub write_dirs: Vec<ProfilePath>,
    /// Folders without which the agent does not start. It must not write there in the sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settings_dirs: Vec<ProfilePath>,
    /// Files with the addresses of the agent's models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<ProfilePath>,
    /// Keys of addresses in these files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub address_keys: Vec<String>,
    /// For models and logins.
    pub hosts: Vec<String>,
    /// True if the agent uses models of many providers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_many_providers: bool,
    #[serde(skip_serializing_if = "SandboxedSettings::is_empty")]
    pub sandboxed: SandboxedSettings,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ProfilePath {
    pub path: String,
    /// Replaces `path`, if it is set to an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
    /// The rest of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
}

/// Own mode and settings in the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxedSettings {
    /// Ids of the mode, by version of the agent. Empty if one of the common ids fits.
    pub modes: Vec<String>,
    pub args: Vec<String>,
    pub variables: BTreeMap<String, String>,
}

impl SandboxedSettings {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl ProfilePath {
    /// `variable` reads a variable of the environment, here and below. The path may begin with `~`.
    fn place(&self, variable: impl Fn(&str) -> Option<String>) -> PathBuf {
        let set = self.variable.as_deref().and_then(variable).map(PathBuf::from);
        let base = set.filter(|path| path.is_absolute()).unwrap_or_else(|| PathBuf::from(&self.path));
        self.below.iter().fold(base, |base, below| base.join(below))
    }
}

impl AgentProfile {
    pub fn state_folders(&self, variable: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
        self.state_dirs.iter().map(|folder| folder.place(variable)).collect()
    }

    pub fn write_folders(&self, variable: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
        self.write_dirs.iter().map(|folder| folder.place(variable)).collect()
    }

    /// Folders that have to exist, besides the state folders.
    pub fn settings_folders(&self, variable: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
        self.settings_dirs.iter().map(|folder| folder.place(variable)).collect()
    }

    /// Absolute paths, if the home folder is known.
    pub fn settings_files(&self, variable: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
        let places = self.settings.iter().map(|file| file.place(variable));
        let absolute = |place: PathBuf| match place.strip_prefix("~") {
            Ok(inside) => Some(PathBuf::from(variable("HOME")?).join(inside)),
            Err(_) => Some(place),
        };
        places.filter_map(absolute).collect()
    }

    /// A sentence without a full stop.
    pub fn fault(&self) -> Option<String> {
        let places = [&self.state_dirs, &self.write_dirs, &self.settings_dirs, &self.settings];
        let is_wrong = |place: &&ProfilePath| {
            let path = Path::new(&place.path);
            let below = place.below.iter().map(Path::new);
            let is_below = |below: &Path| below.is_relative() && !below.iter().any(|part| part == "..");
            !(path.is_absolute() || path.starts_with("~")) || !below.into_iter().all(is_below)
        };
        if self.name.len() < 3
            || !self.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        {
            return Some("a `name` needs at least three of a-z, 0-9 and -".into());
        }
        if let Some(place) = places.into_iter().flatten().find(is_wrong) {
            return Some(format!(
                "a path of {} is not absolute and does not begin with ~/: {}",
                self.name, place.path
            ));
        }
        let host = self.hosts.iter().find(|host| host.parse::<HostPattern>().is_err())?;
        Some(format!("a host of {} is not a name, an IP address or *: {host}", self.name))
    }
}

/// The host of a URL with its port. Without a scheme, the port is any, unless there is one.
pub fn host_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.trim().split_once("://").unwrap_or(("", url.trim()));
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // A server that listens at all addresses has this one, too.
    let host = host.strip_prefix("0.0.0.0").map_or(host.to_owned(), |port| format!("127.0.0.1{port}"));
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let port = match scheme.to_ascii_lowercase().as_str() {
        _ if has_port => "",
        "https" | "wss" => ":443",
        "http" | "ws" => ":80",
        _ => "",
    };
    (!host.is_empty() && !host.contains('*')).then(|| format!("{host}{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_profiles_are_reported() {
        for (yaml, expected) in [
            ("{name: my-agent, state_dirs: [{path: '~/.my', below: a}], hosts: ['a.example.com:443']}", None),
            ("{name: x}", Some("`name`")),
            ("{name: my-agent, state_dirs: [{path: a}]}", Some("does not begin with ~/: a")),
            ("{name: my-agent, settings: [{path: '~/.my', below: ../a}]}", Some("does not begin with ~/")),
            ("{name: my-agent, hosts: ['https://a']}", Some("a host of my-agent")),
        ] {
            let profile: AgentProfile = serde_saphyr::from_str(yaml).unwrap();
            let fault = profile.fault();
            assert_eq!(fault.is_some(), expected.is_some(), "{yaml}: {fault:?}");
            assert!(expected.is_none_or(|text| fault.unwrap().contains(text)), "{yaml}");
        }
    }

    #[test]
    fn hosts_of_urls() {
        for (url, expected) in [
            ("https://a.b/c", Some("a.b:443")),
            ("http://a.b", Some("a.b:80")),
            ("HTTP://a.b:8/", Some("a.b:8")),
            ("a.b", Some("a.b")),
            ("a.b:8", Some("a.b:8")),
            ("http://[::1]/", Some("[::1]:80")),
            ("http://[::1]:8/", Some("[::1]:8")),
            ("http://0.0.0.0:8", Some("127.0.0.1:8")),
            ("", None),
            ("https://*/", None),
        ] {
            assert_eq!(host_of(url).as_deref(), expected, "{url}");
        }
    }
}
