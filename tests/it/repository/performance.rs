//! The figures of `cargo bench`: each has a line in the baseline of each profile, and a row on its page.

use std::fs;
use std::path::Path;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// Returns the words between `before` and `after`, one for each line that has both.
fn words<'a>(text: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    let word = |line: &'a str| Some(line.split_once(before)?.1.split_once(after)?.0);
    text.lines().filter_map(word).collect()
}

#[test]
fn every_figure_of_the_bench_is_in_the_baseline_and_on_its_page() {
    let (cases, sizes) = (read("tests/bench/cases.rs"), read("tests/bench/sizes.rs"));
    let figures = [words(&cases, "Case { name: \"", "\""), words(&sizes, "size(\"", "\"")].concat();
    assert!(figures.len() > 10, "{figures:?}");

    let baseline = read("tests/bench/baseline.txt");
    let builds: Vec<&str> = baseline.split("\n# ").skip(1).collect();
    assert!(!builds.is_empty(), "no figures");
    for build in builds {
        let (header, lines) = build.split_once('\n').unwrap();
        assert!(header.starts_with("rustc ") && header.contains(", profile "), "{header}");
        let listed: Vec<&str> = lines.lines().filter_map(|line| Some(line.split_once(' ')?.0)).collect();
        assert_eq!(listed, figures, "run `UPDATE_EXPECT=1 cargo bench`, and again with `--profile dev`");
    }

    let page = read("docs/internals/performance.md");
    assert_eq!(words(&page, "| `", "` |"), figures, "docs/internals/performance.md");
}
