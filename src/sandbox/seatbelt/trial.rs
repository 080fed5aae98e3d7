//! Trial of the sandbox on the user's machine: a dozen escapes must fail in it, and work without it. Until
//! then nothing that relies on the sandbox is offered.

use std::fs;
use std::io;
use std::path::Path;

/// Runs in [`FOLDER`]. Prints the name of each act that worked.
const SCRIPT: &str = r#"
try() { name=$1; shift; ("$@") >/dev/null 2>&1 && echo "$name"; }
new() { echo x > new; }
over() { echo x > old; }
append() { echo x >> appended; }
child() { /bin/sh -c 'echo x > child'; }
link() { ln linked "$TMPDIR/link" && echo x >> "$TMPDIR/link"; }
outside() { echo x > ../outside; }
secret() { test "$(cat ../secret)" = secret; }
other() { kill -0 "$OTHER"; }
end() { kill "$OTHER"; }
read() { test "$(cat kept)" = kept; }
own() { echo x > "$TMPDIR/own"; }
try read read
try own own
try new new
try over over
try append append
try child child
try mkdir mkdir folder
try remove rm removed
try move mv moved away
try symlink ln -s kept symlink
try link link
try mode chmod 700 mode
try time touch -t 200001010000 time
try outside outside
try secret secret
try other other
try end end
exit 0
"#;

/// Folder of the commands, which they may read.
const FOLDER: &str = "work";

/// Acts that the sandbox allows.
const ALLOWED: [&str; 2] = ["read", "own"];

/// Acts that the sandbox denies, and that work without it.
const ESCAPES: [&str; 15] = [
    "new", "over", "append", "child", "mkdir", "remove", "move", "symlink", "link", "mode", "time",
    "outside", "secret", "other", "end",
];

/// A command of the trial.
#[derive(Debug, Clone, Copy)]
pub struct TrialCommand<'a> {
    /// For `sh -c`.
    pub script: &'static str,
    pub folder: &'a Path,
    /// The value of `TMPDIR`, which the command may write.
    pub own_folder: &'a Path,
    pub is_sandboxed: bool,
    /// The variable `OTHER`: a process that the command may not signal.
    pub other: u32,
}

/// Runs the trial in an empty folder. `start_other` starts a process that runs until it is killed; `run` returns
/// the output of a command.
///
/// # Errors
/// Returns the reason why the sandbox must not be used, as a sentence.
pub fn attempt<P>(
    folder: &Path,
    mut start_other: impl FnMut() -> io::Result<(u32, P)>,
    mut run: impl FnMut(TrialCommand<'_>) -> io::Result<String>,
) -> Result<(), String> {
    let mut outcomes = Vec::new();
    for (name, is_sandboxed) in [("sandboxed", true), ("free", false)] {
        let failed = |error: io::Error| format!("the trial of the sandbox failed: {error}");
        let place = folder.join(name);
        prepare(&place).map_err(failed)?;
        let (other, _guard) = start_other().map_err(failed)?;
        let (folder, own_folder) = (place.join(FOLDER), place.join("own"));
        let command =
            TrialCommand { script: SCRIPT, folder: &folder, own_folder: &own_folder, is_sandboxed, other };
        outcomes.push(run(command).map_err(failed)?);
    }
    judge(&outcomes[0], &outcomes[1])
}

fn prepare(place: &Path) -> io::Result<()> {
    let work = place.join(FOLDER);
    fs::create_dir_all(&work)?;
    fs::create_dir(place.join("own"))?;
    fs::write(place.join("secret"), "secret\n")?;
    ["kept", "old", "appended", "linked", "removed", "moved", "mode", "time"]
        .iter()
        .try_for_each(|name| fs::write(work.join(name), format!("{name}\n")))
}

fn judge(sandboxed: &str, free: &str) -> Result<(), String> {
    let names = |output: &str| output.lines().map(str::to_owned).collect::<Vec<_>>();
    let (sandboxed, free) = (names(sandboxed), names(free));
    if let Some(missing) = ALLOWED.iter().chain(&ESCAPES).find(|name| !free.iter().any(|it| it == *name)) {
        return Err(format!("the trial is inconclusive: without the sandbox, this failed: {missing}"));
    }
    let escaped: Vec<_> =
        sandboxed.iter().filter(|name| !ALLOWED.contains(&name.as_str())).cloned().collect();
    if !escaped.is_empty() {
        return Err(format!("in the sandbox, a command could do this: {}", escaped.join(", ")));
    }
    match ALLOWED.iter().find(|name| !sandboxed.iter().any(|it| it == *name)) {
        Some(missing) => Err(format!("in the sandbox, a command could not do this: {missing}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_that_fails_a_trial_is_refused() {
        let all = [&ALLOWED[..], &ESCAPES].concat().join("\n");
        let allowed = ALLOWED.join("\n");
        assert_eq!(judge(&allowed, &all), Ok(()));
        let reason = |sandboxed: &str, free: &str| judge(sandboxed, free).unwrap_err();
        assert!(reason(&format!("{allowed}\nlink"), &all).ends_with("could do this: link"));
        assert!(reason("read", &all).ends_with("could not do this: own"));
        assert!(reason("", &all).ends_with("could not do this: read"));
        assert!(reason(&allowed, &allowed).ends_with("this failed: new"));
        assert!(reason(&all, &all).contains("new, over, append"));
    }
}
