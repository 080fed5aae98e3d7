//! Generates edits of source files as models write them: with noise in the old and the new text. The expected file comes from the
//! edit without noise.

use std::ops::Range;

use super::super::patches::Random;

/// A file, and a change of some of its lines.
pub(super) struct EditCase {
    pub noise: [Noise; 2],
    pub file: String,
    pub expected: String,
    pub changes: Vec<Change>,
    /// True if the file does not have the old text.
    pub is_stale: bool,
}

/// The lines of one change as the model writes them, without line endings.
#[derive(Clone)]
pub(super) struct Change {
    /// The first line, counted from 1.
    pub first: usize,
    pub old: Vec<String>,
    pub new: Vec<String>,
    pub context: (Vec<String>, Vec<String>),
    /// The head of the function around the change.
    pub anchor: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noise {
    None,
    /// The model adds blanks at the ends of lines.
    AddedBlanks,
    /// The model leaves out the blanks at the ends of lines.
    MissingBlanks,
    /// The model writes tabs for spaces, or spaces for tabs.
    Units,
    /// The model indents less or more.
    Shift,
    /// The model writes curly quotes and other dashes for plain ones.
    Curly,
    /// The model writes plain quotes for curly ones.
    Plain,
    /// The file has CRLF, everywhere or in some lines.
    Endings,
    /// The model writes other blanks within lines.
    Spacing,
    /// The model remembers another word.
    Stale,
}

pub(super) const NOISE: [Noise; 10] = [
    Noise::None,
    Noise::AddedBlanks,
    Noise::MissingBlanks,
    Noise::Units,
    Noise::Shift,
    Noise::Curly,
    Noise::Plain,
    Noise::Endings,
    Noise::Spacing,
    Noise::Stale,
];

/// A line of the new file: its text, and the old line whose ending it has.
type Line = (String, usize);

/// Returns a case whose old texts, as the model writes them, do not occur elsewhere in the file by chance.
pub(super) fn case(random: &mut Random, number: usize, changes: usize) -> EditCase {
    loop {
        let case = any_case(random, number, changes);
        let file: Vec<&str> = case.file.lines().collect();
        let is_elsewhere = |change: &Change| {
            let places = file.windows(change.old.len()).enumerate();
            places.filter(|(_, lines)| **lines == *change.old).any(|(at, _)| at + 1 != change.first)
        };
        if !case.changes.is_empty() && !case.changes.iter().any(is_elsewhere) {
            return case;
        }
    }
}

fn any_case(random: &mut Random, number: usize, changes: usize) -> EditCase {
    let first = NOISE[number % NOISE.len()];
    let second = if random.chance(40) { NOISE[random.below(NOISE.len())] } else { Noise::None };
    let noise = [first, second];
    let has = |kind| noise.contains(&kind);
    let unit = ["\t", "    ", "  "][random.below(3)];
    let clean = source(random, unit);
    let mut starts: Vec<usize> = (0..clean.len()).filter(|at| clean[*at].starts_with(unit)).collect();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    while ranges.len() < changes && !starts.is_empty() {
        let start = starts.remove(random.below(starts.len()));
        let is_apart = |other: &Range<usize>| start + 9 < other.start || other.end + 6 < start;
        let range = start..(start + 1 + random.below(5)).min(clean.len());
        let is_distinct = clean[range.clone()].iter().any(|line| line.contains(|c: char| c.is_ascii_digit()));
        if ranges.iter().all(is_apart) && (is_distinct || (random.chance(20) && !has(Noise::Stale))) {
            ranges.push(range);
        }
    }
    ranges.sort_by_key(|range| range.start);
    // With mixed line endings, the expected ending is known only for a renamed or added call.
    let is_mixed = has(Noise::Endings) && random.chance(50);
    let kinds = if is_mixed { 2 } else { 4 };
    let endings: Vec<&str> = (0..clean.len())
        .map(|at| {
            let is_crlf = has(Noise::Endings) && (!is_mixed || !(at * 7 + number).is_multiple_of(3));
            if is_crlf { "\r\n" } else { "\n" }
        })
        .collect();
    let in_file = |line: &str| {
        let line = if has(Noise::Plain) { curly(line) } else { line.to_owned() };
        if has(Noise::MissingBlanks) && !line.len().is_multiple_of(3) { line + "  " } else { line }
    };
    let file: Vec<String> = clean.iter().map(|line| in_file(line)).collect();
    let style = WritingStyle::new(random, noise, unit);
    let (mut after, mut copied, mut made) = (Vec::new(), 0, Vec::new());
    for range in &ranges {
        after.extend((copied..range.start).map(|at| (file[at].clone(), at)));
        copied = range.end;
        // New quotes have the form of the quotes in the old text.
        let has_quotes = clean[range.clone()].iter().any(|line| line.contains('"')) && !has(Noise::Plain);
        let mut new =
            changed(random, &clean[range.clone()], unit, if has_quotes { ", \"it's\"" } else { "" }, kinds);
        for line in &mut new {
            line.1 += range.start;
        }
        after.extend(new.iter().map(|(line, at)| {
            let is_kept = clean[*at] == *line;
            let line = if is_kept {
                file[*at].clone()
            } else if has(Noise::Plain) {
                curly(line)
            } else {
                line.clone()
            };
            (line, *at)
        }));
        let around = range.start.saturating_sub(3)..(range.end + 3).min(clean.len());
        // A single line without its indentation still occurs in the file, so only longer texts lose theirs.
        let shift = style.shift(&clean[around.clone()], range.len() > 1);
        let written =
            |lines: &[String]| lines.iter().map(|line| style.noisy(line, &shift)).collect::<Vec<_>>();
        let new: Vec<String> = new.into_iter().map(|line| line.0).collect();
        let anchor =
            clean[..range.start].iter().rfind(|line| line.starts_with("fn ")).cloned().unwrap_or_default();
        made.push(Change {
            first: range.start + 1,
            old: written(&clean[range.clone()]),
            new: written(&new),
            context: (written(&clean[around.start..range.start]), written(&clean[range.end..around.end])),
            anchor,
        });
    }
    after.extend((copied..file.len()).map(|at| (file[at].clone(), at)));
    if has(Noise::Stale) {
        let old = &mut made[0].old;
        let at = random.below(old.len());
        old[at] = format!(
            "{}remembered({})",
            &old[at][..old[at].len() - old[at].trim_start().len()],
            old[at].trim()
        );
    }
    let text =
        |lines: &[Line]| lines.iter().map(|(line, at)| line.clone() + endings[*at]).collect::<String>();
    let file: Vec<Line> = file.into_iter().enumerate().map(|(at, line)| (line, at)).collect();
    EditCase { noise, file: text(&file), expected: text(&after), changes: made, is_stale: has(Noise::Stale) }
}

/// Functions with nested blocks; some of their lines occur several times.
fn source(random: &mut Random, unit: &str) -> Vec<String> {
    let mut lines = vec!["use std::fmt;".to_owned(), String::new()];
    for number in 0..=3 + random.below(4) {
        let line = |depth: usize, text: String| unit.repeat(depth) + &text;
        lines.push(format!("fn step_{number}(input: &str) -> bool {{"));
        for _ in 0..=random.below(3) {
            let value = random.below(90);
            lines.push(match random.below(6) {
                0 => line(1, format!("let name_{value} = \"value {value}\";")),
                1 => line(1, format!("// Don't use \"step {value}\" - it's slow.")),
                2 => line(1, format!("println!(\"it's {{}} - {value}\", input);")),
                3 => line(1, "log(\"done\");".into()),
                4 => line(1, format!("call_{value}(input, '{}');", value % 10)),
                _ => line(1, format!("total += {value};")),
            });
        }
        if random.chance(70) {
            lines.push(line(1, format!("if input.len() > {} {{", random.below(9))));
            lines.push(line(2, format!("check(\"{number}\", input);")));
            if random.chance(50) {
                lines.push(line(2, "for c in input.chars() {".into()));
                lines.push(line(3, format!("count(c, {number});")));
                lines.push(line(2, "}".into()));
            }
            lines.push(line(2, "return false;".into()));
            lines.push(line(1, "}".into()));
        }
        lines.push(line(1, "true".into()));
        lines.push("}".into());
        lines.push(String::new());
    }
    lines
}

/// Changes at least one line of the range: a word, a new line, one line less, or a block around them.
fn changed(random: &mut Random, old: &[String], unit: &str, quotes: &str, kinds: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = old.iter().cloned().zip(0..).collect();
    let at = (0..lines.len()).find(|at| !lines[*at].0.trim().is_empty()).unwrap_or(0);
    let lead = lines[at].0[..lines[at].0.len() - lines[at].0.trim_start().len()].to_owned();
    match random.below(kinds) {
        0 => {
            lines[at].0 =
                format!("{lead}renamed({}{quotes}, {});", random.below(90), lines[at].0.trim_start());
        }
        1 => {
            let number = random.below(90);
            lines.insert(at + 1, (format!("{lead}added({number}{quotes});"), lines[at].1));
        }
        2 if lines.len() > 1 => drop(lines.remove(at)),
        2 => lines[at].0 = format!("{lead}other({});", random.below(90)),
        _ => {
            let (text, ending) = lines[at].clone();
            let block = [
                format!("{lead}if ready({}) {{", random.below(90)),
                format!("{unit}{text}"),
                format!("{lead}}}"),
            ];
            lines.splice(at..=at, block.map(|line| (line, ending)));
        }
    }
    lines
}

/// The model's style of writing lines.
struct WritingStyle {
    noise: [Noise; 2],
    unit: String,
    other_unit: String,
    is_less: bool,
}

impl WritingStyle {
    fn new(random: &mut Random, noise: [Noise; 2], unit: &str) -> Self {
        let other_unit = if unit == "\t" { ["    ", "  "][random.below(2)] } else { "\t" };
        Self { noise, unit: unit.into(), other_unit: other_unit.into(), is_less: random.chance(50) }
    }

    /// The indentation that the model leaves out, or adds (`+`).
    fn shift(&self, lines: &[String], can_be_less: bool) -> String {
        if !self.noise.contains(&Noise::Shift) {
            return String::new();
        }
        let depth = |line: &String| line.len() - line.trim_start().len();
        let common = lines.iter().filter(|line| !line.trim().is_empty()).map(depth).min().unwrap_or(0);
        if self.is_less && can_be_less && common > 0 {
            lines[0][..common].to_owned()
        } else {
            format!("+{}", self.unit)
        }
    }

    fn noisy(&self, line: &str, shift: &str) -> String {
        let mut line = line.to_owned();
        if line.trim().is_empty() {
            return line;
        }
        line = match shift.strip_prefix('+') {
            Some(more) => more.to_owned() + &line,
            None => line.strip_prefix(shift).unwrap_or(&line).to_owned(),
        };
        for noise in self.noise {
            match noise {
                Noise::AddedBlanks => line.push_str("  "),
                Noise::Units => {
                    let text = line.trim_start_matches([' ', '\t']);
                    line = line[..line.len() - text.len()].replace(&self.unit, &self.other_unit) + text;
                }
                Noise::Spacing => {
                    line = line.replace(" = ", "=").replace(", ", " ,").replace(" += ", "  +=  ");
                }
                Noise::Curly if !self.noise.contains(&Noise::Plain) => line = curly(&line),
                _ => {}
            }
        }
        line
    }
}

fn curly(line: &str) -> String {
    let mut text = String::new();
    for c in line.chars() {
        let opens =
            text.chars().next_back().is_none_or(|before| before.is_whitespace() || "([{".contains(before));
        text.push(match (c, opens) {
            ('"', true) => '“',
            ('"', false) => '”',
            ('\'', true) => '‘',
            ('\'', false) => '’',
            _ => c,
        });
    }
    text.replace(" - ", " – ")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn entities(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl EditCase {
    /// Returns true if a file is the expected one, apart from blanks that the model did not see.
    pub(super) fn is_expected(&self, file: &str) -> bool {
        let seen =
            |text: &str| text.lines().map(|line| line.trim_end_matches(' ').to_owned()).collect::<Vec<_>>();
        let has_unseen = self.noise.contains(&Noise::MissingBlanks);
        let bare = |text: &str| text.replace([' ', '\t'], "");
        let has_spacing = self.noise.contains(&Noise::Spacing);
        !self.is_stale
            && (file == self.expected
                || (has_unseen && seen(file) == seen(&self.expected))
                || (has_spacing && bare(file) == bare(&self.expected)))
    }

    /// Returns the same change in one of several copies of the file's lines.
    pub(super) fn repeated(&self, copies: usize, changed: usize) -> Self {
        let lines = self.file.lines().count();
        let moved = |change: &Change| Change { first: change.first + changed * lines, ..change.clone() };
        let (before, after) = (self.file.repeat(changed), self.file.repeat(copies - changed - 1));
        Self {
            file: self.file.repeat(copies),
            expected: [&before, &self.expected, &after].map(String::as_str).concat(),
            changes: self.changes.iter().map(moved).collect(),
            ..*self
        }
    }

    /// Returns the texts for `edit_file`. Some have prefixes, an escape too much, entities, or leave lines out.
    pub(super) fn edit(&self, random: &mut Random) -> (String, String) {
        let change = &self.changes[0];
        let end = if random.chance(50) { "\n" } else { "" };
        let form = random.below(100);
        let prefix = |at: usize| match form {
            0..15 => format!("{:>6}\t", change.first + at),
            15..25 => format!("src/f.rs:{}:", change.first + at),
            _ => String::new(),
        };
        let text = |lines: &[String]| {
            let line = |(at, line): (usize, &String)| prefix(at) + line;
            lines.iter().enumerate().map(line).collect::<Vec<_>>().join("\n") + end
        };
        let (old, new) = (text(&change.old), text(&change.new));
        match form {
            // A text without such characters shows nothing of the model's habit.
            25..33 if escaped(&old) != old => (escaped(&old), escaped(&new)),
            33..41 if entities(&old) != old => (entities(&old), entities(&new)),
            41..50 => self.left_out(&old, &new).unwrap_or((old, new)),
            _ => (old, new),
        }
    }

    /// The texts up to a line further down that occurs once, without the part between.
    fn left_out(&self, old: &str, new: &str) -> Option<(String, String)> {
        let change = &self.changes[0];
        let lines: Vec<&str> = self.file.lines().collect();
        let anchor = lines.iter().skip(change.first + change.old.len() + 1).find(|line| {
            let is_word = line.chars().any(char::is_alphanumeric);
            is_word && lines.iter().filter(|other| other == line).count() == 1
        })?;
        let text =
            |part: &str| format!("{}\n    // ... the rest ...\n{anchor}\n", part.trim_end_matches('\n'));
        Some((text(old), text(new)))
    }

    /// Returns a patch of the file `f` in one of the dialects.
    pub(super) fn patch(&self, random: &mut Random, dialect: Dialect) -> String {
        let mut patch = match dialect {
            Dialect::BeginPatch => "*** Begin Patch\n*** Update File: f\n".to_owned(),
            _ => "--- a/f\n+++ b/f\n".to_owned(),
        };
        let mut growth = 0;
        for change in &self.changes {
            let (before, after) = &change.context;
            let (old, new) = (
                before.len() + change.old.len() + after.len(),
                before.len() + change.new.len() + after.len(),
            );
            let start = change.first - before.len();
            let wrong = |random: &mut Random, number: usize| number + 1 + random.below(30);
            patch += &match dialect {
                Dialect::Unified | Dialect::BareContext => {
                    format!("@@ -{start},{old} +{},{new} @@\n", start.saturating_add_signed(growth))
                }
                Dialect::WrongNumbers => {
                    let numbers = [start, old, start, new].map(|number| wrong(random, number));
                    format!("@@ -{},{} +{},{} @@\n", numbers[0], numbers[1], numbers[2], numbers[3])
                }
                Dialect::WrongCounts => {
                    let is_more = random.chance(50);
                    let [old, new] = [old, new].map(|count| {
                        if is_more { count + 1 + random.below(5) } else { count.saturating_sub(1) }
                    });
                    format!("@@ -{start},{old} +{},{new} @@\n", start.saturating_add_signed(growth))
                }
                Dialect::BeginPatch if random.chance(40) => format!("@@ {}\n", change.anchor),
                Dialect::Bare | Dialect::BeginPatch => "@@\n".to_owned(),
            };
            growth += new.cast_signed() - old.cast_signed();
            let context = if dialect == Dialect::BareContext { "" } else { " " };
            let marked = |mark: &str, lines: &[String]| {
                lines.iter().map(|line| format!("{mark}{line}\n")).collect::<String>()
            };
            patch += &[
                marked(context, before),
                marked("-", &change.old),
                marked("+", &change.new),
                marked(context, after),
            ]
            .concat();
        }
        if dialect == Dialect::BeginPatch {
            patch += "*** End Patch\n";
        }
        if random.chance(25) { format!("```diff\n{patch}```\n") } else { patch }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Unified,
    WrongNumbers,
    WrongCounts,
    Bare,
    /// Context lines lack their blank.
    BareContext,
    BeginPatch,
}

pub(super) const DIALECTS: [Dialect; 6] = [
    Dialect::Unified,
    Dialect::WrongNumbers,
    Dialect::WrongCounts,
    Dialect::Bare,
    Dialect::BareContext,
    Dialect::BeginPatch,
];
