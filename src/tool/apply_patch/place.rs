//! Applies hunks to a text where `git apply` would, or explains each failure. Pure.
//!
//! A hunk goes to the position in its header, else to the nearest match of its old lines. Lines changed by
//! one hunk never match another. A hunk without leading context belongs at the start of the file; one without
//! trailing context, at the end. Otherwise, and without any context (`git diff -U0`), a hunk applies only at
//! its exact position or its only match.

use std::ops::Range;

use super::hunk::Hunk;

/// Bounds the search for hunks with wrong line numbers: maximum lines compared per file.
const MAX_WORK: usize = 20_000_000;

const MAX_LINES: usize = 2_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// `found` is `None` past the end of the file.
    Line {
        number: usize,
        expected: String,
        found: Option<String>,
    },
    Ambiguous,
    Overlap,
    /// The hunk only adds lines, and its line numbers are wrong.
    Place,
    /// The hunk ends the file without a line feed, but more lines follow.
    NotAtEnd,
    Work,
    Size,
}

pub(super) fn apply(text: &str, hunks: &[Hunk]) -> Result<String, Vec<(usize, Failure)>> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    if lines.len() > MAX_LINES {
        return Err(vec![(0, Failure::Size)]);
    }
    let mut image = Image { lines: &lines, blocks: Vec::new(), shift: 0, work: 0 };
    let mut failures = Vec::new();
    for (number, hunk) in hunks.iter().enumerate() {
        match image.place(hunk) {
            Ok(start) => image.replace(start, hunk),
            Err(failure) => failures.push((number, failure)),
        }
    }
    if !failures.is_empty() {
        return Err(failures);
    }
    image.text().map_err(|block| {
        vec![(hunks.iter().position(|hunk| std::ptr::eq(hunk, block)).unwrap_or(0), Failure::NotAtEnd)]
    })
}

struct Image<'a> {
    lines: &'a [&'a str],
    /// Replaced ranges in text order, without overlap.
    blocks: Vec<Block<'a>>,
    /// Lines by which the text has grown.
    shift: isize,
    work: usize,
}

struct Block<'a> {
    old: Range<usize>,
    hunk: &'a Hunk,
}

impl Block<'_> {
    fn shift(&self) -> isize {
        self.hunk.new.len().cast_signed() - self.old.len().cast_signed()
    }
}

impl<'a> Image<'a> {
    fn place(&mut self, hunk: &Hunk) -> Result<usize, Failure> {
        let start = self.find(hunk)?;
        let ends_without = |side: &[String]| side.last().is_some_and(|line| !line.ends_with('\n'));
        if ends_without(&hunk.new) && start + hunk.old.len() != self.lines.len() {
            return Err(Failure::NotAtEnd);
        }
        Ok(start)
    }

    fn find(&mut self, hunk: &Hunk) -> Result<usize, Failure> {
        let length = hunk.old.len();
        let has_context = hunk.leading > 0 || hunk.trailing > 0;
        if has_context {
            let (at_start, at_end) = (hunk.old_start <= 1, hunk.trailing == 0);
            let anchored = if at_start { Some(0) } else { self.lines.len().checked_sub(length) };
            let found = match anchored {
                Some(start) if at_start || at_end => {
                    let end = start + length;
                    let is_first = !at_start || self.blocks.first().is_none_or(|block| block.old.end > 0);
                    let is_last = !at_end
                        || (end == self.lines.len()
                            && self.blocks.last().is_none_or(|block| block.old.start < end));
                    Some(start).filter(|start| is_first && is_last && self.is_at(*start, hunk))
                }
                _ if at_end => None,
                _ => self.nearest(hunk)?,
            };
            if let Some(start) = found {
                return Ok(start);
            }
            if !at_start && !at_end {
                return Err(self.failure(hunk));
            }
        }
        self.exact_or_only(hunk)
    }

    /// The position where both line numbers of the header agree, else the only match.
    fn exact_or_only(&mut self, hunk: &Hunk) -> Result<usize, Failure> {
        let is_pure = hunk.old.is_empty();
        if is_pure && self.lines.is_empty() && self.blocks.is_empty() {
            return Ok(0);
        }
        let named = if is_pure { Some(hunk.old_start) } else { hunk.old_start.checked_sub(1) };
        if let Some(start) = named.filter(|start| *start <= self.lines.len()) {
            let new_start =
                if hunk.new.is_empty() { Some(hunk.new_start) } else { hunk.new_start.checked_sub(1) };
            if new_start == start.checked_add_signed(self.shift_before(start)) && self.is_at(start, hunk) {
                return Ok(start);
            }
        }
        if is_pure {
            return Err(Failure::Place);
        }
        let mut places = self.search(hunk)?.into_iter().map(|(start, _)| start);
        match (places.next(), places.next()) {
            (Some(start), None) if named.is_some() => Ok(start),
            (Some(_), _) => Err(Failure::Ambiguous),
            (None, _) => Err(self.failure(hunk)),
        }
    }

    /// The match nearest to the header's position; of two, the later one.
    fn nearest(&mut self, hunk: &Hunk) -> Result<Option<usize>, Failure> {
        let length = self.lines.len().saturating_add_signed(self.shift);
        let named = hunk.new_start.saturating_sub(1).min(length);
        if let Some(start) = named.checked_add_signed(-self.shift)
            && self.blocks.last().is_none_or(|block| block.old.end <= start)
            && self.is_at(start, hunk)
        {
            return Ok(Some(start));
        }
        let distance = |(_, now): &(usize, usize)| (now.abs_diff(named), *now < named);
        Ok(self.search(hunk)?.into_iter().min_by_key(distance).map(|(start, _)| start))
    }

    fn is_at(&self, start: usize, hunk: &Hunk) -> bool {
        let end = start + hunk.old.len();
        let next = self.blocks.partition_point(|block| block.old.end <= start);
        self.blocks.get(next).is_none_or(|block| block.old.start >= end)
            && self.lines.get(start..end).is_some_and(|lines| lines == hunk.old)
    }

    /// Every match, as line numbers in the old and in the current text.
    fn search(&mut self, hunk: &Hunk) -> Result<Vec<(usize, usize)>, Failure> {
        self.work += self.lines.len() + self.blocks.len() + hunk.old.len();
        if self.work > MAX_WORK {
            return Err(Failure::Work);
        }
        let pattern = Pattern::new(&hunk.old);
        let (mut found, mut begin, mut shift) = (Vec::new(), 0, 0);
        let ends = self.blocks.iter().map(|block| (block.old.clone(), block.shift()));
        for (old, added) in ends.chain([(self.lines.len()..self.lines.len(), 0)]) {
            let mut matched = 0;
            for (at, line) in self.lines[begin..old.start].iter().enumerate() {
                matched = pattern.step(matched, line);
                if matched == hunk.old.len() {
                    let start = begin + at + 1 - matched;
                    found.push((start, start.saturating_add_signed(shift)));
                }
            }
            begin = old.end;
            shift += added;
        }
        Ok(found)
    }

    fn shift_before(&self, start: usize) -> isize {
        if self.blocks.last().is_none_or(|block| block.old.end <= start) {
            return self.shift;
        }
        self.blocks.iter().take_while(|block| block.old.end <= start).map(Block::shift).sum()
    }

    fn replace(&mut self, start: usize, hunk: &'a Hunk) {
        let old = start..start + hunk.old.len();
        let next = self.blocks.partition_point(|block| block.old.end <= start);
        let block = Block { old, hunk };
        self.shift += block.shift();
        self.blocks.insert(next, block);
    }

    fn failure(&mut self, hunk: &Hunk) -> Failure {
        self.work += self.lines.len();
        if self.work > MAX_WORK {
            return Failure::Work;
        }
        let named = hunk.old_start.saturating_sub(1);
        let pattern = Pattern::new(&hunk.old);
        let (mut matched, mut best) = (0, (0, std::cmp::Reverse(0), named.min(self.lines.len())));
        for (at, line) in self.lines.iter().enumerate() {
            matched = pattern.step(matched, line);
            let start = at + 1 - matched;
            best = best.max((matched, std::cmp::Reverse(start.abs_diff(named)), start));
        }
        let (matched, _, start) = best;
        let start = if matched == 0 { named.min(self.lines.len()) } else { start };
        match hunk.old.get(matched) {
            None => Failure::Overlap,
            Some(expected) => Failure::Line {
                number: start + matched + 1,
                expected: expected.clone(),
                found: self.lines.get(start + matched).map(|line| (*line).to_owned()),
            },
        }
    }

    fn text(&self) -> Result<String, &'a Hunk> {
        let mut text = String::new();
        let mut begin = 0;
        for block in &self.blocks {
            text.extend(self.lines[begin..block.old.start].iter().copied());
            if !(text.is_empty() || text.ends_with('\n') || block.hunk.new.is_empty()) {
                return Err(block.hunk);
            }
            text.extend(block.hunk.new.iter().map(String::as_str));
            begin = block.old.end;
        }
        text.extend(self.lines[begin..].iter().copied());
        Ok(text)
    }
}

/// A pattern of lines (Knuth, Morris and Pratt), so that a search is linear.
struct Pattern<'a> {
    lines: &'a [String],
    borders: Vec<usize>,
}

impl<'a> Pattern<'a> {
    fn new(lines: &'a [String]) -> Self {
        let mut borders = vec![0; lines.len() + 1];
        let mut border = 0;
        for at in 1..lines.len() {
            while border > 0 && lines[at] != lines[border] {
                border = borders[border];
            }
            if lines[at] == lines[border] {
                border += 1;
            }
            borders[at + 1] = border;
        }
        Self { lines, borders }
    }

    fn step(&self, matched: usize, line: &str) -> usize {
        let mut matched = if matched == self.lines.len() { self.borders[matched] } else { matched };
        while matched > 0 && self.lines[matched] != line {
            matched = self.borders[matched];
        }
        if self.lines.is_empty() {
            return 0;
        }
        if self.lines[matched] == line { matched + 1 } else { 0 }
    }
}
