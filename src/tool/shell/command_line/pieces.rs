//! The parts of a word, known and unknown, and the words that they make. Pure.

use super::variables::SingleWords;
use crate::permission::CommandWord;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WordPiece {
    Text(String),
    /// `splits` if the shell may make several words of it, or none.
    Unknown {
        splits: bool,
    },
    /// A variable outside of quotes.
    Variable(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Pieces {
    pieces: Vec<WordPiece>,
    /// True if a brace or bracket stands outside of quotes, as in `{a,b}` and `[ab]`.
    may_expand: bool,
}

impl Pieces {
    pub(super) fn push(&mut self, c: char) {
        match self.pieces.last_mut() {
            Some(WordPiece::Text(text)) => text.push(c),
            _ => self.pieces.push(WordPiece::Text(c.into())),
        }
    }

    pub(super) fn push_text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(WordPiece::Text(known)) => known.push_str(text),
            _ => self.pieces.push(WordPiece::Text(text.to_owned())),
        }
    }

    pub(super) fn push_opening(&mut self, c: char) {
        self.may_expand = true;
        self.push(c);
    }

    pub(super) fn push_unknown(&mut self, splits: bool) {
        self.pieces.push(WordPiece::Unknown { splits });
    }

    pub(super) fn push_variable(&mut self, name: &str) {
        self.pieces.push(WordPiece::Variable(name.to_owned()));
    }

    /// The word, if all of it is known.
    pub(super) fn text(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [WordPiece::Text(text)] if !self.expands() => Some(text),
            _ => None,
        }
    }

    /// The known parts, with a blank for each unknown part.
    pub(super) fn known(&self) -> String {
        self.pieces.iter().map(known_piece).collect()
    }

    /// True for `{a,b}`, `{1..3}` and `[ab]`, but not for `{}` and for `[` alone.
    fn expands(&self) -> bool {
        let known_text = self.may_expand.then(|| self.known());
        known_text.is_some_and(|known| {
            known.contains(',') || known.contains("..") || (known.contains('[') && known.contains(']'))
        })
    }

    pub(super) fn to_words(&self, is_program: bool, single_words: &SingleWords<'_>) -> Vec<CommandWord> {
        if let Some(text) = self.text() {
            return vec![CommandWord::Text(text.to_owned())];
        }
        if self.expands() {
            return vec![CommandWord::Any];
        }
        let start = match self.pieces.first() {
            Some(WordPiece::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let splits = self.pieces.iter().any(|piece| match piece {
            WordPiece::Text(_) => false,
            WordPiece::Unknown { splits } => *splits,
            WordPiece::Variable(name) => !single_words.contains(name),
        });
        if splits {
            let start = (!start.is_empty()).then_some(CommandWord::Start(start));
            return start.into_iter().chain([CommandWord::Any]).collect();
        }
        // `"$DIR"/git` is a program called `git`.
        match self.pieces.last() {
            Some(WordPiece::Text(end)) if is_program && end.contains('/') => {
                vec![CommandWord::Text(end.clone())]
            }
            _ => vec![CommandWord::Start(start)],
        }
    }
}

fn known_piece(piece: &WordPiece) -> String {
    match piece {
        WordPiece::Text(text) => text.clone(),
        WordPiece::Unknown { .. } | WordPiece::Variable(_) => " ".into(),
    }
}
