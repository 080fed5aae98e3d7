//! Integration tests: plays, the harness, the binary, and the source tree.

// A test that unwraps fails with the place and the reason.
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
mod telemetry;
mod tools;
