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
pub(super) use self::elided::elided;
use self::fold::{Folded, indent, is_blank};
pub(super) use self::match_step::MatchStep;
pub(super) use self::nearest::nearest;
pub(super) use self::variants::without_prefixes;
use self::variants::{Variant, elision, variants};
use crate::text::shorten;

mod adapt;
mod elided;
mod fold;
mod indentation;
mod match_step;
mod nearest;
mod spacing;
mod variants;

/// Bounds the search in one text: maximum bytes compared.
const MAX_WORK: usize = 200_000_000;

/// Places of an ambiguous text that a message names.
pub(super) const MAX_NAMED: usize = 10;

/// Places of an ambiguous text that are counted.
pub(super) const MAX_COUNTED: usize = 100;

/// Places of an ambiguous text whose lines a message shows.
const MAX_SHOWN: usize = 5;

/// Lines that [`lines_now`] shows, and characters of each.
const MAX_ROWS: usize = 24;
const MAX_LINE: usize = 160;

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
    folded: [OnceCell<Folded<'a>>; 5],
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
        let is_lines = replacement.is_lines || step >= MatchStep::Indentation;
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
    /// False if the old text is in the file as the model wrote it, apart from line endings and prefixes of lines.
    pub is_loose: bool,
    /// The lines of each place in the new text.
    pub now: Vec<Range<usize>>,
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
    /// A line of the new text that stands for lines of the old one.
    Elided(String),
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
    let variants = variants(old, new, text);
    let is_exact = old.contains('\r');
    // The text as it is comes first. With a prefix before each line, it is only looked up as it is.
    let is_prefixed = variants.iter().any(|variant| variant.is_prefix);
    for (number, variant) in variants.iter().enumerate() {
        let is_whole = !(is_prefixed && number == 0);
        for step in MatchStep::all(is_exact).filter(|step| is_whole || *step <= MatchStep::Endings) {
            let (most, kept) = if is_all { (usize::MAX, true) } else { (MAX_COUNTED + 1, false) };
            let places = document.find(
                &variant.replacement,
                step,
                |place, before| !kept || before.last().is_none_or(|last| last.end <= place.start),
                most,
            );
            let places = places.map_err(|OutOfWork| MatchRefusal::Missing(None))?;
            match places.len() {
                0 => {}
                count @ 2.. if !is_all => return Err(document.ambiguous(&places, count)),
                _ => {
                    let edits = places.into_iter().map(|place| (place, &variant.replacement, step)).collect();
                    return document.edited(edits, variant, step, max_bytes);
                }
            }
        }
    }
    if let Some(parts) = elision(old, new).filter(|_| !is_all) {
        return document.around(&parts, max_bytes).unwrap_or_else(|| Err(document.missing(old)));
    }
    let bare = variants.iter().rfind(|variant| variant.is_prefix);
    let hint = variants::numbered(old).map_or(0, |(number, _)| number);
    let old = bare.map_or(old, |variant| &variant.replacement.old);
    Err(MatchRefusal::Missing(nearest(text, old, hint)))
}

type PlacedEdit<'a> = (Range<usize>, &'a Replacement<'a>, MatchStep);

impl Document<'_> {
    fn ambiguous(&self, places: &[Range<usize>], count: usize) -> MatchRefusal {
        let lines = places.iter().take(MAX_SHOWN).map(|at| self.line(at.start)).collect();
        MatchRefusal::Ambiguous { lines, count }
    }

    fn missing(&self, old: &str) -> MatchRefusal {
        MatchRefusal::Missing(nearest(self.text, old, 0))
    }

    /// Replaces two texts, each of which occurs once, and keeps the lines between them. `None` if one does not occur.
    fn around(&self, parts: &[Replacement<'_>; 2], max_bytes: usize) -> Option<Result<Edited, MatchRefusal>> {
        let mut edits: Vec<PlacedEdit<'_>> = Vec::new();
        for part in parts {
            let (places, step) = MatchStep::all(false).find_map(|step| {
                let places = self.find(part, step, |_, _| true, MAX_COUNTED + 1).ok()?;
                (!places.is_empty()).then_some((places, step))
            })?;
            let [place] = places.as_slice() else {
                return Some(Err(self.ambiguous(&places, places.len())));
            };
            edits.push((place.clone(), part, step));
        }
        if edits[0].0.end > edits[1].0.start || self.leaves_block(&edits[0].0, &edits[1].0) {
            return None;
        }
        let step = edits.iter().map(|edit| edit.2).max()?;
        edits.retain(|(_, part, _)| part.old != part.new);
        Some(self.edited(edits, &Variant::left_out(), step, max_bytes))
    }

    /// True if the lines between two places leave the block that the first place begins and the second is in.
    fn leaves_block(&self, head: &Range<usize>, tail: &Range<usize>) -> bool {
        let outer = indent(self.line_at(head.start)).len();
        let is_block = indent(self.line_at(tail.start)).len() > outer;
        let mut between = self.text[head.end..tail.start].lines().filter(|line| !line.trim().is_empty());
        is_block && between.any(|line| indent(line).len() <= outer)
    }

    fn line_at(&self, at: usize) -> &str {
        let start = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        self.text[start..].lines().next().unwrap_or_default()
    }

    fn edited(
        &self,
        edits: Vec<PlacedEdit<'_>>,
        variant: &Variant<'_>,
        step: MatchStep,
        max_bytes: usize,
    ) -> Result<Edited, MatchRefusal> {
        if let Some(line) = edits.iter().find_map(|(_, part, _)| elided(&part.old, &part.new)) {
            return Err(MatchRefusal::Elided(line.to_owned()));
        }
        let bytes = edits.iter().fold(self.text.len(), |bytes, (place, replacement, _)| {
            bytes - place.len() + replacement.new.len()
        });
        if bytes > max_bytes {
            return Err(MatchRefusal::Large(bytes));
        }
        let ignored: Vec<&'static str> = variant.ignored.iter().copied().chain(step.ignored()).collect();
        let is_loose = step.ignored().is_some() || (variant.ignored.is_some() && !variant.is_prefix);
        let mut edited = Edited {
            text: String::new(),
            lines: Vec::new(),
            added: 0,
            removed: 0,
            ignored,
            is_loose,
            now: Vec::new(),
        };
        let mut copied = 0;
        for (place, replacement, step) in edits {
            let new = self.adapted(&place, replacement, step).ok_or(MatchRefusal::Missing(None))?;
            let (first, added, removed) = changed_lines(self.text, &place, &new);
            edited.lines.push(first);
            edited.added += added;
            edited.removed += removed;
            edited.text.push_str(&self.text[copied..place.start]);
            let start = line_number(&edited.text, edited.text.len());
            edited.text.push_str(&new);
            let end = line_number(&edited.text, edited.text.trim_end_matches('\n').len());
            edited.now.push(start..end.max(start) + 1);
            copied = place.end;
        }
        edited.text.push_str(&self.text[copied..]);
        if edited.text == self.text { Err(MatchRefusal::Unchanged) } else { Ok(edited) }
    }
}

/// Lines of a file after a match that ignored something, with their numbers.
pub(super) fn lines_now(text: &str, ranges: &[Range<usize>]) -> String {
    let mut listing = String::new();
    let mut rows = 0;
    for range in ranges {
        for (at, line) in text.lines().enumerate().skip(range.start - 1).take(range.len()) {
            rows += 1;
            if rows > MAX_ROWS {
                listing += "[…]\n";
                return listing;
            }
            listing += &format!("{:>6}\t{}\n", at + 1, shorten(line, MAX_LINE));
        }
    }
    listing
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
