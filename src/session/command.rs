//! Input that Modegate answers itself: slash commands, and config options of the client.

pub(super) mod parse;
pub(super) mod set_option;
pub(super) mod slash_commands;
pub(super) mod typed_text;
pub(super) mod user_command;
