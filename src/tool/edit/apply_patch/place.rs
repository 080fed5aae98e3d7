//! Applies hunks to a text where `git apply` would, or explains each failure. Pure.
//!
//! A hunk goes to the position in its header if the counts there are right, else to the only match of its old lines, in the steps of
//! [`text_match`]. Lines changed by one hunk never match another; unchanged lines may be context of two hunks, if the
//! second has no other place. A hunk without leading context belongs at the start of the file; one without trailing
//! context, at the end.

use std::borrow::Cow;
use std::ops::Range;

use super::hunk::{HunkNumbers, PatchHunk};
use crate::tool::edit::text_match::{
    Document, MAX_NAMED, MatchStep, OutOfWork, Replacement, elided, nearest,
};
use crate::tool::file::text_file::BOM;

const MAX_LINES: usize = 2_000_000;

/// Bounds the search for similar lines: maximum bytes of the texts searched for the hunks of a file.
const MAX_SIMILAR: usize = 20_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PlaceFailure {
    /// With the lines of the file that are most similar.
    Missing(Option<String>),
    /// The lines of the first places.
    Ambiguous(Vec<usize>),
    Overlap,
    /// The hunk only adds lines, and does not say where.
    Place,
    /// The hunk ends the file without a line feed, but more lines follow.
    NotAtEnd,
    Unchanged,
    /// An added line that stands for lines of the file.
    Elided(String),
    /// The only place matches with something ignored, and the file has changed since the model saw it.
    Inexact(&'static str),
    Work,
    Size,
}

#[derive(Debug)]
pub(super) struct Patched {
    pub text: String,
    /// The hunks that match only if something is ignored.
    pub ignored: Vec<LooseHunk>,
}

#[derive(Debug)]
pub(super) struct LooseHunk {
    pub number: usize,
    pub ignored: &'static str,
    /// Lines in the new text.
    pub now: Range<usize>,
}

/// `is_changed` says that the file has changed since the patch was written: then line numbers mean nothing.
pub(super) fn apply(
    text: &str,
    hunks: &[PatchHunk],
    is_changed: bool,
) -> Result<Patched, Vec<(usize, PlaceFailure)>> {
    let starts = text.match_indices('\n').map(|(at, _)| at + 1);
    let mut starts: Vec<usize> = std::iter::once(0).chain(starts).take(MAX_LINES + 2).collect();
    starts.pop_if(|last| *last == text.len());
    if starts.len() > MAX_LINES {
        return Err(vec![(0, PlaceFailure::Size)]);
    }
    let document = Document::new(text);
    let mut image =
        PatchedText { text, document, starts, is_changed, blocks: Vec::new(), last_place: None, similar: 0 };
    let (mut failures, mut ignored) = (Vec::new(), Vec::new());
    let is_removed = |line: &str| hunks.iter().any(|hunk| hunk.old.lines().any(|old| old.trim() == line));
    for (number, hunk) in hunks.iter().enumerate() {
        if let Some(line) = elided(&hunk.old, &hunk.new).filter(|line| !is_removed(line)) {
            failures.push((number, PlaceFailure::Elided(line.to_owned())));
            continue;
        }
        match image.replace(hunk, number) {
            Ok((step, _)) if is_changed && step.ignored().is_some() => {
                failures.extend(step.ignored().map(|what| (number, PlaceFailure::Inexact(what))));
            }
            Ok((step, prefix)) => ignored.extend(step.ignored().or(prefix).map(|what| (number, what))),
            Err(failure) => failures.push((number, failure)),
        }
    }
    if !failures.is_empty() {
        return Err(failures);
    }
    let (text, lines) = image.result().map_err(|number| vec![(number, PlaceFailure::NotAtEnd)])?;
    let ignored = ignored.into_iter().map(|(number, ignored)| {
        let now = lines.iter().find(|(hunk, _)| *hunk == number).map_or(1..1, |(_, now)| now.clone());
        LooseHunk { number, ignored, now }
    });
    Ok(Patched { text, ignored: ignored.collect() })
}

/// The number of a hunk, and its lines in the new text.
type HunkLines = (usize, Range<usize>);

struct PatchedText<'a> {
    text: &'a str,
    document: Document<'a>,
    /// Where lines start.
    starts: Vec<usize>,
    is_changed: bool,
    /// Replaced ranges in text order, without overlap.
    blocks: Vec<ReplacedBlock>,
    /// Where the place of the last hunk ends.
    last_place: Option<usize>,
    /// Bytes searched for similar lines.
    similar: usize,
}

/// The order in which places are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HunkPass {
    Exact,
    /// The steps that ignore indentation and more.
    Loose,
    /// As `Exact`, where another hunk has the same context lines, and neither changes them.
    SharedContext,
}

struct ReplacedBlock {
    old: Range<usize>,
    /// Without the context.
    changed: Range<usize>,
    new: String,
    /// Lines by which the text grows.
    growth: isize,
    hunk: usize,
}

impl PatchedText<'_> {
    /// Returns the step in which the old lines were found, and the prefix of lines that was ignored.
    fn replace(
        &mut self,
        hunk: &PatchHunk,
        number: usize,
    ) -> Result<(MatchStep, Option<&'static str>), PlaceFailure> {
        // A context line without its leading blank looks like one with less indentation, so the readings alternate.
        let bare = hunk.with_bare_context();
        let (unprefixed, prefix) = hunk.without_prefixes().unzip();
        let readings = || [Some(hunk), bare.as_ref(), unprefixed.as_ref()].into_iter().flatten();
        let passes = [HunkPass::Exact, HunkPass::Loose, HunkPass::SharedContext];
        let mut found = None;
        'passes: for pass in passes {
            for reading in readings() {
                if let Some(place) = self.find(reading, pass)? {
                    found = Some((reading, place, pass));
                    break 'passes;
                }
            }
        }
        let Some((hunk, (old, step), pass)) = found else {
            return Err(self.missing(unprefixed.as_ref().unwrap_or(hunk)));
        };
        let new = if step == MatchStep::Exact {
            hunk.new.clone()
        } else {
            let new = self.document.adapted(&old, &replacement(hunk), step);
            new.ok_or_else(|| self.missing(hunk))?
        };
        let keeps_ending = step > MatchStep::Exact && ends_without_newline(&hunk.old);
        if ends_without_newline(&new) && !keeps_ending && old.end != self.text.len() {
            return Err(PlaceFailure::NotAtEnd);
        }
        if self.text[old.clone()] == new {
            return Err(PlaceFailure::Unchanged);
        }
        self.last_place = Some(old.end);
        let growth = lines_of(&hunk.new).cast_signed() - lines_of(&hunk.old).cast_signed();
        let changed = self.changed(&old, hunk);
        let (old, new) = match pass {
            HunkPass::Exact | HunkPass::Loose => (old, new),
            HunkPass::SharedContext => {
                let (before, after) = (changed.start - old.start, old.end - changed.end);
                // The context is the file's own, so the new text has the same bytes around the change.
                let is_kept = new.len() >= before + after
                    && new.starts_with(&self.text[old.start..changed.start])
                    && new.ends_with(&self.text[changed.end..old.end]);
                if !is_kept {
                    return Err(PlaceFailure::Overlap);
                }
                (changed.clone(), new[before..new.len() - after].to_owned())
            }
        };
        let next = self.blocks.partition_point(|block| block.old.end <= old.start);
        self.blocks.insert(next, ReplacedBlock { old, changed, new, growth, hunk: number });
        let is_unprefixed = unprefixed.as_ref().is_some_and(|reading| std::ptr::eq(reading, hunk));
        Ok((step, prefix.filter(|_| is_unprefixed)))
    }

    /// `None` if the old lines do not occur.
    fn find(
        &self,
        hunk: &PatchHunk,
        pass: HunkPass,
    ) -> Result<Option<(Range<usize>, MatchStep)>, PlaceFailure> {
        // With line numbers, `git apply` decides, and refuses the hunk.
        let is_like_git = self.blocks.is_empty() || hunk.old.is_empty() || hunk.numbers.is_some();
        if pass == HunkPass::SharedContext && is_like_git {
            return Ok(None);
        }
        if let Some(numbers) = hunk.numbers.filter(|numbers| numbers.is_counted && !self.is_changed)
            && let Some(start) = self.numbered(hunk, numbers).filter(|_| pass == HunkPass::Exact)
        {
            return Ok(Some((start..start + hunk.old.len(), MatchStep::Exact)));
        }
        if hunk.old.is_empty() {
            let start = self.insertion(hunk).ok_or(PlaceFailure::Place)?;
            return Ok(Some((start..start, MatchStep::Exact)));
        }
        let is_exact = hunk.numbers.is_some() || hunk.old.contains('\r');
        let is_loose = pass == HunkPass::Loose;
        let is_usable = |place: &Range<usize>| match pass {
            HunkPass::Exact | HunkPass::Loose => self.is_free(place),
            HunkPass::SharedContext => self.shares_context(place, hunk),
        };
        for step in MatchStep::all(is_exact).filter(|step| (*step > MatchStep::Characters) == is_loose) {
            let places =
                self.document.find(&replacement(hunk), step, |place, _| is_usable(place), MAX_NAMED + 1);
            let places = places.map_err(|OutOfWork| PlaceFailure::Work)?;
            match places.as_slice() {
                [] => {}
                [place] => return Ok(Some((place.clone(), step))),
                _ => return self.chosen(hunk, &places, step).map(|place| Some((place, step))),
            }
        }
        Ok(None)
    }

    /// The position in the header, if the old lines are there.
    fn numbered(
        &self,
        hunk: &PatchHunk,
        HunkNumbers { old_start, new_start, .. }: HunkNumbers,
    ) -> Option<usize> {
        let (old, new) = (lines_of(&hunk.old), lines_of(&hunk.new));
        let (at_start, at_end) = (old_start <= 1, hunk.trailing == 0);
        if hunk.leading > 0 || hunk.trailing > 0 {
            let line = if at_start {
                Some(0).filter(|_| self.blocks.first().is_none_or(|block| block.old.end > 0))
            } else if at_end {
                let is_last = self.blocks.last().is_none_or(|block| block.old.start < self.text.len());
                self.starts.len().checked_sub(old).filter(|_| is_last)
            } else {
                let growth: isize = self.blocks.iter().map(|block| block.growth).sum();
                let line = new_start.saturating_sub(1).checked_add_signed(-growth);
                line.filter(|line| {
                    self.blocks.last().is_none_or(|block| Some(block.old.end) <= self.start(*line))
                })
            };
            let start = line.and_then(|line| self.at_line(line, hunk));
            if let Some(start) = start
                && (!(at_start && at_end) || start + hunk.old.len() == self.text.len())
                && (at_start || !at_end || self.is_end_meant(start, old_start, hunk))
            {
                return Some(start);
            }
        } else if old == 0 && self.text.is_empty() && self.blocks.is_empty() {
            return Some(0);
        }
        let line = if old == 0 { Some(old_start) } else { old_start.checked_sub(1) }?;
        let start = self.at_line(line, hunk)?;
        let before = self.blocks.iter().take_while(|block| block.old.end <= start);
        let new_line = if new == 0 { Some(new_start) } else { new_start.checked_sub(1) };
        let growth = before.map(|block| block.growth).sum();
        (new_line == line.checked_add_signed(growth)).then_some(start)
    }

    /// Models leave out the context after a change. For `git apply`, a hunk without it belongs at the end of the file.
    fn is_end_meant(&self, start: usize, stated_line: usize, hunk: &PatchHunk) -> bool {
        if self.start(stated_line.saturating_sub(1)) == Some(start) {
            return true;
        }
        let places = self.document.find(&replacement(hunk), MatchStep::Exact, |_, _| true, 2);
        places.is_ok_and(|places| places.len() == 1)
    }

    fn at_line(&self, line: usize, hunk: &PatchHunk) -> Option<usize> {
        let start = self.start(line)?;
        let end = start + hunk.old.len();
        let is_whole = hunk.old.is_empty() || hunk.old.ends_with('\n') || end == self.text.len();
        let is_there = is_whole && self.text[start..].starts_with(&hunk.old);
        (is_there && self.is_free(&(start..end))).then_some(start)
    }

    /// Where a line starts, also the one after the last.
    fn start(&self, line: usize) -> Option<usize> {
        let after = (line == self.starts.len()).then_some(self.text.len());
        self.starts.get(line).copied().or(after)
    }

    fn is_free(&self, place: &Range<usize>) -> bool {
        let next = self.blocks.partition_point(|block| block.old.end <= place.start);
        self.blocks.get(next).is_none_or(|block| block.old.start >= place.end)
    }

    /// True if a hunk at this place and the other hunks leave each other's lines as they are.
    fn shares_context(&self, place: &Range<usize>, hunk: &PatchHunk) -> bool {
        let changed = self.changed(place, hunk);
        let is_apart =
            |one: &Range<usize>, other: &Range<usize>| one.end <= other.start || one.start >= other.end;
        self.blocks.iter().all(|block| is_apart(&block.changed, place) && is_apart(&changed, &block.old))
    }

    /// The part of a place between the context lines of its hunk.
    fn changed(&self, place: &Range<usize>, hunk: &PatchHunk) -> Range<usize> {
        let lines: Vec<&str> = self.text[place.clone()].split_inclusive('\n').collect();
        let leading = hunk.leading.min(lines.len());
        let trailing = hunk.trailing.min(lines.len() - leading);
        place.start + byte_length(&lines[..leading])
            ..place.end - byte_length(&lines[lines.len() - trailing..])
    }

    /// Where a hunk without line numbers adds its lines: after its anchor, or at the end if it says so.
    fn insertion(&self, hunk: &PatchHunk) -> Option<usize> {
        let place = if hunk.is_at_end || self.text.is_empty() {
            Some(self.text.len())
        } else if hunk.numbers.is_some() {
            None
        } else {
            self.anchored(hunk).map(|block| block.start)
        };
        place.filter(|at| self.is_free(&(*at..*at)))
    }

    /// Of several places, the one in the header's line, at the end of the file, or below the anchor.
    fn chosen(
        &self,
        hunk: &PatchHunk,
        places: &[Range<usize>],
        step: MatchStep,
    ) -> Result<Range<usize>, PlaceFailure> {
        let numbers =
            hunk.numbers.filter(|numbers| numbers.is_counted && step > MatchStep::Exact && !self.is_changed);
        let stated_start = numbers.and_then(|numbers| self.start(numbers.old_start.checked_sub(1)?));
        let anchored = self.anchored(hunk);
        // The hunks of a file come in order.
        let is_bare = hunk.anchors.is_empty() && hunk.numbers.is_none();
        let follows = self.last_place.filter(|_| is_bare);
        let mut fitting = places.iter().filter(|place| {
            stated_start == Some(place.start)
                || (hunk.is_at_end && place.end == self.text.len())
                || anchored.as_ref().is_some_and(|block| block.contains(&place.start))
                || follows == Some(place.start)
        });
        match (fitting.next(), fitting.next()) {
            (Some(place), None) => Ok(place.clone()),
            _ => Err(PlaceFailure::Ambiguous(
                places.iter().map(|place| self.document.line(place.start)).collect(),
            )),
        }
    }

    /// The lines below the anchors of a hunk, as far as they are indented deeper than the last anchor. The
    /// first anchor occurs only once.
    fn anchored(&self, hunk: &PatchHunk) -> Option<Range<usize>> {
        let mut lines = self.starts.iter().zip(self.text.lines()).map(|(start, line)| (*start, line));
        let (mut found, mut after) = (None, 0);
        for (number, anchor) in hunk.anchors.iter().enumerate() {
            let is_anchor = |(_, line): &(usize, &str)| line.trim() == anchor.trim();
            found = Some(lines.find(is_anchor)?);
            let mut rest = lines.clone();
            after = rest.clone().next().map_or(self.text.len(), |(start, _)| start);
            if number == 0 && rest.any(|line| is_anchor(&line)) {
                return None;
            }
        }
        let outer = indent_of(found?.1);
        let next = lines.find(|(_, line)| {
            let is_closing = line.trim_start().starts_with(['}', ')', ']']);
            !line.trim().is_empty() && (indent_of(line) < outer || (indent_of(line) == outer && !is_closing))
        });
        let end = next.map_or(self.text.len(), |(start, _)| start);
        Some(after..end.max(after + 1))
    }

    fn missing(&mut self, hunk: &PatchHunk) -> PlaceFailure {
        for step in [MatchStep::Exact, MatchStep::Endings] {
            match self.document.find(&replacement(hunk), step, |_, _| true, 1) {
                Err(OutOfWork) => return PlaceFailure::Work,
                Ok(places) if !places.is_empty() => return PlaceFailure::Overlap,
                Ok(_) => {}
            }
        }
        self.similar += self.text.len();
        let hint = hunk.numbers.map_or(0, |numbers| numbers.old_start);
        let is_cheap = self.similar <= MAX_SIMILAR;
        PlaceFailure::Missing(is_cheap.then(|| nearest(self.text, &hunk.old, hint)).flatten())
    }

    /// Returns the new text, and the lines of each hunk in it. The error is the number of a hunk that would join two
    /// lines.
    fn result(&self) -> Result<(String, Vec<HunkLines>), usize> {
        let mut text = String::new();
        let mut lines = Vec::new();
        let (mut copied, mut line) = (0, 1);
        for block in &self.blocks {
            let kept = &self.text[copied..block.old.start];
            text.push_str(kept);
            if !(text.is_empty() || text == BOM || text.ends_with('\n') || block.new.is_empty()) {
                return Err(block.hunk);
            }
            line += kept.matches('\n').count();
            lines.push((block.hunk, line..line + lines_of(&block.new)));
            line += block.new.matches('\n').count();
            text.push_str(&block.new);
            copied = block.old.end;
        }
        text.push_str(&self.text[copied..]);
        Ok((text, lines))
    }
}

fn byte_length(lines: &[&str]) -> usize {
    lines.iter().map(|line| line.len()).sum()
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn ends_without_newline(side: &str) -> bool {
    !side.is_empty() && !side.ends_with('\n')
}

fn replacement(hunk: &PatchHunk) -> Replacement<'_> {
    Replacement { old: Cow::Borrowed(&hunk.old), new: Cow::Borrowed(&hunk.new), is_lines: true }
}

fn lines_of(text: &str) -> usize {
    text.split_inclusive('\n').count()
}
