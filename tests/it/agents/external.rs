//! External agents: the protocol, modes, life cycle and `modegate wrap`.

mod audit;
mod broker;
mod egress;
mod lifecycle;
mod modes;
mod protocol;
mod questions;
mod races;
mod record;
mod rules;
pub(crate) mod sessions;
mod wrap;
