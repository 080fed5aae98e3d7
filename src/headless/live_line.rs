//! The line that shows what runs, for a terminal. Pure: the caller draws it and knows the time.

use std::time::Duration;

use super::view::printable;
use crate::text;

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// Time of one frame, so that the line is drawn at most ten times a second.
pub(super) const FRAME_TIME: Duration = Duration::from_millis(125);

/// The state of a run, as the line shows it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunStatus<'a> {
    pub elapsed: Duration,
    /// Empty before the session is open.
    pub mode: &'a str,
    /// 0 if none are reported.
    pub tokens: u64,
    /// Title of the current call, or what the run waits for.
    pub activity: &'a str,
    /// Further calls that run.
    pub others: usize,
    /// Last line of the command's output. Empty if there is none.
    pub output: &'a str,
}

impl RunStatus<'_> {
    /// Returns the line, of at most `width` columns.
    pub(super) fn line(&self, width: usize) -> String {
        let frame = self.elapsed.as_millis() / FRAME_TIME.as_millis();
        let frame = FRAMES[usize::try_from(frame).unwrap_or_default() % FRAMES.len()];
        let mut parts = vec![format!("{frame} {}", clock(self.elapsed))];
        if !self.mode.is_empty() {
            parts.push(format!("{} mode", self.mode));
        }
        if self.tokens > 0 {
            parts.push(format!("{} tokens", short(self.tokens)));
        }
        let others = if self.others == 0 { String::new() } else { format!(" (+{})", self.others) };
        parts.push(format!("{}{others}", text::visible_line(self.activity)));
        if !self.output.is_empty() {
            parts.push(self.output.to_owned());
        }
        let line = printable(&parts.join(" · ").replace(['\n', '\t'], " "));
        cut(&line, width)
    }
}

/// The last line that is not blank.
pub(super) fn last_output(text: &str) -> String {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    text::plain(&last.replace('\t', " "), 1000).trim().to_owned()
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m {seconds:02}s"),
        (hours, minutes, seconds) => format!("{hours}h {minutes:02}m {seconds:02}s"),
    }
}

/// A number in four digits or fewer, such as `12.3k`.
fn short(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        1_000..100_000 => format!("{}.{}k", number / 1_000, number / 100 % 10),
        100_000..1_000_000 => format!("{}k", number / 1_000),
        _ => format!("{}.{}M", number / 1_000_000, number / 100_000 % 10),
    }
}

/// Cuts a line to a number of columns, with `…` if something is missing.
fn cut(line: &str, width: usize) -> String {
    if line.chars().map(columns).sum::<usize>() <= width {
        return line.to_owned();
    }
    let mut columns_left = width.saturating_sub(1);
    let mut start = String::new();
    for c in line.chars() {
        let Some(rest) = columns_left.checked_sub(columns(c)) else { break };
        columns_left = rest;
        start.push(c);
    }
    if width > 0 {
        start.push('…');
    }
    start
}

/// The columns that a character may take. Never too few, so that the line does not wrap; combining characters count
/// as one.
fn columns(c: char) -> usize {
    let is_wide = matches!(c, '\u{600}'..='\u{1fff}' | '\u{231a}'..='\u{23ff}' | '\u{25fd}'..='\u{27ff}'
        | '\u{2b00}'..='\u{2bff}' | '\u{2e00}'..='\u{a4cf}' | '\u{a960}'..='\u{a97f}' | '\u{ac00}'..='\u{d7ff}'
        | '\u{f900}'..='\u{faff}' | '\u{fe10}'..='\u{fe6f}' | '\u{ff00}'..='\u{ffe6}' | '\u{10000}'..);
    1 + usize::from(is_wide) + usize::from(c == '\u{17d8}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_the_run_and_fits_the_terminal() {
        let status = RunStatus {
            elapsed: Duration::from_secs(65),
            mode: "code",
            tokens: 12_345,
            activity: "make\ttest\u{1b}[31m",
            others: 1,
            output: "漢字漢字漢字",
        };
        let check = |width: usize, expected: &str| assert_eq!(status.line(width), expected);
        let whole = "⠋ 1m 05s · code mode · 12.3k tokens · make\\ttest\\u{1b}[31m (+1) · 漢字漢字漢字";
        check(200, whole);
        check(75, &format!("{}…", whole.strip_suffix("漢字").unwrap()));
        check(10, "⠋ 1m 05s …");
        check(1, "…");
        check(0, "");
    }

    #[test]
    fn output_is_shown_by_its_last_line_without_control_characters() {
        for (output, expected) in
            [("one\ntwo\n\n", "two"), ("a\tb\u{1b}[1m\u{7}", "a b[1m"), ("", ""), (" \n", "")]
        {
            assert_eq!(last_output(output), expected);
        }
    }

    /// A character that counts as too narrow would wrap the line, and the rest of the line would stay behind.
    #[cfg(target_os = "linux")]
    #[test]
    fn no_character_is_wider_than_it_counts() {
        for c in (' '..=char::MAX).filter(|c| !c.is_control()) {
            let width = ratatui_core::text::Span::raw(c.to_string()).width();
            assert!(columns(c) >= width, "{c:?} takes {width}");
        }
        assert_eq!((columns('a'), columns('漢')), (1, 2), "the control");
    }
}
