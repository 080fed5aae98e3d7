//! What decides the calls of a session: its mode, the ceilings above it, the answers that it remembers; and how the
//! mode changes. Nothing here runs a call.

mod agent_question;
pub(super) mod ancestry;
pub(super) mod ceilings;
pub(super) mod decider;
pub(super) mod effect;
pub(super) mod exit;
pub(super) mod exit_form;
pub(super) mod hooked;
pub(super) mod permission_options;
pub(super) mod policy;
pub(super) mod refused_changes;
pub(super) mod switch;
pub(super) mod tightened;
