//! Scans quotes, escapes and expansions in the words of a command line. Pure.

use super::scan::Scanner;
use super::stack::{Closing, CommandList, StackFrame};
use super::{CommandPlace, ansi};

/// Substitutions whose output is one word.
const ONE_WORD: &[&str] = &[
    "nproc)",
    "whoami)",
    "id -u)",
    "id -g)",
    "uname -m)",
    "uname -s)",
    "uname -r)",
    "date +%s)",
    "date +%F)",
    "git rev-parse HEAD)",
    "git rev-parse --short HEAD)",
];

impl Scanner<'_> {
    pub(super) fn in_expansion(&mut self, c: char, start: usize) {
        match c {
            '$' if self.take("((") => {
                self.line.is_opaque = true;
                self.word(start, |word| word.is_expanded = true);
                self.pieces(start, |pieces| pieces.push_unknown(false));
                self.stack.push(StackFrame::Arithmetic(2));
            }
            '$' if self.take("(") => {
                let is_one_word = ONE_WORD.iter().any(|command| self.next_is(command));
                self.substitution(start, Closing::Bracket, !self.is_in_quotes() && !is_one_word);
            }
            '$' if self.take("{") => {
                self.line.is_opaque = true;
                self.word(start, |word| word.is_expanded = true);
                self.braces(start);
                self.stack.push(StackFrame::Braces);
            }
            '$' if self.next_is("'") && !self.is_in_quotes() => {
                self.line.is_opaque = true;
                self.at += 1;
                self.word(start, |word| word.is_expanded = true);
                self.ansi_quoted(start);
            }
            '$' => {
                self.line.is_opaque |= self.next_is("[") || self.next_is("\"");
                self.variable(start);
            }
            '`' => {
                self.line.is_opaque = true;
                let innermost = self.stack.iter().rposition(|frame| matches!(frame, StackFrame::Commands(_)));
                let is_closing = innermost.is_some_and(|at| {
                    matches!(&self.stack[at], StackFrame::Commands(commands) if commands.closing == Closing::Backtick)
                });
                if let (true, Some(at)) = (is_closing, innermost) {
                    self.stack.truncate(at + 1);
                    self.close(start);
                } else {
                    self.substitution(start, Closing::Backtick, !self.is_in_quotes());
                }
            }
            c => self.word(start, |word| word.bare.push(c)),
        }
    }

    pub(super) fn escaped(&mut self, start: usize) {
        let Some(c) = self.text[self.at..].chars().next() else {
            self.line.is_opaque = true;
            return;
        };
        self.at += c.len_utf8();
        let keeps_backslash = self.is_in_quotes() && !matches!(c, '$' | '`' | '"' | '\\');
        if c != '\n' {
            self.pieces(start, |pieces| pieces.push_text(if keeps_backslash { "\\" } else { "" }));
            self.pieces(start, |pieces| pieces.push(c));
            self.word(start, |word| {
                word.bare.push(c);
                word.is_expanded = true;
            });
        }
    }

    pub(super) fn quoted(&mut self, start: usize, quote: char) {
        let rest = &self.text[self.at..];
        let end = rest.find(quote);
        self.line.is_opaque |= end.is_none();
        let inner = rest[..end.unwrap_or(rest.len())].to_owned();
        self.at += inner.len() + usize::from(end.is_some());
        self.pieces(start, |pieces| pieces.push_text(&inner));
        self.word(start, |word| {
            word.is_quoted = true;
            word.bare.push_str(&inner);
        });
    }

    /// The parameter behind a `$`.
    fn variable(&mut self, start: usize) {
        let rest = &self.text[self.at..];
        let length = match rest.chars().next() {
            Some(c) if c.is_ascii_digit() || "?*@#!-$".contains(c) => 1,
            _ => rest.find(|c| !is_name_char(c)).unwrap_or(rest.len()),
        };
        let name = rest[..length].to_owned();
        self.at += length;
        let (is_locale, in_quotes) = (self.next_is("\"") && !self.is_in_quotes(), self.is_in_quotes());
        self.pieces(start, |pieces| match name.as_str() {
            "" if is_locale => {}
            "" => pieces.push('$'),
            name if in_quotes => pieces.push_unknown(name == "@"),
            "?" | "#" | "$" | "!" => pieces.push_unknown(false),
            name => pieces.push_variable(name),
        });
        self.word(start, |word| {
            word.is_expanded = true;
            word.bare.extend(["$", &name]);
        });
    }

    fn braces(&mut self, start: usize) {
        let rest = &self.text[self.at..];
        let name = rest.split('}').next().unwrap_or_default().to_owned();
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let in_quotes = self.is_in_quotes();
        self.pieces(start, |pieces| match name.as_str() {
            name if in_quotes => pieces.push_unknown(name.contains('@')),
            name if is_name => pieces.push_variable(name),
            name => pieces.push_unknown(!name.starts_with('#')),
        });
    }

    fn ansi_quoted(&mut self, start: usize) {
        let (text, length) = ansi::unquote(&self.text[self.at..]);
        self.at += length;
        self.pieces(start, |pieces| pieces.push_text(&text));
        self.word(start, |word| word.bare.push_str(&text));
    }

    pub(super) fn substitution(&mut self, start: usize, closing: Closing, splits: bool) {
        self.word(start, |word| word.is_expanded = true);
        self.pieces(start, |pieces| pieces.push_unknown(splits));
        self.stack.push(StackFrame::Commands(CommandList::new(closing, CommandPlace::Substituted)));
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
