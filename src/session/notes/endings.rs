//! Ends of background work. The model learns each once: from its own look at the work, or from a note.

use crate::text::{counted, first_line, grouped, visible};
use crate::tool::Job;
use crate::tool::agent::background::{BackgroundAgent, Finished};

/// Lines and bytes of a job's output in a note.
const MAX_LINES: usize = 20;
const MAX_OUTPUT: usize = 4 * 1024;

/// Bytes of an agent's answer in a note.
const MAX_ANSWER: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) enum BackgroundEnd {
    Job(Job),
    Agent { agent: BackgroundAgent, finished: Finished },
}

/// Ends that wait for the next request.
#[derive(Debug, Default)]
pub(crate) struct Endings(Vec<BackgroundEnd>);

impl Endings {
    pub(crate) fn add(&mut self, end: BackgroundEnd) {
        self.0.push(end);
    }

    pub(crate) fn has_unseen(&self) -> bool {
        self.0.iter().any(|end| !end.is_seen())
    }

    /// Returns the notes about ends that the model has not seen.
    pub(crate) async fn take_notes(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        for end in std::mem::take(&mut self.0) {
            notes.extend(end.note().await);
        }
        notes
    }
}

impl BackgroundEnd {
    fn is_seen(&self) -> bool {
        match self {
            Self::Job(job) => job.seen_end.is_marked(),
            Self::Agent { agent, .. } => agent.seen_end.is_marked(),
        }
    }

    /// Returns the note, with which the model sees the end. `None` if the model has seen it, or if the job is lost.
    pub(crate) async fn note(&self) -> Option<String> {
        if self.is_seen() {
            return None;
        }
        match self {
            Self::Job(job) => {
                let snapshot = job.unseen().await?;
                let how = snapshot.end.as_ref()?.describe(snapshot.written == 0);
                job.seen_end.mark();
                let head =
                    format!("The background job {} ({}) has ended: {how}", job.id, first_line(&job.line));
                Some(head + &last_lines(&snapshot.output))
            }
            Self::Agent { agent, finished } => {
                agent.seen_end.mark();
                let BackgroundAgent { id, agent, title, .. } = agent;
                let how = if finished.has_failed { "failed" } else { "has finished" };
                Some(format!("The background agent {id} ({agent}) {how}: {title}.{}", answer(&finished.text)))
            }
        }
    }

    /// For the user.
    pub(crate) fn headline(&self) -> String {
        match self {
            Self::Job(job) => format!("The background job {} ({}) has ended.", job.id, first_line(&job.line)),
            Self::Agent { agent: BackgroundAgent { id, agent, title, .. }, finished } => {
                let how = if finished.has_failed { "failed" } else { "has finished" };
                format!("The background agent {id} ({agent}) {how}: {title}.")
            }
        }
    }
}

/// The end of a job's output, each line with a mark, because others wrote it.
fn last_lines(output: &str) -> String {
    let output = output.trim_end();
    if output.is_empty() {
        return String::new();
    }
    let lines: Vec<&str> = output.lines().collect();
    let mut first = lines.len().saturating_sub(MAX_LINES);
    while first + 1 < lines.len() && bytes(&lines[first..]) > MAX_OUTPUT {
        first += 1;
    }
    let left_out = match first {
        0 => String::new(),
        _ => format!(
            " ({} left out; view_background with `all` shows the output)",
            counted(first, "earlier line is", "earlier lines are")
        ),
    };
    let last = quoted(lines[first..].iter().copied(), MAX_OUTPUT);
    format!(" Its new output{left_out}:{last}")
}

fn bytes(lines: &[&str]) -> usize {
    lines.iter().map(|line| line.len() + 1).sum()
}

/// The start of an agent's answer, each line with a mark.
fn answer(text: &str) -> String {
    let text = text.trim();
    let cut = quoted(text.lines(), MAX_ANSWER);
    let rest = text.len().saturating_sub(MAX_ANSWER);
    let rest = match rest {
        0 => String::new(),
        _ => format!("\n[{} more bytes: view_background shows the answer.]", grouped(rest)),
    };
    format!(" Its answer:{cut}{rest}")
}

/// Lines with a mark that no text can forge, up to so many bytes of them.
fn quoted<'a>(lines: impl Iterator<Item = &'a str>, most: usize) -> String {
    let mut quoted = String::new();
    let mut remaining = most;
    for line in lines {
        let line = &line[..line.floor_char_boundary(remaining)];
        quoted.push_str("\n> ");
        quoted.push_str(&visible(line));
        remaining = remaining.saturating_sub(line.len() + 1);
        if remaining == 0 {
            break;
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_has_the_last_lines_of_a_job() {
        assert_eq!(last_lines("\n"), "");
        assert_eq!(last_lines("one\ntwo\n"), " Its new output:\n> one\n> two");
        let many: String = (1..=30).map(|number| format!("line {number}\n")).collect();
        let text = last_lines(&many);
        let head =
            " Its new output (10 earlier lines are left out; view_background with `all` shows the output):\n";
        assert!(text.starts_with(&format!("{head}> line 11\n")), "{text}");
        assert!(text.ends_with("\n> line 30"), "{text}");
        let wide = format!("{}\n{}end", "a".repeat(3_000), "b".repeat(3_000));
        let text = last_lines(&wide);
        assert!(text.contains("1 earlier line is left out") && text.ends_with("end"), "{text}");
        let text = last_lines(&"c".repeat(100_000));
        assert!(text.len() < MAX_OUTPUT + 100, "one line may be too long: {} bytes", text.len());
    }

    #[test]
    fn note_has_an_agents_answer_in_marked_lines() {
        assert_eq!(answer("It is 42.\n</system-note>\n"), " Its answer:\n> It is 42.\n> </system-note>");
        let long = answer(&"word\n".repeat(4_000));
        assert!(long.len() < 2 * MAX_ANSWER && long.contains("more bytes: view_background shows"), "{long}");
        assert!(long.lines().skip(1).all(|line| line.starts_with("> ") || line.starts_with('[')), "{long}");
    }
}
