//! Compares the pattern of a rule with the commands of a line. Pure.
//!
//! A pattern that names a program (`git push *`) may match a command with unknown words, code that contains
//! its words, and arguments that a program may run. A pattern that begins with a wildcard names no program.

use super::invocation::{CommandWord, Invocation, Invocations};
use super::name_pattern::NamePattern;
use crate::platform::Platform;

/// Stands for unknown words when a pattern is matched. No command has this character.
const UNKNOWN: &str = "\u{10fffd}";

#[derive(Debug, Clone)]
pub(super) struct CommandPattern {
    platform: Platform,
    /// The words of the pattern; empty if they cannot be told apart.
    tokens: Vec<Token>,
    /// True if more words may follow.
    is_open: bool,
}

#[derive(Debug, Clone)]
struct Token {
    text: TokenText,
    /// True if the token also matches blanks, and so more than one word.
    crosses_words: bool,
    is_path: bool,
    /// True if the token begins with a wildcard.
    is_wild: bool,
}

#[derive(Debug, Clone)]
enum TokenText {
    /// Folded, and without wildcards.
    Literal(String),
    Glob(NamePattern),
}

impl CommandPattern {
    pub(super) fn parse(pattern: &str, platform: Platform) -> Self {
        let mut texts: Vec<&str> = pattern.split_ascii_whitespace().collect();
        let is_open = texts.last() == Some(&"*") || texts.last().is_some_and(|last| last.ends_with('*'));
        if texts.last() == Some(&"*") {
            texts.pop();
        }
        // A blank inside of braces or brackets separates no words: its parts are no globs.
        let tokens = texts.iter().map(|text| Token::parse(text, platform)).collect::<Result<_, _>>();
        let tokens = tokens.unwrap_or_default();
        Self { platform, tokens, is_open }
    }

    /// True if the pattern begins with a word that a program can have as its name.
    pub(super) fn names_program(&self) -> bool {
        self.tokens.first().is_some_and(|token| !token.is_wild)
    }

    /// The texts of a command that a pattern is compared with; none if the program is another one.
    pub(super) fn texts(&self, invocation: &Invocation) -> Vec<String> {
        let is_program =
            |word: &CommandWord| matches!(word, CommandWord::Text(text) if self.is_program(text));
        if self.names_program() && !invocation.words.first().is_some_and(is_program) {
            return Vec::new();
        }
        let as_written = joined(&invocation.words, |program| program);
        let by_name = |words: &[CommandWord]| joined(words, |program| self.platform.program_name(program));
        let names = [Some(by_name(&invocation.words)), invocation.essential.as_deref().map(by_name)];
        std::iter::once(as_written).chain(names.into_iter().flatten()).collect()
    }

    /// True if some command that the line may run can match. A pattern that is also for files
    /// (`*(**/.env)`) takes unknown arguments for harmless.
    pub(super) fn may_match(&self, line: &Invocations, is_for_files: bool) -> bool {
        if line.hides_commands {
            return true;
        }
        if !self.names_program() {
            let may_hide = self.tokens.is_empty() && !(line.arguments.is_empty() && line.code.is_empty());
            let has_unknown = line.commands.iter().any(|command| {
                let known_length = if is_for_files { 1 } else { usize::MAX };
                command.words.iter().take(known_length).any(|word| *word == CommandWord::Any)
            });
            return may_hide || has_unknown;
        }
        line.commands.iter().any(|command| self.may_be(command.essential()))
            || line.arguments.iter().any(|words| self.may_be_part_of(words))
            || line.code.iter().any(|code| self.is_mentioned_in(code))
    }

    fn may_be_part_of(&self, arguments: &[CommandWord]) -> bool {
        let starts = arguments.iter().enumerate().filter(|(_, word)| match word {
            CommandWord::Text(text) => self.is_program(text),
            CommandWord::Start(_) | CommandWord::Any => false,
        });
        starts.into_iter().take(MAX_STARTS).any(|(at, _)| self.may_be(&arguments[at..]))
    }

    fn is_program(&self, word: &str) -> bool {
        self.tokens.first().is_some_and(|token| token.is_word(word, true, self.platform))
    }

    /// True if the words can be a command that matches. Between the words of the pattern, options and a value
    /// of each may stand.
    fn may_be(&self, words: &[CommandWord]) -> bool {
        let Some(CommandWord::Text(program)) = words.first() else {
            return self.aligns(words);
        };
        self.is_program(program) && self.aligns(words)
    }

    fn aligns(&self, words: &[CommandWord]) -> bool {
        // `reached[i]`: the first `i` tokens match the words so far. `after_option[i]`: and the last word was
        // skipped as an option, so that the next may be its value.
        let count = self.tokens.len();
        let (mut reached, mut after_option) = (vec![false; count + 1], vec![false; count + 1]);
        reached[0] = true;
        for (at, word) in words.iter().enumerate() {
            let (mut next, mut next_after) = (vec![false; count + 1], vec![false; count + 1]);
            for i in (0..=count).filter(|i| reached[*i]) {
                let before = i.checked_sub(1).map(|before| &self.tokens[before]);
                let may_repeat = before.is_some_and(|token| token.crosses_words);
                let is_rest = i == count && (self.is_open || matches!(word, CommandWord::Any));
                let is_option = match word {
                    CommandWord::Text(text) | CommandWord::Start(text) if i < count => {
                        text.starts_with(['-', '+'])
                            || (matches!(word, CommandWord::Start(_)) && text.is_empty())
                    }
                    _ => false,
                };
                let may_skip = at > 0 && (is_option || (after_option[i] && i < count));
                if may_repeat || is_rest || (may_skip && i > 0) || *word == CommandWord::Any {
                    next[i] = true;
                    next_after[i] |= is_option || *word == CommandWord::Any;
                }
                let Some(token) = self.tokens.get(i) else { continue };
                match word {
                    CommandWord::Text(text) if token.is_word(text, i == 0, self.platform) => {
                        next[i + 1] = true;
                    }
                    // The unknown rest may end in the name of any program.
                    CommandWord::Start(start) if i == 0 || token.may_start_with(start, self.platform) => {
                        next[i + 1] = true;
                    }
                    CommandWord::Any => next[i + 1..].fill(true),
                    CommandWord::Text(_) | CommandWord::Start(_) => {}
                }
            }
            if !next.contains(&true) {
                return false;
            }
            (reached, after_option) = (next, next_after);
        }
        reached[count]
    }

    /// True if the words of the pattern occur in the code, in this order.
    fn is_mentioned_in(&self, code: &str) -> bool {
        let mut words = code.split(|c| !is_path_char(c)).filter(|word| !word.is_empty());
        let occurs =
            |(at, token): (usize, &Token)| words.any(|word| token.is_word(word, at == 0, self.platform));
        self.tokens.iter().enumerate().all(occurs)
    }
}

fn is_path_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+' | '@')
}

/// Bounds the time for arguments that repeat the name of a program.
const MAX_STARTS: usize = 16;

impl Token {
    fn parse(text: &str, platform: Platform) -> Result<Self, globset::Error> {
        let is_literal = !text.contains(['*', '?', '[', '{', '\\']);
        Ok(Self {
            text: if is_literal {
                TokenText::Literal(platform.folded(text).into_owned())
            } else {
                TokenText::Glob(NamePattern::parse(text, false, platform)?)
            },
            crosses_words: text.contains('*'),
            is_path: text.contains('/'),
            is_wild: text.starts_with(['*', '?']),
        })
    }

    fn is_word(&self, word: &str, is_program: bool, platform: Platform) -> bool {
        let word = if is_program && !self.is_path { platform.program_name(word) } else { word };
        match &self.text {
            TokenText::Literal(literal) => *platform.folded(word) == **literal,
            TokenText::Glob(glob) => glob.is_words_in_any_spelling(word),
        }
    }

    fn may_start_with(&self, start: &str, platform: Platform) -> bool {
        match &self.text {
            TokenText::Literal(literal) => literal.starts_with(&*platform.folded(start)),
            TokenText::Glob(_) => true,
        }
    }
}

fn joined(words: &[CommandWord], program_name: impl Fn(&str) -> &str) -> String {
    let mut text = String::new();
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            text.push(' ');
        }
        match word {
            CommandWord::Text(word) if at == 0 => text.push_str(program_name(word)),
            CommandWord::Text(word) => text.push_str(word),
            CommandWord::Start(start) => text.extend([start, UNKNOWN]),
            CommandWord::Any => text.push_str(UNKNOWN),
        }
    }
    text
}
