//! Reads the settings files of external agents, which can name the addresses of their models. Never those of a project.

use std::collections::BTreeMap;

use super::definition::ExternalAgentDefinition;
use super::known;
use crate::bounded_file;
use crate::process::shell::Shell;

const MAX_FILE: u64 = 1024 * 1024;

/// The texts of the agent's settings files. Files that cannot be read name no hosts.
pub fn texts(definition: &ExternalAgentDefinition, shell: &Shell) -> Vec<String> {
    let Some(profile) = known::profile(definition) else { return Vec::new() };
    let variables: BTreeMap<String, String> =
        shell.agent_variables(definition.inherits, &definition.env).collect();
    let files = profile.settings_files(&|name: &str| variables.get(name).cloned());
    let mut texts = Vec::new();
    for file in files {
        match bounded_file::read_own_text(&file, MAX_FILE) {
            Ok(text) => texts.push(text),
            Err(error) if error.is_missing() => {}
            Err(error) => tracing::warn!(%error, file = %file.display(), "settings of an agent are not read"),
        }
    }
    texts
}
