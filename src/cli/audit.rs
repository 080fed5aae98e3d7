//! Implements `modegate audit`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;

use super::sessions::{find, open_to_read};
use crate::audit::{self, AuditReport};
use crate::config::Flags;
use crate::config::environment::Environment;
use crate::store::sessions::StoredSession;
use crate::text::counted;
use crate::tool::effect_of;

#[derive(Debug, clap::Args)]
pub(super) struct AuditArguments {
    /// Id of the session to verify
    session: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Require this hash, noted earlier, to be in the chain
    #[arg(long, value_name = "HASH", value_parser = whole_hash)]
    head: Option<String>,
}

pub(super) async fn run(
    arguments: AuditArguments,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let store = open_to_read(flags, environment)?;
    let session = find(&store, &arguments.session).await?;
    let evidence = store.evidence(&session.id).await?.context("the session is gone")?;
    let report = audit::audit(&evidence, effect_of, arguments.head.as_deref());
    if arguments.json {
        writeln!(output, "{}", as_json(&session, &report))?;
    } else {
        describe(&session, &report, &mut output)?;
    }
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(session: &StoredSession, report: &AuditReport) -> serde_json::Value {
    json!({
        "session": session.id,
        "ok": report.findings.is_empty(),
        "head": report.head.as_ref().map(|head| json!({ "length": head.length, "hash": head.hash })),
        "modeChanges": report.mode_changes,
        "denials": report.denials,
        "calls": report.calls,
        "agentChanges": report.agent_changes,
        "findings": report.findings,
        "notes": report.notes,
    })
}

fn describe(session: &StoredSession, report: &AuditReport, output: &mut impl Write) -> std::io::Result<()> {
    writeln!(output, "session  {}", session.id)?;
    if let Some(head) = &report.head {
        writeln!(output, "chain    {}, the last: {}", counted(head.length, "entry", "entries"), head.hash)?;
    }
    let AuditReport { mode_changes, denials, calls, agent_changes, .. } = report;
    write!(
        output,
        "counts   mode changes: {mode_changes}, denials: {denials}, calls that may change something: {calls}"
    )?;
    if *agent_changes > 0 {
        write!(output, ", files changed by external agents: {agent_changes}")?;
    }
    writeln!(output)?;
    for finding in &report.findings {
        writeln!(output, "WRONG    {finding}")?;
    }
    if report.findings.is_empty() && report.head.as_ref().is_some_and(|head| head.length > 0) {
        writeln!(output, "ok       the hash chain is valid, and each call was allowed when it was made")?;
    }
    for note in &report.notes {
        writeln!(output, "note     {note}")?;
    }
    Ok(())
}

/// Rejects a partial or mistyped hash, which would look like tampering.
fn whole_hash(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| text.to_ascii_lowercase()).ok_or_else(|| "a hash has 64 hexadecimal digits".to_owned())
}
