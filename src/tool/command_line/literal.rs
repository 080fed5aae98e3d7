//! The words of one simple command, as bash would hand them to the program. Pure.
//!
//! Strict: a line with an operator, a redirect, an assignment, or a word that the shell would still expand has no literal
//! words. Whatever is not certain is refused, which costs a question and covers nothing.

/// The words of a line that is one simple command of literal words. `None` for every other line.
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
            // In the middle of a word a tilde and a caret stand for themselves: `HEAD~1`, `HEAD^`.
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

/// Whether a character between quotes is shown as it is.
fn is_plain(c: char) -> bool {
    c == ' ' || (c.is_ascii() && c.is_ascii_graphic()) || c.is_alphanumeric()
}

/// Whether an unquoted character stands for itself, wherever it stands.
fn is_literal(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '@' | '%' | '+' | '=' | ':' | ',' | '.' | '/' | '-')
}
