//! Implements `modegate audit`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::sessions::{events, find, new_file, open_to_read};
use crate::audit::{self, AuditReport, TrustAnchors};
use crate::bounded_file;
use crate::config::environment::Environment;
use crate::config::{self, Flags, evidence_key};
use crate::evidence_bundle::Bundle;
use crate::ids::{Source, time_text};
use crate::signing::{PublicKey, SigningKey};
use crate::store::evidence::Evidence;
use crate::text::counted;
use crate::tool::effect_of;

/// A bundle with the events of a long session has some hundred megabytes.
const MAX_FILE: u64 = 4 * 1024 * 1024 * 1024;

#[derive(Debug, clap::Args)]
pub(super) struct AuditArguments {
    /// Id of the session to verify, or a file that --export has written
    #[arg(
        value_name = "SESSION|FILE",
        required_unless_present = "public_key",
        conflicts_with = "public_key"
    )]
    session: Option<String>,
    /// Print a JSON object
    #[arg(long, conflicts_with = "public_key")]
    json: bool,
    /// Require this hash, noted earlier, to be in the chain
    #[arg(long, value_name = "HASH", value_parser = whole_hash, conflicts_with = "public_key")]
    head: Option<String>,
    /// Require signatures of this public key
    #[arg(long, value_name = "KEY", value_parser = PublicKey::parse, conflicts_with = "public_key")]
    key: Option<PublicKey>,
    /// Write the verified log to this new file, signed with your key; creates a key if there is none
    #[arg(long, value_name = "FILE", conflicts_with = "public_key")]
    export: Option<PathBuf>,
    /// Add the session's events to the file: prompts, answers and results
    #[arg(long, requires = "export")]
    with_events: bool,
    /// Print your public key, and create the key if there is none
    #[arg(long)]
    public_key: bool,
}

/// The output of `modegate audit --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditOutput {
    session: String,
    /// True without findings.
    ok: bool,
    /// `null` if the chain is broken.
    head: Option<HeadOutput>,
    mode_changes: usize,
    denials: usize,
    /// Calls that may have changed something.
    calls: usize,
    /// Files that external agents changed.
    agent_changes: usize,
    signatures: SignaturesOutput,
    /// The verified file, or `null` for a session of the store.
    file: Option<FileOutput>,
    findings: Vec<String>,
    notes: Vec<String>,
}

/// The last entry of a chain.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HeadOutput {
    pub(super) length: u64,
    pub(super) hash: String,
}

/// The valid signatures.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SignaturesOutput {
    keys: Vec<String>,
    /// Number of the last entry that a signature covers; 0 without a signature.
    last_entry: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FileOutput {
    /// Public key of the exporter.
    sealed_by: String,
    /// Milliseconds since 1970.
    exported_at: i64,
    /// Version of the Modegate that wrote the file.
    version: String,
}

/// The audited evidence, and the file that it comes from.
struct Audited {
    evidence: Evidence,
    /// For `--with-events`.
    events: Option<Vec<serde_json::Value>>,
    file: Option<FileOutput>,
}

pub(super) async fn run(
    arguments: AuditArguments,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let Some(name) = arguments.session.as_deref() else {
        writeln!(output, "{}", evidence_key::own(environment)?.public())?;
        return Ok(ExitCode::SUCCESS);
    };
    let path = Path::new(name);
    let audited = if path.is_file() {
        read_file(path)?
    } else {
        from_store(name, arguments.with_events, flags, environment).await?
    };
    let anchors = TrustAnchors { head: arguments.head.as_deref(), key: arguments.key.as_ref() };
    let mut report = audit::audit(&audited.evidence, effect_of, anchors);
    if let (Some(file), Some(key)) = (&audited.file, &arguments.key)
        && file.sealed_by != key.to_string()
    {
        report.findings.push(format!("the file is sealed by another key: {}", file.sealed_by));
    }
    if let Some(file) = &arguments.export {
        if audited.file.is_some() {
            bail!("--export writes sessions of the store, and {name} is a file");
        }
        export(&audited, &evidence_key::own(environment)?, file)?;
    }
    if arguments.json {
        writeln!(output, "{}", serde_json::to_string(&as_output(audited, &report))?)?;
    } else {
        describe(&audited, &report, &mut output)?;
    }
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn from_store(
    part: &str,
    with_events: bool,
    flags: &Flags,
    environment: &Environment,
) -> anyhow::Result<Audited> {
    let store = open_to_read(flags, environment)?;
    let id = find(&store, &config::working_folder(flags)?, part).await?.id;
    let evidence = store.evidence(&id).await?.context("the session is gone")?;
    let events = if with_events { Some(events(&store, &id).await?) } else { None };
    Ok(Audited { evidence, events, file: None })
}

fn read_file(path: &Path) -> anyhow::Result<Audited> {
    let text = match bounded_file::read_text(path, MAX_FILE) {
        Ok(text) => text,
        Err(error) => bail!("{} {error}", path.display()),
    };
    let (bundle, key) = Bundle::open(&text).with_context(|| path.display().to_string())?;
    let Bundle { version, exported_at, evidence, events } = bundle;
    Ok(Audited {
        evidence,
        events,
        file: Some(FileOutput { sealed_by: key.to_string(), exported_at, version }),
    })
}

fn export(audited: &Audited, key: &SigningKey, path: &Path) -> anyhow::Result<()> {
    let bundle = Bundle {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        exported_at: Source::real().now_ms(),
        evidence: audited.evidence.clone(),
        events: audited.events.clone(),
    };
    let mut file = new_file(path)?;
    file.write_all(bundle.seal(key).as_bytes())
        .and_then(|()| file.flush())
        .with_context(|| format!("writing {}", path.display()))
}

fn as_output(audited: Audited, report: &AuditReport) -> AuditOutput {
    let AuditReport { head, mode_changes, denials, calls, agent_changes, signatures, findings, notes } =
        report.clone();
    AuditOutput {
        session: audited.evidence.session.id.to_string(),
        ok: findings.is_empty(),
        head: head.map(|head| HeadOutput { length: head.length, hash: head.hash }),
        mode_changes,
        denials,
        calls,
        agent_changes,
        signatures: SignaturesOutput {
            keys: signatures.keys.iter().map(ToString::to_string).collect(),
            last_entry: signatures.last,
        },
        file: audited.file,
        findings,
        notes,
    }
}

fn describe(audited: &Audited, report: &AuditReport, output: &mut impl Write) -> std::io::Result<()> {
    writeln!(output, "session  {}", audited.evidence.session.id)?;
    if let Some(FileOutput { sealed_by, exported_at, version }) = &audited.file {
        let at = time_text(*exported_at);
        writeln!(output, "file     exported at {at} UTC by Modegate {version}, sealed by {sealed_by}")?;
    }
    if let Some(head) = &report.head {
        writeln!(output, "chain    {}, the last: {}", counted(head.length, "entry", "entries"), head.hash)?;
    }
    for key in &report.signatures.keys {
        let last = report.signatures.last;
        writeln!(output, "signed   up to entry {last} by {key}")?;
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
