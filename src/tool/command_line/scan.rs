//! Finds the commands in a command line. Pure.
//!
//! One pass with a stack of open constructs, so time and memory are linear. An unknown construct (`case`,
//! functions, here-documents, arithmetic) makes the line opaque; commands inside are still found.

use super::stack::{
    BEFORE_A_COMMAND, Closing, Command, Commands, Frame, NO_COMMANDS, NOT_KNOWN, Redirect, Word,
    is_assignment,
};
use super::{CommandLine, Place, Simple};

const MAX_DEPTH: usize = 32;

const MAX_COMMANDS: usize = 1000;

const MAX_LINE: usize = 100 * 1024;

pub(super) fn scan(text: &str) -> CommandLine {
    let line = CommandLine { text: text.to_owned(), ..CommandLine::default() };
    if text.len() > MAX_LINE {
        return CommandLine { is_opaque: true, ..line };
    }
    let mut scanner = Scanner {
        text,
        at: 0,
        stack: vec![Frame::Commands(Commands::new(Closing::End, Place::Plain))],
        documents: Vec::new(),
        line,
    };
    scanner.run();
    let mut line = scanner.line;
    // Commands are recorded at their end; people read them by their start.
    line.commands.sort_by_key(|command| command.start);
    line.is_opaque |= line.commands.is_empty();
    line
}

pub(super) struct Scanner<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    stack: Vec<Frame>,
    /// Delimiters of pending here-documents; true if leading tabs are stripped.
    pub(super) documents: Vec<(String, bool)>,
    pub(super) line: CommandLine,
}

impl Scanner<'_> {
    fn run(&mut self) {
        while let Some(c) = self.text[self.at..].chars().next() {
            let start = self.at;
            self.at += c.len_utf8();
            match self.stack.last_mut() {
                Some(Frame::Commands(_)) => self.in_commands(c, start),
                Some(Frame::Quotes) => self.in_quotes(c, start),
                Some(Frame::Braces) => self.in_braces(c, start),
                Some(Frame::Arithmetic(open)) => match c {
                    '(' => *open += 1,
                    ')' if *open > 1 => *open -= 1,
                    ')' => drop(self.stack.pop()),
                    '$' | '`' => self.in_expansion(c, start),
                    _ => {}
                },
                None => break,
            }
            if self.stack.len() > MAX_DEPTH || self.line.commands.len() > MAX_COMMANDS {
                self.line.is_opaque = true;
                break;
            }
        }
        let end = self.at;
        self.line.is_opaque |= self.stack.len() > 1 || !self.documents.is_empty();
        while let Some(frame) = self.stack.pop() {
            if let Frame::Commands(mut commands) = frame {
                self.end_command(&mut commands, end);
            }
        }
    }

    pub(super) fn with(&mut self, act: impl FnOnce(&mut Self, &mut Commands)) {
        let innermost = self.stack.iter().rposition(|frame| matches!(frame, Frame::Commands(_)));
        let Some(at) = innermost else { return };
        let taken = std::mem::replace(&mut self.stack[at], Frame::Quotes);
        let Frame::Commands(mut commands) = taken else { return };
        act(self, &mut commands);
        self.stack[at] = Frame::Commands(commands);
    }

    fn word(&mut self, start: usize, act: impl FnOnce(&mut Word)) {
        self.with(|_, commands| {
            act(commands.word.get_or_insert_with(|| Word { start, ..Word::default() }));
        });
    }

    fn next_is(&self, text: &str) -> bool {
        self.text[self.at..].starts_with(text)
    }

    pub(super) fn take(&mut self, text: &str) -> bool {
        let is_next = self.next_is(text);
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    fn in_commands(&mut self, c: char, start: usize) {
        let (has_word, is_test, closing) = match self.stack.last() {
            Some(Frame::Commands(commands)) => (
                commands.word.is_some(),
                commands.command.as_ref().is_some_and(|command| command.is_test)
                    && commands.word.as_ref().is_none_or(|word| word.bare != "]]"),
                commands.closing,
            ),
            _ => (false, false, Closing::End),
        };
        match c {
            ' ' | '\t' => self.with(|scanner, commands| scanner.end_word(commands, start)),
            '\'' => self.quoted(start, '\''),
            '"' => {
                self.word(start, |word| word.is_quoted = true);
                self.stack.push(Frame::Quotes);
            }
            '\\' => self.escaped(start),
            '#' if !has_word => {
                let rest = &self.text[self.at..];
                self.at += rest.find('\n').unwrap_or(rest.len());
            }
            '$' | '`' if c == '$' || closing != Closing::Backtick => self.in_expansion(c, start),
            '`' => self.close(start),
            '<' | '>' if !is_test && self.take("(") => self.substitution(start, Closing::Bracket),
            '<' | '>' if !is_test => self.redirect(c, start),
            '&' if !is_test && self.take(">") => {
                self.take(">");
                self.begin_redirect(start, Redirect::Writes);
            }
            '(' if !is_test => self.open_bracket(start, has_word),
            ')' if !is_test && closing == Closing::Bracket => self.close(start),
            '\n' | ';' | '&' | '|' | ')' if !is_test => self.operator(c, start),
            '\n' => self.with(|scanner, commands| scanner.end_word(commands, start)),
            c => self.word(start, |word| {
                word.is_pattern |= matches!(c, '*' | '?' | '[' | '{')
                    || (c == '~' && word.bare.chars().next_back().is_none_or(|c| matches!(c, ':' | '=')));
                word.bare.push(c);
            }),
        }
    }

    fn in_quotes(&mut self, c: char, start: usize) {
        match c {
            '"' => drop(self.stack.pop()),
            '\\' => self.escaped(start),
            '$' | '`' => self.in_expansion(c, start),
            c => self.word(start, |word| word.bare.push(c)),
        }
    }

    fn in_braces(&mut self, c: char, start: usize) {
        match c {
            '}' => drop(self.stack.pop()),
            '"' => self.stack.push(Frame::Quotes),
            '\'' => self.quoted(start, '\''),
            '\\' => self.escaped(start),
            c => self.in_expansion(c, start),
        }
    }

    fn in_expansion(&mut self, c: char, start: usize) {
        match c {
            '$' if self.take("((") => {
                self.line.is_opaque = true;
                self.word(start, |word| word.is_expanded = true);
                self.stack.push(Frame::Arithmetic(2));
            }
            '$' if self.take("(") => self.substitution(start, Closing::Bracket),
            '$' if self.take("{") => {
                self.line.is_opaque = true;
                self.word(start, |word| word.is_expanded = true);
                self.stack.push(Frame::Braces);
            }
            '$' if self.next_is("'") && !matches!(self.stack.last(), Some(Frame::Quotes)) => {
                self.line.is_opaque = true;
                self.at += 1;
                self.word(start, |word| word.is_expanded = true);
                self.ansi_quoted();
            }
            '$' => {
                self.line.is_opaque |= self.next_is("[") || self.next_is("\"");
                self.word(start, |word| {
                    word.is_expanded = true;
                    word.bare.push('$');
                });
            }
            '`' => {
                self.line.is_opaque = true;
                let innermost = self.stack.iter().rposition(|frame| matches!(frame, Frame::Commands(_)));
                let is_closing = innermost.is_some_and(|at| {
                    matches!(&self.stack[at], Frame::Commands(commands) if commands.closing == Closing::Backtick)
                });
                if let (true, Some(at)) = (is_closing, innermost) {
                    self.stack.truncate(at + 1);
                    self.close(start);
                } else {
                    self.substitution(start, Closing::Backtick);
                }
            }
            c => self.word(start, |word| word.bare.push(c)),
        }
    }

    fn escaped(&mut self, start: usize) {
        let Some(c) = self.text[self.at..].chars().next() else {
            self.line.is_opaque = true;
            return;
        };
        self.at += c.len_utf8();
        if c != '\n' {
            self.word(start, |word| {
                word.bare.push(c);
                word.is_expanded = true;
            });
        }
    }

    fn quoted(&mut self, start: usize, quote: char) {
        let rest = &self.text[self.at..];
        let end = rest.find(quote);
        self.line.is_opaque |= end.is_none();
        let inner = rest[..end.unwrap_or(rest.len())].to_owned();
        self.at += inner.len() + usize::from(end.is_some());
        self.word(start, |word| {
            word.is_quoted = true;
            word.bare.push_str(&inner);
        });
    }

    fn ansi_quoted(&mut self) {
        let mut rest = self.text[self.at..].char_indices();
        while let Some((at, c)) = rest.next() {
            match c {
                '\'' => {
                    self.at += at + 1;
                    return;
                }
                '\\' => drop(rest.next()),
                _ => {}
            }
        }
        self.at = self.text.len();
    }

    fn substitution(&mut self, start: usize, closing: Closing) {
        self.word(start, |word| word.is_expanded = true);
        self.stack.push(Frame::Commands(Commands::new(closing, Place::Substituted)));
    }

    fn open_bracket(&mut self, start: usize, has_word: bool) {
        let mut place = Place::Plain;
        self.with(|scanner, commands| {
            place = commands.place;
            scanner.line.is_opaque |= has_word || commands.command.is_some();
            scanner.end_command(commands, start);
        });
        if !has_word && self.take("(") {
            self.line.is_opaque = true;
            self.stack.push(Frame::Arithmetic(2));
        } else {
            self.stack.push(Frame::Commands(Commands::new(Closing::Bracket, place)));
        }
    }

    fn close(&mut self, start: usize) {
        if let Some(Frame::Commands(mut commands)) = self.stack.pop() {
            self.end_command(&mut commands, start);
        }
    }

    fn operator(&mut self, c: char, start: usize) {
        // An unmatched bracket ends a pattern of `case`.
        self.line.is_opaque |= c == ')';
        let is_pipe = c == '|' && !self.take("|");
        if is_pipe || c == '&' {
            self.take("&");
        } else if c == ';' && (self.take(";") || self.next_is("&")) {
            self.line.is_opaque = true;
        }
        self.with(|scanner, commands| {
            scanner.end_command(commands, start);
            let base = commands.base;
            commands.place = if is_pipe { Place::Piped } else { base };
        });
        if c == '\n' {
            self.skip_documents();
        }
    }

    pub(super) fn end_word(&mut self, commands: &mut Commands, end: usize) {
        let Some(word) = commands.word.take() else { return };
        let is_first = commands.command.as_ref().is_none_or(|command| command.words.is_empty());
        let is_reserved = is_first
            && word.is_bare()
            && commands.command.as_ref().is_none_or(|command| command.redirect.is_none());
        if is_reserved && BEFORE_A_COMMAND.contains(&word.bare.as_str()) {
            self.line.is_opaque |= NOT_KNOWN.contains(&word.bare.as_str());
            return;
        }
        if is_reserved && is_assignment(&word.bare) {
            self.line.is_opaque = true;
            return;
        }
        let command = commands.command.get_or_insert_with(|| Command::new(word.start));
        if let Some(what) = command.redirect.take() {
            self.redirected(what, &word, end);
            return;
        }
        self.line.is_opaque |= is_reserved && NO_COMMANDS.contains(&word.bare.as_str());
        command.is_test |= is_reserved && word.bare == "[[";
        command.is_test &= word.bare != "]]";
        command.end = end;
        command.words.push(word);
        let is_function = |word: &Word| word.bare == "function" && !word.is_quoted;
        if command.words.len() > 2 && is_function(&command.words[0]) {
            // After `function name {`, a command follows.
            commands.command = None;
        }
    }

    fn end_command(&mut self, commands: &mut Commands, end: usize) {
        self.end_word(commands, end);
        let Some(command) = commands.command.take() else { return };
        self.line.is_opaque |= command.redirect.is_some() || command.is_test;
        let is_command = command.words.first().is_some_and(|word| {
            word.is_quoted || word.is_expanded || !NO_COMMANDS.contains(&word.bare.as_str())
        });
        if is_command {
            let text = self.text[command.words[0].start..command.end].to_owned();
            self.line.commands.push(Simple::new(command.start, text, &command.words, commands.place));
        }
    }
}
