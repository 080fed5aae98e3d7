//! The layout of a play: breaks statements into lines of at most `WIDTH` characters, and joins them again.
//!
//! A statement continues on lines that begin with three or more spaces. A break inside a string is a `\` at
//! the end of a line, as in Rust. A break after `{`, `[` or `,` and before `}` or `]` adds nothing. Any other
//! break is one space.

use serde_json::Value;

pub(crate) const WIDTH: usize = 120;
const INDENT: usize = 3;
/// A string that has to be broken starts on the next line if fewer columns remain.
const MIN_COLUMNS: usize = 40;

/// Words of a statement. A string or an object of JSON is one word.
pub(crate) type Row = Vec<String>;

/// Breaks a statement into lines. Each row after the first begins a line.
pub(crate) fn lines(mark: &str, rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        let (start, indent) =
            if n == 0 { (mark.to_owned(), INDENT) } else { (spaces(INDENT - 1), INDENT + 2) };
        let mut line = start;
        for word in row {
            let is_long = width(word) > WIDTH - indent;
            let columns = WIDTH.saturating_sub(width(&line) + 1);
            let fits = if is_long { columns >= MIN_COLUMNS } else { width(word) <= columns };
            if !fits {
                lines.push(std::mem::replace(&mut line, spaces(indent - 1)));
            }
            line.push(' ');
            let used = width(&line);
            let mut parts = match word.chars().next() {
                Some('"') if is_long => string(word, indent, used, 0),
                Some('{' | '[') if is_long => json(&serde_json::from_str(word).unwrap(), indent, used, 0),
                _ => vec![word.clone()],
            };
            let last = parts.pop().expect("a word has a line");
            for part in parts {
                lines.push(std::mem::take(&mut line) + &part);
            }
            line.push_str(&last);
        }
        lines.push(line);
    }
    lines
}

/// Joins the lines of a statement.
pub(crate) fn joined(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines.iter().map(|line| line.trim_start()) {
        if text.ends_with('\\') {
            text.pop();
        } else if !text.is_empty() && !text.ends_with(['{', '[', ',']) && !line.starts_with(['}', ']']) {
            text.push(' ');
        }
        text.push_str(line);
    }
    text
}

/// Returns the words of a joined statement. Spaces inside strings, objects and arrays separate nothing.
pub(crate) fn words(text: &str) -> Row {
    let (mut words, mut word, mut depth) = (Row::new(), String::new(), 0_usize);
    let mut chars = text.chars();
    let mut in_string = false;
    while let Some(c) = chars.next() {
        match c {
            ' ' if !in_string && depth == 0 => {
                words.push(std::mem::take(&mut word));
                continue;
            }
            '\\' if in_string => {
                word.push(c);
                word.extend(chars.next());
                continue;
            }
            '"' => in_string = !in_string,
            '{' | '[' if !in_string => depth += 1,
            '}' | ']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        word.push(c);
    }
    words.push(word);
    words
}

/// Breaks a value as rustfmt breaks code: in one line if it fits, otherwise one member a line.
///
/// `used` columns precede the first line, and `after` columns follow the last one.
fn json(value: &Value, indent: usize, used: usize, after: usize) -> Vec<String> {
    let compact = value.to_string();
    if used + width(&compact) + after <= WIDTH {
        return vec![compact];
    }
    let (open, close, members): (_, _, Vec<(String, &Value)>) = match value {
        Value::String(_) => return string(&compact, indent + 2, used, after),
        Value::Object(members) => (
            "{",
            "}",
            members.iter().map(|(name, value)| (format!("{}:", Value::from(&**name)), value)).collect(),
        ),
        Value::Array(items) => ("[", "]", items.iter().map(|item| (String::new(), item)).collect()),
        _ => return vec![compact],
    };
    let mut lines = vec![open.to_owned()];
    let inner = indent + 2;
    for (n, (name, value)) in members.iter().enumerate() {
        let comma = if n + 1 < members.len() { "," } else { "" };
        let mut parts = json(value, inner, inner + width(name), comma.len());
        parts[0] = spaces(inner) + name + &parts[0];
        parts.last_mut().expect("a value has a line").push_str(comma);
        lines.extend(parts);
    }
    lines.push(spaces(indent) + close);
    lines
}

/// Breaks a quoted string between words, and after each `\n`.
fn string(quoted: &str, indent: usize, used: usize, after: usize) -> Vec<String> {
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), used);
    let limit = WIDTH - 1 - after;
    for chunk in chunks(quoted, limit - indent) {
        let is_new_line = line.ends_with("\\n") || used + width(&line) + width(&chunk) > limit;
        if is_new_line && !line.is_empty() {
            lines.push(line + "\\");
            (line, used) = (spaces(indent), 0);
        }
        line.push_str(&chunk);
    }
    lines.push(line);
    lines
}

/// Returns the parts of a quoted string between which it may be broken. Only the first part may begin with a
/// space.
fn chunks(quoted: &str, longest: usize) -> Vec<String> {
    let mut atoms = Vec::new();
    let mut chars = quoted.chars().peekable();
    while let Some(c) = chars.next() {
        let mut atom = String::from(c);
        if c == '\\' {
            atom.extend(chars.next());
            if atom == "\\u" {
                let has_braces = chars.peek() == Some(&'{');
                let is_in_escape = |c: &char| if has_braces { *c != '}' } else { c.is_ascii_hexdigit() };
                while atom.len() < 6 || has_braces {
                    let Some(c) = chars.next_if(is_in_escape) else { break };
                    atom.push(c);
                }
                atom.extend(chars.next_if(|c| has_braces && *c == '}'));
            }
        }
        atoms.push(atom);
    }
    let (mut chunks, mut chunk) = (Vec::new(), String::new());
    for (n, atom) in atoms.iter().enumerate() {
        chunk.push_str(atom);
        let next = atoms.get(n + 1).map_or("\"", String::as_str);
        let ends = matches!(atom.as_str(), " " | "\\n") || width(&chunk) + 8 > longest;
        // The closing quote stays with the last word.
        if ends && next != " " && n + 2 < atoms.len() {
            chunks.push(std::mem::take(&mut chunk));
        }
    }
    chunks.push(chunk);
    chunks
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn spaces(count: usize) -> String {
    " ".repeat(count)
}

#[test]
fn statements_are_broken_and_joined() {
    let check = |words: &str, expected: &[&str]| {
        let words = super::layout::words(words);
        let lines = lines("<-", std::slice::from_ref(&words));
        assert_eq!(lines, expected);
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        assert_eq!(joined(&lines), format!("<- {}", words.join(" ")));
    };
    check(r#"a "b c" {"d": [1, 2]}"#, &[r#"<- a "b c" {"d": [1, 2]}"#]);
    let (forty, eighty) = ("x".repeat(40), "y".repeat(80));
    check(&format!("{forty} {eighty} z"), &[&format!("<- {forty}"), &format!("   {eighty} z")]);
    // A string that fits in a line is not broken.
    check(&format!("{forty} \"{eighty}\""), &[&format!("<- {forty}"), &format!("   \"{eighty}\"")]);
    check(
        &format!(r#"text "{forty} {eighty} \u00e9" end"#),
        &[&format!(r#"<- text "{forty} \"#), &format!(r#"   {eighty} \u00e9" end"#)],
    );
    check(
        &format!(r#"text "{forty}\n{forty}\n  {forty}\n""#),
        &[&format!(r#"<- text "{forty}\n\"#), &format!(r#"   {forty}\n  {forty}\n""#)],
    );
    check(
        &format!(r#"{{"a":1,"b":["{eighty} x","{forty}"],"c":{{}}}}"#),
        &[
            "<- {",
            "     \"a\":1,",
            "     \"b\":[",
            &format!("       \"{eighty} x\","),
            &format!("       \"{forty}\""),
            "     ],",
            "     \"c\":{}",
            "   }",
        ],
    );
    check(
        &format!(r#"{{"a":"{eighty} {forty}"}}"#),
        &["<- {", &format!("     \"a\":\"{eighty} \\"), &format!("       {forty}\""), "   }"],
    );
    let long = "z".repeat(300);
    let broken = lines("<-", &[vec![format!("\"{long}\"")]]);
    assert!(broken.len() == 3 && broken.iter().all(|line| width(line) <= WIDTH), "{broken:?}");
    assert_eq!(joined(&broken.iter().map(String::as_str).collect::<Vec<_>>()), format!("<- \"{long}\""));
}
