//! What the process's environment says, read once at the start. The only place that names variables of providers' keys
//! out loud to the system, and the only one that takes them away.

use std::collections::HashMap;
use std::path::PathBuf;

use etcetera::BaseStrategy;
use secrecy::SecretString;

use crate::model::catalogue::PROVIDERS;

/// The environment, without what Modegate does not read.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Who answers (`MODEGATE_MODEL`).
    pub model: Option<String>,
    /// The level of the log (`MODEGATE_LOG`).
    pub log_level: Option<String>,
    /// Where the user's settings are; none where there is no home.
    pub config_folder: Option<PathBuf>,
    /// Where the record is; none where there is no home.
    pub data_folder: Option<PathBuf>,
    keys: HashMap<&'static str, SecretString>,
    urls: HashMap<&'static str, String>,
}

impl Environment {
    /// Reads the environment and takes the keys out of it, so that no child process gets them.
    ///
    /// To be called before there is a second thread.
    #[allow(unsafe_code)]
    pub fn take() -> Self {
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let folders = etcetera::choose_base_strategy().ok();
        let mut keys = HashMap::new();
        for name in PROVIDERS.iter().flat_map(|provider| provider.key_variables) {
            if let Some(key) = read(name) {
                keys.insert(*name, SecretString::from(key.trim()));
            }
            // SAFETY: this runs first in `main`, while the process has one thread.
            unsafe { std::env::remove_var(name) };
        }
        let urls = PROVIDERS.iter().map(|provider| provider.url_variable);
        Self {
            model: read("MODEGATE_MODEL"),
            log_level: read("MODEGATE_LOG"),
            config_folder: folders.as_ref().map(|folders| folders.config_dir().join("modegate")),
            data_folder: folders.as_ref().map(|folders| folders.data_dir().join("modegate")),
            keys,
            urls: urls.filter_map(|name| Some((name, read(name)?))).collect(),
        }
    }

    /// An environment of these keys and addresses.
    #[cfg(test)]
    pub fn of(keys: &[(&'static str, &str)], urls: &[(&'static str, &str)]) -> Self {
        Self {
            keys: keys.iter().map(|(name, key)| (*name, SecretString::from(*key))).collect(),
            urls: urls.iter().map(|(name, url)| (*name, (*url).to_owned())).collect(),
            ..Self::default()
        }
    }

    /// A provider's key: that of the first of its variables that has one.
    pub fn key(&self, variables: &[&'static str]) -> Option<&SecretString> {
        variables.iter().find_map(|name| self.keys.get(name))
    }

    /// The address in a variable.
    pub fn url(&self, variable: &str) -> Option<&str> {
        self.urls.get(variable).map(String::as_str)
    }
}
