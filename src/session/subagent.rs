//! Work beside the turn: sub-agents, handoffs to another agent, background jobs.

pub(super) mod handoff;
pub(super) mod jobs;
pub(super) mod relay;
pub(super) mod runner;
pub(super) mod spawn;
pub(super) mod subagents;
