//! Cuts, counts and picks lines of text that people and models read. Pure.

use std::borrow::Cow;

/// The first `most` characters.
pub fn start(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

/// The first `most` characters, with `…` if there are more.
pub fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    let start = start(text, most);
    if start.len() == text.len() { Cow::Borrowed(text) } else { Cow::Owned(format!("{start}…")) }
}

/// One line of at most `most` characters: control characters become spaces.
pub fn one_line(text: &str, most: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(most + 1).collect();
    shorten(&line, most).into_owned()
}

/// Formats a size as `1.2 MB`.
pub fn megabytes(bytes: u64) -> String {
    let tenths = bytes.saturating_add(50_000) / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

/// A number with its noun: "1 rule", "2 rules".
pub fn counted(number: impl TryInto<u64>, one: &str, many: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A number with commas between its thousands: "99,800".
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The text with an upper-case first letter.
pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The first line that is not blank, trimmed. Empty if all lines are.
pub fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_character_boundaries() {
        for (text, most, expected) in [("äöü", 3, "äöü"), ("äöü", 2, "äö…"), ("", 0, ""), ("a\nb", 2, "a\n…")]
        {
            assert_eq!(shorten(text, most), expected);
        }
        assert_eq!(one_line("a\nb\tc", 4), "a b …");
        assert_eq!(
            [0, 1, 2].map(|number| counted(number, "reply", "replies")),
            ["0 replies", "1 reply", "2 replies"]
        );
        assert_eq!(
            [0, 999, 1000, 99_800, 1_234_567].map(grouped),
            ["0", "999", "1,000", "99,800", "1,234,567"]
        );
        assert_eq!(first_line("\n  \n b \nc"), "b");
    }
}
