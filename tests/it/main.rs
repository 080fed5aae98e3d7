//! Every check that is not beside the code it checks: plays, the harness, the binary, and the tidiness of the tree.

// A test that unwraps fails with the place and the reason, which is what a failed test is for.
#![allow(clippy::unwrap_used)]

mod binary;
mod catalogue;
mod choice;
mod commands;
mod delegation;
mod editor;
mod effects;
mod escapes;
mod fetch;
mod guest;
mod held;
mod hostile;
mod html;
mod injection;
mod interleave;
mod invariants;
mod kept;
mod keys;
mod kills;
mod left;
mod matrix;
mod memories;
mod plays;
mod prefix;
mod process;
mod providers;
mod questions;
mod record;
mod reload;
mod remote;
mod reopened;
mod scene;
mod server;
mod servers;
mod servers_http;
mod servers_odd;
mod sessions;
mod shadow;
mod skills;
mod stage;
mod storm;
mod sturdy;
mod support;
mod terminals;
mod tidy;
mod tools_page;
mod transcripts;
mod trouble;
mod turns;
mod undo;
mod user_commands;
mod voices;
mod wire;
