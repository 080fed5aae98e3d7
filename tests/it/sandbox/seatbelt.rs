//! Evaluates the Seatbelt profiles of macOS: they allow no operation that an escape case needs. Also runs the
//! trial of the sandbox with the sandbox of Linux, which it accepts, and without a sandbox, which it rejects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use modegate::process::shell::{CommandSandbox, Sandbox};
use modegate::sandbox::Confinement;
use modegate::sandbox::seatbelt::trial::{self, TrialCommand};
use modegate::sandbox::seatbelt::{Object, Profile};

use crate::sandbox::commands::finish;
use crate::sandbox::controls::{Control, controls};
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// A change of a file or folder needs at least one of these operations.
const CHANGES: [&str; 9] = [
    "file-write-create",
    "file-write-data",
    "file-write-unlink",
    "file-write-mode",
    "file-write-owner",
    "file-write-times",
    "file-write-xattr",
    "file-write-flags",
    "file-link",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Denied,
    Allowed,
    /// The case does nothing here, or its effect has no counterpart on macOS.
    NotEvaluated,
}

/// Decides whether a profile allows any operation that an effect needs. [`SandboxFixture::effects`] lists the
/// effects.
fn verdict(profile: &Profile, fixture: &Path, effect: &str) -> Verdict {
    let allows = |operations: &[&str], objects: &[Object<'_>]| {
        let allowed = operations
            .iter()
            .any(|operation| objects.iter().any(|object| profile.allows(operation, *object)));
        if allowed { Verdict::Allowed } else { Verdict::Denied }
    };
    let other = Object::Process { in_same_sandbox: false };
    match effect.split_once(' ') {
        Some(("changed", path)) => allows(&CHANGES, &[Object::Path(Path::new(path))]),
        Some(("reached", "tcp" | "udp")) => {
            allows(&["network-outbound", "system-socket"], &[Object::Address { is_remote: true }])
        }
        Some(("reached", "docker" | "agent" | "log")) => {
            allows(&["network-outbound"], &[Object::Path(&fixture.join("socket"))])
        }
        Some(("read", _)) => {
            let secrets: Vec<PathBuf> =
                ["outside/secret.txt", "home/.ssh/id_ed25519"].map(|name| fixture.join(name)).into();
            let secrets: Vec<_> = secrets.iter().map(|path| Object::Path(path)).chain([other]).collect();
            allows(&["file-read-data", "mach-priv-task-port"], &secrets)
        }
        Some(("the", _)) => allows(&["signal", "mach-priv-task-port"], &[other]),
        _ => Verdict::NotEvaluated,
    }
}

#[tokio::test]
async fn seatbelt_profile_denies_every_escape_case() {
    require_sandbox();
    let (mut table, mut writable) = (BTreeMap::<_, usize>::new(), BTreeMap::<_, usize>::new());
    let mut allowed = Vec::new();
    for (name, Control { folder, effects, .. }) in controls().await {
        let work = folder.join("work");
        let read_only = Confinement::ReadOnly { read: vec![work.clone()], build: None, denied: None };
        let read_only = Profile::of(&read_only, Some(&folder.join("own"))).unwrap().unwrap();
        // A case that gets one of its effects has escaped.
        let all = |profile: &Profile| {
            let verdicts = effects.iter().map(|effect| verdict(profile, folder, effect));
            verdicts.reduce(|one, other| match (one, other) {
                (Verdict::Allowed, _) | (_, Verdict::Allowed) => Verdict::Allowed,
                (Verdict::Denied, _) | (_, Verdict::Denied) => Verdict::Denied,
                _ => Verdict::NotEvaluated,
            })
        };
        let outcome = all(&read_only).unwrap_or(Verdict::NotEvaluated);
        *table.entry(outcome).or_default() += 1;
        if outcome == Verdict::Allowed {
            allowed.push(name);
        }
        // The control: a profile that allows some of these effects.
        let control = Profile::of(&Confinement::Workspace { write: vec![work] }, None).unwrap().unwrap();
        *writable.entry(all(&control).unwrap_or(Verdict::NotEvaluated)).or_default() += 1;
    }
    println!("read-only profile: {table:?}; control: {writable:?}");
    assert!(allowed.is_empty(), "{allowed:?}");
    assert!(table[&Verdict::Denied] >= 200, "{table:?}");
    assert!(writable[&Verdict::Allowed] >= 150, "{writable:?}");
}

/// Runs the trial with the sandbox of Linux, or without a sandbox.
fn attempt_trial(is_enforced: bool) -> Result<(), String> {
    let fixture = SandboxFixture::new();
    let folder = std::fs::canonicalize(fixture.home()).unwrap().join("trial");
    std::fs::create_dir(&folder).unwrap();
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let start_other = || {
        let child = std::process::Command::new("sleep").arg("60").spawn()?;
        Ok((child.id(), EndOnDrop(child)))
    };
    let run = |command: TrialCommand<'_>| {
        let other = command.other;
        let sandbox = if command.is_sandboxed && is_enforced {
            shell.read_only(&[command.folder.to_owned()]).expect("the kernel supports it")
        } else {
            CommandSandbox::none()
        };
        // A read-only sandbox has a separate `TMPDIR`.
        let temporary_folder = if sandbox.is_read_only() {
            String::new()
        } else {
            format!("TMPDIR='{}'\n", command.own_folder.display())
        };
        let line = format!("{temporary_folder}OTHER={other}\n{}", command.script);
        let output = runtime
            .block_on(async { finish(shell.start(&line, command.folder, &sandbox).await.unwrap()).await.0 });
        Ok(output)
    };
    trial::attempt(&folder, start_other, run)
}

struct EndOnDrop(std::process::Child);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn trial_accepts_only_an_enforced_sandbox() {
    require_sandbox();
    assert_eq!(attempt_trial(true), Ok(()));
    let reason = attempt_trial(false).unwrap_err();
    assert!(reason.starts_with("in the sandbox, a command could do this: new, over"), "{reason}");
}
