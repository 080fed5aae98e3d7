//! Scans the redirects and here-documents of a command line. Pure.

use super::scan::Scanner;
use super::stack::{Command, Redirect, Word};

impl Scanner<'_> {
    pub(super) fn redirect(&mut self, c: char, start: usize) {
        let what = if c == '<' {
            if self.take("<<") {
                self.line.is_opaque = true;
                Redirect::Text
            } else if self.take("<") {
                self.line.is_opaque = true;
                Redirect::Document(self.take("-"))
            } else if self.take("&") {
                Redirect::Copies
            } else if self.take(">") {
                Redirect::Writes
            } else {
                Redirect::Reads
            }
        } else if self.take("&") {
            Redirect::Copies
        } else {
            let _ = self.take(">") || self.take("|");
            Redirect::Writes
        };
        self.begin_redirect(start, what);
    }

    pub(super) fn begin_redirect(&mut self, start: usize, what: Redirect) {
        self.with(|scanner, commands| {
            // In `2>`, the number is the redirected descriptor and not an argument.
            let is_number = |word: &mut Word| {
                !word.is_quoted && !word.is_expanded && word.bare.bytes().all(|byte| byte.is_ascii_digit())
            };
            if commands.word.take_if(is_number).is_none() {
                scanner.end_word(commands, start);
            }
            commands.command.get_or_insert_with(|| Command::new(start)).redirect = Some(what);
        });
    }

    pub(super) fn redirected(&mut self, what: Redirect, word: &Word, end: usize) {
        let target = self.text[word.start..end].to_owned();
        // For a word other than `2`, `2-` or `-`, and for an expanded one, bash opens a file.
        let number = word.bare.strip_suffix('-').unwrap_or(&word.bare);
        let is_descriptor = !word.is_expanded
            && !word.is_pattern
            && !word.bare.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit());
        match what {
            Redirect::Reads => self.line.reads.push(target),
            Redirect::Copies if is_descriptor => {}
            Redirect::Writes | Redirect::Copies if target == "/dev/null" => {}
            Redirect::Writes | Redirect::Copies => self.line.writes.push(target),
            Redirect::Document(strips) => self.documents.push((word.bare.clone(), strips)),
            Redirect::Text => {}
        }
    }

    pub(super) fn skip_documents(&mut self) {
        for (delimiter, strips) in std::mem::take(&mut self.documents) {
            loop {
                let rest = &self.text[self.at..];
                if rest.is_empty() {
                    return;
                }
                let line = rest.split_inclusive('\n').next().unwrap_or_default();
                self.at += line.len();
                let line = line.trim_end_matches('\n');
                if delimiter == if strips { line.trim_start_matches('\t') } else { line } {
                    break;
                }
            }
        }
    }
}
