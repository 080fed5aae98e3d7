//! Reads text in `$'…'`. Pure.

/// Returns the text without escapes, and its length in `quoted`, with the closing quote.
pub(super) fn unquote(quoted: &str) -> (String, usize) {
    let (mut text, mut rest) = (String::new(), quoted);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\'' => return (text, quoted.len() - rest.len()),
            '\\' => rest = escape(rest, &mut text),
            c => text.push(c),
        }
    }
    (text, quoted.len())
}

/// Reads the escape behind a backslash. Returns the rest of the text.
fn escape<'a>(rest: &'a str, text: &mut String) -> &'a str {
    let Some(c) = rest.chars().next() else { return rest };
    let behind = &rest[c.len_utf8()..];
    let (decoded, behind) = match c {
        'a' => (Some('\u{7}'), behind),
        'b' => (Some('\u{8}'), behind),
        'e' | 'E' => (Some('\u{1b}'), behind),
        'f' => (Some('\u{c}'), behind),
        'n' => (Some('\n'), behind),
        'r' => (Some('\r'), behind),
        't' => (Some('\t'), behind),
        'v' => (Some('\u{b}'), behind),
        'x' => code(behind, 2, 16),
        'u' => code(behind, 4, 16),
        'U' => code(behind, 8, 16),
        '0'..='7' => code(rest, 3, 8),
        'c' => return behind,
        c => (Some(c), behind),
    };
    text.extend(decoded);
    behind
}

/// Reads the number of a character, and returns the rest of the text.
fn code(digits: &str, most: usize, radix: u32) -> (Option<char>, &str) {
    let length = digits.chars().take(most).take_while(|c| c.is_digit(radix)).count();
    let value = u32::from_str_radix(&digits[..length], radix).ok();
    (value.and_then(char::from_u32), &digits[length..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_as_bash_reads_them() {
        for (quoted, expected) in [
            ("git' push", "git"),
            ("\\x67it'", "git"),
            ("\\147it'", "git"),
            ("\\u0067\\U00000069t'", "git"),
            ("a\\'b\\\\'c", "a'b\\"),
            ("a\\nb'", "a\nb"),
            ("open", "open"),
        ] {
            assert_eq!(unquote(quoted).0, expected, "{quoted}");
        }
        assert_eq!(unquote("git' push").1, 4);
    }
}
