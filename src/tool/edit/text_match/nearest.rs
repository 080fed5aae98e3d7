//! The lines of a file that are most like a text that does not occur in it. Pure, in time linear in the file.

use std::collections::HashMap;
use std::fmt::Write;

use similar::DiffOp;

use super::adapt::diff;
use crate::text::start;

/// Lines of the text in which one word is looked up.
const MAX_PLACES: usize = 16;

const MAX_WORD: usize = 12;

/// Letters of a line that tells where a text belongs.
const MIN_TELLING: usize = 3;

const MAX_ROWS: usize = 24;

const MAX_LINE: usize = 160;

/// Unchanged lines shown around a difference.
const CONTEXT: usize = 2;

/// Lists the nearest lines with their numbers, and after `>` the lines of `old` in place of them. Of equally
/// similar places, the one next to line `hint` counts. Returns `None` if nothing is similar.
pub(in crate::tool) fn nearest(text: &str, old: &str, hint: usize) -> Option<String> {
    let (lines, old): (Vec<&str>, Vec<&str>) = (text.lines().collect(), old.lines().collect());
    let mut start = by_exact_line(&lines, &old).or_else(|| most_similar(&lines, &old, hint))?;
    let mut end = (start + old.len()).min(lines.len());
    // Lines that are only in the file, or only in `old`, shift the others.
    let is_old = |at: usize| lines.get(at).is_some_and(|line| !line.trim().is_empty() && old.contains(line));
    for _ in 0..CONTEXT {
        start -= usize::from(start > 0 && is_old(start - 1));
        end += usize::from(is_old(end));
    }
    Some(list(&lines[start..end], start, &old))
}

/// Where the text would be whose first or last line occurs exactly once.
fn by_exact_line(lines: &[&str], old: &[&str]) -> Option<usize> {
    let is_telling = |line: &str| line.chars().filter(|c| c.is_alphanumeric()).count() >= MIN_TELLING;
    let only = |wanted: &str| {
        let mut places =
            (0..lines.len()).filter(|at| lines[*at].trim() == wanted.trim() && is_telling(wanted));
        places.next().filter(|_| places.next().is_none())
    };
    let first = old.iter().position(|line| !line.trim().is_empty())?;
    let last = old.iter().rposition(|line| !line.trim().is_empty())?;
    let by_first = only(old[first]).map(|at| at.saturating_sub(first));
    by_first.or_else(|| only(old[last]).map(|at| at.saturating_sub(last)))
}

/// Each word of a line in the file votes for the places where the line of `old` with the word would be.
fn most_similar(lines: &[&str], old: &[&str], hint: usize) -> Option<usize> {
    let mut words: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut total = 0;
    for (at, line) in old.iter().enumerate() {
        for word in words_of(line) {
            total += weight(word);
            let places = words.entry(word).or_default();
            if places.len() < MAX_PLACES {
                places.push(at);
            }
        }
    }
    let mut votes = vec![0; lines.len() + old.len()];
    for (at, line) in lines.iter().enumerate() {
        for word in words_of(line) {
            for place in words.get(word).into_iter().flatten() {
                votes[at + old.len() - place] += weight(word);
            }
        }
    }
    let best = (0..votes.len()).max_by_key(|at| {
        let distance = (at.saturating_sub(old.len()) + 1).abs_diff(hint);
        (votes[*at], std::cmp::Reverse(distance))
    })?;
    (votes[best] > 0 && votes[best] * 10 >= total * 3).then(|| best.saturating_sub(old.len()))
}

/// The different words of a line.
fn words_of(line: &str) -> Vec<&str> {
    let mut words: Vec<&str> = line.split(|c| !is_word_char(c)).filter(|word| !word.is_empty()).collect();
    words.sort_unstable();
    words.dedup();
    words
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn weight(word: &str) -> usize {
    word.len().min(MAX_WORD)
}

fn list(lines: &[&str], before: usize, old: &[&str]) -> String {
    let ops = diff(old, lines);
    let mut rows = String::new();
    let mut count = 0;
    let mut row = |number: Option<usize>, line: &str| {
        count += 1;
        if count > MAX_ROWS {
            return;
        }
        let cut = start(line, MAX_LINE);
        let mark = if cut.len() < line.len() { "…" } else { "" };
        let number = number.map_or_else(|| ">".to_owned(), |number| number.to_string());
        writeln!(rows, "{number:>6}\t{cut}{mark}").expect("writing to a string cannot fail");
    };
    for (at, op) in ops.iter().enumerate() {
        let range = op.new_range();
        if is_equal(op) && range.len() > 2 * CONTEXT {
            let (head, tail) = (range.start + CONTEXT, range.end - CONTEXT);
            let head = if at == 0 { range.start } else { head };
            let tail = if at + 1 == ops.len() { range.end } else { tail };
            (range.start..head).chain(tail..range.end).for_each(|at| row(Some(before + at + 1), lines[at]));
        } else {
            range.for_each(|at| row(Some(before + at + 1), lines[at]));
        }
        if !is_equal(op) {
            op.old_range().for_each(|at| row(None, old[at]));
        }
    }
    if count > MAX_ROWS {
        writeln!(rows, "[{} more rows]", count - MAX_ROWS).expect("writing to a string cannot fail");
    }
    rows
}

fn is_equal(op: &DiffOp) -> bool {
    matches!(op, DiffOp::Equal { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_lines_show_what_differs() {
        let file = "use a;\n\nfn one() {\n    first(1);\n    second(2);\n}\n\nfn two() {\n    third(3);\n}\n";
        let listing = nearest(file, "fn one() {\n    first(1);\n    second(3);\n}\n", 0).unwrap();
        assert_eq!(
            listing,
            "     3\tfn one() {\n     4\t    first(1);\n     5\t    second(2);\n     >\t    second(3);\n     6\t}\n"
        );
        assert_eq!(nearest(file, "let unrelated = words;\n", 0), None);
        assert_eq!(nearest(file, "}\n", 0), None);
        let typo = nearest(file, "    thirdd(3) + fn two", 0);
        assert!(typo.is_some_and(|listing| listing.contains("     8\tfn two() {\n")));
    }

    /// The words of the other lines are more like another function.
    #[test]
    fn exact_first_or_last_line_decides() {
        let file = "def deposit(self, amount):\n    check(amount)\n    self.balance += amount\n\ndef withdraw(self, amount):\n    \
                    audit()\n    self.balance = self.balance - amount\n    return amount\n";
        let first = nearest(
            file,
            "def withdraw(self, amount):\n    check(amount)\n    self.balance += 1 * amount\n",
            0,
        );
        assert!(first.unwrap().contains("     5\tdef withdraw(self, amount):\n"));
        let last =
            nearest(file, "    recheck(amount)\n    self.balance += 2\n    return amount\n", 0).unwrap();
        assert!(last.contains("     8\t    return amount\n"), "{last}");
    }

    #[test]
    fn line_number_decides_between_equal_places() {
        let file = "call(a, 1)\n".to_owned() + &"x\n".repeat(8) + "call(a, 1)\n";
        assert_eq!(nearest(&file, "call(a, 2)", 9).unwrap(), "    10\tcall(a, 1)\n     >\tcall(a, 2)\n");
        assert_eq!(nearest(&file, "call(a, 2)", 2).unwrap(), "     1\tcall(a, 1)\n     >\tcall(a, 2)\n");
    }
}
