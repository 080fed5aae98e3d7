//! Tools that start, show and end the work of other agents and background jobs.

pub mod background;
pub mod background_list;
pub(super) mod delegate;
pub(super) mod handoff;
pub(super) mod session_action;
pub(super) mod stop_background;
pub(super) mod view_background;
