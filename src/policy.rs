//! Layers of modes and rules: built-in, then the user's, then a project's, which may only narrow. Pure.
//!
//! A file with a fault adds nothing; the fault has its line and column.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::agents::{AgentDefinition, AgentOrigin, AgentRegistry};
use crate::checks::{self, Check, CheckDefinition};
use crate::mode::definition::{Fault, ModeDefinition};
use crate::mode::{DEFAULT, InBand, Mode, Modes, canonical};
use crate::permission::compare;
use crate::permission::rules::{RuleTexts, Rules};
use crate::server::ServerDefinition;
use crate::text::capitalised;
use crate::yaml_error;

pub mod additions;

/// Modes, permission rules, agents, MCP servers and checks of a user or a project.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModeFile {
    /// Modes with unique ids.
    pub modes: Vec<ModeDefinition>,
    /// Permission rules in addition to the modes. A project's file may only deny and ask.
    pub permissions: RuleTexts,
    /// Agents with unique ids.
    pub agents: Vec<AgentDefinition>,
    /// MCP servers by name. Not allowed in a project's file.
    #[schemars(with = "BTreeMap<String, ServerDefinition>")]
    pub servers: BTreeMap<String, Spanned<ServerDefinition>>,
    /// Commands that check changes, with unique ids. Those of a project's file run only while you trust the file.
    pub checks: Vec<CheckDefinition>,
    /// Default mode of new sessions. A project's file may only narrow it.
    #[schemars(with = "Option<String>")]
    pub default_mode: Option<Spanned<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerOwner {
    /// The user, or a project whose file the user trusts.
    User,
    Project,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {text}")]
pub struct Diagnostic {
    pub place: String,
    /// Counted from 1; 0 for the whole file.
    pub line: usize,
    pub text: String,
    pub shown: String,
}

impl Diagnostic {
    /// About the whole file.
    pub fn of_file(name: &str, text: impl Into<String>) -> Self {
        Self { place: name.to_owned(), line: 0, text: text.into(), shown: String::new() }
    }

    /// The parser cannot read `source`.
    pub fn unreadable(name: &str, source: &str, error: &serde_saphyr::Error) -> Self {
        let place = error.location();
        let suffix = place.map(|place| format!(":{}:{}", place.line(), place.column())).unwrap_or_default();
        let snippet_lines: Vec<String> = error.render().lines().skip(2).map(str::to_owned).collect();
        Self {
            place: format!("{name}{suffix}"),
            line: place.map_or(0, |place| line_number(place.line())),
            text: yaml_error::describe(error, source),
            shown: snippet_lines.join("\n"),
        }
    }

    /// A fault at its place in `source`.
    pub fn at(name: &str, source: &str, fault: Fault) -> Self {
        let Fault { line, column, text } = fault;
        let at = line_number(line);
        let snippet = source.lines().nth(at.saturating_sub(1)).map_or_else(String::new, |source| {
            let indent = usize::try_from(column).unwrap_or(1).saturating_sub(1);
            format!("{line:>4} | {source}\n     | {:indent$}^", "")
        });
        Self { place: format!("{name}:{line}:{column}"), line: at, text, shown: snippet }
    }
}

#[derive(Debug, Clone)]
pub struct Layers {
    pub modes: Modes,
    pub rules: Rules,
    pub agents: AgentRegistry,
    pub servers: BTreeMap<String, ServerDefinition>,
    pub checks: Vec<Check>,
    /// Sentences about the checks of projects that the user does not trust.
    pub unused_checks: Vec<String>,
    pub default_mode: Option<String>,
}

impl Default for Layers {
    fn default() -> Self {
        Self {
            modes: Modes::built_in(),
            rules: Rules::default(),
            agents: AgentRegistry::default(),
            servers: BTreeMap::new(),
            checks: Vec::new(),
            unused_checks: Vec::new(),
            default_mode: None,
        }
    }
}

impl Layers {
    /// Adds a file as the top layer, or nothing if it has a fault.
    pub fn add(&mut self, name: &str, text: &str, owner: LayerOwner) -> Result<(), Diagnostic> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let file: ModeFile =
            serde_saphyr::from_str(text).map_err(|error| Diagnostic::unreadable(name, text, &error))?;
        let fault = |fault: Fault| Diagnostic::at(name, text, fault);
        let mut modes = self.modes.clone();
        add_modes(&mut modes, &file.modes, owner).map_err(fault)?;
        let permissions = file.permissions.translated().map_err(fault)?;
        let rules = permissions.compile(owner == LayerOwner::User).map_err(fault)?;
        permissions.check().map_err(fault)?;
        let default_mode = match &file.default_mode {
            Some(requested) => {
                let mode = modes
                    .ceilings(&requested.value)
                    .map_err(|error| fault(Fault::at(requested, error.to_string())))?;
                let before =
                    modes.ceilings(self.default_mode.as_deref().unwrap_or(DEFAULT)).unwrap_or_default();
                if owner == LayerOwner::Project && compare::allows_more(&mode, &before) {
                    let text = format!(
                        "a project's default mode may only be narrower than yours, and {:?} is not",
                        mode[0].id
                    );
                    return Err(fault(Fault::at(requested, text)));
                }
                Some(mode[0].id.clone())
            }
            None => self.default_mode.clone(),
        };
        let mut agents = self.agents.clone();
        let origin = if owner == LayerOwner::User { AgentOrigin::User } else { AgentOrigin::Project };
        agents.add(&file.agents, origin).map_err(fault)?;
        let servers = servers(file.servers, owner).map_err(fault)?;
        let mut all_checks = self.checks.clone();
        checks::add(&mut all_checks, &file.checks).map_err(fault)?;
        self.servers.extend(servers);
        match owner {
            LayerOwner::User => self.checks = all_checks,
            // Security: checks are programs. Without them the file still narrows, so it is not refused as a whole.
            LayerOwner::Project => self.unused_checks.extend(unused_checks(name, &file.checks)),
        }
        self.modes = modes;
        self.agents = agents;
        self.rules.extend(rules);
        self.default_mode = default_mode;
        Ok(())
    }
}

fn unused_checks(file: &str, checks: &[CheckDefinition]) -> Option<String> {
    let ids: Vec<&str> = checks.iter().map(|check| check.id.value.as_str()).collect();
    (!ids.is_empty()).then(|| {
        format!(
            "The checks of {file} do not run, because you have not trusted the file: {}. Read it, then run `modegate \
             trust`.",
            ids.join(", ")
        )
    })
}

/// Security: servers are programs and addresses, so a project may not define any.
fn servers(
    definition: BTreeMap<String, Spanned<ServerDefinition>>,
    owner: LayerOwner,
) -> Result<BTreeMap<String, ServerDefinition>, Fault> {
    let mut servers = BTreeMap::new();
    for (name, server) in definition {
        if owner == LayerOwner::Project {
            let text = "a project may not name servers: move them to your own file, or trust this one with `modegate \
                        trust`";
            return Err(Fault::at(&server, text));
        }
        if let Some((path, fault)) = server.value.fault() {
            let text = format!("server {name:?}: {fault}");
            return Err(
                path.map_or_else(|| Fault::at(&server, text.clone()), |path| Fault::at(path, text.clone()))
            );
        }
        servers.insert(name, server.value);
    }
    Ok(servers)
}

/// Adds the modes of one file.
pub fn add_modes(modes: &mut Modes, definitions: &[ModeDefinition], owner: LayerOwner) -> Result<(), Fault> {
    let mut seen: Vec<&str> = Vec::new();
    for definition in definitions {
        let id = definition.id.value.as_str();
        if seen.contains(&id) {
            return Err(Fault::at(&definition.id, format!("mode {id:?} is defined twice")));
        }
        if owner == LayerOwner::Project && modes.iter().any(|mode| mode.id == id) {
            let text = format!("{id:?} is already a mode: a project's modes have ids of their own");
            return Err(Fault::at(&definition.id, text));
        }
        seen.push(id);
    }
    let mut open: Vec<&ModeDefinition> = definitions.iter().collect();
    while !open.is_empty() {
        let (waiting, ready): (Vec<&ModeDefinition>, Vec<&ModeDefinition>) =
            open.iter().copied().partition(|definition| {
                let base = definition.extends.as_ref().map(|base| canonical(&base.value));
                // A mode that extends its own id extends the mode of the layer below.
                base.is_some_and(|base| {
                    base != definition.id.value && open.iter().any(|other| other.id.value == base)
                })
            });
        if ready.is_empty() {
            let text = "these modes extend each other in a cycle";
            return Err(Fault::at(&waiting[0].id, text));
        }
        for definition in ready {
            put(modes, definition, owner)?;
        }
        open = waiting;
    }
    for definition in definitions {
        if let Some(to) = &definition.exits_to {
            let target = modes.resolve(&to.value).map_err(|error| Fault::at(to, error.to_string()))?;
            if target.id == definition.id.value {
                return Err(Fault::at(to, "a mode cannot exit to itself"));
            }
        }
    }
    Ok(())
}

fn put(modes: &mut Modes, definition: &ModeDefinition, owner: LayerOwner) -> Result<(), Fault> {
    let base = match &definition.extends {
        Some(base) => Some(modes.resolve(&base.value).map_err(|error| Fault::at(base, error.to_string()))?),
        None if owner == LayerOwner::Project => {
            let text = format!(
                "a project's mode needs `extends`: {:?} must extend one of your modes, which limits it",
                definition.id.value
            );
            return Err(Fault::at(&definition.id, text));
        }
        None => None,
    };
    let mut mode = definition.complete(base)?;
    if !definition.has_description(base) {
        mode.description = capitalised(&compare::describe_effects(&[&mode]));
    }
    if let (LayerOwner::Project, Some(base)) = (owner, base) {
        narrow(&mut mode, base, modes, definition)?;
    }
    modes.put(mode);
    Ok(())
}

/// Limits a project's mode to its base in settings beyond ceilings.
fn narrow(mode: &mut Mode, base: &Mode, modes: &Modes, definition: &ModeDefinition) -> Result<(), Fault> {
    let fault = |text: &str| Err(Fault::at(&definition.id, text));
    // Security: the model decides where prompts and keys go, so only the user chooses it.
    if definition.model.is_some() {
        return fault("a project's mode may not name a `model`");
    }
    if modes.iter().any(|known| known.name.eq_ignore_ascii_case(mode.name.trim())) {
        return fault("the name of a project's mode may not be that of another mode");
    }
    if [&mode.name, &mode.description].iter().any(|text| text.contains(char::is_control)) {
        return fault("the name and the description of a project's mode are one line of text");
    }
    mode.under = Some(base.id.clone());
    // The base limits the access, so the prompt of the base fits.
    if mode.prompt.trim().is_empty() {
        mode.prompt.clone_from(&base.prompt);
    }
    let message = match &definition.description {
        Some(message) => message.clone(),
        None => compare::describe_effects(&[mode, base]),
    };
    mode.description = format!("This project's, under {}: {message}", base.id);
    mode.max_steps = mode.max_steps.min(base.max_steps);
    if base.exits_to.is_none() {
        mode.exits_to = None;
    }
    if base.in_band_switch == InBand::Off || mode.in_band_switch == InBand::Instruct {
        mode.in_band_switch = base.in_band_switch;
    }
    Ok(())
}

fn line_number(line: u64) -> usize {
    usize::try_from(line).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(layers: &mut Layers, text: &str, owner: LayerOwner) -> Result<(), String> {
        layers.add("modes.yaml", text, owner).map_err(|diagnostic| diagnostic.to_string())
    }

    fn fault(text: &str, owner: LayerOwner) -> String {
        add(&mut Layers::default(), text, owner).unwrap_err()
    }

    #[test]
    fn mode_inherits_unset_fields_from_its_parent() {
        let mut layers = Layers::default();
        let text = "modes:\n- {id: deep, extends: docs, network: deny}\n- id: docs\n  extends: plan\n  access: edit\n  write_paths: ['docs/**']\n";
        add(&mut layers, text, LayerOwner::User).unwrap();
        let plan = layers.modes.resolve("plan").unwrap();
        let deep = layers.modes.resolve("DEEP").unwrap();
        assert_eq!(
            (deep.access, deep.network, deep.shell),
            (crate::mode::Access::Edit, crate::mode::Network::Deny, plan.shell)
        );
        assert_eq!((deep.prompt.as_str(), deep.exits_to.as_deref()), ("", plan.exits_to.as_deref()));
        assert_eq!(deep.write_paths.as_ref().unwrap().patterns, ["docs/**"]);
        assert_eq!(layers.modes.ceilings("deep").unwrap().len(), 1);
        // The printed form reads back as the same mode.
        let again: ModeDefinition = serde_saphyr::from_str(&deep.to_yaml()).unwrap();
        assert_eq!(again.complete(None).unwrap().to_yaml(), deep.to_yaml());
        let text = "modes: [{id: a, extends: architect}, {id: plan, extends: plan, network: deny}]";
        let mut other = Layers::default();
        add(&mut other, text, LayerOwner::User).unwrap();
        assert_eq!(other.modes.resolve("a").unwrap().network, crate::mode::Network::Deny);
        // The user's mode replaces a built-in one (G4).
        add(&mut layers, "modes: [{id: code, extends: code, permission: ask}]", LayerOwner::User).unwrap();
        assert_eq!(layers.modes.resolve("code").unwrap().permission, crate::mode::Consent::Ask);
        assert_eq!(
            layers.modes.iter().map(|mode| mode.id.as_str()).collect::<Vec<_>>(),
            ["ask", "plan", "code", "docs", "deep"]
        );
    }

    /// Only a mode that changes nothing inherits the prompt of `plan`; other prompts are always inherited.
    #[test]
    fn plan_prompt_is_inherited_only_by_read_only_modes() {
        let plan = Modes::built_in().resolve("plan").unwrap().prompt.clone();
        let plan = plan.as_str();
        for (text, owner, expected) in [
            ("{id: m, extends: plan}", LayerOwner::User, plan),
            ("{id: m, extends: plan, shell: off, prompt: ' '}", LayerOwner::User, plan),
            ("{id: m, extends: plan, access: read_only}", LayerOwner::User, plan),
            ("{id: m, extends: plan, access: edit}", LayerOwner::User, ""),
            ("{id: m, extends: plan, access: full, prompt: ' '}", LayerOwner::User, ""),
            ("{id: m, extends: n, access: full}, {id: n, extends: plan, model: a/b}", LayerOwner::User, ""),
            ("{id: m, extends: plan, access: edit, prompt: Draft.}", LayerOwner::User, "Draft."),
            (
                "{id: m, extends: n, access: full}, {id: n, extends: plan, prompt: Look.}",
                LayerOwner::User,
                "Look.",
            ),
            ("{id: m, extends: ask, access: read_only}", LayerOwner::User, ""),
            ("{id: plan, extends: plan, access: edit}, {id: m, extends: plan}", LayerOwner::User, ""),
            // A project's mode never exceeds `plan`, whatever access it requests.
            ("{id: m, extends: plan, access: full}", LayerOwner::Project, plan),
            ("{id: m, extends: plan, access: full, prompt: Go.}", LayerOwner::Project, "Go."),
        ] {
            let mut layers = Layers::default();
            add(&mut layers, &format!("modes: [{text}]"), owner).unwrap();
            assert_eq!(layers.modes.resolve("m").unwrap().prompt, expected, "{text}");
        }
    }

    /// A description is the mode's own, an inherited one that still fits, or a computed one.
    #[test]
    fn description_matches_the_modes_restrictions() {
        for (text, expected) in [
            ("{id: m, extends: plan}", "Reads, researches and writes a plan; changes nothing"),
            (
                "{id: m, extends: plan, model: a/b, max_steps: 3}",
                "Reads, researches and writes a plan; changes nothing",
            ),
            ("{id: m, extends: plan, description: Mine}", "Mine"),
            ("{id: m, extends: ask, tools: {allow: []}}", "Uses no tools"),
            ("{id: m, extends: ask, description: ' ', tools: {allow: [read_file]}}", "Changes nothing"),
            ("{id: m, extends: code, tools: {allow: [write_file]}}", "Changes files without asking"),
            (
                "{id: m, extends: code, tools: {deny: ['*_file', apply_patch]}}",
                "Runs commands without asking",
            ),
            ("{id: m, extends: code, tools: {allow: ['mcp__*']}}", "Changes things without asking"),
            ("{id: m, extends: code, tools: {allow: ['m*']}, shell: off}", "Changes files without asking"),
            ("{id: m, extends: code, tools: {allow: [save_memory]}}", "Changes things without asking"),
            (
                "{id: m, extends: ask, prompt: Talk.}",
                "Changes files and runs commands after asking each time",
            ),
            ("{id: m, access: read_only}", "Changes nothing"),
            (
                "{id: m, access: edit, write_paths: ['docs/**']}",
                "Changes files (docs/**) after asking each time",
            ),
            ("{id: m, extends: code, access: read_only}", "Changes nothing"),
            ("{id: m, access: edit, write_paths: []}", "Changes nothing"),
        ] {
            let mut layers = Layers::default();
            add(&mut layers, &format!("modes: [{text}]"), LayerOwner::User).unwrap();
            assert_eq!(layers.modes.resolve("m").unwrap().description, expected, "{text}");
        }
    }

    #[test]
    fn invalid_modes_are_reported_with_position_and_suggestion() {
        for (text, expected) in [
            ("modes:\n- id: a\n  acess: edit\n", "modes.yaml:3:3: unknown key `acess`: the keys here are"),
            ("modes:\n- id: a\n  acess: edit\n", "did you mean `access`?"),
            (
                "modes:\n- id: a\n  access: edits\n",
                "modes.yaml:3:11: access: unknown value `edits`: expected read_only, edit, full; did you mean `edit`?",
            ),
            ("modes: [{id: a}]", "modes.yaml:1:14: mode \"a\" needs `access`"),
            ("modes: [{id: A, access: edit}]", "is not a valid id"),
            ("modes: [{id: undo, access: edit}]", "\"undo\" is reserved for the slash command /undo"),
            ("modes: [{id: build, access: edit}]", "\"build\" is already an alias of \"code\""),
            (
                "modes: [{id: a, extends: nope}]",
                "modes.yaml:1:26: unknown mode \"nope\": the modes are ask, plan, code",
            ),
            ("modes: [{id: a, extends: b}, {id: b, extends: a}]", "in a cycle"),
            ("modes: [{id: a, access: edit}, {id: a, access: edit}]", "is defined twice"),
            ("modes: [{id: a, access: edit, shell: full}]", "needs `access: full` and no `write_paths`"),
            (
                "modes: [{id: a, access: full, shell: full, write_paths: [x]}]",
                "needs `access: full` and no `write_paths`",
            ),
            ("modes: [{id: a, access: edit, write_paths: ['[']}]", "unclosed character class"),
            ("modes: [{id: a, access: edit, exits_to: a}]", "cannot exit to itself"),
            ("modes: [{id: a, access: edit, exits_to: b}]", "unknown mode \"b\""),
            ("modes: [{id: a, access: edit, max_steps: 0}]", "at least 1"),
            ("mode: []", "did you mean `modes`?"),
            ("default_mode: yolo", "unknown mode \"yolo\""),
            ("permissions: {deny: ['shell(']}", "modes.yaml:1:22: "),
            ("check: []", "did you mean `checks`?"),
            ("checks: {id: a, command: b}", "checks: expected a list"),
            ("checks: [{command: a}]", "the key `id` is missing"),
            ("checks: [{id: a}]", "the key `command` is missing"),
            ("checks: [{id: A, command: b}]", "modes.yaml:1:15: \"A\" is not a valid id"),
            ("checks: [{id: a, command: ' '}]", "modes.yaml:1:27: check \"a\": `command` is empty"),
            ("checks: [{id: a, command: b, path: [c]}]", "unknown key `path`: the keys here are id, command"),
            ("checks: [{id: a, command: b, paths: ['[']}]", "unclosed character class"),
            ("checks: [{id: a, command: b, paths: []}]", "leave it out for all files"),
            ("checks: [{id: a, command: b, when: changed}]", "expected change, end; did you mean `change`?"),
            ("checks: [{id: a, command: b, timeout: 0}]", "a number of seconds from 1 to 1800"),
            ("checks: [{id: a, command: b, timeout: 2m}]", "timeout: expected a whole number"),
            ("checks: [{id: a, command: b}, {id: a, command: c}]", "check \"a\" is defined twice"),
        ] {
            let message = fault(text, LayerOwner::User);
            assert!(message.contains(expected), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
        let diagnostic =
            Layers::default().add("m", "modes:\n- {id: a, extends: nope}", LayerOwner::User).unwrap_err();
        assert_eq!(diagnostic.shown, "   2 | - {id: a, extends: nope}\n     |                    ^");
    }

    #[test]
    fn project_files_only_narrow() {
        let mut layers = Layers::default();
        let text = "modes:\n- {id: wide, extends: plan, access: full, shell: full, permission: auto}\ndefault_mode: wide\npermissions: {deny: [delete_file], ask: [read_file]}\n";
        add(&mut layers, text, LayerOwner::Project).unwrap();
        let ceilings: Vec<_> =
            layers.modes.ceilings("wide").unwrap().iter().map(|mode| mode.id.clone()).collect();
        assert_eq!(ceilings, ["wide", "plan"], "the parent mode is a further ceiling");
        assert_eq!(layers.default_mode.as_deref(), Some("wide"), "plan makes it narrower than ask");
        for (text, expected) in [
            ("modes: [{id: mine, access: full}]", "needs `extends`"),
            ("modes: [{id: plan, extends: code}]", "have ids of their own"),
            ("modes: [{id: mine, extends: plan, model: evil/x}]", "may not name a `model`"),
            ("modes: [{id: mine, extends: code, name: plan}]", "may not be that of another mode"),
            ("modes: [{id: mine, extends: code, description: \"a\\e[2J\"}]", "one line of text"),
            ("default_mode: code", "may only be narrower"),
            ("permissions: {allow: [shell]}", "may not allow"),
            ("servers: {x: {command: evil}}", "may not name servers"),
            ("providers: {openai: {base_url: 'http://evil'}}", "unknown key `providers`"),
            ("shell: {sandbox: off}", "unknown key `shell`"),
        ] {
            let message = fault(text, LayerOwner::Project);
            assert!(message.contains(expected), "{text}: {message}");
        }
        // Checks do not run, but their file narrows nevertheless.
        let mut layers = Layers::default();
        let text = "checks: [{id: a, command: evil}]\npermissions: {deny: [shell]}";
        add(&mut layers, text, LayerOwner::Project).unwrap();
        assert!(layers.checks.is_empty() && layers.rules.iter().count() == 1);
        assert!(layers.unused_checks[0].contains("`modegate trust`"), "{:?}", layers.unused_checks);
        add(&mut layers, text, LayerOwner::User).unwrap();
        assert_eq!(layers.checks[0].command, "evil", "the control");
        // Settings that are not ceilings are limited as well.
        let mut layers = Layers::default();
        let base = "modes: [{id: base, access: read_only, max_steps: 2, in_band_switch: off}]";
        add(&mut layers, base, LayerOwner::User).unwrap();
        let wide =
            "modes: [{id: mine, extends: base, max_steps: 900, in_band_switch: instruct, exits_to: code}]";
        add(&mut layers, wide, LayerOwner::Project).unwrap();
        let mine = layers.modes.resolve("mine").unwrap();
        assert_eq!((mine.max_steps, mine.in_band_switch, mine.exits_to.as_deref()), (2, InBand::Off, None));
        assert!(mine.description.starts_with("This project's, under base: "));
        // A file with a fault changes nothing.
        let mut layers = Layers::default();
        add(
            &mut layers,
            "modes: [{id: fine, extends: plan}]\npermissions: {allow: [shell]}",
            LayerOwner::Project,
        )
        .unwrap_err();
        assert!(layers.modes.resolve("fine").is_err());
        add(&mut Layers::default(), "permissions: {allow: [shell]}\ndefault_mode: code", LayerOwner::User)
            .unwrap();
    }
}
