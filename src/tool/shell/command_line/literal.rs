//! Splits one simple command into the words that bash would pass to the program. Pure.
//!
//! ```text
//! line = word { blank word }, without "=" in the first word
//! word = { letter | digit | one of _@%+=:,./- | "'" text "'" | '"' text without $`\ '"' }
//! ```
//!
//! `~` and `^` belong to a word behind a letter or digit. Strict: rejects operators, redirects, assignments and
//! expansions, which costs only a permission request.

pub(super) fn literal_words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    let mut previous = ' ';
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        '\'' => break,
                        c if is_plain(c) => word.push(c),
                        _ => return None,
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        '"' => break,
                        c if is_plain(c) && !matches!(c, '$' | '`' | '\\') => word.push(c),
                        _ => return None,
                    }
                }
            }
            // In the middle of a word these characters are literal: `HEAD~1`, `HEAD^`.
            '~' | '^' if previous.is_ascii_alphanumeric() => word.get_or_insert_default().push(c),
            c if is_literal(c) => word.get_or_insert_default().push(c),
            _ => return None,
        }
        previous = c;
    }
    words.extend(word);
    let is_assignment = words.first()?.contains('=');
    (!is_assignment).then_some(words)
}

fn is_plain(c: char) -> bool {
    c == ' ' || (c.is_ascii() && c.is_ascii_graphic()) || c.is_alphanumeric()
}

fn is_literal(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '@' | '%' | '+' | '=' | ':' | ',' | '.' | '/' | '-')
}
