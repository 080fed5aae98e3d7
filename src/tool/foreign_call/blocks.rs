//! Reads blocks of SEARCH and REPLACE, the form of Cline, Roo Code and Aider, as a patch. Pure.
//!
//! ```text
//! blocks = { block | blank | "```" … }
//! block  = ( "-------" | "<<<<<<<" ) " SEARCH" [ ":start_line:" N ] [ ":end_line:" N ] [ "-------" ] { old line }
//!          "=======" { new line } ( "+++++++" | ">>>>>>>" ) " REPLACE"
//! ```

use std::fmt::Write;

/// True if the text has a block.
pub(super) fn has_blocks(text: &str) -> bool {
    text.lines().any(is_search)
}

/// Returns a patch of one file. `None` if the text has other parts, or a block has several readings.
pub(super) fn patch(path: &str, text: &str) -> Option<String> {
    if path.trim().is_empty() || path.contains('\n') {
        return None;
    }
    let mut begin_patch = format!("*** Begin Patch\n*** Update File: {path}\n");
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim().is_empty() || line.starts_with("```") {
            continue;
        }
        if !is_search(line) {
            return None;
        }
        let mut block = Vec::new();
        loop {
            // Without its last line, the block may be cut off.
            match lines.next()? {
                line if is_replace(line) => break,
                line => block.push(line),
            }
        }
        let mut middles = block.iter().enumerate().filter(|(_, line)| line.trim_end() == "=======");
        let (middle, _) = middles.next().filter(|_| middles.next().is_none())?;
        let (old, new) = (without_header(&block[..middle]), &block[middle + 1..]);
        if old.iter().all(|line| line.trim().is_empty()) || block.iter().any(|line| is_search(line)) {
            return None;
        }
        push_hunk(&mut begin_patch, old, new);
    }
    begin_patch.push_str("*** End Patch\n");
    Some(begin_patch)
}

fn is_search(line: &str) -> bool {
    matches!(line.trim_end().trim_end_matches('>'), "------- SEARCH" | "<<<<<<< SEARCH")
}

fn is_replace(line: &str) -> bool {
    matches!(line.trim_end(), "+++++++ REPLACE" | ">>>>>>> REPLACE")
}

/// The old lines below the line numbers, which the patch does not need.
fn without_header<'a, 'b>(old: &'a [&'b str]) -> &'a [&'b str] {
    let numbers = old.iter().take_while(|line| is_line_number(line)).count();
    let has_rule = numbers > 0 && old.get(numbers).is_some_and(|line| line.trim_end() == "-------");
    &old[numbers + usize::from(has_rule)..]
}

fn is_line_number(line: &str) -> bool {
    line.starts_with(":start_line:") || line.starts_with(":end_line:")
}

fn push_hunk(patch: &mut String, old: &[&str], new: &[&str]) {
    let before = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let ends = old[before..].iter().rev().zip(new[before..].iter().rev());
    let after = ends.take_while(|(old, new)| old == new).count();
    let (old_end, new_end) = (old.len() - after, new.len() - after);
    patch.push_str("@@\n");
    let parts = [
        (' ', &old[..before]),
        ('-', &old[before..old_end]),
        ('+', &new[before..new_end]),
        (' ', &old[old_end..]),
    ];
    for (mark, lines) in parts {
        for line in lines {
            writeln!(patch, "{mark}{line}").expect("writing to a string cannot fail");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, hunks: Option<&str>) {
        let expected =
            hunks.map(|hunks| format!("*** Begin Patch\n*** Update File: f\n{hunks}*** End Patch\n"));
        assert_eq!(patch("f", text), expected, "{text}");
    }

    #[test]
    fn blocks_become_hunks() {
        check(
            "------- SEARCH\na\nb\nc\n=======\na\nB\nc\n+++++++ REPLACE\n\n<<<<<<< SEARCH>\nd\n=======\n>>>>>>> REPLACE",
            Some("@@\n a\n-b\n+B\n c\n@@\n-d\n"),
        );
        check(
            "```diff\n<<<<<<< SEARCH\n:start_line:7\n-------\na\n=======\nb\n\n>>>>>>> REPLACE\n```",
            Some("@@\n-a\n+b\n+\n"),
        );
        assert!(has_blocks("x\n<<<<<<< SEARCH\n") && !has_blocks("--- a/f\n+++ b/f\n"));
    }

    #[test]
    fn other_texts_are_no_patch() {
        for text in [
            "<<<<<<< SEARCH\n=======\nb\n>>>>>>> REPLACE",
            "<<<<<<< SEARCH\na\n>>>>>>> REPLACE",
            "<<<<<<< SEARCH\na\n=======\nb\n",
            "<<<<<<< SEARCH\na\n=======\nb\n=======\nc\n>>>>>>> REPLACE",
            "<<<<<<< SEARCH\na\n<<<<<<< SEARCH\nb\n=======\nc\n>>>>>>> REPLACE",
            "Change this:\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE",
        ] {
            check(text, None);
        }
        assert_eq!(patch("f\n*** Delete File: g", "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE"), None);
    }
}
