//! Translates indentation that a model wrote into the indentation of a file. Pure.

use std::collections::BTreeSet;

use super::fold::{indent, is_blank};

const WIDTHS: [usize; 4] = [4, 2, 8, 3];

/// Lines of the file from which its unit of indentation is found.
const SAMPLE: usize = 5000;

/// Levels of `step` columns become levels of `unit`, beginning at `base`.
pub(super) struct Indentation {
    base: (usize, String),
    step: usize,
    unit: String,
}

impl Indentation {
    /// Finds the translation that fits all `pairs` of written and found indentation, and the `added` lines.
    /// Returns `None` if none fits.
    pub(super) fn between(pairs: &[(&str, &str)], added: &[&str], file: &str) -> Option<Self> {
        let Some(base) = pairs.iter().min_by_key(|(written, _)| columns(written, 8)) else {
            return Some(Self { base: (0, String::new()), step: 1, unit: " ".into() });
        };
        let written: Vec<&str> = pairs.iter().map(|pair| pair.0).chain(added.iter().copied()).collect();
        candidates(pairs, &written, file).into_iter().find_map(|(step, unit)| {
            let translation = Self { base: (columns(base.0, step), base.1.to_owned()), step, unit };
            let is_right =
                |(written, found): &(&str, &str)| translation.apply(written).as_deref() == Some(*found);
            pairs.iter().all(is_right).then_some(translation)
        })
    }

    pub(super) fn apply(&self, written: &str) -> Option<String> {
        let relative = columns(written, self.step).cast_signed() - self.base.0.cast_signed();
        let step = self.step.cast_signed();
        let (levels, rest) = (relative.div_euclid(step), relative.rem_euclid(step).unsigned_abs());
        let mut indentation = self.base.1.clone();
        for _ in levels..0 {
            indentation.truncate(indentation.strip_suffix(&self.unit)?.len());
        }
        indentation.extend((0..levels).map(|_| self.unit.as_str()));
        indentation.extend((0..rest).map(|_| ' '));
        Some(indentation)
    }
}

/// Translations as steps and units, the most probable first.
fn candidates(pairs: &[(&str, &str)], written: &[&str], file: &str) -> Vec<(usize, String)> {
    let file_unit = unit_of(file);
    let is_flush = pairs.iter().all(|(_, found)| found.is_empty());
    let found_tabs = pairs.iter().any(|(_, found)| has_tab(found)) || (is_flush && has_tab(&file_unit));
    match (written.iter().any(|indent| has_tab(indent)), found_tabs) {
        (true, true) => vec![(8, "\t".into())],
        (true, false) => {
            let widths = pairs.iter().filter_map(|(tabs, found)| ratio(found.len(), columns(tabs, 1)));
            [file_unit.len()]
                .into_iter()
                .chain(widths)
                .chain(WIDTHS)
                .map(|width| (8, " ".repeat(width)))
                .collect()
        }
        (false, true) => {
            let known_widths =
                pairs.iter().filter_map(|(spaces, tabs)| ratio(spaces.len(), columns(tabs, 1)));
            let mut widths: Vec<usize> = known_widths.chain(WIDTHS).collect();
            let distances = distances(written);
            widths.sort_by_key(|width| !distances.iter().all(|it| it.is_multiple_of(*width)));
            widths.into_iter().map(|width| (width, "\t".into())).collect()
        }
        (false, false) => {
            let shift = (1, " ".to_owned());
            let written_width =
                distances(written).into_iter().min().filter(|own| *own > 1 && *own != file_unit.len());
            let widths = written_width.into_iter().chain(WIDTHS).map(|width| (width, file_unit.clone()));
            if written_width.is_some_and(|own| is_scaled(pairs, own, file_unit.len())) {
                widths.chain([shift]).collect()
            } else {
                [shift].into_iter().chain(widths).collect()
            }
        }
    }
}

fn has_tab(indent: &str) -> bool {
    indent.contains('\t')
}

/// True if the found indentation has as many of the file's levels as the written one has of its own.
fn is_scaled(pairs: &[(&str, &str)], own: usize, unit: usize) -> bool {
    pairs.iter().all(|(written, found)| written.len() * unit == found.len() * own)
        && pairs.iter().any(|(written, _)| !written.is_empty())
}

fn ratio(all: usize, parts: usize) -> Option<usize> {
    let is_whole = parts > 0 && all > 0 && all.is_multiple_of(parts);
    is_whole.then(|| all / parts).filter(|ratio| (2..=8).contains(ratio))
}

/// Distances between the different widths of lines.
fn distances(indents: &[&str]) -> BTreeSet<usize> {
    let widths: BTreeSet<usize> = indents.iter().map(|indent| columns(indent, 8)).collect();
    widths.iter().zip(widths.iter().skip(1)).map(|(less, more)| more - less).collect()
}

fn columns(indent: &str, tab: usize) -> usize {
    indent.chars().map(|c| if c == '\t' { tab } else { 1 }).sum()
}

/// The unit of a file's indentation: a tab, or the most frequent distance between neighbouring lines.
fn unit_of(file: &str) -> String {
    let lines = file.lines().take(SAMPLE).filter(|line| !line.trim_matches(is_blank).is_empty());
    let indents: Vec<&str> = lines.map(indent).collect();
    let tabs = indents.iter().filter(|indent| indent.starts_with('\t')).count();
    if tabs * 2 > indents.iter().filter(|indent| !indent.is_empty()).count() {
        return "\t".into();
    }
    let width = WIDTHS.into_iter().rev().max_by_key(|width| {
        indents.windows(2).filter(|two| two[1].len().checked_sub(two[0].len()) == Some(*width)).count()
    });
    " ".repeat(width.unwrap_or(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, pairs: &[(&str, &str)], added: &str, expected: Option<&str>) {
        let found = Indentation::between(pairs, &[added], file);
        assert_eq!(found.and_then(|it| it.apply(added)).as_deref(), expected, "{pairs:?} {added:?}");
    }

    #[test]
    fn indentation_follows_the_file() {
        let (tabs, four, two) = ("a\n\tb\n\t\tc\n", "a\n    b\n        c\n", "a\n  b\n    c\n");
        check(tabs, &[("    ", "\t")], "        ", Some("\t\t"));
        check(tabs, &[("  ", "\t")], "      ", Some("\t\t\t"));
        check(tabs, &[("", "\t"), ("  ", "\t\t")], "    ", Some("\t\t\t"));
        check(tabs, &[("", "\t")], "  ", Some("\t\t"));
        check(tabs, &[("    ", "\t")], "     ", Some("\t "));
        check(four, &[("\t", "    ")], "\t\t", Some("        "));
        check(four, &[("", "    ")], "    ", Some("        "));
        check(four, &[("        ", "    ")], "    ", Some(""));
        check(four, &[("  ", "    ")], "    ", Some("        "));
        check(two, &[("    ", "  ")], "        ", Some("    "));
        check(four, &[("", "    "), ("  ", "        ")], "    ", Some("            "));
        check(four, &[("  ", "    "), ("  ", "        ")], "", None);
        check(tabs, &[("    ", "\t")], "", Some(""));
        check(tabs, &[("        ", "\t")], "    ", Some(""));
        check(tabs, &[("    ", "")], "", None);
    }
}
