//! Names of temporary files, which programs write and then move to the file that they stand for. Pure.

use std::ffi::OsStr;
use std::path::Path;

/// Shortest number behind the name of a file, as npm appends.
const NUMBER: usize = 9;

/// Length of the random part of a name.
const RANDOM: usize = 6;

/// Length of the random part of a name that Python makes up.
const PYTHON_RANDOM: usize = 8;

/// Returns true if the name of a new file says that it is temporary. No program reads or runs such a file without being told to.
/// `program` is the file of the program that makes it, which the program cannot change.
pub(super) fn is_temporary(path: &Path, program: Option<&Path>) -> bool {
    let Some(name) = path.file_name().and_then(OsStr::to_str) else { return false };
    let is_by = |other: &str| program.and_then(Path::file_name) == Some(OsStr::new(other));
    has_temporary_end(name)
        || is_swap_file(name)
        || is_autosave_file(name)
        || EDITORS_LIKE_VIM.iter().any(|editor| is_by(editor)) && is_probe_of_vim(name)
        || name.strip_prefix("tmp").is_some_and(is_of_python)
        || name.strip_prefix(".tmp").is_some_and(is_random)
        || is_by("git") && is_lock_of_settings(path)
        || is_by("sed") && name.strip_prefix("sed").is_some_and(is_random)
}

/// Executables of vim, behind the links of alternatives.
const EDITORS_LIKE_VIM: &[&str] =
    &["vi", "vim", "vim.basic", "vim.gtk3", "vim.huge", "vim.nox", "vim.tiny", "vim-enhanced", "nvim"];

/// `.a.rs.swp` of vim and nano: vim counts the last letters down from `swp`, and tries `swx` first.
fn is_swap_file(name: &str) -> bool {
    let Some((stem, extension)) = name.strip_prefix('.').and_then(|name| name.rsplit_once('.')) else {
        return false;
    };
    let is_swap = matches!(extension.as_bytes(), [b's', b'w', b'a'..=b'p' | b'x']);
    is_swap && !stem.is_empty()
}

/// `#a.rs#` of Emacs.
fn is_autosave_file(name: &str) -> bool {
    let stem = name.strip_prefix('#').and_then(|name| name.strip_suffix('#'));
    stem.is_some_and(|stem| !stem.trim_start_matches('.').is_empty())
}

/// vim creates and deletes such a file to see whether it may write to the folder.
fn is_probe_of_vim(name: &str) -> bool {
    let (first, step) = (4913, 123);
    name.parse().is_ok_and(|number: u32| number >= first && (number - first).is_multiple_of(step))
}

fn is_random(rest: &str) -> bool {
    rest.len() == RANDOM && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn is_of_python(rest: &str) -> bool {
    let mut bytes = rest.bytes();
    rest.len() == PYTHON_RANDOM && bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

/// git writes its settings to this file, and moves it.
fn is_lock_of_settings(path: &Path) -> bool {
    path.ends_with(".git/config.lock") || path.ends_with(".git/config.worktree.lock")
}

fn has_temporary_end(name: &str) -> bool {
    let has_stem = |stem: &str| !stem.trim_start_matches('.').is_empty();
    if let Some(stem) = name.strip_suffix('~') {
        return has_stem(stem);
    }
    let Some((stem, extension)) = name.rsplit_once('.') else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match extension {
        "tmp" | "temp" => has_stem(stem),
        _ if extension.len() >= NUMBER && extension.bytes().all(|byte| byte.is_ascii_digit()) => {
            has_stem(stem)
        }
        // `a.rs.tmp.12.3f`
        _ => name
            .split_once(".tmp.")
            .is_some_and(|(stem, rest)| has_stem(stem) && rest.split(['.', '-']).all(is_number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_are_known_by_their_names() {
        for (name, expected) in [
            (".tool3.txt.gsg1lfsr.tmp", true),
            ("a.rs.tmp", true),
            ("a.rs.tmp.1", true),
            ("a.rs.tmp.4711.1764155000", true),
            ("a.rs.tmp.81.3f9ac2", true),
            ("a.rs~", true),
            ("package.json.2837472839", true),
            (".tmpAb3xYz", true),
            ("tmpx_sjlh5f", true),
            ("a.rs", false),
            ("a.tmp.rs", false),
            ("a.tmp.sh.1", false),
            ("app.2024", false),
            ("backup.20261126", false),
            (".tmp", false),
            (".tmp.1", false),
            ("~", false),
            ("..tmp", false),
            (".tmpfile", false),
            ("tmp", false),
            ("tmpx_sjlh5f.py", false),
            ("tmpfiles", false),
            ("Makefile", false),
            ("conftest.py", false),
            (".envrc", false),
            ("sedAb3xYz", false),
            (".a.rs.swp", true),
            (".a.rs.swo", true),
            (".a.rs.swx", true),
            ("a.rs.swp", false),
            (".swp", false),
            ("..swp", false),
            (".a.rs.swift", false),
            (".a.rs.swz", false),
            ("#a.rs#", true),
            ("##", false),
            ("#.#", false),
            ("#a.rs", false),
            ("4913", false),
        ] {
            assert_eq!(is_temporary(Path::new("/w").join(name).as_path(), None), expected, "{name}");
        }
        let by = |name: &str, program: &str| is_temporary(Path::new(name), Some(Path::new(program)));
        assert!(by("/w/sedAb3xYz", "/usr/bin/sed") && !by("/w/sedAb3xYz", "/usr/bin/python3"));
        assert!(by("/w/.git/config.lock", "/usr/bin/git") && !by("/w/.git/config.lock", "/usr/bin/python3"));
        assert!(!by("/w/config.lock", "/usr/bin/git") && !by("/w/.git/hooks/a.lock", "/usr/bin/git"));
        for editor in ["/usr/bin/vim.basic", "/usr/bin/nvim"] {
            assert!(by("/w/4913", editor) && by("/w/5036", editor) && !by("/w/4914", editor), "{editor}");
        }
        assert!(!by("/w/4913", "/usr/bin/python3"));
        assert!(!by("/w/sedative.md", "/usr/bin/sed") && !by("/w/sed", "/usr/bin/sed"));
    }
}
