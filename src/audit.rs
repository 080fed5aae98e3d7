//! Audits a session: checks the chain, compares it with the other tables, and decides again each call that
//! may have changed something. Pure.
//!
//! A call is decided with the facts, modes and rules stored with it. `docs/security/overview.md` describes the limits
//! of an audit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::chain::{self, Head};
use crate::ids::hash;
use crate::mode::definition::ModeDefinition;
use crate::permission::external::ChangeLevel;
use crate::permission::rules::RuleTexts;
use crate::permission::{self, CallFacts, Ceilings, Effect, Grants, Verdict, external};
use crate::signing::PublicKey;
use crate::store::entry::{ChainEntry, RecordedConsent, refuses_acts};
use crate::store::evidence::{Evidence, ShownCall};

mod signatures;

pub use self::signatures::Signatures;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditReport {
    /// `None` if the chain is broken.
    pub head: Option<Head>,
    pub mode_changes: usize,
    pub denials: usize,
    pub calls: usize,
    pub agent_changes: usize,
    pub signatures: Signatures,
    pub findings: Vec<String>,
    pub notes: Vec<String>,
}

/// Facts that the auditor has from elsewhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrustAnchors<'a> {
    /// A hash of the chain.
    pub head: Option<&'a str>,
    /// The key that signs the heads.
    pub key: Option<&'a PublicKey>,
}

/// `effect_of` returns `None` for an unknown tool.
pub fn audit(
    evidence: &Evidence,
    effect_of: impl Fn(&str) -> Option<Effect>,
    anchors: TrustAnchors<'_>,
) -> AuditReport {
    let mut audit = Audit {
        evidence,
        report: AuditReport {
            head: None,
            mode_changes: 0,
            denials: 0,
            calls: 0,
            agent_changes: 0,
            signatures: Signatures::default(),
            findings: Vec::new(),
            notes: Vec::new(),
        },
        mode: None,
        grants: Grants::default(),
        recorded: HashMap::new(),
        before: 0,
        older: (0, 0),
        modes: Vec::new(),
        denials: Vec::new(),
        denied: HashSet::new(),
        parsed: HashMap::new(),
        permits: HashSet::new(),
    };
    audit.check_consistency(anchors.head);
    audit.check_signatures(anchors.key);
    for link in &evidence.links {
        match ChainEntry::read(&link.body) {
            Ok(entry) => audit.entry(link.number, &entry),
            Err(error) => audit.found(format!("entry {}: cannot be read: {error}", link.number)),
        }
    }
    audit.agree(effect_of);
    audit.report
}

/// Members of a call's chain entry that its event has, too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RecordedCall {
    tool: String,
    /// Their hash.
    arguments: String,
    check: Option<String>,
}

struct Audit<'a> {
    evidence: &'a Evidence,
    report: AuditReport,
    mode: Option<String>,
    grants: Grants,
    /// By call id.
    recorded: HashMap<String, RecordedCall>,
    /// Last turn before the chain starts.
    before: u64,
    /// Numbers of mode changes and denials before the chain starts.
    older: (usize, usize),
    modes: Vec<ChainEntry>,
    denials: Vec<ChainEntry>,
    denied: HashSet<String>,
    parsed: HashMap<String, Result<Ceilings, String>>,
    /// Hashes of the ceilings under which external agents were permitted to change files.
    permits: HashSet<String>,
}

impl Audit<'_> {
    fn found(&mut self, text: String) {
        self.report.findings.push(text);
    }

    fn check_consistency(&mut self, recorded: Option<&str>) {
        let Evidence { session, links, .. } = self.evidence;
        match chain::verify(&session.id.0, links.iter()) {
            Ok(head) => self.report.head = Some(head),
            Err(broken) => self.found(format!("the chain is broken: {broken}")),
        }
        match (links.first().map(|link| ChainEntry::read(&link.body)), session.is_chained) {
            (None, true) => self.found("the chain was deleted".into()),
            (None, false) => {
                let text = "the session is older than hash chains, so no call can be decided again";
                self.report.notes.push(text.into());
            }
            // A new session or a fork: earlier turns are not its own.
            (Some(Ok(ChainEntry::Mode { from: None, turn, .. })), _) => self.before = turn,
            (Some(Ok(ChainEntry::Older { turns, mode_changes, denials, .. })), _) => {
                self.before = turns;
                self.older = (count_of(mode_changes), count_of(denials));
                let text = format!("turns up to {turns} are older than the chain and are not decided again");
                self.report.notes.push(text);
            }
            (Some(_), _) => self.found("the first entry of the chain is of the wrong kind".into()),
        }
        if let Some(recorded) = recorded {
            if !links.iter().any(|link| link.hash == recorded) {
                self.found(format!("no entry has the hash given with --head: {recorded}"));
            }
        } else {
            self.report
                .notes
                .push("without --head, entries removed from the end of the chain are not detected".into());
        }
    }

    fn check_signatures(&mut self, key: Option<&PublicKey>) {
        let (signatures, findings) = signatures::check(self.evidence, key);
        let length = self.evidence.links.last().map_or(0, |link| link.number);
        if !signatures.keys.is_empty() && signatures.last < length {
            let text = format!("entries after {} are not signed", signatures.last);
            self.report.notes.push(text);
        }
        self.report.signatures = signatures;
        self.report.findings.extend(findings);
    }

    fn entry(&mut self, number: u64, entry: &ChainEntry) {
        match entry {
            ChainEntry::Mode { from, to, text, .. } => {
                self.report.mode_changes += 1;
                if let (Some(was), Some(from)) = (&self.mode, from)
                    && was != from
                {
                    let text = format!(
                        "entry {number}: changes from {from} mode, but the session was in {was} mode"
                    );
                    self.found(text);
                }
                if let Err(reason) = self.text(text) {
                    self.found(format!("entry {number}: the text of {to} mode: {reason}"));
                }
                self.mode = Some(to.clone());
                self.modes.push(entry.clone());
            }
            ChainEntry::Older { mode, .. } => self.mode.clone_from(mode),
            ChainEntry::Denial { call, rule, .. } => {
                self.report.denials += 1;
                self.denials.push(entry.clone());
                if !refuses_acts(rule) {
                    self.denied.insert(call.clone());
                }
            }
            ChainEntry::Answer { mode, allows, scope, .. } => match scope.to_scope() {
                Some(scope) if *allows => self.grants.allow(mode, scope),
                Some(scope) => self.grants.reject(mode, scope),
                None => self.found(format!("entry {number}: an answer with an unknown scope")),
            },
            ChainEntry::Call { .. } => self.call(number, entry),
            ChainEntry::ExternalAgent { agent, sandboxed, decided, under: Some(under), .. } => {
                self.process(number, agent, *sandboxed, *decided, under);
            }
            ChainEntry::Changes { agent, facts, under, .. } => {
                self.agent_changes(number, agent, &facts.to_call(&self.evidence.session.cwd), under);
            }
            ChainEntry::Unrecorded { turn, why, .. } => self.report.notes.push(format!("turn {turn}: {why}")),
            ChainEntry::Undo { .. }
            | ChainEntry::Hint { .. }
            | ChainEntry::Delegate { .. }
            | ChainEntry::Agent { .. }
            | ChainEntry::ExternalAgent { under: None, .. } => {}
        }
    }

    fn call(&mut self, number: u64, entry: &ChainEntry) {
        let ChainEntry::Call { call, facts, arguments, check, mode, under, consent, .. } = entry else {
            return;
        };
        self.report.calls += 1;
        if !facts.is_external() {
            let (tool, arguments, check) = (facts.tool().to_owned(), arguments.clone(), check.clone());
            self.recorded.insert(call.clone(), RecordedCall { tool, arguments, check });
        }
        let entry_name = format!("entry {number}: {call} ({})", facts.tool());
        if self.mode.as_ref().is_some_and(|on| on != mode) {
            let on = self.mode.clone().unwrap_or_default();
            self.found(format!("{entry_name}: ran in {mode} mode, but the session was in {on} mode"));
        }
        let verdict = match self.ceilings(under) {
            Err(reason) => Err(reason),
            Ok(ceilings) => {
                let facts = facts.to_call(&self.evidence.session.cwd);
                let none = Grants::default();
                let remembered = if *consent == RecordedConsent::Remembered { &self.grants } else { &none };
                Ok((
                    permission::decide(&ceilings, remembered, &facts),
                    ceilings.modes.first().map(|mode| mode.id.clone()),
                ))
            }
        };
        match verdict {
            Err(reason) => self.found(format!("{entry_name}: cannot be decided again: {reason}")),
            Ok((_, own)) if own.as_deref() != Some(mode) => {
                self.found(format!("{entry_name}: was decided under another mode than {mode}"));
            }
            Ok((Verdict::Deny(denial), _)) => {
                self.found(format!("{entry_name}: is denied by {}: {}", denial.rule, denial.message));
            }
            Ok((Verdict::Ask(_), _)) if *consent == RecordedConsent::ExternalAgent && facts.is_external() => {
            }
            Ok((Verdict::Ask(_), _)) if *consent != RecordedConsent::User => {
                self.found(format!(
                    "{entry_name}: required the user's permission, and the chain has no answer of the user"
                ));
            }
            Ok((Verdict::Ask(_) | Verdict::Allow, _)) => {}
        }
    }

    fn process(&mut self, number: u64, agent: &str, sandboxed: bool, decided: bool, under: &str) {
        let entry_name = format!("entry {number}: the process of {agent}");
        if !sandboxed {
            self.permits.insert(under.to_owned());
        }
        match self.ceilings(under) {
            Err(reason) => self.found(format!("{entry_name}: cannot be decided again: {reason}")),
            Ok(ceilings) => {
                let brokered = if decided { external::facts_of_changes(ChangeLevel::Decided) } else { None };
                let facts = brokered.unwrap_or_else(|| CallFacts::of_external_process(sandboxed));
                if external::denied(&ceilings, &facts).is_some() {
                    let how = if sandboxed { "in" } else { "without" };
                    self.found(format!(
                        "{entry_name}: started {how} the sandbox, which the mode does not allow"
                    ));
                }
            }
        }
    }

    fn agent_changes(&mut self, number: u64, agent: &str, facts: &CallFacts, under: &str) {
        self.report.agent_changes += facts.targets.len();
        let entry_name = format!("entry {number}: changes by {agent}");
        if !self.permits.contains(under) {
            self.found(format!("{entry_name}: the agent was not permitted to change files"));
        }
        match self.ceilings(under) {
            Err(reason) => self.found(format!("{entry_name}: cannot be decided again: {reason}")),
            Ok(ceilings) => {
                // Copied once: the list of targets may be long.
                let mut one = facts.clone();
                for target in &facts.targets {
                    one.targets = vec![target.clone()];
                    if let Verdict::Deny(denial) = permission::decide(&ceilings, &Grants::default(), &one) {
                        let path = target.path.display();
                        self.found(format!(
                            "{entry_name}: {path} is denied by {}: {}",
                            denial.rule, denial.message
                        ));
                    }
                }
            }
        }
    }

    /// Returns the recorded modes and rules with this hash.
    fn ceilings(&mut self, hash: &str) -> Result<Ceilings, String> {
        if let Some(parsed) = self.parsed.get(hash) {
            return parsed.clone();
        }
        let parsed = self.text(hash).and_then(|text| parse(&text));
        self.parsed.insert(hash.to_owned(), parsed.clone());
        parsed
    }

    fn text(&self, name: &str) -> Result<String, String> {
        match self.evidence.texts.get(name) {
            None => Err("it is missing in the store".into()),
            Some(text) if hash(text) != name => Err("it does not match its hash".into()),
            Some(text) => Ok(text.clone()),
        }
    }

    fn agree(&mut self, effect_of: impl Fn(&str) -> Option<Effect>) {
        let Evidence { mode_column, links, mode_changes, denials, calls, .. } = self.evidence;
        if links.is_empty() {
            return;
        }
        if let Some(on) = self.mode.clone()
            && mode_column.as_deref() != Some(&on)
        {
            let on_record = mode_column.as_deref().unwrap_or("none");
            self.found(format!("the stored mode is {on_record}, but the chain ends in {on}"));
        }
        if mode_changes.get(self.older.0..) != Some(&self.modes) {
            self.found("the table of mode changes does not agree with the chain".into());
        }
        if denials.get(self.older.1..) != Some(&self.denials) {
            self.found("the table of denials does not agree with the chain".into());
        }
        let shown_calls: HashMap<&str, &ShownCall> =
            calls.iter().map(|call| (call.id.as_str(), call)).collect();
        let mut recorded: Vec<_> =
            self.recorded.iter().map(|(id, what)| (id.clone(), what.clone())).collect();
        recorded.sort();
        for (id, RecordedCall { tool, arguments, check }) in recorded {
            match shown_calls.get(id.as_str()) {
                None => self.found(format!("{id} ({tool}) is in the chain but not in the event log")),
                Some(call) if call.tool != tool || call.arguments != arguments => {
                    self.found(format!(
                        "{id} ({tool}): the event has another tool or other arguments than the chain"
                    ));
                }
                Some(call) if call.check != check => {
                    self.found(format!("{id} ({tool}): the event names another check than the chain"));
                }
                Some(_) => {}
            }
        }
        let before = self.before;
        for ShownCall { turn, id, tool, ran, .. } in calls.iter().filter(|call| call.turn > before) {
            let changes = effect_of(tool).is_none_or(Effect::is_change);
            if *ran && changes && !self.recorded.contains_key(id) {
                self.found(format!("turn {turn}: {id} ({tool}) ran but is not in the chain"));
            }
            if *ran && self.denied.contains(id) && !self.recorded.contains_key(id) {
                self.found(format!(
                    "turn {turn}: {id} ({tool}) was denied, but the event log says that it ran"
                ));
            }
        }
        let unseen =
            "the chain does not contain prompts, answers, results or calls of Modegate's read-only tools";
        self.report.notes.push(unseen.into());
    }
}

fn count_of(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX)
}

fn parse(text: &str) -> Result<Ceilings, String> {
    let mut under = Ceilings { modes: Vec::new(), rules: Vec::new() };
    let mut document = String::new();
    for line in text.lines().chain(["---"]) {
        if line != "---" {
            document.push_str(line);
            document.push('\n');
            continue;
        }
        if document.starts_with("permissions:") {
            #[derive(serde::Deserialize)]
            struct Document {
                permissions: RuleTexts,
            }
            let read: Document = serde_saphyr::from_str(&document).map_err(|error| error.to_string())?;
            under.rules.push(Arc::new(read.permissions.compile(true).map_err(|fault| fault.text)?));
        } else {
            let read: ModeDefinition =
                serde_saphyr::from_str(&document).map_err(|error| error.to_string())?;
            under.modes.push(Arc::new(read.complete(None).map_err(|fault| fault.text)?));
        }
        document.clear();
    }
    Ok(under)
}
