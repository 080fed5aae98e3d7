//! `edit_file` and `apply_patch` with text as models write it: blanks at line ends, tabs for spaces, curly
//! quotes, other line endings and blanks within lines, prefixes of lines, an escape too much, entities, lines left out,
//! context without its blank, and words that are not in the file. A call makes the intended change or names
//! the lines. No call makes another change.
//!
//! `NOISE=2000 SEED=7 cargo test noise -- --nocapture` runs more cases.

use serde_json::{Value, json};

use self::cases::{DIALECTS, Dialect, EditCase};
use super::patches::{Random, number, run_tool};
use modegate::workspace::Workspace;

mod cases;

#[derive(Debug, Default)]
struct Outcomes {
    applied: usize,
    refused: usize,
    /// Refusals that do not name a line of the change.
    unnamed: usize,
}

impl Outcomes {
    /// Runs a call on the file of a case.
    async fn check(&mut self, tool: &'static str, arguments: Value, case: &EditCase) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, &case.file).unwrap();
        let result = run_tool(&Workspace::new(dir.path(), &[]).unwrap(), tool, arguments.clone()).await;
        let file = std::fs::read_to_string(&path).unwrap();
        match result {
            Ok(text) => {
                assert!(case.is_expected(&file), "{:?}: {text}\n{arguments:#}\n{file}", case.noise);
                self.applied += 1;
            }
            Err(error) => {
                assert_eq!(file, case.file, "a refused call changes nothing");
                let error = error.to_string();
                let lines =
                    case.changes.iter().flat_map(|change| change.first..change.first + change.old.len());
                let is_named = |line: usize| {
                    error.contains(&format!("{line:>6}\t")) || error.contains(&format!(" {line}"))
                };
                self.refused += 1;
                self.unnamed += usize::from(!lines.into_iter().any(is_named));
            }
        }
    }

    fn end(&self, count: usize) {
        assert!(self.applied * 10 >= count * 6, "most changes apply: {self:?}");
        assert!(self.refused > 0 && self.unnamed * 25 <= count, "{self:?}");
    }
}

fn random(of: usize) -> Random {
    Random::new(number("SEED", 1).wrapping_mul(1_000_003).wrapping_add(of as u64))
}

fn count() -> usize {
    usize::try_from(number("NOISE", 200)).unwrap()
}

#[tokio::test]
async fn noisy_edits_apply_as_intended_or_are_refused() {
    let mut outcomes = Outcomes::default();
    for at in 0..count() {
        let mut random = random(at);
        let case = cases::case(&mut random, at, 1);
        let (old, new) = case.edit(&mut random);
        outcomes.check("edit_file", json!({ "path": "f", "old_text": old, "new_text": new }), &case).await;
    }
    println!("{outcomes:?}");
    outcomes.end(count());
}

#[tokio::test]
async fn noisy_patches_apply_as_intended_or_are_refused() {
    let mut outcomes = Outcomes::default();
    for at in 0..count() {
        let mut random = random(at);
        let changes = 1 + random.below(2);
        let case = cases::case(&mut random, at / DIALECTS.len(), changes);
        let patch = case.patch(&mut random, DIALECTS[at % DIALECTS.len()]);
        outcomes.check("apply_patch", json!({ "patch": patch }), &case).await;
    }
    println!("{outcomes:?}");
    outcomes.end(count());
}

/// Line numbers beside wrong counts may belong to another copy, so the call is refused. With right counts the
/// numbers decide.
#[tokio::test]
async fn wrong_counts_never_choose_between_equal_blocks() {
    let (mut right, mut wrong) = (Outcomes::default(), Outcomes::default());
    for at in 0..count() {
        let mut random = random(at);
        let case = cases::case(&mut random, at, 1);
        let (meant, named) = (case.repeated(3, random.below(3)), case.repeated(3, random.below(3)));
        let patch = named.patch(&mut random, Dialect::WrongCounts);
        wrong.check("apply_patch", json!({ "patch": patch }), &meant).await;
        let patch = named.patch(&mut random, Dialect::Unified);
        right.check("apply_patch", json!({ "patch": patch }), &named).await;
    }
    println!("{right:?} {wrong:?}");
    assert_eq!(wrong.applied, 0, "{wrong:?}");
    assert!(right.applied * 10 >= count() * 6, "the control: {right:?}");
}

#[tokio::test]
async fn other_encodings_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let workspace = Workspace::new(dir.path(), &[]).unwrap();
    let utf16 = |text: &str| {
        let units = text.encode_utf16();
        [vec![0xff, 0xfe], units.flat_map(u16::to_le_bytes).collect()].concat()
    };
    for (before, after) in
        [(b"caf\xe9\r\n".to_vec(), b"th\xe9\r\n".to_vec()), (utf16("café\r\n"), utf16("thé\r\n"))]
    {
        let calls = [
            ("edit_file", json!({ "path": "f", "old_text": "café\n", "new_text": "thé\n" })),
            ("apply_patch", json!({ "patch": "--- a/f\n+++ b/f\n@@\n-café\n+thé\n" })),
        ];
        for (tool, arguments) in calls {
            std::fs::write(dir.path().join("f"), &before).unwrap();
            run_tool(&workspace, tool, arguments).await.unwrap();
            assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), after, "{tool}");
        }
    }
    std::fs::write(dir.path().join("f"), b"th\xe9\n").unwrap();
    let edit = json!({ "path": "f", "old_text": "thé", "new_text": "τσάι" });
    let error = run_tool(&workspace, "edit_file", edit).await.unwrap_err().to_string();
    assert!(error.starts_with("f is Latin-1 text, which has no `τ`."), "{error}");
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"th\xe9\n");
}
