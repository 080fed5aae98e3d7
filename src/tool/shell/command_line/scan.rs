//! Finds the commands in a command line. Pure.
//!
//! ```text
//! line       = { command | operator | keyword | "#" text }
//! command    = { NAME "=" word | redirect } word { word | redirect }
//! word       = { plain | "\" char | "'" text "'" | '"' { text | expansion } '"' | "$'" text "'" | expansion }
//! expansion  = "$" NAME | "${" … "}" | "$((" … "))" | "$(" line ")" | "`" line "`" | "<(" line ")" | ">(" line ")"
//! redirect   = [ NUMBER ] ( ">" | ">>" | ">|" | "<" | "<>" | ">&" | "<&" | "&>" | "<<<" | "<<" | "<<-" ) word
//! operator   = ";" | "&" | "&&" | "|" | "||" | "|&" | ";;" | end of line | "(" line ")" | "((" … "))"
//! keyword    = "if" | "then" | "while" | "do" | "!" | "{" | "}" | …, in front of a command
//! ```
//!
//! One pass with a stack of open constructs, so time and memory are linear. An unknown construct (`case`,
//! functions, here-documents, arithmetic) makes the line opaque; commands inside are still found.

use super::pieces::Pieces;
use super::stack::{
    BEFORE_A_COMMAND, Closing, CommandList, NO_COMMANDS, NOT_KNOWN, ParsedCommand, ParsedWord, Redirect,
    StackFrame, is_assignment,
};
use super::{CommandLine, CommandPlace, Simple, Variable};

const MAX_DEPTH: usize = 32;

const MAX_COMMANDS: usize = 1000;

const MAX_LINE: usize = 100 * 1024;

pub(super) fn scan(text: &str) -> CommandLine {
    let line = CommandLine { text: text.to_owned(), ..CommandLine::default() };
    if text.len() > MAX_LINE {
        return CommandLine { is_opaque: true, is_unread: true, ..line };
    }
    let mut scanner = Scanner {
        text,
        at: 0,
        stack: vec![StackFrame::Commands(CommandList::new(Closing::End, CommandPlace::Plain))],
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

pub(super) struct HereDocument {
    pub(super) delimiter: String,
    /// True if leading tabs are stripped.
    pub(super) strips: bool,
    pub(super) is_expanded: bool,
}

pub(super) struct Scanner<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    pub(super) stack: Vec<StackFrame>,
    pub(super) documents: Vec<HereDocument>,
    pub(super) line: CommandLine,
}

impl Scanner<'_> {
    fn run(&mut self) {
        self.run_until(self.text.len());
        let end = self.at;
        self.line.is_opaque |= self.stack.len() > 1 || !self.documents.is_empty();
        while let Some(frame) = self.stack.pop() {
            if let StackFrame::Commands(mut commands) = frame {
                self.end_command(&mut commands, end);
            }
        }
    }

    fn run_until(&mut self, end: usize) {
        while let Some(c) = self.text[self.at..end.max(self.at)].chars().next() {
            let start = self.at;
            self.at += c.len_utf8();
            match self.stack.last_mut() {
                Some(StackFrame::Commands(_)) => self.in_commands(c, start),
                Some(StackFrame::Quotes) => self.in_quotes(c, start),
                Some(StackFrame::Braces) => self.in_braces(c, start),
                Some(StackFrame::Document) if c == '\\' => self.escaped(start),
                Some(StackFrame::Document) if matches!(c, '$' | '`') => self.in_expansion(c, start),
                Some(StackFrame::Document) => {}
                Some(StackFrame::Arithmetic(open)) => match c {
                    '(' => *open += 1,
                    ')' if *open > 1 => {
                        *open -= 1;
                        // `((git push); ls)` is a subshell in a subshell.
                        let is_subshell = *open == 1 && !self.text[self.at..].starts_with(')');
                        self.line.is_unread |= is_subshell;
                    }
                    ')' => drop(self.stack.pop()),
                    '$' | '`' => self.in_expansion(c, start),
                    _ => {}
                },
                None => break,
            }
            if self.stack.len() > MAX_DEPTH || self.line.commands.len() > MAX_COMMANDS {
                self.line.is_opaque = true;
                self.line.is_unread = true;
                break;
            }
        }
    }

    /// Reads the expansions of a here-document.
    pub(super) fn expand_document(&mut self, end: usize) {
        let depth = self.stack.len();
        // Gets the words of the document, which are part of no command.
        self.stack.push(StackFrame::Commands(CommandList::new(Closing::End, CommandPlace::Substituted)));
        self.stack.push(StackFrame::Document);
        self.run_until(end);
        self.line.is_unread |= self.stack.len() != depth + 2;
        while self.stack.len() > depth + 1 {
            if let Some(StackFrame::Commands(mut commands)) = self.stack.pop() {
                self.end_command(&mut commands, end);
            }
        }
        self.stack.truncate(depth);
        self.at = end;
    }

    pub(super) fn with(&mut self, act: impl FnOnce(&mut Self, &mut CommandList)) {
        let innermost = self.stack.iter().rposition(|frame| matches!(frame, StackFrame::Commands(_)));
        let Some(at) = innermost else { return };
        let taken = std::mem::replace(&mut self.stack[at], StackFrame::Quotes);
        let StackFrame::Commands(mut commands) = taken else { return };
        act(self, &mut commands);
        self.stack[at] = StackFrame::Commands(commands);
    }

    pub(super) fn word(&mut self, start: usize, act: impl FnOnce(&mut ParsedWord)) {
        self.with(|_, commands| {
            act(commands.word.get_or_insert_with(|| ParsedWord { start, ..ParsedWord::default() }));
        });
    }

    /// Adds to the parts of the word, unless in `${…}` or `((…))`.
    pub(super) fn pieces(&mut self, start: usize, act: impl FnOnce(&mut Pieces)) {
        let inner = self.stack.iter().rev().take_while(|frame| !matches!(frame, StackFrame::Commands(_)));
        if inner.into_iter().all(|frame| matches!(frame, StackFrame::Quotes)) {
            self.word(start, |word| act(&mut word.pieces));
        }
    }

    pub(super) fn is_in_quotes(&self) -> bool {
        matches!(self.stack.last(), Some(StackFrame::Quotes))
    }

    pub(super) fn next_is(&self, text: &str) -> bool {
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
            Some(StackFrame::Commands(commands)) => (
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
                self.stack.push(StackFrame::Quotes);
            }
            '\\' => self.escaped(start),
            '#' if !has_word => {
                let rest = &self.text[self.at..];
                self.at += rest.find('\n').unwrap_or(rest.len());
            }
            '$' | '`' if c == '$' || closing != Closing::Backtick => self.in_expansion(c, start),
            '`' => self.close(start),
            '<' | '>' if !is_test && self.take("(") => self.substitution(start, Closing::Bracket, false),
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
                match c {
                    '*' | '?' => word.pieces.push_unknown(true),
                    '[' | '{' => word.pieces.push_opening(c),
                    '~' if word.is_pattern => word.pieces.push_unknown(false),
                    c => word.pieces.push(c),
                }
                word.bare.push(c);
            }),
        }
    }

    fn in_quotes(&mut self, c: char, start: usize) {
        match c {
            '"' => drop(self.stack.pop()),
            '\\' => self.escaped(start),
            '$' | '`' => self.in_expansion(c, start),
            c => self.word(start, |word| {
                word.bare.push(c);
                word.pieces.push(c);
            }),
        }
    }

    fn in_braces(&mut self, c: char, start: usize) {
        match c {
            '}' => drop(self.stack.pop()),
            '"' => self.stack.push(StackFrame::Quotes),
            '\'' => self.quoted(start, '\''),
            '\\' => self.escaped(start),
            c => self.in_expansion(c, start),
        }
    }

    fn open_bracket(&mut self, start: usize, has_word: bool) {
        let mut place = CommandPlace::Plain;
        let mut in_pattern = false;
        self.with(|scanner, commands| {
            place = commands.place;
            scanner.line.is_opaque |= has_word || commands.command.is_some();
            scanner.end_command(commands, start);
            in_pattern = commands.in_pattern;
        });
        if in_pattern && !has_word {
            // The bracket in front of a pattern.
            self.line.is_opaque = true;
        } else if !has_word && self.take("(") {
            self.line.is_opaque = true;
            self.stack.push(StackFrame::Arithmetic(2));
        } else {
            self.stack.push(StackFrame::Commands(CommandList::new(Closing::Bracket, place)));
        }
    }

    pub(super) fn close(&mut self, start: usize) {
        if let Some(StackFrame::Commands(mut commands)) = self.stack.pop() {
            self.end_command(&mut commands, start);
        }
    }

    fn operator(&mut self, c: char, start: usize) {
        // An unmatched bracket ends a pattern of `case`.
        self.line.is_opaque |= c == ')';
        let is_pipe = c == '|' && !self.take("|");
        if is_pipe || c == '&' {
            self.take("&");
        }
        let ends_case = c == ';' && (self.take(";") || self.next_is("&"));
        self.line.is_opaque |= ends_case;
        self.with(|scanner, commands| {
            scanner.end_command(commands, start);
            let base = commands.base;
            commands.place = if is_pipe { CommandPlace::Piped } else { base };
            commands.in_pattern = ends_case || (commands.in_pattern && c != ')');
        });
        if c == '\n' {
            self.skip_documents();
        }
    }

    pub(super) fn end_word(&mut self, commands: &mut CommandList, end: usize) {
        let Some(word) = commands.word.take() else { return };
        let is_first = commands.command.as_ref().is_none_or(|command| command.words.is_empty());
        let is_reserved = is_first
            && word.is_bare()
            && commands.command.as_ref().is_none_or(|command| command.redirect.is_none());
        if is_reserved && BEFORE_A_COMMAND.contains(&word.bare.as_str()) {
            commands.in_pattern &= word.bare != "esac";
            self.line.is_opaque |= NOT_KNOWN.contains(&word.bare.as_str());
            return;
        }
        let written = &self.text[word.start..end.max(word.start)];
        let has_redirect = commands.command.as_ref().is_some_and(|command| command.redirect.is_some());
        if is_first && !has_redirect && is_assignment(written) {
            self.line.is_opaque = true;
            self.line.variables.push(Variable::assigned(written, &word.pieces));
            commands.is_assigned = true;
            return;
        }
        let command = commands.command.get_or_insert_with(|| ParsedCommand::new(word.start));
        if let Some(what) = command.redirect.take() {
            self.redirected(what, &word, end);
            return;
        }
        self.line.is_opaque |= is_reserved && NO_COMMANDS.contains(&word.bare.as_str());
        command.is_test |= is_reserved && word.bare == "[[";
        command.is_test &= word.bare != "]]";
        command.end = end;
        command.words.push(word);
        if command.words.len() > 2 && is_function_keyword(&command.words[0]) {
            // After `function name {`, a command follows.
            commands.command = None;
        }
    }

    fn end_command(&mut self, commands: &mut CommandList, end: usize) {
        self.end_word(commands, end);
        let is_assigned = std::mem::take(&mut commands.is_assigned);
        let Some(command) = commands.command.take() else { return };
        commands.in_pattern |= command.is_case() && !is_assigned;
        self.line.is_opaque |= command.redirect.is_some() || command.is_test;
        self.line.variables.extend(Variable::of_loop(&command.words));
        let is_command = command.words.first().is_some_and(|word| {
            word.is_quoted || word.is_expanded || !NO_COMMANDS.contains(&word.bare.as_str())
        });
        if is_command {
            let text = self.text[command.words[0].start..command.end].to_owned();
            let mut simple = Simple::new(command.start, text, &command.words, commands.place);
            if commands.in_pattern && command.words.len() == 1 {
                // A pattern runs nothing.
                simple.pieces.clear();
            }
            self.line.commands.push(simple);
        }
    }
}

fn is_function_keyword(word: &ParsedWord) -> bool {
    word.bare == "function" && !word.is_quoted
}
