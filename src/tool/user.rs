//! Tools that ask or inform the user.

pub(super) mod ask_user;
pub mod chat_question;
pub(super) mod switch_mode;
pub(super) mod todo;
