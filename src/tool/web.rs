//! Tools that read public addresses.

pub mod fetch;
