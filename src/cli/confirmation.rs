//! Asks the user to confirm a command in a terminal.

use std::io::{BufRead, BufReader, Read, Write};

pub(super) fn is_confirmed(
    question: &str,
    input: impl Read,
    output: &mut impl Write,
) -> std::io::Result<bool> {
    write!(output, "{question} [y/N] ")?;
    output.flush()?;
    let mut answer = String::new();
    BufReader::new(input).read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
