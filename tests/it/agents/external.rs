//! External agents: the protocol, modes, life cycle and `modegate wrap`.

mod lifecycle;
mod modes;
mod protocol;
mod races;
pub(crate) mod sessions;
mod wrap;
