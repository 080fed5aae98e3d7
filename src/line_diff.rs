//! Hunks of changed lines, within a time limit, and their unified form.
//!
//! One type of line, so that the library's algorithm is compiled once.

use std::fmt::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp};

/// Unchanged lines around a change.
const CONTEXT: usize = 3;

/// Timeout of a diff. Later hunks are coarser, not wrong.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A changed region with its context.
pub struct DiffHunk(Vec<DiffOp>);

/// Lines keep their endings.
pub fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

pub fn hunks(old: &[&str], new: &[&str]) -> Vec<DiffHunk> {
    let deadline = Instant::now() + TIMEOUT;
    let ops = similar::capture_diff_slices_deadline(Algorithm::Myers, old, new, Some(deadline));
    let groups = similar::group_diff_ops(ops, CONTEXT);
    groups.into_iter().filter(|ops| !ops.is_empty()).map(DiffHunk).collect()
}

impl DiffHunk {
    /// Lines of the old and of the new text.
    pub fn ranges(&self) -> (Range<usize>, Range<usize>) {
        let (first, last) = (&self.0[0], &self.0[self.0.len() - 1]);
        let (old, new) = (first.old_range(), first.new_range());
        (old.start..last.old_range().end, new.start..last.new_range().end)
    }

    /// The removed and the added lines.
    pub fn changed<'a>(&self, old: &[&'a str], new: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
        let changes: Vec<_> = self.0.iter().filter(|op| !matches!(op, DiffOp::Equal { .. })).collect();
        let removed = changes.iter().flat_map(|op| &old[op.old_range()]).copied().collect();
        (removed, changes.iter().flat_map(|op| &new[op.new_range()]).copied().collect())
    }

    /// Appends the unified form. `before` has the numbers of lines before the texts in their files.
    pub fn write(&self, text: &mut String, (old, new): (&[&str], &[&str]), before: (usize, usize)) {
        let (old_range, new_range) = self.ranges();
        let (old_span, new_span) = (span(&old_range, before.0), span(&new_range, before.1));
        writeln!(text, "@@ -{old_span} +{new_span} @@").expect("writing to a string cannot fail");
        for op in &self.0 {
            if let DiffOp::Equal { .. } = op {
                put(text, ' ', &old[op.old_range()]);
            } else {
                put(text, '-', &old[op.old_range()]);
                put(text, '+', &new[op.new_range()]);
            }
        }
    }
}

/// Returns an empty text if there are no hunks.
pub fn unified(names: (&str, &str), old: &[&str], new: &[&str], hunks: &[DiffHunk]) -> String {
    let mut text = String::new();
    if !hunks.is_empty() {
        writeln!(text, "--- {}\n+++ {}", names.0, names.1).expect("writing to a string cannot fail");
    }
    for hunk in hunks {
        hunk.write(&mut text, (old, new), (0, 0));
    }
    text
}

/// Lines count from 1, and an empty range names the line before it.
fn span(range: &Range<usize>, before: usize) -> String {
    let start = before + range.start;
    match range.len() {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        len => format!("{},{len}", start + 1),
    }
}

fn put(text: &mut String, sign: char, lines: &[&str]) {
    for line in lines {
        text.push(sign);
        text.push_str(line);
        if !line.ends_with('\n') {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, new: &str, expected: &str) {
        let (before, after) = (lines(old), lines(new));
        assert_eq!(unified(("a", "b"), &before, &after, &hunks(&before, &after)), expected);
    }

    #[test]
    fn unified_hunks() {
        check("a\n", "a\n", "");
        check("a\n", "b", "--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n");
        check("", "a\nb\n", "--- a\n+++ b\n@@ -0,0 +1,2 @@\n+a\n+b\n");
        let old: String = (1..=20).map(|number| format!("{number}\n")).collect();
        let new = old.replace("10\n", "ten\n").replace("20\n", "");
        check(
            &old,
            &new,
            "--- a\n+++ b\n@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n@@ -17,4 +17,3 @@\n 17\n 18\n 19\n-20\n",
        );
    }
}
