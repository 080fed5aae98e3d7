//! Finds the text that a model wants to replace, and adapts the new text to the file. Pure.
//!
//! Each step ignores more differences, and a step decides only if exactly one place matches. `edit_file` and
//! `apply_patch` both use this module; it never reads a file.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::ops::Range;

use similar::DiffOp;

use self::adapt::adapt;
pub(in crate::tool) use self::adapt::diff;
use self::fold::{Folded, is_blank};
pub(super) use self::nearest::nearest;

mod adapt;
mod fold;
mod indentation;
mod nearest;

/// Bounds the search in one text: maximum bytes compared.
const MAX_WORK: usize = 200_000_000;

/// Places of an ambiguous text that a message names.
pub(super) const MAX_NAMED: usize = 10;

/// Places of an ambiguous text that are counted.
pub(super) const MAX_COUNTED: usize = 100;

/// Places of an ambiguous text whose lines a message shows.
const MAX_SHOWN: usize = 5;

/// What a match ignores; a later step ignores what the earlier ones do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MatchStep {
    Exact,
    /// LF or CRLF, and the byte order mark.
    Endings,
    /// The form of quotes, dashes and spaces, and blanks at the ends of lines.
    Characters,
    /// Blanks at the starts of lines, if they are shifted or in other units.
    Indentation,
}

impl MatchStep {
    /// The steps in their order. Unless `is_exact`, LF and CRLF are equal from the first step on: the text of a
    /// model that has no CR says nothing about the file's line endings.
    pub(super) fn all(is_exact: bool) -> impl Iterator<Item = Self> {
        let steps = [Self::Exact, Self::Endings, Self::Characters, Self::Indentation];
        steps.into_iter().skip(usize::from(!is_exact))
    }

    pub(super) fn ignored(self) -> Option<&'static str> {
        match self {
            Self::Exact | Self::Endings => None,
            Self::Characters => Some("the form of quotes, dashes and blanks"),
            Self::Indentation => Some("indentation"),
        }
    }
}

pub(super) struct Replacement<'a> {
    pub old: Cow<'a, str>,
    pub new: Cow<'a, str>,
    /// True if `old` stands for whole lines only.
    pub is_lines: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfWork;

/// A text that is searched several times.
pub(super) struct Document<'a> {
    text: &'a str,
    folded: [OnceCell<Folded<'a>>; 4],
    work: Cell<usize>,
}

impl<'a> Document<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, folded: Default::default(), work: Cell::new(0) }
    }

    /// Returns the first places of the old text that `is_free` accepts. It gets a place, and those before it that
    /// are returned.
    pub(super) fn find(
        &self,
        replacement: &Replacement<'_>,
        step: MatchStep,
        is_free: impl Fn(&Range<usize>, &[Range<usize>]) -> bool,
        most: usize,
    ) -> Result<Vec<Range<usize>>, OutOfWork> {
        let pattern = Folded::new(&replacement.old, step);
        let pattern = pattern.text();
        if pattern.is_empty() || (step >= MatchStep::Characters && pattern.trim().is_empty()) {
            return Ok(Vec::new());
        }
        self.work.set(self.work.get() + self.text.len() + pattern.len());
        if self.work.get() > MAX_WORK {
            return Err(OutOfWork);
        }
        let is_cut = step >= MatchStep::Characters && replacement.old.ends_with(is_blank);
        let is_lines = replacement.is_lines || step == MatchStep::Indentation;
        let folded = self.folded[step as usize].get_or_init(|| Folded::file(self.text, step));
        // Text that begins with a part of the indentation would shift the lines after it.
        let has_indent = pattern.starts_with(is_blank) && !pattern.trim().is_empty();
        let matches = folded.find_all(pattern).filter(|place| {
            let before = folded.text()[..place.start].trim_end_matches(is_blank).len();
            let is_inside = has_indent && before < place.start && folded.starts_line(before);
            !is_inside
                && (!is_lines || folded.starts_line(place.start))
                && (!(is_lines || is_cut) || folded.ends_line(place.end))
        });
        let old = &replacement.old;
        let mut places: Vec<Range<usize>> = Vec::new();
        for place in matches.map(|place| folded.original(&place)) {
            if places.len() == most {
                break;
            }
            if is_free(&place, &places)
                && (step < MatchStep::Indentation || adapt(self.text, &place, old, old, step).is_some())
            {
                places.push(place);
            }
        }
        Ok(places)
    }

    /// The new text for a place of the old one.
    pub(super) fn adapted(
        &self,
        place: &Range<usize>,
        replacement: &Replacement<'_>,
        step: MatchStep,
    ) -> Option<String> {
        adapt(self.text, place, &replacement.old, &replacement.new, step)
    }

    /// The number of a line, counted from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        line_number(self.text, at)
    }
}

fn line_number(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edited {
    pub text: String,
    /// The first changed line of each place.
    pub lines: Vec<usize>,
    pub added: usize,
    pub removed: usize,
    pub ignored: Vec<&'static str>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum MatchRefusal {
    /// With the lines of the file that are most similar.
    Missing(Option<String>),
    /// Lines of the first places, and the count of places up to [`MAX_COUNTED`], plus one if there are more.
    Ambiguous {
        lines: Vec<usize>,
        count: usize,
    },
    Unchanged,
    /// Bytes of the result.
    Large(usize),
}

/// Replaces the only occurrence of `old`, or each with `is_all`.
pub(super) fn replace(
    text: &str,
    old: &str,
    new: &str,
    is_all: bool,
    max_bytes: usize,
) -> Result<Edited, MatchRefusal> {
    let document = Document::new(text);
    let most = if is_all { usize::MAX } else { MAX_COUNTED + 1 };
    let variants = variants(old, new);
    for (number, (replacement, prefix)) in variants.iter().enumerate() {
        let is_last = number + 1 == variants.len();
        for step in MatchStep::all(old.contains('\r')).filter(|step| is_last || *step <= MatchStep::Endings) {
            let places = document.find(
                replacement,
                step,
                |place, before| !is_all || before.last().is_none_or(|last| last.end <= place.start),
                most,
            );
            let places = places.map_err(|OutOfWork| MatchRefusal::Missing(None))?;
            let bytes = text.len() + places.len() * replacement.new.len();
            match places.len() {
                0 => {}
                count @ 2.. if !is_all => {
                    let lines = places.iter().take(MAX_SHOWN).map(|at| document.line(at.start)).collect();
                    return Err(MatchRefusal::Ambiguous { lines, count });
                }
                _ if bytes - total(&places) > max_bytes => {
                    return Err(MatchRefusal::Large(bytes - total(&places)));
                }
                _ => {
                    let ignored = prefix.iter().copied().chain(step.ignored()).collect();
                    return document.edited(&places, replacement, step, ignored);
                }
            }
        }
    }
    let hint = numbered(old).map_or(0, |(number, _)| number);
    Err(MatchRefusal::Missing(
        variants.last().and_then(|(replacement, _)| nearest(text, &replacement.old, hint)),
    ))
}

fn total(places: &[Range<usize>]) -> usize {
    places.iter().map(Range::len).sum()
}

/// The texts as they are, and without what the model copied from a tool's output; with what was ignored.
fn variants<'a>(old: &'a str, new: &'a str) -> Vec<(Replacement<'a>, Option<&'static str>)> {
    let variant = |old, new| Replacement { old, new, is_lines: false };
    let mut variants = vec![(variant(Cow::Borrowed(old), Cow::Borrowed(new)), None)];
    if let Some((old, new)) = without_line_numbers(old, new) {
        variants.push((variant(Cow::Owned(old), Cow::Owned(new)), Some("line numbers")));
    }
    variants
}

/// Removes the line numbers that `read_file` shows. Every line of `old` needs one.
fn without_line_numbers(old: &str, new: &str) -> Option<(String, String)> {
    let mut numbers = Vec::new();
    let mut bare = String::new();
    for line in old.split_inclusive('\n') {
        let (number, rest) = numbered(line)?;
        if numbers.last().is_some_and(|last| last + 1 != number) {
            return None;
        }
        numbers.push(number);
        bare.push_str(rest);
    }
    let is_numbered = new.split_inclusive('\n').all(|line| numbered(line).is_some());
    let new = new.split_inclusive('\n').map(|line| match numbered(line) {
        Some((number, rest)) if is_numbered || numbers.contains(&number) => rest,
        _ => line,
    });
    Some((bare, new.collect()))
}

fn numbered(line: &str) -> Option<(usize, &str)> {
    let (number, rest) = line.trim_start_matches(' ').split_once('\t')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    Some((is_number.then(|| number.parse().ok())??, rest))
}

impl Document<'_> {
    fn edited(
        &self,
        places: &[Range<usize>],
        replacement: &Replacement<'_>,
        step: MatchStep,
        ignored: Vec<&'static str>,
    ) -> Result<Edited, MatchRefusal> {
        let mut edited = Edited { text: String::new(), lines: Vec::new(), added: 0, removed: 0, ignored };
        let mut copied = 0;
        for place in places {
            let new = self.adapted(place, replacement, step).ok_or(MatchRefusal::Missing(None))?;
            let (first, added, removed) = changed_lines(self.text, place, &new);
            edited.lines.push(first);
            edited.added += added;
            edited.removed += removed;
            edited.text.push_str(&self.text[copied..place.start]);
            edited.text.push_str(&new);
            copied = place.end;
        }
        edited.text.push_str(&self.text[copied..]);
        if edited.text == self.text { Err(MatchRefusal::Unchanged) } else { Ok(edited) }
    }
}

/// The number of the first changed line, and the counts of added and removed lines.
pub(super) fn changed_lines(text: &str, place: &Range<usize>, new: &str) -> (usize, usize, usize) {
    let start = text[..place.start].rfind('\n').map_or(0, |at| at + 1);
    let at_line_start = text[..place.end].ends_with('\n') && (new.is_empty() || new.ends_with('\n'));
    let end = text[place.end..].find('\n').map_or(text.len(), |at| place.end + at + 1);
    let end = if at_line_start { place.end } else { end };
    let after = [&text[start..place.start], new, &text[place.end..end]].concat();
    let [old, new] = [&text[start..end], &after].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let mut ops = diff(&old, &new);
    ops.retain(|op| !matches!(op, DiffOp::Equal { .. }));
    let first = ops.first().map_or(0, |op| op.old_range().start);
    let added = ops.iter().map(|op| op.new_range().len()).sum();
    let removed = ops.iter().map(|op| op.old_range().len()).sum();
    (line_number(text, start) + first, added, removed)
}

#[cfg(test)]
mod tests;
