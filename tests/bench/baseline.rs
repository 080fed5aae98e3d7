//! The committed figures, and the report that compares with them.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Changes up to this percentage are not marked.
const TOLERANCE: f64 = 3.0;

pub(crate) struct Figure {
    pub name: &'static str,
    pub value: u64,
    /// Difference between two measurements, in percent. `None` for a size.
    pub spread: Option<f64>,
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/baseline.txt")
}

/// The compiler, the target and the profile, on which all figures depend. The profile is a directory of the
/// bench.
fn build() -> String {
    let rustc = Command::new("rustc").arg("-V").output().unwrap();
    let bench = std::env::current_exe().unwrap();
    let profile = bench.ancestors().nth(2).and_then(Path::file_name).unwrap();
    format!(
        "{}, {} {}, profile {}",
        String::from_utf8_lossy(&rustc.stdout).trim(),
        std::env::consts::ARCH,
        std::env::consts::OS,
        profile.display()
    )
}

const HEADER: &str = "# Written by `UPDATE_EXPECT=1 cargo bench`; never edit it by hand.\n";

/// Writes the figures of this profile, and keeps those of others.
pub(crate) fn write(figures: &[Figure]) {
    let text = std::fs::read_to_string(path()).unwrap();
    let (build, mut new) = (build(), HEADER.to_owned());
    let profile = |build: &str| build.rsplit(' ').next().map(str::to_owned);
    for (other, figures) in sections(&text).filter(|(other, _)| profile(other) != profile(&build)) {
        write!(new, "\n# {other}\n{figures}").unwrap();
    }
    write!(new, "\n# {build}\n").unwrap();
    for Figure { name, value, .. } in figures {
        writeln!(new, "{name} {value}").unwrap();
    }
    std::fs::write(path(), new).unwrap();
}

/// The builds of the baseline, each with its lines.
fn sections(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("\n# ").skip(1).filter_map(|section| section.split_once('\n'))
}

/// Prints all figures, and marks those that differ from the baseline of the same build.
pub(crate) fn report(figures: &[Figure]) {
    let text = std::fs::read_to_string(path()).unwrap();
    let build = build();
    let same = sections(&text).find(|(of, _)| *of == build);
    let rows =
        same.into_iter().flat_map(|(_, figures)| figures.lines()).filter_map(|row| row.split_once(' '));
    let baseline: HashMap<&str, u64> = rows.map(|(name, value)| (name, value.parse().unwrap())).collect();
    println!("\n{:14} {:>13} {:>8} {:>13} {:>8}", "case", "value", "spread", "baseline", "change");
    for Figure { name, value, spread } in figures {
        let spread = spread.map(|percent| format!("{percent:.2} %")).unwrap_or_default();
        let known = baseline.get(name);
        let change = known.map(|known| percent(*known, *value));
        let mark = match change {
            Some(change) if change > TOLERANCE => "grew",
            Some(change) if change < -TOLERANCE => "shrank",
            _ => "",
        };
        let known = known.map(u64::to_string).unwrap_or_default();
        let change = change.map(|percent| format!("{percent:+.1} %")).unwrap_or_default();
        println!("{name:14} {value:>13} {spread:>8} {known:>13} {change:>8}  {mark}");
    }
    let file = "tests/bench/baseline.txt";
    match same {
        Some(_) => println!(
            "\nMarked rows differ from {file} by more than {TOLERANCE} %. UPDATE_EXPECT=1 writes the file."
        ),
        None => println!("\nNothing is compared: {file} has no figures of {build}."),
    }
}

/// Change from one value to another, in percent.
pub(crate) fn percent(from: u64, to: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a percentage needs few digits")]
    let (from, to) = (from as f64, to as f64);
    (to - from) / from * 100.0
}
