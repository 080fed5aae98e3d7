//! The one decision: may this call be made, must it be asked for, or is it denied? Pure.
//!
//! The request's tool list and the dispatcher both ask [`decide`], so a tool that is offered can be called and a tool
//! that is not cannot. Verdicts are the strictest over a *list* of ceilings, which are evaluated and never merged.

mod address;
mod address_pattern;
pub mod compare;
mod grants;
pub mod hints;
pub mod rules;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::address::{Address, plain};
pub use self::grants::{CommandScope, Grants, Scope};
use self::rules::Rules;
use crate::mode::{Access, Consent, Mode, Network, ShellUse};

/// What a call does to the world, declared by every tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Reads, and changes nothing.
    Read,
    /// Changes nothing but the session itself.
    Session,
    /// Starts a child that stands under the same ceilings.
    Delegate,
    /// Fetches from the network.
    Network,
    /// Changes files whose paths are known beforehand.
    Edit,
    /// Runs something.
    Execute,
    /// Changes state that outlives the session.
    State,
    /// Nobody has said what it does: treated as a change.
    Unknown,
}

impl Effect {
    /// Whether calls with this effect may run beside each other: they change nothing.
    pub fn is_read_side(self) -> bool {
        matches!(self, Self::Read | Self::Session)
    }

    /// Whether it changes something, so that the consent axis applies.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Edit | Self::Execute | Self::State | Self::Unknown)
    }
}

/// A path that a call is about to touch, after symbolic links were followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Absolute, without symbolic links.
    pub path: PathBuf,
    /// The part below the session's root; `None` outside the roots.
    pub inside: Option<PathBuf>,
}

/// What a call runs, as far as a command line says it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Commands {
    /// No command line.
    #[default]
    None,
    /// A command line.
    Line {
        /// As it was written.
        line: String,
        /// The commands that were found in it.
        texts: Vec<String>,
        /// The same by their plain words: without quotes, assignments and the program's folder.
        plain: Vec<String>,
        /// Every word of it is known for what it is.
        is_understood: bool,
        /// What an answer for it may cover: any of these is enough, and the first is offered. Empty: no answer but for this
        /// one call.
        always: Vec<CommandScope>,
        /// The same for each command in it, where there are several: a "reject always" for one is one for the line.
        parts: Vec<CommandScope>,
        /// What an old record says of it: all of these had to be covered.
        before: Option<Vec<String>>,
    },
}

/// A server's word that a tool only reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The server, by its part of its tools' names.
    pub server: String,
    /// How often the server has begun to say so of a tool of which it had not: consent from before covers nothing after.
    pub flips: u64,
}

/// The facts of a call that a decision rests on.
#[derive(Debug, Clone)]
pub struct CallFacts {
    /// The tool's name.
    pub tool: String,
    /// What it does.
    pub effect: Effect,
    /// What it needs of the shell.
    pub shell: ShellUse,
    /// It goes on after its turn.
    pub is_background: bool,
    /// It asks the user to leave the mode.
    pub is_exit: bool,
    /// What it touches; empty when that is not known beforehand, or when the question is about the tool as such.
    pub targets: Vec<Target>,
    /// What it runs; nothing when the question is about the tool as such.
    pub commands: Commands,
    /// What it fetches; none when it fetches nothing, or when the question is about the tool as such.
    pub address: Option<Address>,
    /// That it reads is only what its server says; `None` where somebody vouches for the effect.
    pub claim: Option<Claim>,
    /// What the arguments of a server's tool name, as far as that can be told, and what a skill is read from: rules that deny
    /// or ask look at it.
    pub mentions: Vec<PathBuf>,
}

impl CallFacts {
    /// Whether it is a call of a server's tool, by the name.
    pub fn is_servers(&self) -> bool {
        self.tool.starts_with("mcp__")
    }

    /// The facts of a tool as such: what is known of a call before its arguments are.
    pub fn of_tool(tool: impl Into<String>, effect: Effect) -> Self {
        Self {
            tool: tool.into(),
            effect,
            shell: ShellUse::Off,
            is_background: false,
            is_exit: false,
            targets: Vec::new(),
            commands: Commands::None,
            address: None,
            claim: None,
            mentions: Vec::new(),
        }
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go ahead.
    Allow,
    /// Go ahead if the user says so; the scopes are what "always" would cover, each not yet granted. None: there is no
    /// "always".
    Ask(Vec<Scope>),
    /// Not in this session as it stands.
    Deny(Denial),
}

/// Why a call is denied: which rule, and what to tell the model. Never says how to get round it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The rule's name, for the record.
    pub rule: &'static str,
    /// One or two sentences for the model.
    pub message: String,
}

/// What a decision is made under: modes, which are evaluated one by one and never merged, the first of which is the
/// session's own, and the rules that the user wrote.
#[derive(Debug, Clone)]
pub struct Ceilings {
    /// The session's own mode, those under which it is evaluated, those of its ancestors, and what else holds.
    pub modes: Vec<Arc<Mode>>,
    /// The sets of rules that hold.
    pub rules: Vec<Arc<Rules>>,
}

impl Ceilings {
    fn denying(&self, call: &CallFacts) -> Option<&rules::Rule> {
        self.rules.iter().find_map(|rules| rules.denying(call))
    }

    fn asking(&self, call: &CallFacts) -> Option<&rules::Rule> {
        self.rules.iter().find_map(|rules| rules.asking(call))
    }

    /// Every set of rules has to allow it.
    fn allowing(&self, call: &CallFacts) -> Option<&rules::Rule> {
        let first = self.rules.first()?.allowing(call)?;
        self.rules.iter().all(|rules| rules.allowing(call).is_some()).then_some(first)
    }
}

/// Decides a call.
///
/// The rules, in order; the first that denies ends it, and nothing later can lift a denial:
/// 1. a `deny` rule of the user's or the project's is about it;
/// 2. a ceiling's tool list does not admit the tool;
/// 3. a ceiling's access does not admit the effect (the table in `docs/modes.md`);
/// 4. a ceiling's `shell` does not admit what the call needs of it; a mode with `write_paths` admits no full shell, and
///    nothing of which nobody knows what it does;
/// 5. a ceiling's `network` denies fetching;
/// 6. a write outside the session's roots, or outside a ceiling's `write_paths`;
/// 7. the exit tool, in a mode without an exit;
/// 8. the user said "reject always" to this in this mode;
/// 9. what remains is allowed, but asked for: what an `ask` rule is about, reads outside the roots, fetching under
///    `network: ask`, every change where a ceiling's `permission` is `ask`, and what only its server says to read where a
///    ceiling would deny or ask for it if it did not;
/// 10. unless the user said "allow always" to exactly this, in this mode (of a command line, to
///     exactly this or to its program with what may vary; of an address, to its server; of a claim, to what that server
///     says), or an `allow` rule is about all of it and no `ask` rule about
///     any of it.
pub fn decide(ceilings: &Ceilings, grants: &Grants, call: &CallFacts) -> Verdict {
    let Some(own) = ceilings.modes.first() else {
        return Verdict::Deny(Denial {
            rule: "no_mode",
            message: "No mode is known, so nothing is allowed.".into(),
        });
    };
    if let Some(rule) = ceilings.denying(call) {
        let message = format!("The rule deny {} does not allow this, in any mode.", rule.text);
        return Verdict::Deny(Denial { rule: "deny_rule", message });
    }
    if let Some(denial) = ceilings.modes.iter().find_map(|mode| denied_by(mode, call)) {
        return Verdict::Deny(denial);
    }
    if call.is_exit && own.exits_to.is_none() {
        let message =
            format!("{} is not available in {} mode: only the user leaves this mode.", call.tool, own.id);
        return Verdict::Deny(Denial { rule: "exit", message });
    }
    let outside = call.targets.iter().filter(|target| target.inside.is_none());
    let mut scopes: Vec<Scope> =
        outside.map(|target| Scope::Below(call.tool.clone(), target.path.clone())).collect();
    let outside = !scopes.is_empty();
    // What covers a command line, of which one is enough, and whether nothing can.
    let mut covering: Vec<Scope> = Vec::new();
    let (mut is_opaque, mut is_shown_in_part) = (false, false);
    let is_asked_by_rule = ceilings.asking(call).is_some();
    match &call.commands {
        Commands::None if !outside => scopes.push(match (&call.address, &call.claim) {
            (Some(address), _) => Scope::Origin(call.tool.clone(), address.origin()),
            // What a rule has asked for is asked for by itself.
            (None, Some(claim)) if !is_asked_by_rule => Scope::Claims(claim.server.clone(), claim.flips),
            (None, _) => Scope::Tool(call.tool.clone()),
        }),
        Commands::None => {}
        Commands::Line { before: Some(before), .. } => {
            scopes.extend(before.iter().map(|it| Scope::Command(call.tool.clone(), it.clone())));
        }
        Commands::Line { is_understood, always, .. } => {
            is_opaque = !is_understood;
            covering = always.iter().map(|it| Scope::Run(call.tool.clone(), it.clone())).collect();
            is_shown_in_part = covering.is_empty();
        }
    }
    // An answer for a tool as one that may change something covers it where its server says that it reads.
    let as_such = call.claim.is_some().then(|| Scope::Tool(call.tool.clone()));
    let mut asked = scopes.iter().chain(&covering).chain(&as_such);
    let rejected = asked.find(|scope| grants.is_rejected(&own.id, scope)).cloned();
    if let Some(scope) = rejected.or_else(|| rejected_part(grants, &own.id, call)) {
        let message =
            format!("The user has rejected {scope} for the rest of this session in {} mode.", own.id);
        return Verdict::Deny(Denial { rule: "rejected_always", message });
    }
    // Where a rule denies some commands, a line that is not understood whole may be one of them.
    let in_doubt = is_opaque && ceilings.rules.iter().any(|rules| rules.denies_some(&call.tool));
    let by_rule = in_doubt || is_asked_by_rule;
    let must_ask = by_rule || outside || ceilings.modes.iter().any(|mode| must_ask(mode, call));
    if !must_ask || (!by_rule && ceilings.allowing(call).is_some()) {
        return Verdict::Allow;
    }
    if is_shown_in_part {
        return Verdict::Ask(Vec::new());
    }
    if as_such.is_some_and(|scope| grants.is_allowed(&own.id, &scope)) {
        return Verdict::Allow;
    }
    if !covering.iter().any(|scope| grants.is_allowed(&own.id, scope)) {
        scopes.extend(covering.into_iter().next());
    }
    // A grant for one place or command says nothing of another: each has to have its own.
    scopes.retain(|scope| !grants.is_allowed(&own.id, scope));
    if scopes.is_empty() { Verdict::Allow } else { Verdict::Ask(scopes) }
}

/// The "reject always" that is about a command in a line.
fn rejected_part(grants: &Grants, mode: &str, call: &CallFacts) -> Option<Scope> {
    let Commands::Line { plain, parts, .. } = &call.commands else { return None };
    let scopes = parts.iter().map(|part| Scope::Run(call.tool.clone(), part.clone()));
    let now = scopes.into_iter().find(|scope| grants.is_rejected(mode, scope));
    now.or_else(|| plain.iter().find_map(|words| grants.rejects_words(mode, &call.tool, words)).cloned())
}

/// Decides on the files below a folder that an admitted call reads: searching a folder must not show what rules keep from
/// being read by name.
#[derive(Debug, Clone)]
pub struct FilesBelow {
    ceilings: Ceilings,
    grants: Grants,
    call: CallFacts,
}

impl FilesBelow {
    /// For a call that may run.
    pub fn new(ceilings: Ceilings, grants: Grants, call: CallFacts) -> Self {
        Self { ceilings, grants, call }
    }

    /// Whether the call may read a file, or name it. What a rule has asked for is left out unless the user was asked for
    /// the call itself by that rule: in the middle of a call nobody is asked.
    pub fn admits(&self, file: &Target) -> bool {
        let call = CallFacts { targets: vec![file.clone()], ..self.call.clone() };
        match decide(&self.ceilings, &self.grants, &call) {
            Verdict::Allow => true,
            Verdict::Ask(_) => !self.ceilings.rules.iter().any(|rules| rules.asks_besides(&call, &self.call)),
            Verdict::Deny(_) => false,
        }
    }
}

/// Why a call is decided as it is, in one sentence: for people who ask `modegate modes explain`.
pub fn explain(ceilings: &Ceilings, call: &CallFacts) -> String {
    let mode = ceilings.modes.first().map_or("no mode", |mode| mode.id.as_str());
    match decide(ceilings, &Grants::default(), call) {
        Verdict::Deny(denial) => format!("denied by {}: {}", denial.rule, denial.message),
        Verdict::Ask(_) => {
            let why = if let Some(rule) = ceilings.asking(call) {
                format!("the rule ask {}", rule.text)
            } else if let Some(target) = call.targets.iter().find(|target| target.inside.is_none()) {
                format!("{} is outside the session's folders", target.path.display())
            } else if call.effect == Effect::Network {
                "network: ask".into()
            } else if let Some(claim) = &call.claim {
                format!(
                    "only the server {} says that it reads; `trust_hints` of your own file can believe it",
                    claim.server
                )
            } else {
                "permission: ask".into()
            };
            format!("asked for in {mode}: {why}")
        }
        Verdict::Allow => match ceilings.allowing(call) {
            Some(rule) => format!("allowed in {mode} by the rule allow {}", rule.text),
            None => format!("allowed in {mode}: nothing denies it, and nothing has it asked for"),
        },
    }
}

/// Whether a tool is there at all: what [`decide`] does not deny before its arguments are known.
pub fn is_available(ceilings: &Ceilings, grants: &Grants, tool: &CallFacts) -> bool {
    !matches!(decide(ceilings, grants, tool), Verdict::Deny(_))
}

/// Whether a mode admits a change by what it does and where, whatever it is called and whether or not it is asked for: what
/// holds for a user who changes files through the session.
pub fn may_change(mode: &Mode, call: &CallFacts) -> bool {
    denied_by_nature(mode, call).is_none()
}

fn must_ask(mode: &Mode, call: &CallFacts) -> bool {
    match call.effect {
        Effect::Network => mode.network == Network::Ask,
        effect if call.claim.is_none() => effect.is_change() && mode.permission == Consent::Ask,
        // Where a tool that may change something runs without asking, the server's word is not needed.
        _ => {
            mode.permission == Consent::Ask
                || !admits(mode.access, Effect::Unknown)
                || mode.write_paths.is_some()
        }
    }
}

fn denied_by(mode: &Mode, call: &CallFacts) -> Option<Denial> {
    let deny = |rule, message: String| Some(Denial { rule, message });
    let (tool, id) = (&call.tool, &mode.id);
    if !mode.tools.admit(tool) {
        return deny(
            "tools",
            format!("{tool} is not among the tools of {id} mode. {}", capability_text(mode)),
        );
    }
    denied_by_nature(mode, call)
}

/// What a mode denies whatever the tool is called.
fn denied_by_nature(mode: &Mode, call: &CallFacts) -> Option<Denial> {
    let deny = |rule, message: String| Some(Denial { rule, message });
    let (tool, id) = (&call.tool, &mode.id);
    if !admits(mode.access, call.effect) {
        return deny(
            "access",
            format!(
                "{tool} is not available in {id} mode, {}. {}",
                access_text(mode.access),
                capability_text(mode)
            ),
        );
    }
    if mode.shell < call.shell {
        let what =
            if mode.shell == ShellUse::Off { "runs no commands" } else { "runs read-only commands only" };
        return deny(
            "shell",
            format!("{tool} is not available: {id} mode {what}. {}", capability_text(mode)),
        );
    }
    if let Some(globs) = &mode.write_paths {
        if call.effect == Effect::Edit && globs.patterns.is_empty() {
            return deny(
                "write_paths",
                format!("{tool} is not available: {id} mode names no file that may be written."),
            );
        }
        let why = format!("{tool} is not available: {id} mode says where may be written, and");
        if call.shell == ShellUse::Full {
            return deny("shell", format!("{why} a command could write elsewhere."));
        }
        if call.effect == Effect::Unknown {
            return deny("write_paths", format!("{why} nobody knows where this writes."));
        }
    }
    if call.effect == Effect::Network && mode.network == Network::Deny {
        return deny(
            "network",
            format!("{id} mode does not allow network access. {}", capability_text(mode)),
        );
    }
    if call.effect == Effect::Edit {
        let stray = call.targets.iter().find(|target| !may_write(mode, target.inside.as_deref()));
        if let Some(target) = stray {
            let path = target.path.display();
            return match &mode.write_paths {
                Some(globs) if target.inside.is_some() => deny(
                    "write_paths",
                    format!("{path} is outside what {id} mode may write: {}.", globs.patterns.join(", ")),
                ),
                _ => deny(
                    "roots",
                    format!("{path} is outside the session's folders, where nothing is written."),
                ),
            };
        }
    }
    None
}

fn may_write(mode: &Mode, inside: Option<&Path>) -> bool {
    inside.is_some_and(|path| mode.write_paths.as_ref().is_none_or(|globs| globs.matches(path)))
}

fn admits(access: Access, effect: Effect) -> bool {
    match effect {
        Effect::Read | Effect::Session | Effect::Delegate | Effect::Network => true,
        Effect::Edit => access >= Access::Edit,
        Effect::Execute | Effect::State | Effect::Unknown => access == Access::Full,
    }
}

fn access_text(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "which changes nothing",
        Access::Edit => "which edits files and runs nothing",
        Access::Full => "which allows everything",
    }
}

fn capability_text(mode: &Mode) -> &'static str {
    match mode.access {
        Access::ReadOnly => {
            "You can read and search (with commands, too, where shell_read_only is offered), and write a plan in your answer; the user decides when to leave this mode."
        }
        Access::Edit => "You can read, search and edit files where the mode allows it.",
        Access::Full => "The other tools remain available.",
    }
}

#[cfg(test)]
mod tests;
