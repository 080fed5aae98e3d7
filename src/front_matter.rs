//! YAML header of a Markdown file, between two lines of `---` at its top. Pure.

/// Returns the header, if any, and the text below. Fails if the header has no end.
pub fn split(text: &str) -> Result<(Option<&str>, &str), &'static str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else {
        return Ok((None, text));
    };
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Ok((Some(&rest[..end]), &rest[end + line.len()..]));
        }
        end += line.len();
    }
    Err("the header has no closing --- line")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<(Option<&str>, &str), &str>) {
        assert_eq!(split(text), expected);
    }

    #[test]
    fn header_is_delimited_by_dashes_at_the_top() {
        check("---\na: b\n---\nText\n---\n", Ok((Some("a: b\n"), "Text\n---\n")));
        check("\u{feff}---\r\na: b\r\n---\r\nText", Ok((Some("a: b\r\n"), "Text")));
        check("---\n---", Ok((Some(""), "")));
        check("Text\n---\na: b\n---\n", Ok((None, "Text\n---\na: b\n---\n")));
        check("--- a\n", Ok((None, "--- a\n")));
        check("---\na: b\n", Err("the header has no closing --- line"));
    }
}
