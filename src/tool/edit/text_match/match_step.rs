//! The steps in which a text is searched, from exact to loose. Pure.

/// The differences that a match ignores. A later step also ignores those of the earlier steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::tool::edit) enum MatchStep {
    Exact,
    /// LF or CRLF, and the byte order mark.
    Endings,
    /// The form of quotes, dashes and spaces, and blanks at the ends of lines.
    Characters,
    /// Blanks at the starts of lines, if they are shifted or in other units.
    Indentation,
    /// Blanks within lines, beside a character that ends a word, and outside of quotes.
    Spacing,
}

impl MatchStep {
    /// The steps in their order. Unless `is_exact`, LF and CRLF are equal from the first step on: the text of a
    /// model that has no CR says nothing about the file's line endings.
    pub(in crate::tool::edit) fn all(is_exact: bool) -> impl Iterator<Item = Self> {
        let steps = [Self::Exact, Self::Endings, Self::Characters, Self::Indentation, Self::Spacing];
        steps.into_iter().skip(usize::from(!is_exact))
    }

    pub(in crate::tool::edit) fn ignored(self) -> Option<&'static str> {
        match self {
            Self::Exact | Self::Endings => None,
            Self::Characters => Some("the form of quotes, dashes and blanks"),
            Self::Indentation => Some("indentation"),
            Self::Spacing => Some("blanks within lines"),
        }
    }
}
