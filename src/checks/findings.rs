//! Compares the output of a check with that of its last run. Pure.
//!
//! Blocks between blank lines are compared first, wherever they stand, and then the lines of the blocks that
//! differ. Positions and durations count as equal, so a finding that has only moved is not new.

use std::collections::HashMap;
use std::path::Path;

use crate::text::{counted, visible};

/// Bytes of findings that the model gets from the start and from the end.
const HEAD: usize = 3 * 1024;
const TAIL: usize = 1024;

/// Words before the number of a line or a column.
const POSITIONS: [&str; 6] = ["line", "lines", "column", "columns", "col", "row"];

const UNITS: [&str; 11] = ["ns", "µs", "us", "ms", "s", "sec", "secs", "second", "seconds", "m", "min"];

type Counts = HashMap<String, usize>;

/// Returns the lines of `now` that `before` lacks, with the less indented lines above each, which name the file or the
/// test. Empty if nothing is new.
pub fn new_findings(before: &str, now: &str) -> String {
    let (old, new) = (blocks(before), blocks(now));
    let mut known = Counts::new();
    for block in &old {
        *known.entry(key_of(block)).or_default() += 1;
    }
    let changed: Vec<&Vec<&str>> = new.iter().filter(|block| !take(&mut known, &key_of(block))).collect();
    let left = old.iter().filter(|block| take(&mut known, &key_of(block))).flatten();
    let mut lines = KnownLines::default();
    left.for_each(|line| lines.add(line));
    let mut shown: Vec<String> = Vec::new();
    for (block, is_new) in changed.iter().zip(lines.mark(&changed)) {
        if is_new.contains(&true) {
            shown.push(with_headings(block, &is_new).join("\n"));
        }
    }
    shown.join("\n\n")
}

/// Quotes findings for a note to the model: a mark in front of each line shows that Modegate did not write it. Long
/// findings are shortened to whole lines of their start and their end. `file` has all of the output.
pub fn quoted(findings: &str, file: Option<&Path>) -> String {
    let findings = findings.trim_end();
    if findings.len() <= HEAD + TAIL {
        return quoted_lines(findings);
    }
    let head = &findings[..findings.floor_char_boundary(HEAD)];
    let head = head.rfind('\n').map_or(head, |end| &head[..end]);
    let tail = &findings[findings.ceil_char_boundary(findings.len() - TAIL)..];
    let tail = tail.find('\n').map_or(tail, |end| &tail[end + 1..]);
    let all = findings.lines().count();
    let left_out = all.saturating_sub(head.lines().count() + tail.lines().count());
    let place = file.map(|file| format!("; all of the output: {}", file.display())).unwrap_or_default();
    let left_out = counted(left_out, "line", "lines");
    format!("{}\n[… {left_out} left out{place}]\n{}", quoted_lines(head), quoted_lines(tail))
}

fn quoted_lines(text: &str) -> String {
    let lines: Vec<String> =
        text.lines().map(|line| format!("> {}", visible(line)).trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Lines of the last run in blocks that are no more, by their text and without positions. Each counts once.
#[derive(Default)]
struct KnownLines<'a> {
    exact: HashMap<&'a str, usize>,
    normal: Counts,
}

impl<'a> KnownLines<'a> {
    fn add(&mut self, line: &'a str) {
        *self.exact.entry(line).or_default() += 1;
        *self.normal.entry(normalised(line)).or_default() += 1;
    }

    /// For each line of each block, true if it is new. Unchanged lines are found before those that have moved.
    fn mark(&mut self, blocks: &[&Vec<&'a str>]) -> Vec<Vec<bool>> {
        let mut marks: Vec<Vec<bool>> =
            blocks.iter().map(|block| block.iter().map(|line| !self.take_exact(line)).collect()).collect();
        for (block, marks) in blocks.iter().zip(&mut marks) {
            for (line, is_new) in block.iter().zip(marks) {
                *is_new = *is_new && !take(&mut self.normal, &normalised(line));
            }
        }
        marks
    }

    fn take_exact(&mut self, line: &str) -> bool {
        let Some(count) = self.exact.get_mut(line).filter(|count| **count > 0) else { return false };
        *count -= 1;
        take(&mut self.normal, &normalised(line))
    }
}

fn take(counts: &mut Counts, key: &str) -> bool {
    let Some(count) = counts.get_mut(key).filter(|count| **count > 0) else { return false };
    *count -= 1;
    true
}

fn blocks(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let blocks = lines.split(|line| line.is_empty()).filter(|block| !block.is_empty());
    blocks.map(<[&str]>::to_vec).collect()
}

fn key_of(block: &[&str]) -> String {
    block.iter().map(|line| normalised(line) + "\n").collect()
}

/// The marked lines, and above each the nearest lines that are less indented.
fn with_headings<'a>(block: &[&'a str], is_marked: &[bool]) -> Vec<&'a str> {
    let mut is_shown = is_marked.to_vec();
    for at in (0..block.len()).filter(|at| is_marked[*at]) {
        let mut indent = indent_of(block[at]);
        for above in (0..at).rev() {
            if indent_of(block[above]) < indent {
                indent = indent_of(block[above]);
                is_shown[above] = true;
            }
        }
    }
    block.iter().zip(is_shown).filter(|(_, is_shown)| *is_shown).map(|(line, _)| *line).collect()
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Replaces positions, durations and addresses by `#`. Other numbers stay: a wrong value is a finding. The indentation
/// goes, because a margin is as wide as its numbers.
fn normalised(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.trim_start();
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        text.push_str(before);
        let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let end = if is_address(number) {
            number.len() - number[2..].trim_start_matches(is_hex).len()
        } else {
            digits
        };
        let after = &number[end..];
        let duration = duration_end(number);
        if is_address(number) {
            text.push_str("0x#");
            rest = after;
        } else if let Some(end) = duration.filter(|_| !ends_in_word(&text)) {
            text.push('#');
            rest = &number[end..];
        } else {
            text.push_str(if is_position(&text, after) { "#" } else { &number[..end] });
            rest = after;
        }
    }
    text + rest
}

fn is_hex(c: char) -> bool {
    c.is_ascii_hexdigit()
}

fn is_address(number: &str) -> bool {
    number.strip_prefix("0x").is_some_and(|digits| digits.starts_with(is_hex))
}

fn ends_in_word(before: &str) -> bool {
    before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn is_position(before: &str, after: &str) -> bool {
    if ends_in_word(before) {
        return false;
    }
    let is_beside_colon = before.ends_with(':') || after.starts_with(':');
    let is_in_brackets = (before.ends_with('(') || before.ends_with(','))
        && (after.starts_with(')') || after.starts_with(','));
    let is_in_margin =
        before.chars().all(|c| c.is_whitespace() || c == '>') && after.trim_start().starts_with(['|', '│']);
    let is_end_of_range = before.ends_with("#-");
    let word = before.trim_end().rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    let is_named = before.ends_with(' ') && POSITIONS.contains(&word.to_lowercase().as_str());
    is_beside_colon || is_in_brackets || is_in_margin || is_end_of_range || is_named
}

/// Returns the end of a number that is a duration, unit included.
fn duration_end(number: &str) -> Option<usize> {
    let without_number = number.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let start = without_number.strip_prefix(' ').unwrap_or(without_number);
    let rest = start.trim_start_matches(char::is_alphabetic);
    UNITS.contains(&&start[..start.len() - rest.len()]).then(|| number.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_durations_count_as_equal() {
        let check = |line: &str, expected: &str| assert_eq!(normalised(line), expected, "{line}");
        check("src/a.rs:12:5: error: x", "src/a.rs:#:#: error: x");
        check("a.ts(12,5): error TS2304: x", "a.ts(#,#): error TS2304: x");
        check("  1:10  error  'x' is not defined  no-undef", "#:#  error  'x' is not defined  no-undef");
        check("  File \"a.py\", line 12, in f", "File \"a.py\", line #, in f");
        check("lines 3-14 differ", "lines #-# differ");
        check("12 |     let x = 1;", "# |     let x = 1;");
        check("  > 3 │ x", "> # │ x");
        check("thread 't' (4711) panicked at src/a.rs:5:9:", "thread 't' (#) panicked at src/a.rs:#:#:");
        check("1 failed, 2 passed in 0.12s", "1 failed, 2 passed in #");
        check("Finished in 1.5 seconds", "Finished in #");
        check("test took 12ms", "test took #");
        check("<A object at 0x7f3a9c>", "<A object at 0x#>");
        check("error[E0308]: expected 3, found 4", "error[E0308]: expected 3, found 4");
        check("utf8 3 sheep é", "utf8 3 sheep é");
        check("", "");
    }

    fn check(before: &str, now: &str, expected: &str) {
        assert_eq!(new_findings(before, now), expected, "{before}\n--- now:\n{now}");
    }

    #[test]
    fn lines_of_a_linter_are_compared_one_by_one() {
        let old = "a.py:1:1: F401 unused\na.py:9:1: E999 bad\nFound 2 errors.\n";
        check("", old, old.trim_end());
        check(old, old, "");
        check(old, "a.py:3:1: F401 unused\na.py:11:1: E999 bad\nFound 2 errors.\n", "");
        check(old, "a.py:9:1: E999 bad\nFound 1 error.\n", "Found 1 error.");
        check(old, "a.py:9:1: E999 bad\na.py:1:1: F401 unused\nFound 2 errors.\n", "");
        check(old, &format!("b.py:1:1: F401 unused\n{old}"), "b.py:1:1: F401 unused");
        // A second finding like the first, in the same file.
        check(old, &format!("a.py:4:1: F401 unused\n{old}"), "a.py:4:1: F401 unused");
    }

    #[test]
    fn new_line_brings_the_line_that_names_its_file() {
        let old = "/w/a.js\n  1:1  error  x\n\n/w/b.js\n  2:2  error  y\n\n2 problems\n";
        let new = "/w/a.js\n  1:1  error  x\n\n/w/b.js\n  3:2  error  y\n  9:9  error  z\n\n2 problems\n";
        check(old, new, "/w/b.js\n  9:9  error  z");
    }

    #[test]
    fn message_of_several_lines_is_shown_whole_and_known_when_it_moves() {
        let message = |file: &str, line: u32| {
            format!(
                "error[E0425]: cannot find value `y`\n --> {file}:{line}:5\n  |\n{line} |     y\n  |     ^ not found\n"
            )
        };
        let end = "error: could not compile `x`";
        let old = format!("{}\n{end}\n", message("src/a.rs", 9));
        check(&old, &format!("{}\n{end}\n", message("src/a.rs", 120)), "");
        let both = format!("{}\n{}\n{end}\n", message("src/b.rs", 1), message("src/a.rs", 12));
        check(&old, &both, message("src/b.rs", 1).trim_end());
    }

    #[test]
    fn long_findings_keep_their_start_and_their_end() {
        let findings: Vec<String> = (0..1_000).map(|number| format!("a.py:{number}: bad")).collect();
        let text = quoted(&findings.join("\n"), Some(Path::new("/tmp/output_1.txt")));
        assert!(text.len() < 2 * (HEAD + TAIL), "{}", text.len());
        assert!(text.starts_with("> a.py:0: bad\n") && text.ends_with("\n> a.py:999: bad"), "{text}");
        let shown = text.lines().count() - 1;
        let note = format!("[… {} lines left out; all of the output: /tmp/output_1.txt]", 1_000 - shown);
        assert!(text.contains(&note), "{note}: {text}");
        assert!(text.lines().all(|line| line.starts_with("> ") || line == note));
        assert_eq!(quoted("a\n\nb\u{1b}[31m\n", None), "> a\n>\n> b\\u{1b}[31m");
        // One long line.
        assert!(quoted(&"é".repeat(4_000), None).contains("[… "));
    }

    #[test]
    fn nested_test_brings_all_of_its_headings() {
        let old = "--- FAIL: A (0.01s)\n    --- FAIL: A/b (0.00s)\n        a_test.go:5: one\n";
        let new = format!("{old}        a_test.go:7: two\n    --- PASS: A/c (0.00s)\n");
        check(
            old,
            &new,
            "--- FAIL: A (0.01s)\n    --- FAIL: A/b (0.00s)\n        a_test.go:7: two\n    --- PASS: A/c (0.00s)",
        );
    }
}
