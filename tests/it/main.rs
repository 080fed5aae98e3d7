//! Every check that is not beside the code it checks: plays, the harness, the binary, and the tidiness of the tree.

// A test that unwraps fails with the place and the reason, which is what a failed test is for.
#![allow(clippy::unwrap_used)]

mod agents;
#[cfg(target_os = "linux")]
mod attacks;
mod cli;
mod models;
mod modes;
mod protocol;
mod repository;
#[cfg(target_os = "linux")]
mod sandbox;
mod sessions;
mod support;
mod tools;
