//! Lines that differ in the blanks between their words. Pure.

use similar::DiffOp;

use super::adapt::diff;
use super::fold::is_blank;

/// A character, with the blanks before it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct SpacedChar {
    blanks: String,
    char: char,
}

fn spaced(line: &str) -> Vec<SpacedChar> {
    let mut blanks = String::new();
    let mut chars = Vec::new();
    for c in line.chars() {
        if is_blank(c) {
            blanks.push(c);
        } else {
            chars.push(SpacedChar { blanks: std::mem::take(&mut blanks), char: c });
        }
    }
    chars
}

/// True if two lines without indentation differ only in blanks that separate nothing: not between two words, and not
/// in quotes.
pub(super) fn fits(old: &str, found: &str) -> bool {
    let (old, found) = (spaced(old), spaced(found));
    if old.len() != found.len() {
        return false;
    }
    let mut quote = None;
    let mut before = None;
    for (old, found) in old.iter().zip(&found) {
        if old.char != found.char {
            return false;
        }
        let is_joined = old.blanks.is_empty() != found.blanks.is_empty();
        let separates = is_joined && is_word(before) && is_word(Some(old.char));
        // Two characters of an operator, such as `- -` and `--`.
        let is_operator = is_joined && before.is_some_and(|c| is_symbol(c) && is_symbol(old.char));
        if old.blanks != found.blanks && (quote.is_some() || separates || is_operator) {
            return false;
        }
        match quote {
            None if matches!(old.char, '"' | '\'' | '`') => quote = Some(old.char),
            Some(open) if open == old.char => quote = None,
            _ => {}
        }
        before = Some(old.char);
    }
    true
}

fn is_word(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_alphanumeric() || c == '_')
}

fn is_symbol(c: char) -> bool {
    "+-*/%=<>!&|^~.:?".contains(c)
}

/// The new line, with the blanks of the file where the model repeats or replaces a character.
pub(super) fn adapt(old: &str, found: &str, new: &str) -> String {
    let [old, found, new] = [old, found, new].map(spaced);
    let mut line = String::new();
    for op in diff(&old, &new) {
        let (from, to) = (op.old_range(), op.new_range());
        let is_equal = matches!(op, DiffOp::Equal { .. });
        for (number, at) in to.enumerate() {
            let replaced = Some(from.start + number).filter(|at| from.contains(at) && *at < found.len());
            let repeated = replaced.filter(|before| is_equal || old[*before].blanks == new[at].blanks);
            line.push_str(repeated.map_or(&new[at].blanks, |at| &found[at].blanks));
            line.push(new[at].char);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_differ_only_where_they_separate_nothing() {
        for (old, found, expected) in [
            ("b = 0", "b=0", true),
            ("f( a,b )", "f(a, b)", true),
            ("return x", "returnx", false),
            ("x = \"a b\"", "x=\"a b\"", true),
            ("x = \"a b\"", "x = \"ab\"", false),
            ("x = \"a  b\"", "x = \"a b\"", false),
            ("a - -b", "a --b", false),
            ("a  b", "a b", true),
            ("a b", "a c", false),
        ] {
            assert_eq!(fits(old, found), expected, "{old:?} {found:?}");
        }
    }

    #[test]
    fn new_lines_keep_the_blanks_of_the_file() {
        for (old, found, new, expected) in [
            ("b = 0", "b=0", "b = 1", "b=1"),
            ("b = 0", "b=0", "b = 0 + c", "b=0 + c"),
            ("f(a,b)", "f( a, b )", "f(a,c)", "f( a, c )"),
            ("if( x )", "if (x)", "if( y )", "if (y)"),
        ] {
            assert_eq!(adapt(old, found, new), expected, "{new:?}");
        }
    }
}
