//! Settings of `modegate run` in a terminal.

use super::keys::PanelKey;

/// Settings of the user.
#[derive(Debug, Clone, Copy)]
pub struct TerminalSettings {
    /// Opens the panel.
    pub key: Option<PanelKey>,
    pub questions: QuestionSignal,
    /// No line at the start.
    pub is_quiet: bool,
    /// The title of the window shows the mode.
    pub has_title: bool,
    /// The terminal keeps the main screen while the alternate one is shown.
    pub keeps_main_screen: bool,
}

/// How a question makes itself known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionSignal {
    Panel,
    Bell,
}
