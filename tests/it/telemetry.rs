//! Telemetry: the spans of a session, the outbox with a collector that fails in every way, and secrets.

mod binary;
mod outbox;
mod receiver;
mod session;
