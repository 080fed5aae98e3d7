//! Reads the process environment once at startup.
//!
//! Security: only this module reads the variables with provider keys and headers of telemetry, and only it removes
//! variables from the environment.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use secrecy::SecretString;

use crate::http::network::UserNetwork;
use crate::model::catalog::PROVIDERS;
use crate::otlp::telemetry_settings::{SECRET_VARIABLES, TelemetryVariables, VARIABLES};
use crate::platform::files::account_home;
use crate::process::network_variables::NetworkVariables;
use crate::process::sandbox_paths::{CACHE_VARIABLES, TOOLCHAINS, User};
use crate::sandbox;

/// Variables for read-only commands, beside [`TOOLCHAINS`] and [`LOCALE`]. Security: no keys, no agent
/// sockets.
#[rustfmt::skip]
const FOR_READING: &[&str] = &[
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TZDIR", "LOCALE_ARCHIVE",
    "CARGO_HOME", "RUSTUP_TOOLCHAIN", "PYENV_VERSION", "GOPATH", "GOFLAGS", "PYTHONPATH", "NODE_PATH",
    "GEM_HOME", "LD_LIBRARY_PATH", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME",
];

/// Exact names; other `LC_` variables stay hidden.
#[rustfmt::skip]
const LOCALE: &[&str] = &[
    "LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LC_COLLATE", "LC_MONETARY", "LC_MESSAGES", "LC_PAPER", "LC_NAME",
    "LC_ADDRESS", "LC_TELEPHONE", "LC_MEASUREMENT", "LC_IDENTIFICATION",
];

/// Variables of the network for MCP servers, beside those of [`FOR_READING`]: proxies, in capitals or not, and
/// certificates. `npx` and `uvx` do not start without them behind a company's proxy. A proxy's address may contain a
/// password, so commands that only read do not get them.
#[rustfmt::skip]
const NETWORK: &[&str] = &[
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "NODE_USE_ENV_PROXY", "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS", "PIP_CERT", "DENO_CERT", "DENO_TLS_CA_STORE", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO",
];

#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub model: Option<String>,
    pub small_model: Option<String>,
    pub log_level: Option<String>,
    /// True if `NO_COLOR` is set and not empty.
    pub has_no_color: bool,
    /// True if `TERM` names a terminal that can erase a line.
    pub has_capable_terminal: bool,
    pub config_folder: Option<PathBuf>,
    pub data_folder: Option<PathBuf>,
    /// Ignored, because it is not an absolute path.
    pub relative_home: Option<OsString>,
    pub user: User,
    pub for_reading: Vec<(OsString, OsString)>,
    pub network: NetworkVariables,
    keys: HashMap<&'static str, SecretString>,
    urls: HashMap<&'static str, String>,
    /// Of the variables that name proxies and certificates.
    connections: UserNetwork,
    /// OpenTelemetry's variables.
    pub telemetry: TelemetryVariables,
}

impl Environment {
    /// Removes the provider keys and the headers of telemetry, so that no child process inherits them. Must run before a second thread
    /// exists.
    #[allow(unsafe_code)]
    pub fn take() -> Self {
        let relative_home = std::env::var_os("HOME").filter(|home| !Path::new(home).is_absolute());
        if relative_home.is_some() {
            // A relative HOME would resolve against the working directory.
            // SAFETY: this runs first in `main`, while the process has one thread.
            unsafe { std::env::remove_var("HOME") };
        }
        let mut keys = HashMap::new();
        for name in PROVIDERS.iter().flat_map(|provider| provider.key_variables) {
            if let Some(key) = read_variable(name) {
                keys.insert(*name, SecretString::from(key.trim()));
            }
            sandbox::wipe_variable(name);
            // SAFETY: this runs first in `main`, while the process has one thread.
            unsafe { std::env::remove_var(name) };
        }
        let telemetry = TelemetryVariables::new(telemetry_variables());
        for name in SECRET_VARIABLES {
            sandbox::wipe_variable(name);
            // SAFETY: this runs first in `main`, while the process has one thread.
            unsafe { std::env::remove_var(name) };
        }
        let urls = PROVIDERS.iter().map(|provider| provider.url_variable);
        let (config_folder, data_folder) = own_folders().unzip();
        let own_folders = config_folder.iter().chain(&data_folder).cloned().collect();
        Self {
            user: User { own: own_folders, ..user() },
            relative_home,
            for_reading: for_reading(),
            network: NetworkVariables::new(variables(|name| {
                NETWORK.contains(&name)
                    || (name.ends_with("_proxy") && NETWORK.contains(&&*name.to_uppercase()))
            })),
            model: read_variable("MODEGATE_MODEL"),
            small_model: read_variable("MODEGATE_SMALL_MODEL"),
            log_level: read_variable("MODEGATE_LOG"),
            has_no_color: read_variable("NO_COLOR").is_some(),
            has_capable_terminal: read_variable("TERM").is_some_and(|name| name != "dumb"),
            config_folder,
            data_folder,
            keys,
            urls: urls.filter_map(|name| Some((name, read_variable(name)?))).collect(),
            connections: UserNetwork::new(read_variable, None),
            telemetry,
        }
    }

    /// Protects the store and the recording, wherever the user keeps them.
    pub fn protect(&mut self, files: impl Iterator<Item = PathBuf>) {
        let files: Vec<_> = files.filter_map(|path| std::path::absolute(path).ok()).collect();
        self.user.own.extend(files.iter().cloned());
        self.user.private.extend(files);
    }

    #[cfg(test)]
    pub fn of(keys: &[(&'static str, &str)], urls: &[(&'static str, &str)]) -> Self {
        Self {
            keys: keys.iter().map(|(name, key)| (*name, SecretString::from(*key))).collect(),
            urls: urls.iter().map(|(name, url)| (*name, (*url).to_owned())).collect(),
            ..Self::default()
        }
    }

    pub fn key(&self, variables: &[&'static str]) -> Option<&SecretString> {
        variables.iter().find_map(|name| self.keys.get(name))
    }

    pub fn keys(&self) -> impl Iterator<Item = (String, SecretString)> {
        self.keys.iter().map(|(name, key)| ((*name).to_owned(), key.clone()))
    }

    /// `ca_file` has certificates that are trusted beside those of the environment.
    pub fn connections(&self, ca_file: Option<PathBuf>) -> UserNetwork {
        let mut connections = self.connections.clone();
        connections.ca_file = ca_file;
        connections
    }

    /// Without the keys and the addresses of providers.
    #[must_use]
    pub fn without_providers(&self) -> Self {
        Self { keys: HashMap::new(), urls: HashMap::new(), ..self.clone() }
    }

    pub fn url(&self, variable: &str) -> Option<&str> {
        self.urls.get(variable).map(String::as_str)
    }
}

fn telemetry_variables() -> impl Iterator<Item = (&'static str, SecretString)> {
    let names = VARIABLES.iter().chain(&SECRET_VARIABLES);
    names.filter_map(|name| Some((*name, SecretString::from(read_variable(name)?))))
}

fn read_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// The folder of the settings, for a process that leaves the environment as it is.
pub fn config_folder() -> Option<PathBuf> {
    own_folders().map(|(config, _)| config)
}

/// The folders of the settings and of the data.
fn own_folders() -> Option<(PathBuf, PathBuf)> {
    let folders = etcetera::choose_base_strategy().ok()?;
    let (config, data) = (folders.config_dir().join("modegate"), folders.data_dir().join("modegate"));
    (config.is_absolute() && data.is_absolute()).then_some((config, data))
}

/// `None` if unset or not UTF-8.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub fn arguments() -> Vec<OsString> {
    std::env::args_os().collect()
}

fn user() -> User {
    User {
        home: etcetera::home_dir().ok(),
        account_home: account_home(),
        path: std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default(),
        program_endings: std::env::var("PATHEXT").ok(),
        toolchains: TOOLCHAINS.iter().filter_map(|name| folder_variable(name)).collect(),
        cargo: folder_variable("CARGO_HOME"),
        caches: cache_folders(folder_variable),
        temporary: std::env::temp_dir(),
        scratch: vec![std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()],
        ..User::default()
    }
}

fn folder_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The caches that variables name.
fn cache_folders(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let named = CACHE_VARIABLES.iter().filter_map(|(name, below)| Some((variable(name)?, *below)));
    let folders = named.flat_map(|(folder, below)| below.iter().map(move |name| folder.join(name)));
    folders.filter(|folder| folder.is_absolute()).collect()
}

fn for_reading() -> Vec<(OsString, OsString)> {
    let is_seen =
        |name: &str| FOR_READING.contains(&name) || TOOLCHAINS.contains(&name) || LOCALE.contains(&name);
    variables(is_seen)
}

fn variables(is_wanted: impl Fn(&str) -> bool) -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(&is_wanted)).collect()
}

/// The environment that programs of the user inherit: without the provider keys, which [`Environment::take`] removed.
pub fn inherited() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}
