//! Implements `modegate sessions`.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;

use super::{CliStreams, InputKind, UsageError};
use crate::acp::{SessionId, SessionModeId};
use crate::agent::{Agent, First};
use crate::client;
use crate::config::environment::Environment;
use crate::config::policies::{Loaded, Policies};
use crate::config::{self, Config, Flags, Runtime};
use crate::mode::stored::Defaults;
use crate::platform::files::{create_private_file, real_path};
use crate::policy::Layers;
use crate::session::SessionHandle;
use crate::store::checkpoint::FoundCheckpoint;
use crate::store::events::StoredEvent;
use crate::store::sessions::{ListedRuns, SessionQuery, StoredSession};
use crate::store::{Store, StoreLocation};
use output::{ExportFormat, SessionDetails, SessionOutput};

mod deletion;
pub(super) mod output;
mod print;

const LISTED: usize = 20;

const PAGE: usize = 256;

/// Names the newest session of the working folder.
const LAST: &str = "last";

const MIN_PART: usize = 6;

/// A part of an id is sufficient if only one id starts or ends with it.
#[derive(Debug, Subcommand)]
pub(super) enum SessionsCommand {
    /// List sessions of this directory, most recent first
    List {
        /// Include all directories
        #[arg(long)]
        all: bool,
        /// Maximum number of sessions to list
        #[arg(long, value_name = "N", default_value_t = LISTED)]
        limit: usize,
        /// Include programs of `modegate run`
        #[arg(long)]
        runs: bool,
        /// List only sessions with this text in their title or in a prompt
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Summarise the events of a session
    Show {
        /// Id of the session
        id: String,
        /// Print a JSON object: the session, and the files that each turn changed
        #[arg(long)]
        json: bool,
    },
    /// Print all events of a session
    Export {
        /// Id of the session
        id: String,
        /// Format of the export
        #[arg(long, value_enum, default_value_t = ExportFormat::Markdown)]
        format: ExportFormat,
        /// New file for the export [default: print it]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Delete sessions permanently; asks first in a terminal
    Delete {
        /// Ids of the sessions to delete
        #[arg(required = true)]
        ids: Vec<String>,
        /// Delete without asking; without a terminal, there is no question
        #[arg(long)]
        yes: bool,
    },
    /// Delete sessions of this directory that have been inactive for some time; lists them and asks first
    Prune {
        /// Minimum time of inactivity, such as 30d, 12h or 8w
        #[arg(long, value_name = "TIME")]
        older_than: String,
        /// Include all directories
        #[arg(long)]
        all: bool,
        /// List the sessions without deleting them
        #[arg(long)]
        dry_run: bool,
        /// Delete without asking
        #[arg(long)]
        yes: bool,
    },
    /// Change the mode of a session that is not open
    SetMode {
        /// Id of the session
        id: String,
        /// The new mode of the session
        mode: String,
    },
    /// Restore the files that a turn changed, unless they have changed since
    Undo {
        /// Id of the session
        id: String,
        /// Number of the turn [default: the last turn that changed files]
        #[arg(long, value_name = "N")]
        turn: Option<u64>,
    },
}

pub(super) async fn run(
    action: SessionsCommand,
    flags: &Flags,
    environment: Environment,
    streams: CliStreams<impl Read, impl Write, impl Write>,
) -> anyhow::Result<ExitCode> {
    let CliStreams { input, input_kind, mut output, mut errors } = streams;
    match action {
        SessionsCommand::List { all, limit, runs, search, json } => {
            let store = open_to_read(flags, &environment)?;
            let cwd = if all { None } else { Some(config::real_working_folder(flags)?) };
            let runs = if runs { ListedRuns::Included } else { ListedRuns::LeftOut };
            let listing = SessionQuery { cwd, limit, search, runs, ..SessionQuery::default() };
            let opening_modes = OpeningModes::new(flags, &environment);
            let count = if json {
                list_as_json(&store, listing.clone(), opening_modes, &mut output).await?
            } else {
                list(&store, listing.clone(), opening_modes, &mut output).await?
            };
            let more = store.count_sessions(listing).await?.saturating_sub(count as u64);
            if more > 0 {
                writeln!(errors, "modegate: {more} more; `--limit N` lists them")?;
            }
        }
        SessionsCommand::Show { id, json } => {
            let store = open_to_read(flags, &environment)?;
            let mut session = find(&store, &config::working_folder(flags)?, &id).await?;
            let mut opening_modes = OpeningModes::new(flags, &environment);
            opening_modes.replace(&mut session.mode, &session.cwd);
            if json {
                let details = SessionDetails::new(&session, store.changes(&session.id).await?);
                writeln!(output, "{}", serde_json::to_string(&details)?)?;
                return Ok(ExitCode::SUCCESS);
            }
            print::head(&session, &mut output)?;
            let mut changes = store.changes(&session.id).await?;
            let mut turn = 0;
            each_event(&store, &session.id, |stored| {
                if stored.turn != turn {
                    print::changed(changes.remove(&turn), &session.cwd, &mut output)?;
                    turn = stored.turn;
                }
                print::brief(stored, &mut output)
            })
            .await?;
            print::changed(changes.remove(&turn), &session.cwd, &mut output)?;
            if let Some(evidence) = store.evidence(&session.id).await? {
                print::refused(&evidence, &mut output)?;
            }
        }
        SessionsCommand::Export { id, format, output: file } => {
            let store = open_to_read(flags, &environment)?;
            let mut session = find(&store, &config::working_folder(flags)?, &id).await?;
            let mut opening_modes = OpeningModes::new(flags, &environment);
            opening_modes.replace(&mut session.mode, &session.cwd);
            let mut file = file.as_deref().map(new_file).transpose()?;
            let mut output: &mut dyn Write = file.as_mut().map_or(&mut output, |file| file);
            if format == ExportFormat::Markdown {
                print::title(&session, &mut output)?;
            }
            each_event(&store, &session.id, |stored| match format {
                ExportFormat::Markdown => print::markdown(stored, &mut output),
                ExportFormat::Jsonl => print::json_line(stored, &mut output),
            })
            .await?;
            output.flush()?;
        }
        SessionsCommand::Delete { ids, yes } => {
            let store = open(flags, &environment)?;
            let cwd = config::working_folder(flags)?;
            let ask = (!yes && input_kind == InputKind::Terminal).then_some(input);
            deletion::delete(&store, &cwd, &ids, ask, output).await?;
        }
        SessionsCommand::Prune { older_than, all, dry_run, yes } => {
            let here = if all { None } else { Some(config::real_working_folder(flags)?) };
            let ask = (!dry_run && !yes).then_some((input, input_kind));
            deletion::prune(&open(flags, &environment)?, &older_than, here, dry_run, ask, output).await?;
        }
        SessionsCommand::SetMode { id, mode } => {
            let opened = OpenedSession::open(&id, flags, environment).await?;
            let done = set_mode(&opened, mode, output).await;
            opened.close(done).await?;
        }
        SessionsCommand::Undo { id, turn } => {
            let opened = OpenedSession::open(&id, flags, environment).await?;
            let mut undone = opened.session.undo(turn).await.map_err(anyhow::Error::from);
            if let (Err(error), LAST) = (&undone, id.as_str())
                && let Some(other) = last_changed(&opened.agent, &config::working_folder(flags)?).await?
            {
                undone =
                    Err(anyhow!("{error}; the last session here that changed files is another one: {other}"));
            }
            opened.close(undone.and_then(|undone| Ok(print::undone(&undone, &mut output)?))).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the number of listed sessions.
async fn list(
    store: &Store,
    listing: SessionQuery,
    mut opening_modes: OpeningModes<'_>,
    output: &mut impl Write,
) -> anyhow::Result<usize> {
    let mut sessions = store.sessions(listing.clone()).await?;
    for session in &mut sessions {
        opening_modes.replace(&mut session.mode, &session.cwd);
    }
    print::list(&sessions, listing.cwd.is_none(), output)?;
    if sessions.is_empty() {
        writeln!(output, "{}", nothing_listed(store, listing).await?)?;
    }
    Ok(sessions.len())
}

/// As [`list`], with one JSON object per line.
async fn list_as_json(
    store: &Store,
    listing: SessionQuery,
    mut opening_modes: OpeningModes<'_>,
    output: &mut impl Write,
) -> anyhow::Result<usize> {
    let mut sessions = store.sessions_with_counts(listing).await?;
    for session in &mut sessions {
        opening_modes.replace(&mut session.mode, &session.cwd);
        writeln!(output, "{}", serde_json::to_string(&SessionOutput::new(session))?)?;
    }
    Ok(sessions.len())
}

async fn nothing_listed(store: &Store, listing: SessionQuery) -> anyhow::Result<String> {
    let with_runs = SessionQuery { runs: ListedRuns::Included, ..listing.clone() };
    let has_runs = store.count_sessions(with_runs).await? > 0;
    Ok(print::none_found(&listing, has_runs))
}

/// Finds the most recent session that takes prompts.
pub(super) async fn newest(store: &Store, cwd: PathBuf, agent: Option<String>) -> anyhow::Result<SessionId> {
    let cwd = Some(real_path(&cwd).unwrap_or(cwd));
    let runs = ListedRuns::LeftOut;
    let listing = SessionQuery { cwd, agent, limit: 1, runs, ..SessionQuery::default() };
    let newest = store.sessions(listing).await?.pop();
    if let Some(reason) = store.substituted() {
        bail!("there is no session to continue, because {reason}");
    }
    if let Some(session) = newest.as_ref().filter(|session| session.is_open_elsewhere) {
        bail!(
            "the most recent session of this directory, {}, is open in another process; --resume continues another",
            session.id
        );
    }
    newest.map(|session| session.id).context(
        "there is no session to continue in this directory; `modegate sessions list --all` lists the others, and --resume ID \
         continues one",
    )
}

/// # Errors
/// Returns an error if there is no such session, or if it takes no prompts.
pub(super) async fn to_resume(store: &Store, cwd: &Path, part: &str) -> anyhow::Result<SessionId> {
    let session = find(store, cwd, part).await?;
    if store.is_of_program(&session.id).await? {
        bail!(
            "{} is the session of a program of `modegate run`, which takes no prompts; `modegate sessions show {part}` \
             shows what the program changed",
            session.id
        );
    }
    Ok(session.id)
}

/// `part` is an id, its first or last characters, or `last` for the newest session of the working folder.
pub(super) async fn find(store: &Store, cwd: &Path, part: &str) -> anyhow::Result<StoredSession> {
    if part == LAST {
        let cwd = Some(real_path(cwd).unwrap_or_else(|_| cwd.to_owned()));
        let listing = SessionQuery { cwd, limit: 1, ..SessionQuery::default() };
        return store
            .sessions_with_counts(listing)
            .await?
            .pop()
            .context("there is no session of this directory: `modegate sessions list --all` lists all");
    }
    if part.len() < MIN_PART {
        bail!("{part:?} is too short: give at least {MIN_PART} characters of the id");
    }
    let matching_ids = store.sessions_like(part).await?;
    match matching_ids.as_slice() {
        [] => bail!("there is no session {part:?}: `modegate sessions list --all` lists them"),
        [id] => store.session(id).await?.context("the session is gone"),
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            bail!("{part:?} matches {}: give more characters of the id", names.join(", "))
        }
    }
}

/// The command that undoes the newest session with changes, if that is not the newest of all.
async fn last_changed(agent: &Agent, cwd: &Path) -> anyhow::Result<Option<String>> {
    let store = agent.store();
    let cwd = Some(real_path(cwd).unwrap_or_else(|_| cwd.to_owned()));
    let listing = SessionQuery { cwd, limit: LISTED, ..SessionQuery::default() };
    for session in store.sessions(listing).await?.into_iter().skip(1) {
        if let FoundCheckpoint::Checkpoint(_) = store.checkpoint(&session.id, None).await? {
            return Ok(Some(format!("`modegate sessions undo {}`", session.id)));
        }
    }
    Ok(None)
}

/// Returns the store's file, or an error if it does not exist.
pub(super) fn existing_store(flags: &Flags, environment: &Environment) -> anyhow::Result<PathBuf> {
    let (path, exists) = config::find_store(flags, environment)?;
    if !exists {
        bail!("there is no session store yet at {}", path.display());
    }
    Ok(path)
}

/// True if the user's own store does not exist yet. A missing file that `--store` names is an error instead.
fn is_first_use(flags: &Flags, environment: &Environment) -> anyhow::Result<bool> {
    if flags.store.is_some() {
        return Ok(false);
    }
    let (_, exists) = config::find_store(flags, environment)?;
    Ok(!exists)
}

/// Returns an empty store if there is none yet, so that listings are empty and no file is created.
pub(super) fn open(flags: &Flags, environment: &Environment) -> anyhow::Result<Store> {
    if is_first_use(flags, environment)? {
        return Ok(Store::open_now(&StoreLocation::Memory)?);
    }
    let path = existing_store(flags, environment)?;
    Store::open_now(&StoreLocation::File(path.clone())).with_context(|| path.display().to_string())
}

/// As [`open`], without changing the store.
pub(super) fn open_to_read(flags: &Flags, environment: &Environment) -> anyhow::Result<Store> {
    if is_first_use(flags, environment)? {
        return open(flags, environment);
    }
    let path = existing_store(flags, environment)?;
    Store::open_now(&StoreLocation::File(path.clone()))
        .or_else(|error| Store::open_now(&StoreLocation::Reading(path.clone())).map_err(|_| error))
        .with_context(|| path.display().to_string())
}

/// The modes in which sessions would open. Reads the files of each folder once.
struct OpeningModes<'a> {
    flags: &'a Flags,
    policies: Policies,
    folders: HashMap<PathBuf, Loaded>,
}

impl<'a> OpeningModes<'a> {
    fn new(flags: &'a Flags, environment: &Environment) -> Self {
        Self { flags, policies: Policies::new(environment, None, false), folders: HashMap::new() }
    }

    /// Replaces the stored mode of a session in a folder.
    fn replace(&mut self, mode: &mut Option<String>, folder: &Path) {
        let Self { flags, policies, folders } = self;
        let loaded = folders.entry(folder.to_owned()).or_insert_with_key(|folder| policies.load(folder));
        let Layers { modes, default_mode, .. } = &loaded.layers;
        let defaults = Defaults { command_line: flags.mode.as_deref(), configured: default_mode.as_deref() };
        *mode = Some(modes.effective(mode.as_deref(), defaults).mode.id.clone());
    }
}

async fn each_event(
    store: &Store,
    session: &SessionId,
    mut show: impl FnMut(&StoredEvent) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let mut from = 0;
    loop {
        let page = store.events(session, from, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        from = last.seq + 1;
        page.iter().try_for_each(&mut show)?;
    }
}

pub(super) async fn all_events(store: &Store, session: &SessionId) -> anyhow::Result<Vec<StoredEvent>> {
    let mut events = Vec::new();
    loop {
        let from = events.last().map_or(0, |stored: &StoredEvent| stored.seq + 1);
        let page = store.events(session, from, PAGE).await?;
        if page.is_empty() {
            return Ok(events);
        }
        events.extend(page);
    }
}

/// Returns the events of a session as `modegate sessions export` writes them.
pub(super) async fn events(store: &Store, session: &SessionId) -> anyhow::Result<Vec<serde_json::Value>> {
    Ok(all_events(store, session).await?.iter().map(print::event).collect())
}

async fn set_mode(opened: &OpenedSession, mode: String, mut output: impl Write) -> anyhow::Result<()> {
    let outcome = opened.session.set_mode_from_command_line(SessionModeId::new(mode)).await;
    let outcome = outcome.map_err(|error| {
        if error.is_invalid_params() { UsageError::new(error).into() } else { anyhow::Error::from(error) }
    });
    match outcome? {
        None => writeln!(output, "{}: is in that mode already", opened.id)?,
        Some(head) => {
            let mode = opened.session.snapshot().await?.modes.current_mode_id;
            writeln!(output, "{}: {mode} mode; head of the audit log {}", opened.id, head.hash)?;
        }
    }
    Ok(())
}

/// The session itself makes the change, so that the same checks apply as in an editor.
struct OpenedSession {
    id: SessionId,
    session: SessionHandle,
    agent: Agent,
}

impl OpenedSession {
    async fn open(part: &str, flags: &Flags, environment: Environment) -> anyhow::Result<Self> {
        // Fail instead of creating a store.
        existing_store(flags, &environment)?;
        let Runtime { context, host, .. } = Config::new(flags, environment)?.into_runtime()?;
        let id = find(&context.store, &config::working_folder(flags)?, part).await?.id;
        let (client, _end) = client::channel();
        let agent = Agent::new(context, host, client, First::default());
        let session = agent.open_stored(&id).await?;
        Ok(Self { id, session, agent })
    }

    async fn close(self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        self.agent.close().await;
        outcome
    }
}

pub(super) fn new_file(path: &Path) -> anyhow::Result<std::fs::File> {
    create_private_file(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow!("{} exists already: name another file", path.display()),
        _ => anyhow::Error::new(error).context(path.display().to_string()),
    })
}
