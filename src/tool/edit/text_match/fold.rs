//! A text without what a step ignores, with the way back to the original text. Pure and linear.

use std::borrow::Cow;
use std::ops::Range;

use super::match_step::MatchStep;
use crate::tool::file::text_file::BOM;

pub(super) struct Folded<'a> {
    original: &'a str,
    step: MatchStep,
    text: Cow<'a, str>,
    /// Offsets in `text` and `original`, where their distance changes.
    breaks: Vec<(usize, usize)>,
}

impl<'a> Folded<'a> {
    /// A missing line feed at the end of the file is added from [`Step::Characters`] on.
    pub(super) fn file(original: &'a str, step: MatchStep) -> Self {
        let mut folded = Self::new(original, step);
        if step >= MatchStep::Characters && !folded.text.is_empty() && !original.ends_with('\n') {
            folded.push("\n", original.len());
        }
        folded
    }

    pub(super) fn new(original: &'a str, step: MatchStep) -> Self {
        if step == MatchStep::Exact {
            return Self { original, step, text: Cow::Borrowed(original), breaks: vec![(0, 0)] };
        }
        let mut folded = Self { original, step, text: Cow::Owned(String::new()), breaks: vec![(0, 0)] };
        let mut at = if original.starts_with(BOM) { BOM.len() } else { 0 };
        for line in original[at..].split_inclusive('\n') {
            let (content, ending) = split_ending(line);
            let body =
                if step < MatchStep::Characters { content } else { content.trim_end_matches(is_blank) };
            let indent = if step < MatchStep::Indentation { 0 } else { indent(body).len() };
            folded.push_folded(&body[indent..], at + indent);
            if !ending.is_empty() {
                folded.push("\n", at + line.len() - 1);
            }
            at += line.len();
        }
        folded
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    fn push_folded(&mut self, body: &str, at: usize) {
        if self.step == MatchStep::Spacing {
            for (offset, c) in body.char_indices().filter(|(_, c)| !is_blank(*c)) {
                self.push(plain(c).encode_utf8(&mut [0; 4]), at + offset);
            }
            return;
        }
        if body.is_ascii() || self.step < MatchStep::Characters {
            return self.push(body, at);
        }
        for (offset, c) in body.char_indices() {
            self.push(plain(c).encode_utf8(&mut [0; 4]), at + offset);
        }
    }

    fn push(&mut self, text: &str, at: usize) {
        if self.start(self.text.len()) != at {
            self.breaks.push((self.text.len(), at));
        }
        self.text.to_mut().push_str(text);
    }

    /// Every place of the pattern, also where places overlap (Knuth, Morris and Pratt).
    pub(super) fn find_all(&self, pattern: &str) -> impl Iterator<Item = Range<usize>> {
        let first = self.text.find(pattern).unwrap_or(self.text.len());
        let pattern = pattern.as_bytes();
        let borders = if first < self.text.len() { borders(pattern) } else { Vec::new() };
        let mut matched = 0;
        let ends = (first..).zip(self.text[first..].bytes()).filter_map(move |(at, byte)| {
            while matched > 0 && (matched == pattern.len() || pattern[matched] != byte) {
                matched = borders[matched];
            }
            matched += usize::from(pattern.get(matched) == Some(&byte));
            (matched == pattern.len() && matched > 0).then_some(at + 1)
        });
        ends.map(|end| end - pattern.len()..end)
    }

    pub(super) fn starts_line(&self, at: usize) -> bool {
        at == 0 || self.text.as_bytes()[at - 1] == b'\n'
    }

    /// True before or after a line feed; in an exact match only after it.
    pub(super) fn ends_line(&self, at: usize) -> bool {
        let rest = &self.text.as_bytes()[at..];
        rest.is_empty()
            || self.text[..at].ends_with('\n')
            || (rest[0] == b'\n' && self.step > MatchStep::Exact)
    }

    /// The original of a range. Contains the blanks that were dropped at the ends of its lines, and from
    /// [`Step::Indentation`] on those before its first line.
    pub(super) fn original(&self, range: &Range<usize>) -> Range<usize> {
        let last = self.text.floor_char_boundary(range.end - 1);
        let (mut start, mut end) = (self.start(range.start), self.start(last));
        end += self.original[end..].chars().next().map_or(0, char::len_utf8);
        if self.step > MatchStep::Exact && self.original[start..].starts_with('\n') {
            start -= usize::from(self.original[..start].ends_with('\r'));
        }
        if self.step >= MatchStep::Indentation {
            start = self.original[..start].trim_end_matches(is_blank).len();
        }
        if self.step >= MatchStep::Characters
            && &self.text[last..range.end] != "\n"
            && self.ends_line(range.end)
        {
            let rest = &self.original[end..];
            end += rest.len() - rest.trim_start_matches(is_blank).len();
        }
        start..end
    }

    fn start(&self, at: usize) -> usize {
        let next = self.breaks.partition_point(|(folded, _)| *folded <= at);
        let (folded, original) = self.breaks[next - 1];
        original + (at - folded)
    }
}

fn borders(pattern: &[u8]) -> Vec<usize> {
    let mut borders = vec![0; pattern.len() + 1];
    let mut border = 0;
    for at in 1..pattern.len() {
        while border > 0 && pattern[at] != pattern[border] {
            border = borders[border];
        }
        border += usize::from(pattern[at] == pattern[border]);
        borders[at + 1] = border;
    }
    borders
}

/// Splits a line from its LF or CRLF.
pub(super) fn split_ending(line: &str) -> (&str, &str) {
    let content = line.strip_suffix('\n').map_or(line, |rest| rest.strip_suffix('\r').unwrap_or(rest));
    line.split_at(content.len())
}

pub(super) fn indent(line: &str) -> &str {
    &line[..line.len() - line.trim_start_matches(is_blank).len()]
}

pub(super) fn is_blank(c: char) -> bool {
    matches!(plain(c), ' ' | '\t')
}

/// The ASCII form of a typographic quote, dash or space.
pub(super) fn plain(c: char) -> char {
    match c {
        '\u{2018}'..='\u{201b}' | '\u{2bc}' | '\u{2032}' => '\'',
        '\u{201c}'..='\u{201f}' | '\u{2033}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, step: MatchStep, pattern: &str, expected: &[&str]) {
        let folded = Folded::file(text, step);
        let found: Vec<_> = folded.find_all(pattern).map(|range| &text[folded.original(&range)]).collect();
        assert_eq!(found, expected, "{text:?} {step:?} {pattern:?}");
    }

    #[test]
    fn ranges_map_back_to_the_original_text() {
        check("aXaXa", MatchStep::Exact, "aXa", &["aXa", "aXa"]);
        check("a\r\nb\r\n", MatchStep::Endings, "a\nb", &["a\r\nb"]);
        check("a\r\nb\r\n", MatchStep::Endings, "\nb\n", &["\r\nb\r\n"]);
        check("\u{feff}a\n", MatchStep::Endings, "a", &["a"]);
        check("x “é” \t\r\ny", MatchStep::Characters, "\"é\"\ny", &["“é” \t\r\ny"]);
        check("x “é” \t\r\ny", MatchStep::Characters, "x \"é\"", &["x “é” \t"]);
        check("a–b", MatchStep::Characters, "a-b\n", &["a–b"]);
        check("if\n\t\tx \n  y", MatchStep::Indentation, "x\ny", &["\t\tx \n  y"]);
    }
}
