//! External agents: the protocol, modes, life cycle and `modegate wrap`.

#[cfg(unix)]
mod audit;
#[cfg(unix)]
mod broker;
#[cfg(unix)]
mod egress;
mod lifecycle;
mod modes;
mod protocol;
#[cfg(unix)]
mod question_count;
#[cfg(unix)]
mod questions;
mod races;
#[cfg(unix)]
mod record;
#[cfg(unix)]
mod refused;
mod rules;
pub(crate) mod sessions;
#[cfg(unix)]
mod start;
mod wrap;
