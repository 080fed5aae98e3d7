//! The changes of the program: a list of paths, and the diff of one of them with a search.

use std::path::{Path, PathBuf};

use ratatui_core::style::{Color, Style};
use ratatui_core::text::{Line, Span};

use super::views::{BAR, BOLD, DIM, wrapped};
use crate::terminal_run::control::{ChangedPath, DiffKind};
use crate::text;

#[derive(Default)]
pub(super) struct ChangesView {
    /// `None` until the session has listed them.
    changes: Option<Vec<ChangedPath>>,
    /// Names of paths are relative to it.
    folder: PathBuf,
    selected: usize,
    search: Option<DiffSearch>,
}

struct DiffSearch {
    text: String,
    is_typing: bool,
}

impl ChangesView {
    pub(super) fn set_folder(&mut self, folder: &str) {
        self.folder = folder.into();
    }

    /// The selected path stays selected.
    pub(super) fn set(&mut self, changes: Vec<ChangedPath>) {
        let before = self.selected().map(|change| change.path.clone());
        let position = changes.iter().position(|change| Some(&change.path) == before.as_ref());
        self.selected = position.unwrap_or(self.selected).min(changes.len().saturating_sub(1));
        self.changes = Some(changes);
    }

    pub(super) fn count(&self) -> Option<usize> {
        self.changes.as_ref().map(Vec::len)
    }

    pub(super) fn selected(&self) -> Option<&ChangedPath> {
        self.changes.as_ref()?.get(self.selected)
    }

    pub(super) fn select_before(&mut self) {
        self.selected = self.selected.saturating_sub(1);
    }

    pub(super) fn select_after(&mut self) {
        self.selected = (self.selected + 1).min(self.count().unwrap_or_default().saturating_sub(1));
    }

    pub(super) fn name(&self, path: &Path) -> String {
        let name = path.strip_prefix(&self.folder).unwrap_or(path).to_string_lossy();
        text::visible_line(&name)
    }

    /// The lines, and the index of the selected one.
    pub(super) fn list(&self, width: usize) -> (Vec<Line<'static>>, usize) {
        let Some(changes) = &self.changes else {
            return (vec![Line::raw("The changes are being read…")], 0);
        };
        if changes.is_empty() {
            return (wrapped("The program has changed nothing that is recorded.", width, Style::new()), 0);
        }
        let count = text::counted(changes.len(), "changed path:", "changed paths:");
        let mut lines = vec![Line::styled(count, BOLD)];
        for (number, change) in changes.iter().enumerate() {
            let (sign, colour) = match change.kind {
                DiffKind::Created => ("new    ", Color::Green),
                DiffKind::Changed => ("changed", Color::Yellow),
                DiffKind::Deleted => ("deleted", Color::Red),
            };
            let (added, removed) = (count_of(change, '+'), count_of(change, '-'));
            let name = self.name(&change.path);
            let line = Line::from(vec![
                Span::styled(format!(" {sign} "), Style::new().fg(colour)),
                Span::raw(name),
                Span::styled(format!("  +{added} -{removed}"), DIM),
            ]);
            lines.push(if number == self.selected { line.style(BAR) } else { line });
        }
        (lines, self.selected + 1)
    }

    /// The diff of the selected path, without the columns that are scrolled away.
    pub(super) fn diff(&self, columns: usize) -> Vec<Line<'static>> {
        let Some(change) = self.selected() else {
            return vec![Line::raw("There is no such change any more.")];
        };
        let mut lines = vec![Line::styled(self.name(&change.path), BOLD)];
        lines.extend(change.diff.lines().map(|line| {
            let style = style(line);
            let shown: String = line.replace('\t', "    ").chars().skip(columns).collect();
            let has_match = self.search.as_ref().is_some_and(|search| search.matches(line));
            Line::styled(shown, if has_match { style.patch(BAR) } else { style })
        }));
        lines
    }

    pub(super) fn begin_search(&mut self) {
        self.search = Some(DiffSearch { text: String::new(), is_typing: true });
    }

    pub(super) fn end_search(&mut self) {
        self.search = None;
    }

    pub(super) fn end_typing(&mut self) {
        if let Some(search) = &mut self.search {
            search.is_typing = false;
        }
    }

    /// The text of a search that is being typed.
    pub(super) fn typed(&mut self) -> Option<&mut String> {
        self.search.as_mut().filter(|search| search.is_typing).map(|search| &mut search.text)
    }

    /// For the last line of the panel.
    pub(super) fn search_line(&self) -> Option<String> {
        let DiffSearch { text, is_typing } = self.search.as_ref()?;
        Some(if *is_typing { format!("/{text}_") } else { format!("/{text}  n: next  N: previous") })
    }

    /// The line of the diff with the next match after a line, or before it. Begins again at the other end.
    pub(super) fn find(&self, from: usize, is_backwards: bool) -> Option<usize> {
        let (search, change) = (self.search.as_ref()?, self.selected()?);
        // The first line is the name.
        let matches: Vec<usize> = (1..)
            .zip(change.diff.lines())
            .filter(|(_, line)| search.matches(line))
            .map(|(number, _)| number)
            .collect();
        if is_backwards {
            matches.iter().rev().find(|number| **number < from).or(matches.last()).copied()
        } else {
            matches.iter().find(|number| **number > from).or(matches.first()).copied()
        }
    }
}

impl DiffSearch {
    fn matches(&self, line: &str) -> bool {
        !self.text.is_empty() && line.to_lowercase().contains(&self.text.to_lowercase())
    }
}

fn count_of(change: &ChangedPath, sign: char) -> usize {
    change.diff.lines().filter(|line| line.starts_with(sign)).count()
}

/// The colour of a line of a diff.
pub(super) fn style(line: &str) -> Style {
    match line.as_bytes().first() {
        Some(b'+') => Style::new().fg(Color::Green),
        Some(b'-') => Style::new().fg(Color::Red),
        Some(b'@') => DIM,
        _ => Style::new(),
    }
}
