//! Finds a line in a new text that only stands for code of the old one: `# ... existing code ...`. Pure.

use similar::DiffOp;

use super::adapt::diff;
use super::variants::comment;

/// Words about code that a line leaves out.
const WORDS: [&str; 12] = [
    "existing",
    "rest",
    "unchanged",
    "same",
    "remain",
    "remains",
    "remaining",
    "previous",
    "omitted",
    "keep",
    "kept",
    "before",
];

/// Beginnings of such a line without dots before them.
const STARTS: [&str; 8] = [
    "rest of",
    "the rest of",
    "existing code",
    "existing ",
    "remaining ",
    "the remaining ",
    "other ",
    "all other ",
];

const ENDS: [&str; 7] =
    ["unchanged", "the same", "same as before", "as before", "as is", "omitted", "goes here"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElisionKind {
    /// The words say that code is left out.
    Words,
    /// Only dots, or dots around other words: an elision only if it replaces lines.
    Dots,
}

/// The first line of `new` that stands for lines of `old`, and that `old` does not have itself.
pub(in crate::tool::edit) fn elided<'a>(old: &str, new: &'a str) -> Option<&'a str> {
    let lines: Vec<&str> = new.lines().collect();
    let marked: Vec<(usize, ElisionKind)> =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, marker(line)?))).collect();
    let marked: Vec<(usize, ElisionKind)> = marked
        .into_iter()
        .filter(|(at, _)| !old.lines().any(|line| line.trim() == lines[*at].trim()))
        .collect();
    if marked.is_empty() || old.trim().is_empty() {
        return None;
    }
    let old: Vec<&str> = old.lines().collect();
    let replaced: Vec<DiffOp> = diff(&old, &lines)
        .into_iter()
        .filter(|op| old[op.old_range()].iter().any(|line| !line.trim().is_empty()))
        .filter(|op| matches!(op, DiffOp::Replace { .. }))
        .collect();
    let elided = marked.into_iter().find(|(at, kind)| {
        *kind == ElisionKind::Words || replaced.iter().any(|op| op.new_range().contains(at))
    });
    elided.map(|(at, _)| lines[at].trim())
}

fn marker(line: &str) -> Option<ElisionKind> {
    let body = comment(line)?.to_lowercase();
    let words = body.trim_matches(is_dot);
    let (start, end) = body.split_at(body.len() - body.trim_start_matches(is_dot).len());
    let end = &end[end.trim_end_matches(is_dot).len()..];
    let is_about_code = words.split(|c: char| !c.is_alphanumeric()).any(|word| WORDS.contains(&word));
    match (is_dots(start), is_dots(end)) {
        (true, _) if is_about_code => Some(ElisionKind::Words),
        (true, true) => Some(ElisionKind::Dots),
        (true, false) => words.is_empty().then_some(ElisionKind::Dots),
        (false, is_dotted) => {
            let is_start = STARTS.iter().any(|start| words.starts_with(start));
            (is_start && (is_dotted || ENDS.iter().any(|end| words.ends_with(end))))
                .then_some(ElisionKind::Words)
        }
    }
}

fn is_dot(c: char) -> bool {
    matches!(c, '.' | '…' | ' ' | '(' | ')' | '[' | ']')
}

fn is_dots(text: &str) -> bool {
    text.contains("...") || text.contains('…')
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "def f(x):\n    if not x:\n        return None\n    return x + 1\n";

    fn check(old: &str, new: &str, expected: Option<&str>) {
        assert_eq!(elided(old, new), expected, "{old:?} {new:?}");
    }

    #[test]
    fn line_that_stands_for_old_lines_is_found() {
        for line in [
            "# ... existing code ...",
            "// ... rest of the function unchanged ...",
            "// ...",
            "# …",
            "/* ... keep existing ... */",
            "<!-- ... existing code ... -->",
            "{/* ... rest of the component ... */}",
            "-- ... (same as before)",
            "// rest of the code remains unchanged",
            "# Existing methods ...",
            "# ... validation ...",
        ] {
            check(OLD, &format!("def f(x):\n    {line}\n    return x + 2\n"), Some(line));
        }
    }

    #[test]
    fn other_lines_and_lines_of_the_old_text_are_none() {
        for line in [
            "...",
            "pass  # ... existing code ...",
            "# Existing users keep their name.",
            "# ... and then it is done",
            "# other callers depend on this",
            "# Rest of the day",
            "x = [...]",
            "// Loading ...",
        ] {
            check(OLD, &format!("def f(x):\n    {line}\n    return x + 2\n"), None);
        }
        // The old text has the line, also elsewhere and indented otherwise.
        let marked = "# ... existing code ...\nx = 1\n";
        check(marked, "y = 2\n    # ... existing code ...\n", None);
        // Dots that replace nothing; with words, the line is never meant.
        check("a\nb\n", "a\n# ...\nb\n", None);
        check("a\nb\n", "a\n# ... existing code ...\nb\n", Some("# ... existing code ..."));
        check("", "# ... existing code ...\n", None);
    }
}
