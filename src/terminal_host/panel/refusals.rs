//! The refused acts of the program: a list, with the reason of the selected one.

use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

use super::views::{BAR, BOLD, DIM, note, wrapped};
use crate::terminal_run::control::RefusedAct;
use crate::text;

/// Acts that are kept.
const MAX_ACTS: usize = 500;

#[derive(Default)]
pub(super) struct RefusalsView {
    /// The newest last.
    acts: Vec<RepeatedAct>,
    /// Of all acts.
    count: usize,
    /// Pattern of the selected act, which stays selected when others come: the program decides when they do.
    selected: Option<String>,
}

/// Acts that differ only in numbers, such as those of temporary files.
struct RepeatedAct {
    newest: RefusedAct,
    pattern: String,
    times: usize,
}

impl RefusalsView {
    pub(super) fn add(&mut self, act: RefusedAct) {
        self.count += 1;
        // Each host can be allowed.
        let pattern = if act.host.is_some() { act.act.clone() } else { pattern(&act.act) };
        let times = match self.position(&pattern) {
            Some(position) => self.acts.remove(position).times + 1,
            None => 1,
        };
        if self.acts.len() == MAX_ACTS {
            self.acts.remove(0);
        }
        self.acts.push(RepeatedAct { newest: act, pattern, times });
    }

    fn position(&self, pattern: &str) -> Option<usize> {
        self.acts.iter().position(|act| act.pattern == pattern)
    }

    fn selected_position(&self) -> Option<usize> {
        self.position(self.selected.as_deref()?)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn select_newest(&mut self) {
        self.selected = self.acts.last().map(|act| act.pattern.clone());
    }

    pub(super) fn select_newer(&mut self) {
        match self.selected_position().and_then(|position| self.acts.get(position + 1)) {
            Some(newer) => self.selected = Some(newer.pattern.clone()),
            None => self.select_newest(),
        }
    }

    pub(super) fn select_older(&mut self) {
        match self.selected_position() {
            Some(position) => self.selected = Some(self.acts[position.saturating_sub(1)].pattern.clone()),
            None => self.select_newest(),
        }
    }

    /// The host of the selected act, if it can be allowed.
    pub(super) fn host(&self) -> Option<&str> {
        self.acts[self.selected_position()?].newest.host.as_deref()
    }

    pub(super) fn host_allowed(&mut self, host: &str) {
        let acts = self.acts.iter_mut().map(|act| &mut act.newest);
        for act in acts.filter(|act| act.host.as_deref() == Some(host)) {
            act.host = None;
            act.reason = "You have allowed this host since, until the program ends.".into();
        }
    }

    /// The lines, and the index of the last one of the selected act.
    pub(super) fn list(&self, width: usize) -> (Vec<Line<'static>>, usize) {
        if self.acts.is_empty() {
            return (wrapped("Nothing was refused.", width, Style::new()), 0);
        }
        let count =
            text::counted(self.count, "refused act, the newest first:", "refused acts, the newest first:");
        let mut lines = vec![Line::styled(count, BOLD)];
        let mut last = 0;
        for RepeatedAct { newest: act, pattern, times } in self.acts.iter().rev() {
            let mut line = Line::raw(format!(" {}", text::visible_line(&act.act)));
            if *times > 1 {
                line.push_span(Span::styled(format!("  {times} times"), DIM));
            }
            if self.selected.as_ref() == Some(pattern) {
                lines.push(line.style(BAR));
                lines.extend(note(&act.reason, width));
                if act.host.is_some() {
                    lines.extend(note("a: allow this host until the program ends", width));
                }
                last = lines.len() - 1;
            } else {
                lines.push(line);
            }
        }
        (lines, last)
    }
}

/// Words with a digit and four or more letters and digits are equal, such as the random parts of names.
fn pattern(act: &str) -> String {
    let mut pattern = String::new();
    for word in act.split_inclusive(|letter: char| !letter.is_alphanumeric()) {
        let name = word.trim_end_matches(|letter: char| !letter.is_alphanumeric());
        let is_random = name.chars().count() >= 4 && name.contains(|letter: char| letter.is_ascii_digit());
        pattern.push_str(if is_random { "*" } else { name });
        pattern.push_str(&word[name.len()..]);
    }
    pattern
}
