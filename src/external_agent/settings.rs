//! Reads the settings files of external agents, which can name the addresses of their models. Never those of a project.

use std::collections::BTreeMap;

use super::definition::ExternalAgentDefinition;
use super::{known, settings_text};
use crate::bounded_file;
use crate::process::shell::Shell;

const MAX_FILE: u64 = 1024 * 1024;

/// The addresses in the agent's settings files. Files that cannot be read name none.
pub fn addresses(definition: &ExternalAgentDefinition, shell: &Shell) -> Vec<String> {
    let Some(profile) = known::profile(definition) else { return Vec::new() };
    let variables: BTreeMap<String, String> =
        shell.agent_variables(definition.inherits, &definition.env).collect();
    let files = profile.settings_files(&|name: &str| variables.get(name).cloned());
    let mut addresses = Vec::new();
    for file in files {
        let found = match bounded_file::read_own_text(&file, MAX_FILE) {
            Ok(text) => settings_text::addresses(&file, &text, &profile.address_keys),
            Err(error) if error.is_missing() => continue,
            Err(error) => Err(error.to_string()),
        };
        match found {
            Ok(found) => addresses.extend(found),
            Err(error) => tracing::warn!(%error, file = %file.display(), "settings of an agent are not read"),
        }
    }
    addresses
}
