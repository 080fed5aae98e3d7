//! Policy files that are not believed. Each allows all, and each run is limited to the strictest reading.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use super::machine::{FILE, Machine, in_namespace, remove_policy};

/// A policy without limits.
const OPEN: &str = "max_mode: code\n";

fn rights(path: &str, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Replaces the policy by something else.
fn instead(command: &str) {
    fs::remove_file(FILE).unwrap();
    let made = Command::new("sh").args(["-c", command]).current_dir("/etc/modegate").status().unwrap();
    assert!(made.success(), "{command}");
}

fn text(bytes: impl AsRef<[u8]>) {
    fs::write(FILE, bytes).unwrap();
}

/// Name, change of the policy, and a part of the message about it.
type BadFile = (&'static str, fn(), &'static str);

#[rustfmt::skip]
const BAD_FILES: &[BadFile] = &[
    ("a link to a policy", || instead("cp /etc/passwd real && echo 'max_mode: code' > real && ln -s real policy.yaml"),
        "it is a symbolic link"),
    ("a dangling link", || instead("ln -s nowhere policy.yaml"), "it is a symbolic link"),
    ("a file that others can write", || rights(FILE, 0o646), "can be written by others than root (mode 646)"),
    ("a file that the group can write", || rights(FILE, 0o664), "can be written by others than root"),
    ("a file of another user", || instead(
        "echo 'max_mode: code' > policy.yaml; chown 1000 policy.yaml 2>/dev/null || \
         mount --bind /modegate_machine_etc/hostname policy.yaml"), "not to root"),
    ("a folder that others can write", || rights("/etc/modegate", 0o777), "in the folder /etc/modegate, which can be written"),
    ("a sticky folder that others can write", || rights("/etc/modegate", 0o1777), "in the folder /etc/modegate"),
    ("a folder above that others can write", || rights("/etc", 0o777), "in the folder /etc, which can be written"),
    ("a folder that others can write, without the file", || { rights("/etc/modegate", 0o777); fs::remove_file(FILE).unwrap(); },
        "in the folder /etc/modegate"),
    ("a link instead of the folder", || {
        fs::rename("/etc/modegate", "/etc/real").unwrap();
        symlink("/etc/real", "/etc/modegate").unwrap();
    }, "is below /etc/modegate, which is a link"),
    ("a file instead of the folder", || { remove_policy(); fs::write("/etc/modegate", OPEN).unwrap(); }, "is below /etc/modegate"),
    ("a FIFO", || instead("mkfifo policy.yaml"), "it is not a regular file"),
    ("a folder", || instead("mkdir policy.yaml"), "it is a folder"),
    ("a device", || instead("mknod policy.yaml c 1 3 2>/dev/null || mkfifo policy.yaml"), "it is not a regular file"),
    ("a large file", || text(format!("{OPEN}{}", "# more\n".repeat(40_000))), "it is larger than 256 KiB"),
    ("an empty file", || text(""), "the file is empty"),
    ("comments alone", || text("# max_mode: plan\n"), "it has no keys"),
    ("an unknown key", || text("max_mod: plan\nmax_mode: code\n"), "did you mean `max_mode`?"),
    ("a key twice", || text("max_mode: plan\nmax_mode: code\n"), "is used twice"),
    ("two documents", || text("max_mode: plan\n---\nmax_mode: code\n"), "several documents"),
    ("an unknown mode", || text("max_mode: wide\n"), "unknown mode \"wide\""),
    ("an allow rule", || text("permissions: {allow: [write_file]}"), "a policy allows nothing"),
    ("a line that is cut off", || text("max_mode: \"co"), "unclosed quote"),
    ("a key without a value", || text("allowed: {models: }\n"), "`allowed.models` has no value"),
    ("bytes that are no text", || text(b"max_mode: code\n# \xff\n"), "it is not UTF-8 text"),
    ("UTF-16", || text(b"\xff\xfem\0a\0x\0"), "it is not UTF-8 text"),
    ("a NUL", || text("max_mode: code\0\n"), "unexpected character"),
    ("a list", || text("- max_mode: code\n"), "expected keys with values"),
    ("an alias bomb", || text("a: &a [x, x]\nb: &b [*a, *a]\nmax_mode: code\n"), "unknown key"),
];

#[test]
fn files_that_are_not_believed_mean_the_strictest_reading() {
    in_namespace("files::files_that_are_not_believed_mean_the_strictest_reading", || {
        for (name, spoil, expected) in BAD_FILES {
            let machine = Machine::new();
            machine.set_policy(OPEN);
            assert!(allows_writing(&machine), "{name}: the control");
            spoil();
            assert_strictest(&machine, name, expected);
            rights("/etc", 0o755);
            let _ = Command::new("umount").arg(FILE).output();
            let _ = fs::remove_dir_all("/etc/real");
        }
    });
}

/// The account's usual store, which the strictest reading demands, cannot be used here, so sessions do not open. The
/// messages name the fault nevertheless.
fn assert_strictest(machine: &Machine, name: &str, expected: &str) {
    let output = machine.write_with(&["--mode", "code"]);
    assert!(!machine.has_written(), "{name}: {output}");
    assert!(output.contains(expected) && output.contains("does not believe it"), "{name}: {output}");
    let doctor = machine.run(&["doctor"]);
    assert!(doctor.contains("WRONG policy"), "{name}: {doctor}");
    let check = machine.command(&["policy", "check"]).output().unwrap();
    let shown = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.code() == Some(1) && shown.contains(expected), "{name}: {shown}");
}

fn allows_writing(machine: &Machine) -> bool {
    machine.write_with(&["--mode", "code"]);
    let has_written = machine.has_written();
    let _ = fs::remove_file(machine.work().join("out.txt"));
    has_written
}

#[test]
fn unreadable_policy_means_the_strictest_reading() {
    in_namespace("files::unreadable_policy_means_the_strictest_reading", || {
        let machine = Machine::new();
        machine.set_policy(OPEN);
        // Root can read everything, unless it has given up its capabilities.
        let without_capabilities = |arguments: &[&str]| {
            let options = ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"];
            let run = Command::new("setpriv")
                .args(options)
                .arg(env!("CARGO_BIN_EXE_modegate"))
                .args(arguments)
                .current_dir(machine.work())
                .env("HOME", machine.path("home"))
                .output()
                .expect("this test needs setpriv, of the package util-linux");
            format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
        };
        let control = without_capabilities(&["policy", "check"]);
        assert!(control.contains("fine"), "the control: {control}");
        for (path, mode) in [(FILE, 0o000), ("/etc/modegate", 0o000)] {
            rights(path, mode);
            let output = without_capabilities(&["policy", "check"]);
            assert!(output.contains("Permission denied"), "{path}: {output}");
            let output = without_capabilities(&["policy", "explain", "mode", "code"]);
            assert!(output.contains("no more than plan mode"), "{path}: {output}");
            rights(path, 0o755);
        }
    });
}

#[test]
fn machine_without_a_policy_has_no_limits() {
    in_namespace("files::machine_without_a_policy_has_no_limits", || {
        let machine = Machine::new();
        for prepare in [|| {}, || fs::create_dir("/etc/modegate").unwrap()] {
            prepare();
            assert!(allows_writing(&machine));
            let output = machine.run(&["policy", "check"]);
            assert!(output.contains("no policy"), "{output}");
        }
        assert!(!Path::new(FILE).exists());
    });
}

/// A running session keeps its policy, and the next one has the new policy.
#[test]
fn changed_policy_counts_for_the_next_session() {
    in_namespace("files::changed_policy_counts_for_the_next_session", || {
        let machine = Machine::new();
        for (policy, expected) in [("max_mode: code", true), ("max_mode: plan", false), ("", true)] {
            machine.set_policy(policy);
            assert_eq!(allows_writing(&machine), expected, "{policy}");
        }
    });
}
