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

/// Faster than `contains` for the short texts of a stream.
pub fn has_newline(text: &str) -> bool {
    memchr::memchr(b'\n', text.as_bytes()).is_some()
}

/// One line of at most `most` characters: control characters become spaces.
pub fn one_line(text: &str, most: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(most + 1).collect();
    shorten(&line, most).into_owned()
}

/// Cleans untrusted text: one line without invisible or control characters.
pub fn plain(text: &str, most: usize) -> String {
    let line = text.chars().map(|c| if c == '\n' { ' ' } else { c });
    line.filter(|c| !is_unseen(*c)).take(most).collect()
}

/// Foreign text on one line, with escapes for invisible characters and those that change the direction of text.
pub fn visible_line(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if is_unseen(c) => escaped.extend(c.escape_unicode()),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Escapes invisible characters and those that change the direction of text.
pub fn visible(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unseen(c) && c != '\n' && c != '\t' {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Text as Markdown code on one line, for titles: clients such as Zed render the titles of calls as Markdown.
pub fn code_span(text: &str) -> String {
    let text: String =
        visible(text).chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { c }).collect();
    let mut fence = "`".to_owned();
    while text.contains(&fence) {
        fence.push('`');
    }
    // CommonMark removes one space at each end, so that a backtick may stand next to the fence.
    let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// Text without the marks of [`code_span`].
pub fn without_code_spans(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('`') {
        let (before, marked) = rest.split_at(start);
        plain.push_str(before);
        let fence = &marked[..marked.len() - marked.trim_start_matches('`').len()];
        let inside = &marked[fence.len()..];
        let Some(end) = end_of_span(inside, fence) else {
            plain.push_str(fence);
            rest = inside;
            continue;
        };
        let code = &inside[..end];
        let padded = code.strip_prefix(' ').and_then(|code| code.strip_suffix(' '));
        plain.push_str(padded.filter(|code| !code.is_empty()).unwrap_or(code));
        rest = &inside[end + fence.len()..];
    }
    plain + rest
}

/// A run of backticks closes a span only if it is as long as the run that opens it.
fn end_of_span(inside: &str, fence: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = inside[from..].find('`') {
        let start = from + found;
        let run = inside[start..].len() - inside[start..].trim_start_matches('`').len();
        if run == fence.len() {
            return Some(start);
        }
        from = start + run;
    }
    None
}

/// The text before the first full stop that a space follows.
pub fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first)
}

/// Text as a Markdown code block, with a longer fence than any in the text.
pub fn code_block(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{text}\n{fence}\n")
}

/// The name of a file or program in a sentence. In quotation marks, unless the name can be taken for nothing else.
pub fn quoted_name(name: &str) -> String {
    if !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "._/-+@%=:~".contains(c)) {
        return name.to_owned();
    }
    format!("\"{}\"", visible_line(&name.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// True if a character is invisible, or reorders the characters around it.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
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

/// The text with a lower-case first letter.
pub fn uncapitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// The first line that is not blank, trimmed. Empty if all lines are.
pub fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line_and_cannot_pass_for_a_sentence() {
        for (name, shown) in [
            ("src/a.rs", "src/a.rs"),
            ("größe.txt", "größe.txt"),
            ("a b", "\"a b\""),
            ("a to b (make)?", "\"a to b (make)?\""),
            ("a\nb", "\"a\\nb\""),
            ("a\u{202e}b\u{200b}", "\"a\\u{202e}b\\u{200b}\""),
            ("a\"b\\n", "\"a\\\"b\\\\n\""),
            ("", "\"\""),
            ("\u{1b}[2J", "\"\\u{1b}[2J\""),
        ] {
            assert_eq!(quoted_name(name), shown, "{name:?}");
        }
        for code in 0..0x11_0000 {
            let Some(c) = char::from_u32(code) else { continue };
            let shown = visible_line(&c.to_string());
            assert!(!shown.chars().any(is_unseen), "{code:x}");
        }
    }

    #[test]
    fn code_span_escapes_backticks_and_control_characters() {
        for (text, expected) in [
            ("src/__init__.py", "`src/__init__.py`"),
            ("a`b", "``a`b``"),
            ("`a` ``b``", "``` `a` ``b`` ```"),
            ("a\nb\u{202e}", "`a b\\u{202e}`"),
        ] {
            assert_eq!(code_span(text), expected);
        }
    }

    #[test]
    fn text_without_code_spans_is_the_marked_text() {
        for text in ["src/__init__.py", "a`b", "`a` ``b``", "`"] {
            assert_eq!(without_code_spans(&code_span(text)), text);
        }
        for (text, expected) in [
            ("Move `a b` to `c`", "Move a b to c"),
            ("a ` b", "a ` b"),
            ("a ``b` c", "a ``b` c"),
            ("no marks", "no marks"),
        ] {
            assert_eq!(without_code_spans(text), expected);
        }
    }

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
