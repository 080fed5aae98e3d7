//! Adapts a replacement to the text that it replaces: unchanged lines and characters stay as they are in the
//! file, and new ones take the file's line endings, quotes and indentation. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::fold::{indent, is_blank, plain, split_ending};
use super::indentation::Indentation;
use super::match_step::MatchStep;
use super::spacing;
use crate::tool::file::text_file::BOM;

/// Bounds the work of a comparison: maximum pairs of lines or characters.
const MAX_DIFF: usize = 1 << 24;

/// Replaced lines among which a new line looks for its old form.
const MAX_MOVED: usize = 200;

/// Returns the text for `range` of `file`, which `old` matches in this step. Returns `None` if the indentation
/// of `old` is not that of the file, shifted or in other units.
pub(super) fn adapt(
    file: &str,
    range: &Range<usize>,
    old: &str,
    new: &str,
    step: MatchStep,
) -> Option<String> {
    if step == MatchStep::Exact {
        return Some(new.to_owned());
    }
    let (old, new) = (old.strip_prefix(BOM).unwrap_or(old), new.strip_prefix(BOM).unwrap_or(new));
    let lines = |text| str::split_inclusive(text, '\n').map(split_ending).collect::<Vec<_>>();
    let (file_lines, mut old, new) = (lines(&file[range.clone()]), lines(old), lines(new));
    // Blanks after the last line ending match nothing, so they are no line of the file.
    old.truncate(file_lines.len());
    let ops = diff(&contents(&old), &contents(&new));
    let style = Style::learn(file, &file_lines, &old, &new, &ops, step)?;
    let bodies: Vec<String> = old.iter().map(|line| plain_body(line.0)).collect();
    let mut writer = Writer { text: String::new(), ending: ending_at(file, range) };
    for op in ops {
        let (from, to) = (op.old_range(), op.new_range());
        for (number, at) in to.enumerate() {
            let replaced = Some(from.start + number).filter(|at| from.contains(at));
            let (content, has_ending) = (new[at].0, !new[at].1.is_empty());
            let content = if let (DiffOp::Equal { .. }, Some(same)) = (op, replaced) {
                file_lines[same].0.to_owned()
            } else {
                let body = plain_body(content);
                let pair = from.clone().take(MAX_MOVED).find(|at| bodies[*at] == body).or(replaced);
                style.line(content, pair.map(|at| (old[at].0, file_lines[at].0)), at == 0)?
            };
            writer.line(&content, replaced.map(|at| file_lines[at].1), has_ending);
        }
    }
    let ends_without = file_lines.last().is_some_and(|last| last.1.is_empty());
    let is_added = ends_without && old.last().is_some_and(|last| !last.1.is_empty());
    let kept_length = if is_added { split_ending(&writer.text).0.len() } else { writer.text.len() };
    writer.text.truncate(kept_length);
    Some(writer.text)
}

fn contents<'a>(lines: &[(&'a str, &str)]) -> Vec<&'a str> {
    lines.iter().map(|line| line.0).collect()
}

/// Two long texts without anything in common at their ends are one replacement.
pub(in crate::tool) fn diff<T: Eq + Ord + std::hash::Hash>(old: &[T], new: &[T]) -> Vec<DiffOp> {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let ends = old[start..].iter().rev().zip(new[start..].iter().rev());
    let end = ends.take_while(|(old, new)| old == new).count();
    let (old_len, new_len) = (old.len() - start - end, new.len() - start - end);
    if old_len.saturating_mul(new_len) <= MAX_DIFF {
        return capture_diff_slices(Algorithm::Myers, old, new);
    }
    vec![
        DiffOp::Equal { old_index: 0, new_index: 0, len: start },
        DiffOp::Replace { old_index: start, old_len, new_index: start, new_len },
        DiffOp::Equal { old_index: start + old_len, new_index: start + new_len, len: end },
    ]
}

/// The line ending at a range: of its first line, else of the line before it.
fn ending_at<'a>(file: &'a str, range: &Range<usize>) -> &'a str {
    let first = file[range.start..].split_inclusive('\n').next().unwrap_or_default();
    let before = file[..range.start].split_inclusive('\n').next_back().unwrap_or_default();
    let endings = [first, before].map(|line| split_ending(line).1);
    endings.into_iter().find(|ending| !ending.is_empty()).unwrap_or("\n")
}

struct Writer<'a> {
    text: String,
    /// Of the line before, for lines that replace none.
    ending: &'a str,
}

impl<'a> Writer<'a> {
    fn line(&mut self, content: &str, replaced: Option<&'a str>, has_ending: bool) {
        self.ending = replaced.filter(|ending| !ending.is_empty()).unwrap_or(self.ending);
        self.text.push_str(content);
        self.text.push_str(if has_ending { self.ending } else { "" });
    }
}

/// The differences between the text of the model and the file.
struct Style {
    step: MatchStep,
    /// The model added blanks to the ends of lines.
    has_extra_blanks: bool,
    /// The model writes typographic characters for plain ones.
    has_typography: bool,
    /// For a character of the model, those in the file.
    characters: BTreeMap<char, BTreeSet<char>>,
    indentation: Option<Indentation>,
    /// The indentation of the first line, which the model left out.
    first_indent: Option<String>,
}

type IndentedLine<'a> = (&'a str, &'a str);

impl Style {
    fn learn(
        file: &str,
        found: &[IndentedLine<'_>],
        old: &[IndentedLine<'_>],
        new: &[IndentedLine<'_>],
        ops: &[DiffOp],
        step: MatchStep,
    ) -> Option<Self> {
        let pairs: Vec<(&str, &str)> = old.iter().zip(found).map(|(old, found)| (old.0, found.0)).collect();
        let mut characters: BTreeMap<char, BTreeSet<char>> = BTreeMap::new();
        for (old, found) in pairs.iter().filter(|_| step < MatchStep::Spacing) {
            for (old, found) in body(old).chars().zip(body(found).chars()) {
                if plain(old) != old || plain(found) != found || matches!(old, '"' | '\'') {
                    characters.entry(old).or_default().insert(found);
                }
            }
        }
        let has_extra_blanks =
            pairs.iter().any(|(old, found)| !tail(old).is_empty() && tail(found).is_empty());
        let has_typography = characters.iter().any(|(c, found)| plain(*c) != *c && are_plain(found));
        if step == MatchStep::Spacing
            && !pairs.iter().all(|(old, found)| spacing::fits(body(old), body(found)))
        {
            return None;
        }
        let (indentation, first_indent) = (None, None);
        let style = Self { step, has_extra_blanks, has_typography, characters, indentation, first_indent };
        if step < MatchStep::Indentation {
            return Some(style);
        }
        let changed = ops.iter().filter(|op| !is_equal(op)).flat_map(DiffOp::new_range);
        let changed: Vec<&str> = changed.map(|at| new[at].0).filter(|line| !body(line).is_empty()).collect();
        let added: Vec<&str> = changed.iter().map(|line| indent(line)).collect();
        let indents = pairs.iter().filter(|(old, _)| !body(old).is_empty());
        let indents: Vec<_> = indents.map(|(old, found)| (indent(old), indent(found))).collect();
        if let Some(indentation) = Indentation::between(&indents, &added, file) {
            return Some(Self { indentation: Some(indentation), ..style });
        }
        // Models often leave out only the indentation of the first line.
        let is_cut = indents.first().is_some_and(|(old, _)| old.is_empty());
        let starts_alike = new.first().is_none_or(|line| indent(line.0).is_empty());
        let rest = indents.get(1..).filter(|_| is_cut && starts_alike)?;
        let indentation = Some(Indentation::between(rest, &added, file)?);
        Some(Self { indentation, first_indent: Some(indents[0].1.to_owned()), ..style })
    }

    fn line(&self, content: &str, pair: Option<(&str, &str)>, is_first: bool) -> Option<String> {
        if self.step < MatchStep::Characters {
            return Some(content.to_owned());
        }
        if body(content).is_empty() {
            return Some(String::new());
        }
        let (lead, tail) = (indent(content), tail(content));
        let lead = match (&self.indentation, &self.first_indent) {
            (None, _) => lead.chars().map(plain).collect(),
            (Some(_), Some(first)) if is_first => first.clone(),
            (Some(indentation), _) => indentation.apply(lead)?,
        };
        let tail = if self.has_extra_blanks { "" } else { tail };
        Some(lead + &self.body(body(content), pair.map(|(old, found)| (body(old), body(found)))) + tail)
    }

    /// Keeps the characters of the file where the model repeats them.
    fn body(&self, new: &str, pair: Option<(&str, &str)>) -> String {
        if let (MatchStep::Spacing, Some((old, found))) = (self.step, pair)
            && old != found
        {
            return spacing::adapt(old, found, new);
        }
        let new: Vec<char> = new.chars().collect();
        let (old, found): (Vec<char>, Vec<char>) =
            pair.map(|(old, found)| (old.chars().collect(), found.chars().collect())).unwrap_or_default();
        if old.len() != found.len() {
            return new.iter().collect();
        }
        let mut body = String::new();
        for op in diff(&old, &new) {
            if matches!(op, DiffOp::Equal { .. }) {
                body.extend(&found[op.old_range()]);
                continue;
            }
            for c in &new[op.new_range()] {
                let before = body.chars().next_back();
                body.push(self.character(*c, before));
            }
        }
        body
    }

    /// The file's form of a quote, dash or space, if the file writes it unlike the model.
    fn character(&self, c: char, before: Option<char>) -> char {
        let Some(found) = self.characters.get(&c) else {
            return if self.has_typography { plain(c) } else { c };
        };
        if found.contains(&c) {
            return c;
        }
        let opens = before.is_none_or(|before| before.is_whitespace() || "([{".contains(before));
        match (c, opens) {
            ('"', true) => '“',
            ('"', false) => '”',
            ('\'', true) => '‘',
            ('\'', false) => '’',
            _ if found.contains(&plain(c)) => plain(c),
            _ => c,
        }
    }
}

fn is_equal(op: &DiffOp) -> bool {
    matches!(op, DiffOp::Equal { .. })
}

fn are_plain(found: &BTreeSet<char>) -> bool {
    found.iter().all(|c| plain(*c) == *c)
}

fn body(line: &str) -> &str {
    line.trim_matches(is_blank)
}

fn plain_body(line: &str) -> String {
    body(line).chars().map(plain).collect()
}

fn tail(line: &str) -> &str {
    &line[line.trim_end_matches(is_blank).len()..]
}
