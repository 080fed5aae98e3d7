//! Parses modes and completes them from the modes that they extend. Pure.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    ALIASES, Access, CeilingKind, Consent, Globs, InBand, Mode, Modes, Network, ReminderPosition, ShellUse,
    ToolGlobs, ToolList,
};
use crate::model::Effort;

const MAX_ID: usize = 40;

const MAX_STEPS: u32 = 500;

/// Slash commands of Modegate. A mode cannot have such an id, because `/ID` sets a mode.
pub const COMMANDS: [&str; 6] = ["mode", "permissions", "mcp", "compact", "undo", "help"];

/// Definition of a mode. Missing keys are inherited from the mode that it extends.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModeDefinition {
    /// Unique: lower-case letters, digits, `-` and `_`, beginning with a letter.
    #[schemars(with = "String")]
    pub id: Spanned<String>,
    /// Display name. Default: the id.
    pub name: Option<String>,
    /// Description in one sentence. Default: inherited, or derived from the permissions.
    pub description: Option<String>,
    /// Mode from which missing keys are inherited.
    #[schemars(with = "Option<String>")]
    pub extends: Option<Spanned<String>>,
    /// Text of the reminder while the mode is active, after a fixed statement of what is denied.
    pub prompt: Option<String>,
    /// Prompt for sub-agents, which present no plan, ask no questions and switch no modes. Default: the
    /// `prompt`, or none if the mode has an exit.
    pub subagent_prompt: Option<String>,
    /// Maximum effect of tool calls. Required unless the mode extends another.
    pub access: Option<Access>,
    /// Consent that allowed changes need. Default: ask.
    pub permission: Option<Consent>,
    /// Permitted tools, as globs over their names. Default: all.
    pub tools: Option<ToolGlobs>,
    /// Writable files, as globs relative to the session's folders. Default: all files in them.
    pub write_paths: Option<Globs>,
    /// Permitted commands. `full` needs `access: full` and no `write_paths`. Default: off.
    pub shell: Option<ShellUse>,
    /// Permission to fetch from the network. Default: ask.
    pub network: Option<Network>,
    /// Tools listed in a model request. Default: `tool_list` of config.yaml, or else hide.
    pub tool_list: Option<ToolList>,
    /// Model while the mode is active, as `provider/name`.
    pub model: Option<String>,
    /// Reasoning effort while the mode is active.
    pub thinking: Option<Effort>,
    /// Maximum model requests per turn. Default: 500.
    pub max_steps: Option<u32>,
    /// Mode that the exit tool proposes. Without this key there is no exit tool.
    #[schemars(with = "Option<String>")]
    pub exits_to: Option<Spanned<String>>,
    /// Handling of a `mode_switch` block in the model's text. Default: parse.
    pub in_band_switch: Option<InBand>,
    /// Position of the reminder in a model request. Default: stay.
    pub reminder_position: Option<ReminderPosition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub line: u64,
    pub column: u64,
    pub text: String,
}

impl Fault {
    pub fn at<T>(value: &Spanned<T>, text: impl Into<String>) -> Self {
        let place = value.referenced;
        Self { line: place.line(), column: place.column(), text: text.into() }
    }
}

impl ModeDefinition {
    pub fn complete(&self, base: Option<&Mode>) -> Result<Mode, Fault> {
        let id = self.id.value.clone();
        self.check_id()?;
        let Some(access) = self.access.or(base.map(|base| base.access)) else {
            let text =
                format!("mode {id:?} needs `access` (read_only, edit or full), or a mode that it `extends`");
            return Err(Fault::at(&self.id, text));
        };
        let paths = self.write_paths.clone().or_else(|| base.and_then(|base| base.write_paths.clone()));
        let is_whole = access == Access::Full && paths.is_none();
        let own_or_base = |value: &Option<String>, of_base: fn(&Mode) -> &String| {
            value.clone().or_else(|| base.map(|base| of_base(base).clone()))
        };
        let own_prompt = not_blank(self.prompt.as_ref());
        let mode = Mode {
            kind: CeilingKind::Mode,
            name: self.name.clone().unwrap_or_else(|| id.clone()),
            description: own_or_base(&not_blank(self.description.as_ref()), |base| &base.description)
                .unwrap_or_default(),
            prompt: own_or_base(&own_prompt, |base| &base.prompt)
                .filter(|prompt| {
                    own_prompt.is_some() || access == Access::ReadOnly || !is_about_reading(prompt)
                })
                .unwrap_or_default(),
            // An inherited sub-agent prompt fits only an unchanged prompt and access.
            subagent_prompt: not_blank(self.subagent_prompt.as_ref()).or_else(|| {
                let base = base.filter(|_| own_prompt.is_none() && self.access.is_none());
                base.and_then(|base| base.subagent_prompt.clone())
            }),
            access,
            permission: self.permission.or(base.map(|base| base.permission)).unwrap_or(Consent::Ask),
            shell: self.shell.or(base.map(|base| inherited(base.shell, is_whole))).unwrap_or_default(),
            network: self.network.or(base.map(|base| base.network)).unwrap_or(Network::Ask),
            tools: self.tools.clone().or_else(|| base.map(|base| base.tools.clone())).unwrap_or_default(),
            write_paths: paths,
            tool_list: self.tool_list.or(base.and_then(|base| base.tool_list)),
            model: self.model.clone().or_else(|| base.and_then(|base| base.model.clone())),
            thinking: self.thinking.or(base.and_then(|base| base.thinking)),
            max_steps: self.max_steps.or(base.map(|base| base.max_steps)).unwrap_or(MAX_STEPS),
            exits_to: self
                .exits_to
                .as_ref()
                .map(|to| to.value.clone())
                .or_else(|| base.and_then(|base| base.exits_to.clone())),
            in_band_switch: self.in_band_switch.or(base.map(|base| base.in_band_switch)).unwrap_or_default(),
            reminder_position: self
                .reminder_position
                .or(base.map(|base| base.reminder_position))
                .unwrap_or_default(),
            under: None,
            id,
        };
        self.check(&mode)?;
        Ok(mode)
    }

    /// True if the mode has a description, or inherits one without changes that descriptions mention.
    pub fn has_description(&self, base: Option<&Mode>) -> bool {
        let is_other = self.access.is_some()
            || self.permission.is_some()
            || self.tools.is_some()
            || self.write_paths.is_some()
            || self.shell.is_some()
            || self.network.is_some()
            || self.prompt.as_ref().is_some_and(|prompt| !is_blank(prompt));
        match (&self.description, base) {
            (Some(own), _) if !is_blank(own) => true,
            (_, Some(base)) => !is_other && !is_blank(&base.description),
            (_, None) => false,
        }
    }

    fn check_id(&self) -> Result<(), Fault> {
        let id = &self.id.value;
        check_id(&self.id, MAX_ID)?;
        if ["reject", "reject_with_feedback"].contains(&id.as_str()) {
            return Err(Fault::at(
                &self.id,
                format!("{id:?} is reserved for the rejection of a permission request"),
            ));
        }
        if COMMANDS.contains(&id.as_str()) {
            return Err(Fault::at(&self.id, format!("{id:?} is reserved for the slash command /{id}")));
        }
        if let Some((alias, mode)) = ALIASES.iter().find(|(alias, _)| alias == id) {
            return Err(Fault::at(&self.id, format!("{alias:?} is already an alias of {mode:?}")));
        }
        Ok(())
    }

    fn check(&self, mode: &Mode) -> Result<(), Fault> {
        let fault = |text: String| Err(Fault::at(&self.id, text));
        if mode.shell == ShellUse::Full && (mode.access != Access::Full || mode.write_paths.is_some()) {
            let id = &mode.id;
            return fault(format!(
                "mode {id:?}: `shell: full` needs `access: full` and no `write_paths`, because a command can write anywhere; \
                 say `shell: read_only` or `off`"
            ));
        }
        if mode.max_steps == 0 {
            return fault(format!("mode {:?}: `max_steps` is at least 1", mode.id));
        }
        if mode.model.as_ref().is_some_and(|model| model.trim().is_empty()) {
            return fault(format!("mode {:?}: `model` is PROVIDER/NAME", mode.id));
        }
        Ok(())
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

pub fn check_id(message: &Spanned<String>, most: usize) -> Result<(), Fault> {
    let id = &message.value;
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    if !id.starts_with(|c: char| c.is_ascii_lowercase()) || !id.bytes().all(is_plain) || id.len() > most {
        let text = format!(
            "{id:?} is not a valid id: use lower-case letters, digits, - and _, beginning with a letter, at most {most}"
        );
        return Err(Fault::at(message, text));
    }
    Ok(())
}

/// True for the prompt of a built-in read-only mode, which would be wrong in a mode that can change
/// something.
fn is_about_reading(prompt: &str) -> bool {
    let modes = Modes::built_in();
    modes.iter().any(|mode| mode.access == Access::ReadOnly && mode.prompt == prompt)
}

/// Limits an inherited shell to read-only commands unless the mode may change everything.
fn inherited(shell: ShellUse, is_whole: bool) -> ShellUse {
    if is_whole { shell } else { shell.min(ShellUse::ReadOnly) }
}

/// Returns the nearest word, or `None` if no word is similar.
pub fn near<'a>(unknown: &str, words: &[&'a str]) -> Option<&'a str> {
    let word = nearest(unknown, words);
    (strsim::jaro(unknown, word) > 0.7).then_some(word)
}

/// True if one letter differs, or two letters of words that begin alike.
pub fn is_misspelt(unknown: &str, word: &str) -> bool {
    let most = if unknown.chars().next() == word.chars().next() { 2 } else { 1 };
    strsim::damerau_levenshtein(unknown, word) <= most
}

fn nearest<'a>(unknown: &str, words: &[&'a str]) -> &'a str {
    let similar = words.iter().map(|word| (strsim::jaro(unknown, word), *word));
    similar.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, word)| word).unwrap_or_default()
}

/// A blank text counts as absent (D39).
fn not_blank(text: Option<&String>) -> Option<String> {
    text.filter(|text| !text.trim().is_empty()).cloned()
}
