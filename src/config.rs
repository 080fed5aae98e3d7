//! Flags and environment to one validated [`Config`]. The only reader of the environment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use etcetera::BaseStrategy;

use crate::acp::SessionModeId;
use crate::ids::Source;
use crate::mode::{DEFAULT, Modes};
use crate::model::Model;
use crate::model::offline::Offline;
use crate::model::scripted::Scripted;
use crate::session::Shared;
use crate::store::{Location, Store};
use crate::tool::Toolset;

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
    /// Seconds that turns may go on after the end of the input.
    pub eof_grace: Option<f64>,
}

/// What was asked for, checked and ready for use.
pub struct Config {
    /// The mode of new sessions.
    pub mode: SessionModeId,
    /// Where a headless prompt works: the current directory.
    pub cwd: PathBuf,
    /// How long turns may go on after the end of the input.
    pub eof_grace: Duration,
    modes: Modes,
    model: Arc<dyn Model>,
    store: Location,
}

impl Config {
    /// Checks flags and environment. Errors name what is valid.
    pub fn new(flags: &Flags) -> anyhow::Result<Self> {
        let modes = Modes::built_in();
        let mode = modes.resolve(flags.mode.as_deref().unwrap_or(DEFAULT)).context("--mode")?.mode_id();
        let eof_grace = Duration::try_from_secs_f64(flags.eof_grace.unwrap_or(1.0)).context("--eof-grace")?;
        let answers = model(flags.model.as_deref().unwrap_or("offline"))?;
        let store = location(flags.store.as_deref())?;
        let cwd = std::env::current_dir().context("the current directory")?;
        Ok(Self { cwd, mode, eof_grace, modes, model: answers, store })
    }

    /// What the sessions of this process share. Opens the record.
    pub fn into_shared(self) -> std::io::Result<Shared> {
        Ok(Shared {
            modes: Arc::new(self.modes),
            tools: Toolset::built_in(),
            model: self.model,
            store: Store::open(self.store)?,
            source: Source::real(),
            parallel: PARALLEL,
        })
    }
}

/// The level of the log: `error`, `warn`, `info`, `debug` or `trace`.
pub fn log_level() -> Option<String> {
    std::env::var("MODEGATE_LOG").ok()
}

fn model(name: &str) -> anyhow::Result<Arc<dyn Model>> {
    match name.split_once(':') {
        None if name == "offline" => Ok(Arc::new(Offline)),
        Some(("scripted", file)) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("--model {name}"))?;
            Ok(Arc::new(Scripted::parse(&text).with_context(|| format!("--model {name}"))?))
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
