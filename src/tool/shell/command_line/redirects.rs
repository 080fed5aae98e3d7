//! Scans the redirects and here-documents of a command line. Pure.

use super::pieces::Pieces;
use super::scan::{HereDocument, Scanner};
use super::stack::{ParsedCommand, ParsedWord, Redirect};

impl Scanner<'_> {
    pub(super) fn redirect(&mut self, c: char, start: usize) {
        let redirect = if c == '<' {
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
        self.begin_redirect(start, redirect);
    }

    pub(super) fn begin_redirect(&mut self, start: usize, what: Redirect) {
        self.with(|scanner, commands| {
            if commands.word.take_if(is_bare_number).is_none() {
                scanner.end_word(commands, start);
            }
            commands.command.get_or_insert_with(|| ParsedCommand::new(start)).redirect = Some(what);
        });
    }

    pub(super) fn redirected(&mut self, what: Redirect, word: &ParsedWord, end: usize) {
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
            Redirect::Document(strips) => {
                let is_expanded = !word.is_quoted && !word.is_expanded;
                self.documents.push(HereDocument { delimiter: word.bare.clone(), strips, is_expanded });
            }
            Redirect::Text => self.line.inputs.push(word.pieces.clone()),
        }
    }

    pub(super) fn skip_documents(&mut self) {
        for HereDocument { delimiter, strips, is_expanded } in std::mem::take(&mut self.documents) {
            let body = self.at;
            let (mut end, mut next) = (body, body);
            for line in self.text[body..].split_inclusive('\n') {
                next += line.len();
                let line = line.trim_end_matches('\n');
                if delimiter == if strips { line.trim_start_matches('\t') } else { line } {
                    break;
                }
                end = next;
            }
            let mut input = Pieces::default();
            input.push_text(&self.text[body..end]);
            if is_expanded && self.text[body..end].contains(['$', '`']) {
                input.push_unknown(false);
                self.expand_document(end);
            }
            self.line.inputs.push(input);
            self.at = next;
        }
    }
}

/// In `2>`, the number is the redirected descriptor and not an argument.
fn is_bare_number(word: &mut ParsedWord) -> bool {
    !word.is_quoted && !word.is_expanded && word.bare.bytes().all(|byte| byte.is_ascii_digit())
}
