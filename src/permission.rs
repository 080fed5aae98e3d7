//! Decides whether a tool call is allowed, denied or asked for. Pure.
//!
//! The model's tool list and the dispatcher both call [`decide`], so exactly the listed tools can be called.
//! Ceilings are evaluated one by one and never merged; the strictest verdict counts.

mod address;
mod address_pattern;
mod command_pattern;
pub mod compare;
pub mod denial_reason;
pub mod external;
mod facts;
pub mod foreign_rule;
mod grants;
pub mod hints;
mod invocation;
mod name_pattern;
pub mod rule_check;
pub mod rules;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::address::{Address, plain};
use self::denial_reason::denial_reason;
pub use self::facts::{CallFacts, CallSource, Claim, Commands, Effect, SERVER_TOOLS, Target};
use self::foreign_rule::RuleKind;
pub use self::grants::{CommandScope, Grants, Scope};
pub use self::invocation::{CommandWord, Invocation, Invocations};
use self::rules::Rules;
use crate::mode::{Access, CeilingKind, Consent, Mode, Network, ShellUse};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// The scopes are those an "always" answer would grant; empty if there is no such option.
    Ask(Vec<Scope>),
    Deny(Denial),
}

// Rules of refusals outside of [`decide`]. A test compares the constants with the reference page of errors.

/// Rule of a call that a `deny` rule denies.
pub const DENY_RULE: &str = "deny_rule";

/// Rule of a denial because a call needs permission, and no user can answer.
pub const NO_USER: &str = "no_user";

/// Rule of a call that was refused because it could not be recorded.
pub const UNRECORDED: &str = "unrecorded";

/// Rule of a denial because a brokered agent may not connect to a host.
pub const HOST: &str = "host";

/// Rule of a call that a `deny` hook refused. Records add the hook's id: `hook:ID`.
pub const HOOK: &str = "hook";

/// Rule of a change that the mode denies.
pub const ACCESS: &str = "access";

/// Rules of calls of a brokered agent that no mode allows: changes outside of the session's folders, mounts and
/// namespaces, and control of other processes.
pub const OUTSIDE: &str = "outside";
pub const NAMESPACE: &str = "namespace";
pub const TRACE: &str = "trace";

/// Rule of a brokered change that the user has rejected.
pub const REJECTED: &str = "rejected";

/// Rule of a brokered change without an answer of the user.
pub const UNANSWERED: &str = "unanswered";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskReason {
    Rule(String),
    /// A rule that denies or asks may match a part of the command line. Kind and text of the rule.
    NotUnderstood(&'static str, String),
    Outside(PathBuf),
    Network(Option<Address>),
    /// Name of the MCP server that claims that the tool only reads.
    Claim(String),
    Mode,
}

impl std::fmt::Display for AskReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "the rule ask {rule}"),
            Self::NotUnderstood(kind, rule) => {
                write!(
                    f,
                    "Modegate does not understand this line whole, and a part of it may match the rule {kind} {rule}"
                )
            }
            Self::Outside(path) => write!(f, "{} is outside the session's folders", path.display()),
            Self::Network(_) => f.write_str("network: ask"),
            Self::Claim(server) => write!(
                f,
                "only the server {server} claims that the tool only reads; to trust it, set `trust_hints` in your modes.yaml"
            ),
            Self::Mode => f.write_str("permission: ask"),
        }
    }
}

/// Security: the message never suggests a way around the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    pub rule: &'static str,
    pub message: String,
}

#[derive(Debug, Clone)]
pub struct Ceilings {
    /// The session's own mode first, then its bases, its ancestors' modes and further limits.
    pub modes: Vec<Arc<Mode>>,
    pub rules: Vec<Arc<Rules>>,
}

impl Ceilings {
    fn denying(&self, call: &CallFacts) -> Option<&rules::Rule> {
        self.rules.iter().find_map(|rules| rules.denying(call))
    }

    /// Returns a rule that may deny or ask about a part of a line that is not fully understood, with its kind.
    fn may_restrict(&self, call: &CallFacts) -> Option<(RuleKind, &rules::Rule)> {
        self.rules.iter().find_map(|rules| rules.may_restrict(call))
    }

    fn asking(&self, call: &CallFacts) -> Option<&rules::Rule> {
        self.rules.iter().find_map(|rules| rules.asking(call))
    }

    /// Returns the rules that allow all of the call together; empty if they do not.
    fn allowing(&self, call: &CallFacts) -> Vec<&rules::Rule> {
        let mut allowing = self.rules.iter().map(|rules| rules.allowing(call));
        let first = allowing.next().unwrap_or_default();
        if allowing.all(|others| !others.is_empty()) { first } else { Vec::new() }
    }
}

/// Decides a call.
///
/// The first denial is final; no later step lifts it:
/// 1. a `deny` rule of the user or the project matches;
/// 2. the tool list of a ceiling lacks the tool;
/// 3. the access of a ceiling does not permit the effect (table in `docs/guides/permissions.md`);
/// 4. the `shell` of a ceiling is less than the call needs; `write_paths` permits neither a full shell nor an
///    unknown effect;
/// 5. the `network` of a ceiling denies fetching;
/// 6. the call writes outside the session's roots, or outside a ceiling's `write_paths`;
/// 7. the call is the exit tool, and the mode has no exit;
/// 8. the user answered "reject always" for this scope in this mode;
/// 9. a permission request is needed if an `ask` rule matches, a `deny` or `ask` rule may match a part of a line
///    that is not fully understood, a path is outside the roots, the call fetches
///    under `network: ask` or changes something under `permission: ask`, or only an MCP server claims that it
///    reads and a ceiling would deny or ask for it otherwise;
/// 10. step 9 is skipped if the user answered "allow always" for this scope in this mode, or if an `allow`
///     rule matches all of the call, or several rules all commands of a line, and no `ask` rule any of it.
///
/// For a call of an external agent, the sandbox that the ceilings require ([`external`]) takes the place of
/// steps 2 to 6.
pub fn decide(ceilings: &Ceilings, grants: &Grants, call: &CallFacts) -> Verdict {
    let Some(own) = ceilings.modes.first() else {
        return Verdict::Deny(Denial {
            rule: "no_mode",
            message: "No mode is known, so nothing is allowed.".into(),
        });
    };
    if let Some(rule) = ceilings.denying(call) {
        let message = format!("The rule {} does not allow this, in any mode.", rule.denying_name());
        return Verdict::Deny(Denial { rule: DENY_RULE, message });
    }
    let denial = match call.source {
        CallSource::Tool | CallSource::Broker => ceilings.modes.iter().find_map(|mode| denied_by(mode, call)),
        CallSource::ExternalAgent => external::denied(ceilings, call),
    };
    if let Some(denial) = denial {
        return Verdict::Deny(denial);
    }
    if call.is_exit && own.exits_to.is_none() {
        let message =
            format!("{} is not available in {} mode: only the user leaves this mode.", call.tool, own.id);
        return Verdict::Deny(Denial { rule: "exit", message });
    }
    let mut scopes: Vec<Scope> =
        call.outside().map(|target| Scope::Below(call.tool.clone(), target.path.clone())).collect();
    let outside = !scopes.is_empty();
    // Any one of these scopes covers the command line. None exist if the line cannot be displayed in full.
    let mut covering: Vec<Scope> = Vec::new();
    let mut is_shown_in_part = false;
    let is_asked_by_rule = ceilings.asking(call).is_some();
    match &call.commands {
        Commands::None if !outside => scopes.push(match (&call.address, &call.claim) {
            (Some(address), _) => Scope::Origin(call.tool.clone(), address.origin()),
            // An `ask` rule needs an answer for the tool; consent to the claim is not enough.
            (None, Some(claim)) if !is_asked_by_rule => Scope::Claims(claim.server.clone(), claim.flips),
            (None, _) => Scope::Tool(call.tool.clone()),
        }),
        Commands::None => {}
        Commands::Line { before: Some(before), .. } => {
            scopes.extend(before.iter().map(|it| Scope::Command(call.tool.clone(), it.clone())));
        }
        Commands::Line { always, .. } => {
            covering = always.iter().map(|it| Scope::Run(call.tool.clone(), it.clone())).collect();
            is_shown_in_part = covering.is_empty();
        }
    }
    // A grant for the tool as a changing one also covers its claimed reads.
    let as_such = call.claim.is_some().then(|| Scope::Tool(call.tool.clone()));
    let mut asked_scopes = scopes.iter().chain(&covering).chain(&as_such);
    let rejected = asked_scopes.find(|scope| grants.is_rejected(&own.id, scope)).cloned();
    if let Some(scope) = rejected.or_else(|| rejected_part(grants, &own.id, call)) {
        let message =
            format!("The user has rejected {scope} for the rest of this session in {} mode.", own.id);
        return Verdict::Deny(Denial { rule: "rejected_always", message });
    }
    let by_rule = is_asked_by_rule || ceilings.may_restrict(call).is_some();
    let must_ask = by_rule || outside || ceilings.modes.iter().any(|mode| must_ask(mode, call));
    if !must_ask || (!by_rule && !ceilings.allowing(call).is_empty()) {
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
    // Every path and command needs a grant of its own.
    scopes.retain(|scope| !grants.is_allowed(&own.id, scope));
    if scopes.is_empty() { Verdict::Allow } else { Verdict::Ask(scopes) }
}

fn rejected_part(grants: &Grants, mode: &str, call: &CallFacts) -> Option<Scope> {
    let Commands::Line { plain, parts, .. } = &call.commands else { return None };
    let scopes = parts.iter().map(|part| Scope::Run(call.tool.clone(), part.clone()));
    let now = scopes.into_iter().find(|scope| grants.is_rejected(mode, scope));
    now.or_else(|| plain.iter().find_map(|words| grants.rejects_words(mode, &call.tool, words)).cloned())
}

/// Filters the files below a folder that an allowed call reads, so that a search reveals no file that rules
/// deny by name.
#[derive(Debug, Clone)]
pub struct FilesBelow {
    ceilings: Ceilings,
    grants: Grants,
    call: CallFacts,
}

impl FilesBelow {
    pub fn new(ceilings: Ceilings, grants: Grants, call: CallFacts) -> Self {
        Self { ceilings, grants, call }
    }

    /// Skips files that need a permission request, unless the same `ask` rule already matched the call
    /// itself: no request is sent during a call.
    pub fn admits(&self, file: &Target) -> bool {
        let call = CallFacts { targets: vec![file.clone()], ..self.call.clone() };
        match decide(&self.ceilings, &self.grants, &call) {
            Verdict::Allow => true,
            Verdict::Ask(_) => {
                !self.ceilings.rules.iter().any(|rules| rules.asks_in_addition(&call, &self.call))
            }
            Verdict::Deny(_) => false,
        }
    }
}

pub fn explain(ceilings: &Ceilings, call: &CallFacts) -> String {
    let mode = ceilings.modes.first().map_or("no mode", |mode| mode.id.as_str());
    match decide(ceilings, &Grants::default(), call) {
        Verdict::Deny(denial) => {
            let reason = denial_reason(ceilings, call, &denial);
            format!("denied by {}: {}", denial.rule, reason.text)
        }
        Verdict::Ask(_) => format!("asked for in {mode}: {}", ask_reason(ceilings, call)),
        Verdict::Allow => match ceilings.allowing(call).as_slice() {
            [] => format!("allowed in {mode}: no rule denies it or requires a permission request"),
            [rule] => format!("allowed in {mode} by the rule allow {}", rule.text),
            rules => {
                let rules: Vec<&str> = rules.iter().map(|rule| rule.text.as_str()).collect();
                format!("allowed in {mode} by the rules allow {}", rules.join(", "))
            }
        },
    }
}

/// Returns the reason of [`Verdict::Ask`].
pub fn ask_reason(ceilings: &Ceilings, call: &CallFacts) -> AskReason {
    if let Some(rule) = ceilings.asking(call) {
        AskReason::Rule(rule.text.clone())
    } else if let Some((kind, rule)) = ceilings.may_restrict(call) {
        AskReason::NotUnderstood(kind.name(), rule.text.clone())
    } else if let Some(target) = call.outside().next() {
        AskReason::Outside(target.path.clone())
    } else if call.effect == Effect::Network {
        AskReason::Network(call.address.clone())
    } else if let Some(claim) = &call.claim {
        AskReason::Claim(claim.server.clone())
    } else {
        AskReason::Mode
    }
}

pub fn is_available(ceilings: &Ceilings, grants: &Grants, tool: &CallFacts) -> bool {
    !matches!(decide(ceilings, grants, tool), Verdict::Deny(_))
}

/// True if the mode permits the change, ignoring tool lists and consent. Applies to undo by the user.
pub fn may_change(mode: &Mode, call: &CallFacts) -> bool {
    denied_by_settings(mode, call).is_none()
}

fn must_ask(mode: &Mode, call: &CallFacts) -> bool {
    match call.effect {
        Effect::Network => mode.network == Network::Ask,
        effect if call.claim.is_none() => effect.is_change() && mode.permission == Consent::Ask,
        // A claim needs no consent where a tool of unknown effect would run without asking.
        _ => {
            mode.permission == Consent::Ask
                || !admits(mode.access, Effect::Unknown)
                || mode.write_paths.is_some()
        }
    }
}

fn denied_by(mode: &Mode, call: &CallFacts) -> Option<Denial> {
    let tool = &call.tool;
    if !mode.tools.admit(tool) {
        let message = format!("{tool} is not available {}. {}", place(mode), capability_text(mode));
        return Some(Denial { rule: "tools", message });
    }
    denied_by_settings(mode, call)
}

fn denied_by_settings(mode: &Mode, call: &CallFacts) -> Option<Denial> {
    let deny = |rule, message: String| Some(Denial { rule, message });
    let (tool, label) = (&call.tool, mode.label());
    if !admits(mode.access, call.effect) {
        return deny(
            "access",
            format!(
                "{tool} is not available {}, {}. {}",
                place(mode),
                access_text(mode.access),
                capability_text(mode)
            ),
        );
    }
    if mode.shell < call.shell {
        let limit =
            if mode.shell == ShellUse::Off { "runs no commands" } else { "runs read-only commands only" };
        return deny("shell", format!("{tool} is not available: {label} {limit}. {}", capability_text(mode)));
    }
    if let Some(globs) = &mode.write_paths {
        if call.effect == Effect::Edit && globs.patterns.is_empty() {
            return deny(
                "write_paths",
                format!("{tool} is not available: {label} permits no file to be written."),
            );
        }
        let why = format!("{tool} is not available: {label} limits the files that may be written, and");
        if call.shell == ShellUse::Full {
            return deny("shell", format!("{why} a command could write elsewhere."));
        }
        if call.effect == Effect::Unknown {
            return deny("write_paths", format!("{why} the files that this call writes are unknown."));
        }
    }
    if call.effect == Effect::Network && mode.network == Network::Deny {
        return deny("network", format!("{label} does not allow network access. {}", capability_text(mode)));
    }
    if call.effect == Effect::Edit {
        let unwritable = call.targets.iter().find(|target| !may_write(mode, target.inside.as_deref()));
        if let Some(target) = unwritable {
            let path = target.path.display();
            return match &mode.write_paths {
                Some(globs) if target.inside.is_some() => deny(
                    "write_paths",
                    format!("{path} is not a file that {label} may write: {}.", globs.patterns.join(", ")),
                ),
                _ => deny(
                    "roots",
                    format!("{path} is outside the session's folders; files there cannot be written."),
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

fn place(mode: &Mode) -> String {
    match &mode.kind {
        CeilingKind::Mode => format!("in {}", mode.label()),
        CeilingKind::Policy => format!("under {}", mode.label()),
        CeilingKind::Agent(_) => format!("to {}", mode.label()),
    }
}

fn capability_text(mode: &Mode) -> &'static str {
    match (mode.access, &mode.kind) {
        (Access::ReadOnly, CeilingKind::Agent(_)) => {
            "You can read and search (with commands, too, where shell_read_only is offered), and answer with what you found."
        }
        (Access::ReadOnly, CeilingKind::Mode | CeilingKind::Policy) => {
            "You can read and search (with commands, too, where shell_read_only is offered), and write a plan in your answer; the user decides when to leave this mode."
        }
        (Access::Edit, _) => "You can read, search and edit files where the mode allows it.",
        (Access::Full, _) => "The other tools remain available.",
    }
}

#[cfg(test)]
mod tests;
