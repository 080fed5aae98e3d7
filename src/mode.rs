//! Modes: ceilings on tool calls, and permission settings. Pure after loading.
//!
//! The built-in modes are YAML files in the user's format ([`definition`]); [`crate::policy`] adds the user's
//! and a project's. [`crate::permission`] enforces them: nothing can allow a call that a mode denies.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock, OnceLock};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::acp::SessionModeId;
use crate::ids;
use crate::model::Effort;

pub mod definition;
pub mod stored;
pub mod yaml;

const BUILT_IN: [&str; 3] =
    [include_str!("mode/ask.yaml"), include_str!("mode/plan.yaml"), include_str!("mode/code.yaml")];

const ALIASES: [(&str, &str); 2] = [("architect", "plan"), ("build", "code")];

pub const DEFAULT: &str = "ask";

/// Maximum effect of a mode's tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Changes nothing outside the session.
    ReadOnly,
    /// May change files inside `write_paths`; runs nothing.
    Edit,
    /// Permits all effects.
    Full,
}

/// Consent that allowed changes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Consent {
    /// Asks the user before each change.
    Ask,
    /// Makes changes without asking.
    Auto,
}

/// Permission for calls that fetch from the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Fetches without asking.
    Allow,
    /// Asks the user before each fetch.
    Ask,
    /// Denies all fetches.
    Deny,
}

/// Commands that a mode permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShellUse {
    /// Permits no commands.
    #[default]
    Off,
    /// Permits commands in a read-only sandbox.
    ReadOnly,
    /// Permits all commands.
    Full,
}

/// Tools listed in a model request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolList {
    /// Lists only the callable tools.
    #[default]
    Hide,
    /// Lists all tools and marks the callable ones: a mode change keeps the provider's prompt cache.
    Mask,
}

/// Handling of a mode switch in the text of the model's answer (`conversation/mode_switch`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InBand {
    /// Treats the switch as ordinary text.
    Off,
    /// Applies the switch.
    #[default]
    Parse,
    /// Applies the switch, and the reminder explains its syntax.
    Instruct,
}

/// Position of the reminder in a model request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReminderPosition {
    /// Where it first stood, as long as it says the same; then at the end.
    #[default]
    Stay,
    /// At the end of each request.
    Tail,
    /// Before the user's last prompt.
    BeforePrompt,
}

/// Origin of a ceiling, for messages.
#[derive(Debug, Clone, Default)]
pub enum CeilingKind {
    #[default]
    Mode,
    Agent(String),
    /// The highest mode of an organisation's policy.
    Policy,
}

/// A mode with all its keys, as users write and audits read it. Never the state of a session: a field is a key of the
/// modes file, but for [`Self::kind`].
#[derive(Debug, Clone)]
pub struct Mode {
    pub id: String,
    pub kind: CeilingKind,
    pub name: String,
    pub description: String,
    pub prompt: String,
    pub subagent_prompt: Option<String>,
    pub access: Access,
    pub permission: Consent,
    pub shell: ShellUse,
    pub network: Network,
    pub tools: ToolGlobs,
    /// Relative to the session's roots; `None` permits writing anywhere inside them.
    pub write_paths: Option<Globs>,
    pub tool_list: Option<ToolList>,
    pub model: Option<String>,
    pub thinking: Option<Effort>,
    pub max_steps: u32,
    pub exits_to: Option<String>,
    pub in_band_switch: InBand,
    pub reminder_position: ReminderPosition,
    /// Mode that this one cannot exceed. Set for a project's modes.
    pub under: Option<String>,
}

impl Mode {
    pub fn mode_id(&self) -> SessionModeId {
        SessionModeId::new(self.id.as_str())
    }

    /// Names the mode in a message: "plan mode", or "the agent explore".
    pub fn label(&self) -> String {
        match &self.kind {
            CeilingKind::Mode => format!("{} mode", self.id),
            CeilingKind::Agent(agent) => format!("the agent {agent}"),
            CeilingKind::Policy => format!("your organisation's policy ({} mode)", self.id),
        }
    }

    /// Empty by default in a mode with an exit, whose prompt may speak of presenting a plan, which sub-agents
    /// cannot do.
    pub fn prompt_for_subagents(&self) -> &str {
        match &self.subagent_prompt {
            Some(prompt) => prompt,
            None if self.exits_to.is_some() => "",
            None => &self.prompt,
        }
    }
}

/// Lists of tools by name, as globs.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolGlobs {
    /// Permitted tools. Default: all.
    #[serde(default)]
    pub allow: Option<Globs>,
    /// Tools removed from the permitted ones. Default: none.
    #[serde(default)]
    pub deny: Globs,
}

impl ToolGlobs {
    pub fn admit(&self, tool: &str) -> bool {
        self.allow.as_ref().is_none_or(|allow| allow.matches(tool)) && !self.deny.matches(tool)
    }
}

/// In a glob, `*` does not match `/`; `**` does.
#[derive(Debug, Clone, Default)]
pub struct Globs {
    pub patterns: Vec<String>,
    set: GlobSet,
}

impl Globs {
    pub fn new(patterns: Vec<String>) -> Result<Self, globset::Error> {
        let mut set = GlobSetBuilder::new();
        for pattern in &patterns {
            set.add(GlobBuilder::new(pattern).literal_separator(true).build()?);
        }
        Ok(Self { set: set.build()?, patterns })
    }

    pub fn matches(&self, text: impl AsRef<std::path::Path>) -> bool {
        self.set.is_match(text)
    }
}

impl JsonSchema for Globs {
    fn schema_name() -> Cow<'static, str> {
        "Globs".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Vec::<String>::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for Globs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Clone)]
pub struct Modes {
    all: Vec<Arc<Mode>>,
    /// In the order of `all`. Made on first use, for all copies, and again after a change.
    texts: Arc<OnceLock<Vec<Arc<ModeText>>>>,
}

/// A mode and those that it cannot exceed, as YAML documents.
#[derive(Debug)]
pub struct ModeText {
    pub hash: String,
    pub text: String,
}

impl ModeText {
    fn of(modes: &[Arc<Mode>]) -> Self {
        let text = modes.iter().map(|mode| mode.to_yaml()).collect::<Vec<_>>().join("---\n");
        Self { hash: ids::hash(&text), text }
    }
}

pub fn canonical(id: &str) -> String {
    let id = id.to_ascii_lowercase();
    ALIASES.iter().find(|(alias, _)| *alias == id).map_or(id, |(_, mode)| (*mode).to_owned())
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode {asked:?}: the modes are {}", valid.join(", "))]
pub struct UnknownMode {
    pub asked: String,
    pub valid: Vec<String>,
}

impl Modes {
    pub fn built_in() -> Self {
        static BUILT: LazyLock<Modes> = LazyLock::new(Modes::read_built_in);
        BUILT.clone()
    }

    fn read_built_in() -> Self {
        let all = BUILT_IN.map(|text| {
            let definition: definition::ModeDefinition =
                serde_saphyr::from_str(text).expect("the built-in modes are valid, as a test shows");
            Arc::new(definition.complete(None).expect("the built-in modes are valid, as a test shows"))
        });
        Self { all: all.into(), texts: Arc::default() }
    }

    pub fn put(&mut self, mode: Mode) {
        self.texts = Arc::default();
        match self.all.iter_mut().find(|known| known.id == mode.id) {
            Some(known) => *known = Arc::new(mode),
            None => self.all.push(Arc::new(mode)),
        }
    }

    /// Returns the mode, followed by those that it cannot exceed.
    pub fn ceilings(&self, id: &str) -> Result<Vec<Arc<Mode>>, UnknownMode> {
        let mut modes = vec![Arc::clone(self.find(id)?)];
        while let Some(under) = modes.last().and_then(|mode| mode.under.as_deref()) {
            let under = Arc::clone(self.find(under)?);
            modes.push(under);
        }
        Ok(modes)
    }

    /// The mode's text, for the store and the audit log. Empty for an unknown mode.
    pub fn text(&self, id: &str) -> Arc<ModeText> {
        let texts = self.texts.get_or_init(|| {
            let ceilings = self.all.iter().map(|mode| self.ceilings(&mode.id).unwrap_or_default());
            ceilings.map(|modes| Arc::new(ModeText::of(&modes))).collect()
        });
        let id = canonical(id);
        let mode_texts = self.all.iter().zip(texts).find(|(mode, _)| mode.id == id);
        mode_texts.map_or_else(|| Arc::new(ModeText::of(&[])), |(_, text)| Arc::clone(text))
    }

    /// Returns `plan` if it is read-only, else the first read-only mode: the fallback for an unknown mode.
    pub fn most_restrictive(&self) -> &Mode {
        self.resolve("plan")
            .ok()
            .filter(|mode| is_read_only(mode))
            .or_else(|| self.iter().find(|mode| is_read_only(mode)))
            .unwrap_or(&self.all[0])
    }

    pub fn set_default_tool_list(&mut self, list: ToolList) {
        for mode in self.iter_mut() {
            mode.tool_list = mode.tool_list.or(Some(list));
        }
    }

    pub fn retain(&mut self, is_wanted: impl Fn(&Mode) -> bool) {
        self.texts = Arc::default();
        self.all.retain(|mode| is_wanted(mode));
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Mode> {
        self.texts = Arc::default();
        self.all.iter_mut().map(Arc::make_mut)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mode> {
        self.all.iter().map(AsRef::as_ref)
    }

    /// Finds a mode by id or alias, ignoring case (D5, G2, A4).
    pub fn resolve(&self, id: &str) -> Result<&Mode, UnknownMode> {
        self.find(id).map(AsRef::as_ref)
    }

    fn find(&self, id: &str) -> Result<&Arc<Mode>, UnknownMode> {
        let canonical = canonical(id);
        self.all.iter().find(|mode| mode.id == canonical).ok_or_else(|| UnknownMode {
            asked: id.to_owned(),
            valid: self.all.iter().map(|mode| mode.id.clone()).collect(),
        })
    }
}

fn is_read_only(mode: &Mode) -> bool {
    mode.access == Access::ReadOnly
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_modes_have_fixed_access_and_consent() {
        let modes = Modes::built_in();
        let row = |mode: &Mode| (mode.id.clone(), mode.access, mode.permission, mode.prompt.is_empty());
        assert_eq!(
            modes.iter().map(row).collect::<Vec<_>>(),
            [
                ("ask".into(), Access::Full, Consent::Ask, true),
                ("plan".into(), Access::ReadOnly, Consent::Auto, false),
                ("code".into(), Access::Full, Consent::Auto, true),
            ]
        );
    }

    #[test]
    fn copies_share_their_texts_until_one_changes() {
        let modes = Modes::built_in();
        let mut copy = modes.clone();
        let text = copy.text("PLAN");
        assert!(Arc::ptr_eq(&text, &modes.text("plan")));
        assert!(text.text.contains("id: plan") && text.hash == ids::hash(&text.text));
        for mode in copy.iter_mut().filter(|mode| mode.id == "plan") {
            mode.prompt = "Wait.".into();
        }
        assert!(copy.text("plan").text.contains("Wait."));
        assert!(!modes.text("plan").text.contains("Wait."), "the control");
        assert!(modes.text("none").text.is_empty());
    }

    #[test]
    fn lookup_ignores_case_and_accepts_aliases() {
        let modes = Modes::built_in();
        for (requested, found) in
            [("plan", "plan"), ("PLAN", "plan"), ("architect", "plan"), ("Build", "code")]
        {
            assert_eq!(modes.resolve(requested).map(|mode| mode.id.as_str()), Ok(found));
        }
        for requested in ["", "yolo", "plan "] {
            let message = modes.resolve(requested).unwrap_err().to_string();
            assert_eq!(message, format!("unknown mode {requested:?}: the modes are ask, plan, code"));
        }
    }

    #[test]
    fn absent_tool_list_means_all_and_empty_means_none() {
        let globs = |text| serde_saphyr::from_str::<ToolGlobs>(text).unwrap();
        assert!(globs("{}").admit("read_file"));
        assert!(!globs("allow: []").admit("read_file"));
        assert!(globs("allow: ['read_*']").admit("read_file"));
        assert!(!globs("{allow: ['*'], deny: ['read_*']}").admit("read_file"));
    }
}
