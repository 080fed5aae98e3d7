//! Mode, highest mode and agent with which sessions begin, as the flags and the files name them.

use std::sync::Arc;

use anyhow::Context;

use super::Flags;
use super::policies::Loaded;
use crate::agent::First;
use crate::mode::Mode;
use crate::permission::compare;

pub(super) struct FirstChoice {
    pub(super) first: First,
    /// Of `--max-mode`, with the modes that it cannot exceed.
    pub(super) max_modes: Vec<Arc<Mode>>,
    /// `default_mode` of the files, or the highest mode if that allows less.
    pub(super) default_mode: Option<String>,
}

impl FirstChoice {
    /// Fails if a flag names an unknown mode or agent.
    pub(super) fn new(flags: &Flags, loaded: &Loaded) -> anyhow::Result<Self> {
        let layers = &loaded.layers;
        let mode = mode_of(loaded, flags.mode.as_deref(), "--mode")?.map(Mode::mode_id);
        let max_modes = match mode_of(loaded, flags.max_mode.as_deref(), "--max-mode")? {
            Some(mode) => layers.modes.ceilings(&mode.id)?,
            None => Vec::new(),
        };
        let chosen_agent =
            flags.agent.as_deref().map(|id| layers.agents.resolve(id).map(|agent| agent.id.clone()));
        let chosen_agent = chosen_agent.transpose().with_context(|| with_problem(loaded, "--agent"))?;
        let agent = flags.wrapped.as_ref().map(|(id, _)| id.clone()).or(chosen_agent);
        let default_mode = layers.default_mode.as_deref().and_then(|id| layers.modes.resolve(id).ok());
        let default_mode =
            default_mode.map(|mode| compare::tighter_of(&layers.modes, mode, &max_modes).id.clone());
        Ok(Self { first: First { mode, agent }, max_modes, default_mode })
    }
}

fn mode_of<'a>(loaded: &'a Loaded, id: Option<&str>, flag: &str) -> anyhow::Result<Option<&'a Mode>> {
    let mode = id.map(|id| loaded.layers.modes.resolve(id));
    mode.transpose().with_context(|| with_problem(loaded, flag))
}

/// An unknown name may be defined in an unusable file.
fn with_problem(loaded: &Loaded, flag: &str) -> String {
    match loaded.problems.first() {
        Some(diagnostic) => format!("{flag}, while {diagnostic}"),
        None => flag.to_owned(),
    }
}
