//! Implements `modegate setup EDITOR`: prints the entry of an editor's settings that starts Modegate, and writes it where
//! the settings are plain JSON. Keeps all other entries, and asks before it writes.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::bounded_file;
use crate::config::environment::Environment;
use crate::config::user_file::create_private;

/// Name of the entry.
const NAME: &str = "Modegate";

const MAX_SETTINGS: u64 = 4 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Editor {
    /// settings.json of Zed
    Zed,
    /// acp.json of JetBrains' editors
    Jetbrains,
    /// codecompanion.nvim or avante.nvim
    Neovim,
    /// Two ACP extensions of VS Code
    Vscode,
    /// agent-shell
    Emacs,
}

/// The command that starts Modegate, and perhaps an agent under it.
pub(super) struct EditorEntry {
    name: String,
    command: String,
    arguments: Vec<String>,
}

impl EditorEntry {
    /// `wrap` is the command of an agent.
    pub(super) fn new(binary: &Path, wrap: Option<&str>) -> Self {
        let words: Vec<String> = wrap.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        let name = words.first().map_or_else(|| NAME.to_owned(), |agent| format!("{NAME} ({agent})"));
        let prefix = ["wrap", "--"].map(str::to_owned);
        let arguments = if words.is_empty() { Vec::new() } else { prefix.into_iter().chain(words).collect() };
        Self { name, command: binary.to_string_lossy().into_owned(), arguments }
    }

    /// The entry as people write it into the settings.
    pub(super) fn text(&self, editor: Editor) -> String {
        let Self { name, command, arguments } = self;
        let list = |quote: fn(&str) -> String, separator: &str| {
            arguments.iter().map(|word| quote(word)).collect::<Vec<_>>().join(separator)
        };
        match editor {
            Editor::Zed => pretty(&self.settings(json!({ "type": "custom" }), "agent_servers")),
            Editor::Jetbrains => pretty(&self.settings(json!({}), "agent_servers")),
            Editor::Vscode => {
                let mut settings = self.settings(json!({ "env": {} }), "acp.agents");
                let id = name.to_lowercase().replace(['(', ')'], "").replace(' ', "-");
                settings["vscode-acp-chat.customAgents"] =
                    json!([{ "id": id, "name": name, "command": command, "args": arguments }]);
                format!(
                    "// acp.agents is for the extension formulahendry.acp-client, the other key for \
                     sonct1.vscode-acp-chat.\n{}",
                    pretty(&settings)
                )
            }
            Editor::Neovim => format!(
                "-- avante.nvim; docs/guides/editors.md has codecompanion.nvim\nprovider = \"modegate\",\nacp_providers = {{ [\"modegate\"] = \
                 {{ command = {}, args = {{ {} }}, env = {{}} }} }},",
                quoted(command),
                list(quoted, ", ")
            ),
            Editor::Emacs => format!(
                "(agent-shell-make-agent-config\n :identifier 'modegate :mode-line-name {0} :buffer-name {0}\n :shell-prompt \"Modegate> \" \
                 :shell-prompt-regexp \"Modegate> \"\n :client-maker (lambda (buffer)\n                 (agent-shell--make-acp-client\n                  \
                 :command {1} :command-params (list {2}) :context-buffer buffer)))",
                quoted(name),
                quoted(command),
                list(quoted, " ")
            ),
        }
    }

    fn settings(&self, mut entry: Value, key: &str) -> Value {
        entry["command"] = self.command.clone().into();
        entry["args"] = self.arguments.clone().into();
        json!({ key: { &self.name: entry } })
    }
}

/// The file of the editor's settings. `None` if they are no JSON.
pub(super) fn settings_file(editor: Editor, environment: &Environment) -> Option<PathBuf> {
    let home = environment.user.home.as_ref()?;
    match editor {
        Editor::Zed => Some(home.join(".config/zed/settings.json")),
        Editor::Jetbrains => Some(home.join(".jetbrains/acp.json")),
        Editor::Neovim | Editor::Vscode | Editor::Emacs => None,
    }
}

/// The settings of a file with the entry. Other entries stay.
///
/// # Errors
/// Fails if the file has comments or is no JSON, or has another entry of this name.
pub(super) fn with_entry(editor: Editor, entry: &EditorEntry, path: &Path) -> anyhow::Result<Value> {
    let old = match bounded_file::read_own_text(path, MAX_SETTINGS) {
        // The parser's words about a comment would not help.
        Ok(text) => serde_json::from_str(&text).ok().with_context(|| {
            format!("{} has comments, or is no JSON: paste the entry there yourself", path.display())
        })?,
        Err(_) if !path.exists() => Value::Object(Map::new()),
        Err(error) => anyhow::bail!("{} {error}", path.display()),
    };
    let new: Value = serde_json::from_str(&entry.text(editor))?;
    merged(old, &new)
        .with_context(|| format!("{} has another entry {:?}: change it there", path.display(), entry.name))
}

pub(super) fn write(settings: &Value, path: &Path, mut output: impl Write) -> anyhow::Result<()> {
    let folder = path.parent().context("the settings have no folder")?;
    create_private(folder, path, &format!("{}\n", serde_json::to_string_pretty(settings)?))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(writeln!(output, "Written to {}.", path.display())?)
}

/// `None` if a value of both differs.
fn merged(old: Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(mut old), Value::Object(new)) => {
            for (key, value) in new {
                match old.get_mut(key) {
                    Some(known) => *known = merged(known.take(), value)?,
                    None => drop(old.insert(key.clone(), value.clone())),
                }
            }
            Some(Value::Object(old))
        }
        (old, new) => (old == *new).then_some(old),
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// In the quotes of JSON, which Lua and Lisp read, too.
fn quoted(word: &str) -> String {
    Value::from(word).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(wrap: Option<&str>) -> EditorEntry {
        EditorEntry::new(Path::new("/bin/modegate"), wrap)
    }

    #[test]
    fn every_editor_gets_the_command() {
        for editor in Editor::value_variants() {
            let text = entry(None).text(*editor);
            assert!(text.contains("/bin/modegate") && !text.contains("wrap"), "{text}");
            let text = entry(Some("gemini --acp")).text(*editor);
            let (wrap, acp) = (text.find("\"wrap\"").unwrap(), text.find("\"--acp\"").unwrap());
            assert!(wrap < text.find("\"gemini\"").unwrap() && wrap < acp, "{text}");
        }
    }

    #[test]
    fn entries_of_vscode_have_the_forms_of_its_extensions() {
        let text = entry(Some("gemini --acp")).text(Editor::Vscode);
        let (comment, settings) = text.split_once('\n').unwrap();
        assert!(comment.starts_with("//"), "{comment}");
        let settings: Value = serde_json::from_str(settings).unwrap();
        let arguments = json!(["wrap", "--", "gemini", "--acp"]);
        let entry = json!({ "command": "/bin/modegate", "args": arguments, "env": {} });
        assert_eq!(settings["acp.agents"]["Modegate (gemini)"], entry);
        let agent = json!({
            "id": "modegate-gemini", "name": "Modegate (gemini)", "command": "/bin/modegate", "args": arguments,
        });
        assert_eq!(settings["vscode-acp-chat.customAgents"], json!([agent]));
    }

    #[test]
    fn other_settings_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.json");
        let written = |wrap| {
            let settings = with_entry(Editor::Zed, &entry(wrap), &path)?;
            write(&settings, &path, std::io::sink())
        };
        std::fs::write(&path, "{\"theme\": \"dark\", \"agent_servers\": {\"Other\": {}}}").unwrap();
        written(None).unwrap();
        written(None).unwrap();
        written(Some("gemini --acp")).unwrap();
        let new: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((&new["theme"], &new["agent_servers"]["Other"]), (&"dark".into(), &json!({})));
        assert_eq!(new["agent_servers"]["Modegate"]["command"], "/bin/modegate");
        assert_eq!(new["agent_servers"]["Modegate (gemini)"]["args"][1], "--");
        for unusable in ["{// a comment\n}", "{\"agent_servers\": {\"Modegate\": {\"command\": \"mine\"}}}"] {
            std::fs::write(&path, unusable).unwrap();
            written(None).unwrap_err();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), unusable);
        }
    }
}
