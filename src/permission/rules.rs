//! The user's rules: deny, ask and allow, by tool and by content of a call. Pure.
//!
//! ```text
//! rule    = TOOL [ "(" PATTERN ")" ]                            both globs
//! PATTERN = path, below the session's folder or absolute
//!         | word { " " word } [ " *" ]                          of each command; " *" also matches nothing
//!         | [ SCHEME "://" ] SERVER [ ":" PORT ] [ "/" PATH ]   of an address
//! ```
//!
//! The call decides which of the three a pattern is compared with: one pattern can match in several ways. In an
//! address, a `*` in the server does not reach into the path. A rule that keeps `read_file` from a file keeps every
//! own tool from reading it.
//!
//! Rules that deny or ask match every spelling that the system takes for the same name; see [`NamePattern`].

use globset::{Glob, GlobMatcher};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::address_pattern::AddressPattern;
use super::command_pattern::CommandPattern;
use super::facts::{CallFacts, Commands, SERVER_TOOLS};
use super::foreign_rule::{RuleKind, translate};
use super::name_pattern::NamePattern;
use super::rule_check::check_matches;
use crate::mode::definition::Fault;
use crate::platform::Platform;

/// Rules to deny or ask for `read_file` also apply to this tool.
const READER: &str = "search_files";

/// With a pattern, rules to deny or ask for `read_file` also apply to these tools, which reveal contents or
/// names.
const READERS_OF_FILES: [&str; 7] =
    ["edit_file", "apply_patch", "move_file", "read_skill", "find_files", "list_directory", "directory_tree"];

pub const NO_PATTERN_FOR_SERVERS: &str =
    "an allow rule for an MCP tool matches only without a pattern; write the name of the tool alone";

/// Permission rules: `TOOL` or `TOOL(PATTERN)`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RuleTexts {
    /// Calls to deny in every mode.
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<Spanned<String>>,
    /// Calls that need permission in every mode.
    #[schemars(with = "Vec<String>")]
    pub ask: Vec<Spanned<String>>,
    /// Calls that run without asking unless the mode denies them.
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<Spanned<String>>,
}

/// Deny precedes ask, and ask precedes allow.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    deny: Vec<Rule>,
    ask: Vec<Rule>,
    allow: Vec<Rule>,
}

#[derive(Debug, Clone)]
pub struct Rule {
    pub text: String,
    /// True for a rule of an organisation's policy.
    pub is_of_policy: bool,
    tool: GlobMatcher,
    pattern: Option<Pattern>,
    /// Reason why an allow rule with this pattern never matches.
    allow_error: Option<String>,
}

impl Rules {
    /// True if some calls are denied or asked about.
    pub fn restrict(&self) -> bool {
        !self.deny.is_empty() || !self.ask.is_empty()
    }
}

/// Files that a rule is about, and the changes of them.
#[derive(Debug, Clone, Copy)]
pub struct ChangeLimit<'a> {
    pub rule: &'a Rule,
    /// Glob of paths.
    pub pattern: &'a str,
    pub edits: bool,
    pub deletions: bool,
    pub moves: bool,
}

#[derive(Debug, Clone)]
struct Pattern {
    platform: Platform,
    path: NamePattern,
    words: NamePattern,
    bare: Option<String>,
    /// The same as a glob, for the programs of a line.
    bare_glob: Option<NamePattern>,
    commands: CommandPattern,
    address: Option<AddressPattern>,
}

impl RuleTexts {
    /// Only the user's files may allow.
    pub fn compile(&self, may_allow: bool) -> Result<Rules, Fault> {
        if let (false, Some(rule)) = (may_allow, self.allow.first()) {
            return Err(Fault::at(
                rule,
                "a project may not allow anything: move the rule to your own file, or trust this one with `modegate trust`",
            ));
        }
        let compile = |texts: &[Spanned<String>]| texts.iter().map(compile).collect::<Result<Vec<_>, _>>();
        Ok(Rules { deny: compile(&self.deny)?, ask: compile(&self.ask)?, allow: compile(&self.allow)? })
    }

    /// Translates rules in other spellings, and rejects those that match nothing. Not part of [`Self::compile`],
    /// because an audit reads old rules as they were.
    pub fn translated(&self) -> Result<Self, Fault> {
        let translate = |kind: RuleKind, texts: &[Spanned<String>]| {
            let rules = texts.iter().map(|text| {
                let rule = own_spelling(kind, &text.value).map_err(|reason| Fault::at(text, reason))?;
                Ok(Spanned { value: rule, ..text.clone() })
            });
            rules.collect::<Result<Vec<_>, Fault>>()
        };
        Ok(Self {
            deny: translate(RuleKind::Deny, &self.deny)?,
            ask: translate(RuleKind::Ask, &self.ask)?,
            allow: translate(RuleKind::Allow, &self.allow)?,
        })
    }

    /// Rejects allow rules that never match. Not part of [`Self::compile`], because an audit reads old rules.
    pub fn check(&self) -> Result<(), Fault> {
        self.allow.iter().try_for_each(|text| {
            let rule = Rule::parse(&text.value);
            rule.and_then(|rule| rule.check_allow()).map_err(|reason| Fault::at(text, reason))
        })
    }
}

/// Returns the rule in Modegate's own spelling, or an error if it can match nothing.
pub fn own_spelling(kind: RuleKind, rule: &str) -> Result<String, String> {
    let own_rule = translate(kind, rule)?.into_owned();
    check_matches(&own_rule)?;
    Ok(own_rule)
}

fn compile(text: &Spanned<String>) -> Result<Rule, Fault> {
    Rule::parse(&text.value).map_err(|reason| Fault::at(text, reason))
}

impl Rule {
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_for(Platform::HERE, text)
    }

    fn parse_for(platform: Platform, text: &str) -> Result<Self, String> {
        let invalid =
            |reason: &str| format!("{text:?} is not a rule: {reason}; a rule is TOOL or TOOL(PATTERN)");
        let (tool, pattern) = match text.split_once('(') {
            None => (text, None),
            Some((tool, rest)) => {
                let pattern = rest.strip_suffix(')').ok_or_else(|| invalid("it does not end with )"))?;
                (tool, Some(pattern))
            }
        };
        if tool.trim().is_empty() || tool.contains(char::is_whitespace) {
            return Err(invalid("it names no tool"));
        }
        let tool_glob = Glob::new(tool).map_err(|error| invalid(&error.to_string()))?.compile_matcher();
        let names = |pattern: &str, separates: bool| {
            NamePattern::parse(pattern, separates, platform).map_err(|error| invalid(&error.to_string()))
        };
        // Patterns for files or commands match no address. A `fetch` pattern that cannot match any address is
        // an error.
        let is_address = |pattern: &str| {
            let is_written = ["http://", "https://"].iter().any(|scheme| pattern.starts_with(scheme));
            tool == "fetch" || is_written && tool_glob.is_match("fetch")
        };
        let address = match pattern {
            None | Some("" | "*") => None,
            Some(pattern) => match AddressPattern::parse(pattern) {
                Err(reason) if is_address(pattern) => return Err(invalid(&reason)),
                read => read.ok(),
            },
        };
        let allow_error = match (pattern, &address) {
            (Some(pattern), Some(address)) if is_address(pattern) => address.check_strict().err(),
            _ => None,
        };
        let pattern = match pattern {
            None | Some("" | "*") => None,
            Some(pattern) => Some(Pattern {
                platform,
                path: names(pattern, true)?,
                words: names(pattern, false)?,
                bare: pattern.strip_suffix(" *").map(str::to_owned),
                bare_glob: pattern.strip_suffix(" *").and_then(|bare| names(bare, false).ok()),
                commands: CommandPattern::parse(pattern, platform),
                address,
            }),
        };
        Ok(Self { text: text.to_owned(), is_of_policy: false, tool: tool_glob, pattern, allow_error })
    }

    pub fn check_allow(&self) -> Result<(), String> {
        match &self.allow_error {
            Some(reason) => Err(format!("{:?} never matches: {reason}", self.text)),
            None => Ok(()),
        }
    }

    /// The rule under `deny`, in messages.
    pub fn denying_name(&self) -> String {
        let whose = if self.is_of_policy { " of your organisation's policy" } else { "" };
        format!("deny {}{whose}", self.text)
    }

    /// The limit that the rule, under `deny` or `ask`, sets to changes of files. `None` if it has no pattern for paths, or
    /// is for no tool that changes files. A rule for `apply_patch` alone leaves the other tools to the model.
    pub fn change_limit(&self) -> Option<ChangeLimit<'_>> {
        let pattern = self.pattern.as_ref().filter(|_| !self.text.contains("://"))?;
        let is_for = |tool: &str| self.tool.is_match(tool);
        let limit = ChangeLimit {
            rule: self,
            pattern: pattern.path.text(),
            edits: is_for("edit_file") || is_for("write_file"),
            deletions: is_for("delete_file"),
            moves: is_for("move_file"),
        };
        (limit.edits || limit.deletions || limit.moves).then_some(limit)
    }

    /// True if the rule never matches as an `allow` rule.
    pub fn is_unmatchable_allow(&self) -> bool {
        self.pattern.is_some() && self.text.starts_with(SERVER_TOOLS)
    }

    fn is_for(&self, tool: &str, allows: bool) -> bool {
        if allows || self.tool.is_match(tool) {
            return self.tool.is_match(tool);
        }
        let reads = tool == READER || (self.pattern.is_some() && READERS_OF_FILES.contains(&tool));
        reads && self.tool.is_match("read_file")
    }

    /// True if the rule matches any part of the call, or all of it if `whole`.
    fn is_about(&self, call: &CallFacts, whole: bool) -> bool {
        if !self.is_for(&call.tool, whole) {
            return false;
        }
        let Some(pattern) = &self.pattern else { return true };
        let is_path = |path: &std::path::Path| {
            if whole { pattern.path.is_path(path) } else { pattern.path.is_path_in_any_spelling(path) }
        };
        let covers = |words: &str| pattern.covers(words, whole);
        let mut about = Vec::new();
        for target in &call.targets {
            let inside = target.inside.as_deref().is_some_and(is_path);
            about.push(inside || is_path(&target.path));
        }
        if let Commands::Line { line, texts, plain, is_understood, invocations, .. } = &call.commands {
            about.extend(texts.iter().map(|text| covers(text)));
            if let (Some(invocations), false) = (invocations, whole) {
                let commands = invocations.commands.iter();
                let mut texts = commands.flat_map(|command| pattern.commands.texts(command));
                about.push(texts.any(|text| pattern.denies(&text)));
            }
            if whole {
                // A line that is not fully understood cannot be allowed by its parts.
                about.push(*is_understood);
            } else {
                about.push(covers(line));
                about.extend(plain.iter().map(|text| covers(text)));
            }
        }
        if !whole {
            // A mention is no proof, so it never allows.
            about.extend(call.mentions.iter().map(|path| is_path(path)));
        }
        if let Some(address) = &call.address {
            about.push(pattern.address.as_ref().is_some_and(|pattern| pattern.covers(address, whole)));
        }
        if whole { !about.is_empty() && about.iter().all(|it| *it) } else { about.contains(&true) }
    }
}

impl Rule {
    /// True if the rule may match a part of a line that is not fully understood.
    fn may_be_about(&self, call: &CallFacts) -> bool {
        let Commands::Line { is_understood, invocations, before: None, .. } = &call.commands else {
            return false;
        };
        let Some(pattern) = self.pattern.as_ref().filter(|_| self.is_for(&call.tool, false)) else {
            return false;
        };
        match invocations {
            Some(invocations) => pattern.commands.may_match(invocations, self.tool.is_match("read_file")),
            None => !is_understood,
        }
    }

    /// True if the rule allows this command of a line that is fully understood.
    fn allows_command(&self, tool: &str, command: &str) -> bool {
        self.is_for(tool, true) && self.pattern.as_ref().is_none_or(|pattern| pattern.covers(command, true))
    }
}

impl Pattern {
    fn denies(&self, command: &str) -> bool {
        self.covers(command, false)
            || self.bare_glob.as_ref().is_some_and(|bare| bare.is_words_in_any_spelling(command))
    }

    /// Other spellings are covered unless `exactly`.
    fn covers(&self, words: &str, exactly: bool) -> bool {
        let words = words.trim();
        let bare = self.bare.as_deref();
        if exactly {
            return bare == Some(words) || self.words.is_words(words);
        }
        bare.map(|bare| self.platform.folded(bare)) == Some(self.platform.folded(words))
            || self.words.is_words_in_any_spelling(words)
    }
}

impl Rules {
    pub fn extend(&mut self, others: Self) {
        self.deny.extend(others.deny);
        self.ask.extend(others.ask);
        self.allow.extend(others.allow);
    }

    /// Marks the rules as those of an organisation's policy, for messages.
    #[must_use]
    pub fn of_policy(mut self) -> Self {
        for rule in self.deny.iter_mut().chain(&mut self.ask) {
            rule.is_of_policy = true;
        }
        self
    }

    #[must_use]
    pub fn without_allow(self) -> Self {
        Self { allow: Vec::new(), ..self }
    }

    pub fn denying(&self, call: &CallFacts) -> Option<&Rule> {
        self.deny.iter().find(|rule| rule.is_about(call, false))
    }

    /// Returns a rule that may deny or ask about a part of a line that is not fully understood.
    pub fn may_restrict(&self, call: &CallFacts) -> Option<(RuleKind, &Rule)> {
        // Records of an earlier version asked only because of rules that deny.
        let is_current = matches!(call.commands, Commands::Line { invocations: Some(_), .. });
        let denying = self.deny.iter().map(|rule| (RuleKind::Deny, rule));
        let asking = self.ask.iter().filter(|_| is_current).map(|rule| (RuleKind::Ask, rule));
        denying.chain(asking).find(|(_, rule)| rule.may_be_about(call))
    }

    /// The rules that deny reading some files, and their patterns of paths.
    pub fn denying_reads(&self) -> impl Iterator<Item = (&str, &str)> {
        self.deny.iter().filter(|rule| is_about_files(rule)).filter_map(|rule| {
            let pattern = rule.pattern.as_ref()?;
            Some((rule.text.as_str(), pattern.path.text()))
        })
    }

    /// The rules that deny changes of some files.
    pub fn denying_changes(&self) -> impl Iterator<Item = ChangeLimit<'_>> {
        self.deny.iter().filter_map(Rule::change_limit)
    }

    /// The rules that ask about changes of some files. They do not bind the commands of `shell`.
    pub fn asking_about_changes(&self) -> impl Iterator<Item = ChangeLimit<'_>> {
        self.ask.iter().filter_map(Rule::change_limit)
    }

    pub fn has_pattern_rule(&self, tool: &str) -> bool {
        let rules = self.deny.iter().chain(&self.ask);
        rules.into_iter().any(|rule| rule.pattern.is_some() && rule.is_for(tool, false))
    }

    pub fn asking(&self, call: &CallFacts) -> Option<&Rule> {
        self.ask.iter().find(|rule| rule.is_about(call, false))
    }

    /// True if an `ask` rule matches `call` but not the earlier `asked`.
    pub fn asks_in_addition(&self, call: &CallFacts, asked: &CallFacts) -> bool {
        self.ask.iter().any(|rule| rule.is_about(call, false) && !rule.is_about(asked, false))
    }

    /// Returns the rule that allows the call, or the rules that allow all commands of its line together. Empty
    /// if they do not.
    pub fn allowing(&self, call: &CallFacts) -> Vec<&Rule> {
        if let Some(rule) = self.allow.iter().find(|rule| rule.is_about(call, true)) {
            return vec![rule];
        }
        // Anything but a command needs one rule for all of it.
        let is_line_alone = call.targets.is_empty() && call.address.is_none();
        let Commands::Line { texts, is_understood: true, invocations: Some(_), .. } = &call.commands else {
            return Vec::new();
        };
        let rules: Option<Vec<&Rule>> = texts
            .iter()
            .map(|text| self.allow.iter().find(|rule| rule.allows_command(&call.tool, text)))
            .collect();
        let mut rules = rules.filter(|_| is_line_alone).unwrap_or_default();
        let mut seen: Vec<&str> = Vec::new();
        rules.retain(|rule| {
            let is_new = !seen.contains(&rule.text.as_str());
            seen.push(&rule.text);
            is_new
        });
        rules
    }

    /// The `allow` rules that never match: a pattern for an MCP tool, whose arguments are only mentions.
    pub fn unmatchable(&self) -> impl Iterator<Item = &str> {
        self.allow.iter().filter(|rule| rule.is_unmatchable_allow()).map(|rule| rule.text.as_str())
    }

    pub fn to_yaml(&self) -> String {
        let [deny, ask, allow] = [&self.deny, &self.ask, &self.allow]
            .map(|rules| rules.iter().map(|rule| rule.text.as_str()).collect::<Vec<_>>());
        let all = serde_json::json!({ "deny": deny, "ask": ask, "allow": allow });
        format!("permissions: {all}\n")
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [("deny", &self.deny), ("ask", &self.ask), ("allow", &self.allow)];
        all.into_iter().flat_map(|(kind, rules)| rules.iter().map(move |rule| (kind, rule.text.as_str())))
    }
}

fn is_about_files(rule: &Rule) -> bool {
    !rule.text.contains("://") && (rule.is_for("read_file", false) || rule.is_for(READER, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permission::Effect;
    use crate::permission::Target;

    fn rule(platform: Platform, text: &str) -> Rule {
        Rule::parse_for(platform, text).unwrap()
    }

    #[test]
    fn only_rules_that_deny_or_ask_match_other_spellings() {
        let call = |path: &str| {
            let target = Target { path: path.into(), inside: None };
            CallFacts { targets: vec![target], ..CallFacts::of_tool("read_file", Effect::Read) }
        };
        let text = "read_file(**/secret.txt)";
        for (platform, folds) in
            [(Platform::Linux, false), (Platform::MacOs, true), (Platform::Windows, true)]
        {
            let rules = Rules {
                deny: vec![rule(platform, text)],
                ask: vec![rule(platform, text)],
                allow: vec![rule(platform, text)],
            };
            let (same, other) = (call("/a/secret.txt"), call("/a/SECRET.txt"));
            assert!(rules.denying(&same).is_some() && rules.asking(&same).is_some());
            assert!(!rules.allowing(&same).is_empty());
            assert_eq!(rules.denying(&other).is_some(), folds, "{platform:?}");
            assert_eq!(rules.asking(&other).is_some(), folds, "{platform:?}");
            assert!(rules.allowing(&other).is_empty(), "{platform:?}");
        }
    }

    #[test]
    fn rules_limit_the_changes_of_their_tools() {
        const CHANGING: &str = "{apply_patch,delete_file,edit_file,move_file,write_file}(src/**)";
        for (text, expected) in [
            (CHANGING, Some((true, true, true))),
            ("*(src/**)", Some((true, true, true))),
            ("edit_file(src/**)", Some((true, false, false))),
            ("write_file(src/**)", Some((true, false, false))),
            ("delete_file(src/**)", Some((false, true, false))),
            ("move_file(src/**)", Some((false, false, true))),
            ("apply_patch(src/**)", None),
            // What a rule about reading says of tools that read and change, it does not say of commands.
            ("read_file(src/**)", None),
            ("shell(rm *)", None),
            ("*(https://example.com)", None),
            // The tool is denied, and not the files.
            ("edit_file", None),
            ("edit_file(*)", None),
        ] {
            let rule = rule(Platform::Linux, text);
            let limit = rule.change_limit();
            assert_eq!(limit.map(|limit| (limit.edits, limit.deletions, limit.moves)), expected, "{text}");
            assert!(
                limit.is_none_or(|limit| (limit.rule.text.as_str(), limit.pattern) == (text, "src/**")),
                "{text}"
            );
        }
    }

    #[test]
    fn commands_are_denied_in_any_spelling() {
        let pattern = |platform| rule(platform, "shell(rm *)").pattern.unwrap();
        for platform in [Platform::MacOs, Platform::Windows] {
            for words in ["RM -rf a", "Rm"] {
                assert!(pattern(platform).covers(words, false));
                assert!(!pattern(platform).covers(words, true));
            }
        }
        assert!(!pattern(Platform::Linux).covers("RM -rf a", false));
        assert!(pattern(Platform::Linux).covers("rm", true));
    }
}
