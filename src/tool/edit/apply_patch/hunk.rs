//! Parses the hunks of a patch. Pure and linear.
//!
//! ```text
//! hunk  = "@@ -" range " +" range [ " @@" text ] body            with counts
//!       | { "@@" [ " " LINE [ "@@" ] ] } body [ "*** End of File" ]    bare
//! range = START [ "," COUNT ]
//! body  = { " " text | "-" text | "+" text | "\" text | blank }
//! ```
//!
//! The counts in the header delimit a hunk, as for `git apply`. Models often miscount: if the counts do not
//! fit or are missing, the hunk ends at the first line that cannot belong to it.

use std::ops::Range;

use crate::tool::edit::text_match::without_prefixes;

const END_OF_FILE: &str = "*** End of File";

/// Lines of a file and their replacement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PatchHunk {
    /// The hunk's line in the patch.
    pub line: usize,
    /// `None` if the header has no line numbers.
    pub numbers: Option<HunkNumbers>,
    /// Lines above the hunk, from the headers of a hunk without line numbers.
    pub anchors: Vec<String>,
    pub is_at_end: bool,
    /// True if no line begins with `+` or `-`.
    pub is_context: bool,
    pub leading: usize,
    pub trailing: usize,
    /// Context and removed lines.
    pub old: String,
    /// Context and added lines.
    pub new: String,
    /// `old` and `new` if the blank before each context line belongs to the line. `None` if that changes nothing.
    pub bare_context: Option<(String, String)>,
}

impl PatchHunk {
    /// The hunk without the line numbers or search prefixes of its lines, and the name of these prefixes.
    pub(super) fn without_prefixes(&self) -> Option<(Self, &'static str)> {
        let (old, new, prefix) = without_prefixes(&self.old, &self.new)?;
        Some((Self { old, new, bare_context: None, ..self.clone() }, prefix))
    }

    /// The hunk without the marks of context lines.
    pub(super) fn with_bare_context(&self) -> Option<Self> {
        let (old, new) = self.bare_context.clone()?;
        Some(Self { old, new, bare_context: None, ..self.clone() })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HunkNumbers {
    /// The first old line, counted from 1; without old lines, the line before the hunk.
    pub old_start: usize,
    pub new_start: usize,
    /// False if the counts beside them do not match the body: then the numbers are no evidence either.
    pub is_counted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HunkHeader {
    numbers: HunkNumbers,
    old_count: usize,
    new_count: usize,
}

impl HunkHeader {
    /// Old and new lines that the header counts, and the body lacks.
    fn missing(self, counts: (usize, usize)) -> Option<(usize, usize)> {
        self.old_count.checked_sub(counts.0).zip(self.new_count.checked_sub(counts.1))
    }

    fn parse(line: &str) -> Option<Self> {
        let ranges = line.strip_prefix("@@ -")?.trim_end_matches(['\r', '\n']);
        let (ranges, _section) = ranges.split_once(" @@").unwrap_or((ranges, ""));
        let (old, new) = ranges.split_once(" +")?;
        let ((old_start, old_count), (new_start, new_count)) = (range(old)?, range(new)?);
        Some(Self { numbers: HunkNumbers { old_start, new_start, is_counted: true }, old_count, new_count })
    }
}

fn range(text: &str) -> Option<(usize, usize)> {
    let (start, count) = text.split_once(',').unwrap_or((text, "1"));
    Some((parse_digits(start)?, parse_digits(count)?))
}

/// Like `parse`, but without a sign.
fn parse_digits(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

pub(super) fn is_plain_header(lines: &[&str], at: usize) -> bool {
    let header = lines.get(at..).unwrap_or_default();
    matches!(header, [old, new, hunk, ..]
        if old.starts_with("--- ") && new.starts_with("+++ ") && hunk.starts_with("@@"))
}

/// The signature of a mailed patch: `-- `, then the version of git.
pub(super) fn is_signature(lines: &[&str], at: usize) -> bool {
    lines.get(at).is_some_and(|line| line.trim_end_matches(['\r', '\n']) == "-- ")
        && lines.get(at + 1).is_some_and(|line| is_version(line.trim_end()))
        && lines[at + 2..]
            .iter()
            .find(|line| !line.trim().is_empty())
            .is_none_or(|line| line.starts_with("From "))
}

fn is_version(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+()_ ".contains(&byte))
}

pub(super) fn is_body(line: &str) -> bool {
    line.starts_with(['+', '-', ' ', '\\'])
}

fn is_blank(line: &str) -> bool {
    matches!(line, "\n" | "\r\n")
}

pub(super) fn after_blank(lines: &[&str], at: usize) -> usize {
    at + lines[at..].iter().take_while(|line| is_blank(line)).count()
}

/// Returns the hunk and the line after its end. A hunk without a header begins at its first line.
pub(super) fn read(lines: &[&str], at: usize) -> Result<(PatchHunk, usize), String> {
    let Some(header) = HunkHeader::parse(lines[at]) else { return bare(lines, at) };
    let counted = by_counts(lines, at + 1, header).filter(|end| is_end(lines, *end));
    let end = match counted {
        Some(end) => end,
        None => by_shape(lines, at + 1)?,
    };
    let (mut hunk, mut counts) = body(lines, at, at + 1..end)?;
    let mut end = end;
    // Context without its leading blank, as far as the counts say that there is some.
    if let Some((rest, _)) = header.missing(counts).filter(|(old, new)| old == new && *old > 0)
        && lines.len() >= end + rest
        && !is_blank(lines[end])
        && (end..end + rest).all(|at| !ends_a_hunk(lines, at))
    {
        end += rest;
        (hunk, counts) = body(lines, at, at + 1..end)?;
    }
    let is_short = header.missing(counts).is_some_and(|missing| missing != (0, 0));
    if is_short && lines.get(end).is_some_and(|line| !is_blank(line) && !ends_a_hunk(lines, end)) {
        return Err(format!(
            "line {}: by its line counts the hunk goes on here, and every line of a hunk begins with a space, `-` or `+`",
            end + 1
        ));
    }
    if counted.is_none() && hunk.old.is_empty() && header.old_count > 0 {
        // Only correct counts say on which side of the header's line the added lines belong.
        return Err(format!(
            "line {}: the hunk only adds lines, and its line counts are wrong: add context lines, or correct the counts",
            at + 1
        ));
    }
    let is_counted = counts == (header.old_count, header.new_count);
    Ok((PatchHunk { numbers: Some(HunkNumbers { is_counted, ..header.numbers }), ..hunk }, end))
}

/// Reads a hunk whose headers, if any, name lines above it instead of line numbers.
fn bare(lines: &[&str], at: usize) -> Result<(PatchHunk, usize), String> {
    let mut start = at;
    let mut anchors = Vec::new();
    while let Some(header) = lines.get(start).and_then(|line| line.strip_prefix("@@")) {
        let is_anchor = header.starts_with(' ') && !header[1..].starts_with(['-', '+']);
        if !is_anchor && !header.trim_end().is_empty() {
            return Err(format!(
                "line {}: `{}` is no hunk header; write `@@ -LINE,COUNT +LINE,COUNT @@` or `@@`",
                start + 1,
                lines[start].trim_end()
            ));
        }
        let anchor = header.trim().trim_end_matches("@@").trim_matches('.').trim();
        anchors.extend(Some(anchor.to_owned()).filter(|anchor| !anchor.is_empty()));
        start += 1;
    }
    let end = by_shape(lines, start)?;
    let (hunk, _) = body(lines, at, start..end)?;
    let is_at_end = lines.get(end).is_some_and(|line| line.trim_end() == END_OF_FILE);
    Ok((PatchHunk { anchors, is_at_end, ..hunk }, end + usize::from(is_at_end)))
}

fn by_counts(lines: &[&str], start: usize, header: HunkHeader) -> Option<usize> {
    let (mut old, mut new, mut at) = (header.old_count, header.new_count, start);
    while old > 0 || new > 0 {
        let line = lines.get(at)?;
        if at > start && is_file_header(lines, at, header) {
            return None;
        }
        match line.as_bytes()[0] {
            b'-' => old = old.checked_sub(1)?,
            b'+' => new = new.checked_sub(1)?,
            b'\\' if at > start => {}
            _ if line.starts_with(' ') || is_blank(line) => {
                old = old.checked_sub(1)?;
                new = new.checked_sub(1)?;
            }
            _ => return None,
        }
        at += 1;
    }
    if lines.get(at).is_some_and(|line| line.starts_with('\\')) {
        at += 1;
    }
    Some(at)
}

/// True for the header of the next file where wrong counts would take it for changed lines: the hunk after it lies
/// before the end of the current one, so it belongs to another file.
fn is_file_header(lines: &[&str], at: usize, current: HunkHeader) -> bool {
    let next = lines.get(at + 2).and_then(|line| HunkHeader::parse(line));
    is_plain_header(lines, at)
        && same_file(lines[at], lines[at + 1])
        && next
            .is_some_and(|next| next.numbers.old_start < current.numbers.old_start + current.old_count.max(1))
}

fn is_end(lines: &[&str], end: usize) -> bool {
    let next = after_blank(lines, end);
    is_plain_header(lines, next)
        || is_signature(lines, next)
        || !lines.get(next).is_some_and(|line| is_body(line))
}

fn ends_a_hunk(lines: &[&str], at: usize) -> bool {
    let starts = ["@@", "diff ", "--- ", "Index: ", "From ", "```"];
    starts.iter().any(|start| lines[at].starts_with(start)) || is_signature(lines, at)
}

fn by_shape(lines: &[&str], start: usize) -> Result<usize, String> {
    let mut end = start;
    let last_marked = last_marked(lines, start);
    while let Some(line) = lines.get(end) {
        if is_plain_header(lines, end) {
            if same_file(lines[end], lines[end + 1]) {
                break;
            }
            return Err(format!(
                "line {}: the line counts of the hunk are wrong, and this line can be the header of a file or a removed line: \
                 correct the counts",
                end + 1
            ));
        }
        if is_signature(lines, end) || !(is_body(line) || is_blank(line) || end < last_marked) {
            break;
        }
        end += 1;
    }
    // Trailing blank lines are separators; a blank context line has a space.
    while end > start && is_blank(lines[end - 1]) {
        end -= 1;
    }
    Ok(end)
}

/// The last line with `+` or `-` before the next header. A line without a mark before it is context that lacks its
/// leading blank.
fn last_marked(lines: &[&str], start: usize) -> usize {
    let is_header =
        |at: usize| ends_a_hunk(lines, at) || lines[at].starts_with("*** ") || is_plain_header(lines, at);
    let hunk = (start..lines.len()).take_while(|at| !is_header(*at));
    hunk.filter(|at| lines[*at].starts_with(['+', '-'])).last().unwrap_or(start)
}

fn same_file(old: &str, new: &str) -> bool {
    let (old, new) = (header_name(old), header_name(new));
    old == "/dev/null" || new == "/dev/null" || without_prefix(&old, "a/") == without_prefix(&new, "b/")
}

fn without_prefix(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

fn header_name(line: &str) -> String {
    line[4..].split('\t').next().unwrap_or_default().trim_end().to_owned()
}

/// Returns the hunk and the counts of its old and new lines.
fn body(lines: &[&str], at: usize, range: Range<usize>) -> Result<(PatchHunk, (usize, usize)), String> {
    let bad = |why: &str| Err(format!("line {}: {why}", at + 1));
    let (mut old, mut new): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let (mut bare_old, mut bare_new) = (String::new(), String::new());
    let (mut leading, mut trailing, mut changed) = (0, 0, false);
    let mut previous = None;
    for line in &lines[range] {
        let kind = line.as_bytes()[0];
        if kind != b'\\' {
            let bare = line.strip_prefix(['-', '+']).unwrap_or(line);
            bare_old.push_str(if kind == b'+' { "" } else { bare });
            bare_new.push_str(if kind == b'-' { "" } else { bare });
        }
        let text = if matches!(kind, b' ' | b'-' | b'+') { &line[1..] } else { line };
        match kind {
            b'\\' => {
                let (of_old, of_new) = match previous {
                    Some(kind) => (kind != b'+', kind != b'-'),
                    None => return bad("the hunk begins with `\\`"),
                };
                let sides = [old.last_mut().filter(|_| of_old), new.last_mut().filter(|_| of_new)];
                for last in sides.into_iter().flatten() {
                    *last = last.trim_end_matches('\n');
                }
                continue;
            }
            b'-' => old.push(text),
            b'+' => new.push(text),
            _ => {
                old.push(text);
                new.push(text);
                if changed {
                    trailing += 1;
                } else {
                    leading += 1;
                }
            }
        }
        if matches!(kind, b'-' | b'+') {
            (changed, trailing) = (true, 0);
        }
        previous = Some(kind);
    }
    for side in [&old, &new] {
        if side.iter().rev().skip(1).any(|line| !line.ends_with('\n')) {
            return bad("`\\ No newline at end of file` stands before other lines of the hunk");
        }
    }
    let counts = (old.len(), new.len());
    let (old, new) = (old.concat(), new.concat());
    let bare_context = Some((bare_old, bare_new)).filter(|(bare, _)| *bare != old && old.ends_with('\n'));
    let hunk = PatchHunk {
        line: at + 1,
        is_context: !changed,
        leading,
        trailing,
        old,
        new,
        bare_context,
        ..PatchHunk::default()
    };
    Ok((hunk, counts))
}
