//! Colours of a headless run on a terminal. The text says the same without them.

use std::fmt;

use crate::session::ModePermits;

/// The meaning of a coloured word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Denied,
    Failed,
    Warning,
    Mode(ModePermits),
    /// Of little weight: the live line, and the details of `--verbose`.
    Detail,
}

impl Meaning {
    /// The parameters of the escape sequence that selects the colour. All are of the terminal's own palette.
    fn code(self) -> &'static str {
        match self {
            Self::Denied | Self::Failed => "31",
            Self::Warning | Self::Mode(ModePermits::AskedChanges) => "33",
            Self::Mode(ModePermits::Reading) => "32",
            Self::Mode(ModePermits::Changes) => "35",
            Self::Detail => "2",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Colors {
    pub is_on: bool,
}

impl Colors {
    pub(super) fn paint(self, meaning: Meaning, text: impl fmt::Display) -> String {
        if self.is_on { format!("\x1b[{}m{text}\x1b[0m", meaning.code()) } else { text.to_string() }
    }
}
