//! Flags and environment to one validated [`Config`]. The only reader of the environment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use etcetera::BaseStrategy;
use tokio::sync::mpsc;

use crate::acp::SessionModeId;
use crate::ids::Source;
use crate::mode::{DEFAULT, Modes};
use crate::model::Model;
use crate::model::offline::Offline;
use crate::model::scripted::Scripted;
use crate::session::Shared;
use crate::store::{Location, Store};
use crate::tool::{self, Toolset};
use crate::transcript::lockstep::Determinism;

/// Read-side calls of one message that run at once.
const PARALLEL: usize = 8;

/// What a user may say on the command line, as it was said.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// The mode of new sessions.
    pub mode: Option<String>,
    /// Who answers.
    pub model: Option<String>,
    /// Where the record is kept: a path, or `memory`.
    pub store: Option<String>,
    /// Where a headless prompt works.
    pub cwd: Option<PathBuf>,
    /// Seconds that turns may go on after the end of the input.
    pub eof_grace: Option<f64>,
    /// Give the same bytes every time.
    pub deterministic: bool,
}

/// What was asked for, checked and ready for use.
pub struct Config {
    /// The mode of new sessions.
    pub mode: SessionModeId,
    /// Where a headless prompt works: the current directory.
    pub cwd: PathBuf,
    /// How long turns may go on after the end of the input.
    pub eof_grace: Duration,
    deterministic: bool,
    modes: Modes,
    model: Answers,
    store: Location,
}

/// Who answers.
enum Answers {
    Offline,
    Scripted(Scripted),
}

impl Config {
    /// Checks flags and environment. Errors name what is valid.
    pub fn new(flags: &Flags) -> anyhow::Result<Self> {
        let modes = Modes::built_in();
        let mode = modes.resolve(flags.mode.as_deref().unwrap_or(DEFAULT)).context("--mode")?.mode_id();
        let eof_grace = Duration::try_from_secs_f64(flags.eof_grace.unwrap_or(1.0)).context("--eof-grace")?;
        let answers = model(flags.model.as_deref().unwrap_or("offline"))?;
        let store = location(flags.store.as_deref())?;
        if let (Some(_), Location::File(path)) = (&flags.store, &store) {
            Store::check(path).with_context(|| format!("--store {}", path.display()))?;
        }
        let here = std::env::current_dir().context("the current directory")?;
        let cwd = flags.cwd.as_ref().map_or(here.clone(), |cwd| here.join(cwd));
        if !cwd.is_dir() {
            bail!("--cwd: {} is not a directory", cwd.display());
        }
        let deterministic = flags.deterministic;
        Ok(Self { cwd, mode, eof_grace, deterministic, modes, model: answers, store })
    }

    /// What the sessions of this process share. Opens the record.
    ///
    /// A deterministic run also gets what its pacing needs.
    pub fn into_shared(self) -> std::io::Result<(Shared, Option<Determinism>)> {
        let store = Store::open(self.store)?;
        let (scripted_pauses, pauses) = mpsc::unbounded_channel();
        let determinism = self.deterministic.then(|| {
            let store = store.clone();
            let cwd = serde_json::Value::from(self.cwd.to_string_lossy()).to_string();
            Determinism {
                cwd: cwd.trim_matches('"').to_owned(),
                pauses,
                is_busy: Box::new(move || store.is_busy() || tool::is_busy()),
            }
        });
        let model: Arc<dyn Model> = match self.model {
            Answers::Offline => Arc::new(Offline),
            Answers::Scripted(script) if self.deterministic => Arc::new(script.paced_by(scripted_pauses)),
            Answers::Scripted(script) => Arc::new(script),
        };
        let shared = Shared {
            modes: Arc::new(self.modes),
            tools: Toolset::built_in(),
            model,
            store,
            source: if self.deterministic { Source::counted() } else { Source::real() },
            parallel: if self.deterministic { 1 } else { PARALLEL },
        };
        Ok((shared, determinism))
    }
}

/// This binary, and a folder for the working directories of replays: one per process, so that two do not meet.
pub fn replay_places() -> anyhow::Result<(PathBuf, PathBuf)> {
    let binary = std::env::current_exe().context("finding this binary")?;
    let scratch = std::env::temp_dir().join(format!("modegate-replay-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).context("making a folder for replays")?;
    Ok((binary, std::fs::canonicalize(scratch)?))
}

/// The level of the log: `error`, `warn`, `info`, `debug` or `trace`.
pub fn log_level() -> Option<String> {
    std::env::var("MODEGATE_LOG").ok()
}

fn model(name: &str) -> anyhow::Result<Answers> {
    match name.split_once(':') {
        None if name == "offline" => Ok(Answers::Offline),
        Some(("scripted", file)) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("--model {name}"))?;
            Ok(Answers::Scripted(Scripted::parse(&text).with_context(|| format!("--model {name}"))?))
        }
        _ => bail!("--model: unknown model {name:?}: the models are offline and scripted:FILE"),
    }
}

fn location(store: Option<&str>) -> anyhow::Result<Location> {
    match store {
        Some("memory") => Ok(Location::Memory),
        Some("") => bail!("--store: give a path, or memory"),
        Some(path) => Ok(Location::File(path.into())),
        None => Ok(default_store().map_or(Location::Memory, Location::File)),
    }
}

/// `$XDG_DATA_HOME/modegate/modegate.db`; none where there is no home directory.
fn default_store() -> Option<PathBuf> {
    let folders = etcetera::choose_base_strategy().ok()?;
    Some(folders.data_dir().join("modegate").join("modegate.db"))
}
