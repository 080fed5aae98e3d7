//! `modegate sessions` and `modegate audit`: what is kept of sessions, for the person at the command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Subcommand, ValueEnum};
use serde_json::json;

use crate::acp::{SessionId, SessionModeId};
use crate::agent::Agent;
use crate::audit::{self, Report};
use crate::client;
use crate::config::environment::Environment;
use crate::config::{self, Config, Flags, Parts};
use crate::store::Store;
use crate::store::sessions::{Listing, OpenError, StoredSession};
use crate::tool::Toolset;

mod print;

/// Sessions that are listed if not said otherwise.
const LISTED: usize = 20;

/// Events that are read at once.
const PAGE: usize = 256;

/// Characters of an id that stand for it.
const MIN_PART: usize = 6;

/// What is to be done with sessions. An id may be given by its beginning or its end, if that is enough.
#[derive(Debug, Subcommand)]
pub(super) enum Ask {
    /// List the sessions of this folder, the newest first
    List {
        /// Of all folders
        #[arg(long)]
        all: bool,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = LISTED)]
        limit: usize,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Show what happened in a session, in brief
    Show {
        /// Its id
        id: String,
    },
    /// Print all that happened in a session
    Export {
        /// Its id
        id: String,
        /// As a page to read, or as one JSON object a line
        #[arg(long, value_enum, default_value_t = Format::Markdown)]
        format: Format,
        /// A new file to write [default: print it]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Delete sessions for good
    Delete {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Delete the sessions in which nothing has happened for a time
    Prune {
        /// How long: 30d, 12h, 8w
        #[arg(long, value_name = "TIME")]
        older_than: String,
        /// Only say which
        #[arg(long)]
        dry_run: bool,
    },
    /// Change the mode of a session that nobody has open
    SetMode {
        /// Its id
        id: String,
        /// The mode
        mode: String,
    },
    /// Put back the files that a turn changed, if nothing has changed them since
    Undo {
        /// The session's id
        id: String,
        /// The turn [default: the last one that changed something]
        #[arg(long, value_name = "N")]
        turn: Option<u64>,
    },
}

/// How a session is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A page to read
    Markdown,
    /// One JSON object a line
    Jsonl,
}

/// What is to be audited.
#[derive(Debug, clap::Args)]
pub(super) struct Audited {
    /// The session's id
    session: String,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// A hash that you have kept: it has to be in the chain
    #[arg(long, value_name = "HASH", value_parser = whole_hash)]
    head: Option<String>,
}

/// Does it.
pub(super) async fn run(
    ask: Ask,
    flags: &Flags,
    environment: Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    if let Ask::SetMode { .. } | Ask::Undo { .. } = ask {
        return change(ask, flags, environment, output).await;
    }
    let store = match ask {
        Ask::List { .. } | Ask::Show { .. } | Ask::Export { .. } => open_to_read(flags, &environment).await?,
        _ => open(flags, &environment)?,
    };
    match ask {
        Ask::List { all, limit, json } => {
            let here = std::fs::canonicalize(config::working_folder(flags)?)?;
            let listing = Listing { cwd: (!all).then_some(here), limit, ..Listing::default() };
            let sessions = store.sessions(listing).await?;
            if sessions.is_empty() && !json {
                writeln!(
                    output,
                    "No sessions{}.",
                    if all { "" } else { " in this folder; --all lists the others" }
                )?;
            }
            for session in &sessions {
                if json {
                    writeln!(output, "{}", print::summary(session))?;
                } else {
                    print::line(session, all, &mut output)?;
                }
            }
        }
        Ask::Show { id } => {
            let session = find(&store, &id).await?;
            print::head(&session, &mut output)?;
            each_event(&store, &session, |kept| print::brief(kept, &mut output)).await?;
        }
        Ask::Export { id, format, output: file } => {
            let session = find(&store, &id).await?;
            let mut file = file.as_deref().map(new_file).transpose()?;
            let mut output: &mut dyn Write = file.as_mut().map_or(&mut output, |file| file);
            if format == Format::Markdown {
                print::title(&session, &mut output)?;
            }
            each_event(&store, &session, |kept| match format {
                Format::Markdown => print::markdown(kept, &mut output),
                Format::Jsonl => print::json_line(kept, &mut output),
            })
            .await?;
            output.flush()?;
        }
        Ask::Delete { ids } => {
            for id in ids {
                let session = find(&store, &id).await?;
                store.delete_session(&session.id).await.with_context(|| session.id.to_string())?;
                writeln!(output, "deleted {}", session.id)?;
            }
        }
        Ask::Prune { older_than, dry_run } => prune(&store, &older_than, dry_run, output).await?,
        Ask::SetMode { .. } | Ask::Undo { .. } => unreachable!("they are done above"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Audits a session. The exit code is 1 if something is wrong.
pub(super) async fn audit(
    asked: Audited,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let store = open_to_read(flags, environment).await?;
    let session = find(&store, &asked.session).await?;
    let evidence = store.evidence(&session.id).await?.context("the session is gone")?;
    let effects = Toolset::effects();
    let effect_of = |name: &str| effects.iter().find(|(tool, _)| tool == name).map(|(_, effect)| *effect);
    let report = audit::audit(&evidence, effect_of, asked.head.as_deref());
    if asked.json {
        writeln!(output, "{}", as_json(&session, &report))?;
    } else {
        describe(&session, &report, &mut output)?;
    }
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(session: &StoredSession, report: &Report) -> serde_json::Value {
    json!({
        "session": session.id,
        "ok": report.findings.is_empty(),
        "head": report.head.as_ref().map(|head| json!({ "length": head.length, "hash": head.hash })),
        "modeChanges": report.mode_changes,
        "denials": report.denials,
        "calls": report.calls,
        "findings": report.findings,
        "notes": report.notes,
    })
}

fn describe(session: &StoredSession, report: &Report, output: &mut impl Write) -> std::io::Result<()> {
    writeln!(output, "session  {}", session.id)?;
    if let Some(head) = &report.head {
        writeln!(output, "chain    {} entries, the last: {}", head.length, head.hash)?;
    }
    let Report { mode_changes, denials, calls, .. } = report;
    writeln!(
        output,
        "in it    mode changes: {mode_changes}, denials: {denials}, calls that may change something: {calls}"
    )?;
    for finding in &report.findings {
        writeln!(output, "WRONG    {finding}")?;
    }
    if report.findings.is_empty() && report.head.as_ref().is_some_and(|head| head.length > 0) {
        writeln!(
            output,
            "ok       the chain holds together, and each call was allowed by what held when it was made"
        )?;
    }
    for note in &report.notes {
        writeln!(output, "note     {note}")?;
    }
    Ok(())
}

/// The session that is continued in this folder: the newest.
pub(super) async fn newest(store: &Store, cwd: PathBuf) -> anyhow::Result<SessionId> {
    let cwd = std::fs::canonicalize(&cwd).unwrap_or(cwd);
    let listing = Listing { cwd: Some(cwd), limit: LISTED, ..Listing::default() };
    let sessions = store.sessions(listing).await?;
    if let Some(reason) = store.substituted() {
        bail!("there is no session to continue, because the store cannot be used: {reason}");
    }
    if let Some(session) = sessions.first().filter(|session| session.is_open_elsewhere) {
        bail!(
            "the newest session of this folder, {}, is open in another process; --resume takes another",
            session.id
        );
    }
    let newest = sessions.into_iter().next();
    newest.map(|session| session.id).context("there is no session to continue in this folder")
}

/// The one session that an id, or a part of one, stands for.
pub(super) async fn find(store: &Store, part: &str) -> anyhow::Result<StoredSession> {
    if part.len() < MIN_PART {
        bail!("{part:?} is too short: give at least {MIN_PART} characters of the id");
    }
    let found = store.sessions_like(part).await?;
    match found.as_slice() {
        [] => bail!("there is no session {part:?}: `modegate sessions list --all` lists them"),
        [id] => store.session(id).await?.context("the session is gone"),
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            bail!("{part:?} may be any of {}: give more of it", names.join(", "))
        }
    }
}

fn open(flags: &Flags, environment: &Environment) -> anyhow::Result<Store> {
    let path = config::store_file(flags, environment)?;
    if !path.is_file() {
        bail!("there is no record yet at {}", path.display());
    }
    Store::check(&path).with_context(|| path.display().to_string())?;
    Ok(config::open_store(path)?)
}

/// Opens a record to look at it: one that cannot be written, too.
async fn open_to_read(flags: &Flags, environment: &Environment) -> anyhow::Result<Store> {
    let path = config::store_file(flags, environment)?;
    if !path.is_file() || Store::check(&path).is_ok() {
        return open(flags, environment);
    }
    let store = config::read_store(path.clone())?;
    // What is wrong with the file is known once it was asked for something.
    store.sessions(Listing { limit: 1, ..Listing::default() }).await?;
    match store.substituted() {
        Some(reason) => bail!("{}: the record cannot be read: {reason}", path.display()),
        None => Ok(store),
    }
}

async fn each_event(
    store: &Store,
    session: &StoredSession,
    mut show: impl FnMut(&crate::store::sessions::StoredEvent) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let mut from = 0;
    loop {
        let page = store.events(&session.id, from, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        from = last.seq + 1;
        for kept in &page {
            show(kept)?;
        }
    }
}

async fn prune(store: &Store, time: &str, dry_run: bool, mut output: impl Write) -> anyhow::Result<()> {
    let age = duration(time)
        .with_context(|| format!("--older-than {time}: a number of hours, days or weeks: 12h, 30d, 8w"))?;
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    let old = store.sessions_before(config::now_ms().saturating_sub(age)).await?;
    let mut deleted = 0;
    for id in old {
        let outcome = match dry_run {
            true if store.session(&id).await?.is_some_and(|session| session.is_open_elsewhere) => {
                Err(OpenError::Busy)
            }
            true => Ok(()),
            false => store.delete_session(&id).await,
        };
        match outcome {
            Ok(()) => {
                deleted += 1;
                writeln!(output, "{} {id}", if dry_run { "would delete" } else { "deleted" })?;
            }
            Err(OpenError::Busy) => writeln!(output, "left {id}: it is open")?,
            Err(error) => return Err(error.into()),
        }
    }
    writeln!(output, "{deleted} sessions{}", if dry_run { " would be deleted" } else { " deleted" })?;
    Ok(())
}

/// A hash as the chain has it: a part of one, or a slip of the pen, is no sign of tampering.
fn whole_hash(text: &str) -> Result<String, String> {
    let is_one = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| text.to_ascii_lowercase()).ok_or_else(|| "a hash has 64 hexadecimal digits".to_owned())
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let hours = match unit {
        "h" => 1,
        "d" => 24,
        "w" => 7 * 24,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(hours * 3600)?))
}

/// What goes through the session itself, so that the same rules hold as in a conversation.
async fn change(
    ask: Ask,
    flags: &Flags,
    environment: Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    // A record that is not there is not made.
    open(flags, &environment)?;
    let Parts { shared, surroundings, .. } = Config::new(flags, environment)?.into_parts()?;
    let store = shared.store.clone();
    // Nobody is there to be told.
    let (client, _end) = client::channel();
    let agent = Agent::new(shared, surroundings, client, None);
    let id = match &ask {
        Ask::SetMode { id, .. } | Ask::Undo { id, .. } => find(&store, id).await?.id,
        _ => unreachable!("only these come here"),
    };
    let session = agent.open_kept(&id).await?;
    let done = match ask {
        Ask::SetMode { mode, .. } => match session.set_mode_from_command_line(SessionModeId::new(mode)).await
        {
            Ok(Some(head)) => writeln!(
                output,
                "{id}: {} mode; head of the record {}",
                mode_of(&store, &id).await?,
                head.hash
            ),
            Ok(None) => writeln!(output, "{id}: is in that mode already"),
            Err(error) => return close(&agent, Err(error.into())).await,
        },
        Ask::Undo { turn, .. } => match session.undo(turn).await {
            Ok(undone) => print::undone(&undone, &mut output),
            Err(error) => return close(&agent, Err(error.into())).await,
        },
        _ => unreachable!("only these come here"),
    };
    close(&agent, done.map_err(Into::into)).await
}

async fn close(agent: &Agent, outcome: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    agent.close().await;
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn mode_of(store: &Store, id: &SessionId) -> anyhow::Result<String> {
    Ok(store.session(id).await?.and_then(|session| session.mode).unwrap_or_default())
}

fn new_file(path: &std::path::Path) -> anyhow::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).open(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(duration("12h"), Some(Duration::from_secs(12 * 3600)));
        assert_eq!(duration("30d"), Some(Duration::from_secs(30 * 24 * 3600)));
        assert_eq!(duration("8w"), Some(Duration::from_secs(56 * 24 * 3600)));
        for bad in ["", "30", "d", "3m", "-3d", "99999999999999999999d"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
