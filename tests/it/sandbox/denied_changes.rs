//! Files that rules keep commands of `shell` from changing, by whatever call or name, while everything else can be
//! changed. `tests/escape/helper.c` and `tests/escape/attacks.c` have the system calls.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use modegate::process::shell::{Sandbox, Shell};
use modegate::process::{BrokerEvent, DeniedActs, DenyingRule, Exit, RuleRefusal};

use crate::sandbox::broker::forbidden_effects;
use crate::sandbox::broker_attacks::{ATTACKS as ATTACKS_ON_THE_BROKER, line as attack_line};
use crate::sandbox::broker_races::program as races;
use crate::sandbox::command_events::CommandEvents;
use crate::sandbox::commands::CONCURRENT_CASES;
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::{python, require_sandbox};
use crate::support::shell;

/// The rules are about this folder. [`FREE`] has the same files.
const KEPT: &str = "kept";
const FREE: &str = "free";

/// Lines that change something in the folder `{dir}`.
const ATTACKS: &[&str] = &[
    "echo x > {dir}/new",
    "echo x > {dir}/file",
    "echo x >> {dir}/file",
    "echo x > ./{dir}/sub/../file",
    "echo x > $PWD/{dir}/file",
    "cd {dir} && echo x > file",
    "cd {dir}/sub && echo x > ../file",
    "truncate -s 1 {dir}/file",
    "{helper} truncate {dir}/file",
    "{helper} creat {dir}/file",
    "{helper} read-truncate {dir}/file",
    "{helper} append {dir}/file",
    "{helper} fallocate {dir}/file",
    "{helper} mmap {dir}/file",
    "{python} -c 'import os; os.ftruncate(os.open(\"{dir}/file\", os.O_RDWR), 1)'",
    "{python} -c 'import mmap, os; m = mmap.mmap(os.open(\"{dir}/file\", os.O_RDWR), 0); m[0:1] = b\"x\"'",
    "exec 3<>{dir}/file; echo x >&3",
    "dd if=a.txt of={dir}/file conv=notrunc status=none",
    "cp a.txt {dir}/file; cp a.txt {dir}/copied",
    "sed -i s/old/new/ {dir}/file",
    "tee -a {dir}/file < a.txt",
    "tar cf - a.txt | tar xf - -C {dir}",
    "install -m 600 a.txt {dir}/installed",
    "rm {dir}/file",
    "rm -rf {dir}",
    "rmdir {dir}/empty",
    "mkdir {dir}/made",
    "mkdir -p {dir}/a/b/c",
    "mkfifo {dir}/pipe",
    "{helper} mknod {dir}/pipe",
    "ln -s target {dir}/soft",
    "ln a.txt {dir}/hard",
    "ln {dir}/file hard; echo x >> hard",
    "ln -L to_{dir} hard; echo x >> hard",
    "{helper} link {dir}/file hard",
    "{helper} tmpfile-link {dir}/unnamed",
    "mv {dir}/file moved",
    "mv {dir}/sub moved",
    "mv {dir}/empty moved",
    "mv {dir} moved",
    "mkdir x && mv {dir} x/",
    "mv a.txt {dir}/file",
    "mv a.txt {dir}/new",
    "exec 3>t; mv t {dir}/file; echo x >&3",
    "mkdir tree && echo x > tree/file && mv tree {dir}/",
    "mkdir tree && mv -T tree {dir}/tree",
    "mv {dir} other && mkdir {dir} && echo x > {dir}/file",
    "mv {dir} other && ln -s other {dir} && echo x > {dir}/file",
    "rm -r {dir}/*; mkdir tree && echo x > tree/file && mv -T tree {dir}",
    "{helper} exchange {dir}/file a.txt",
    "{helper} exchange a.txt {dir}/file",
    "{helper} exchange {dir} sub",
    "{helper} exchange sub {dir}",
    "chmod 600 {dir}/file",
    "chmod -R 700 {dir}",
    "{helper} fchmod {dir}/file",
    "{helper} setxattr {dir}/file",
    "{helper} fsetxattr {dir}/file",
    "touch -d 2001-01-01 {dir}/file",
    "touch -h -d 2001-01-01 {dir}/link",
    "{helper} futimens {dir}/file",
    "{helper} utime {dir}/file",
    "echo x > to_{dir}",
    "echo x > {dir}_link/file",
    "echo x > {dir}/link",
    "ln -s {dir} l; echo x > l/new",
    "ln -s {dir}/file l; echo x > l; chmod 600 l",
    "ln -s {dir}/dangling l; echo x > l",
    "ln -s loop l; ln -s {dir} loop; echo x > l/file",
    "exec 3<{dir}/file; echo x > /proc/self/fd/3",
    "exec 3<{dir}/file; echo x > /dev/fd/3",
    "exec 3<{dir}/file; chmod 600 /proc/self/fd/3",
];

/// Lines without a control: the broker refuses some of these ways for every file, and races may lose.
const UNCONTROLLED: &[&str] = &[
    "ln -s /proc/self/cwd c; echo x > c/{dir}/file",
    "echo x > /proc/self/cwd/{dir}/file",
    "echo x > /proc/thread-self/cwd/{dir}/file",
    "exec 3<{dir}; echo x > /proc/self/fd/3/new",
    "exec 3<{dir}; mkdir /dev/fd/3/made",
    "exec 3<{dir}/file; ln -s /proc/self/fd/3 l; echo x > l",
    "{helper} io-uring {dir}/file",
    "for number in /proc/$PPID/fd/*; do echo x > $number/{dir}/file; done",
    "echo x > /proc/$PPID/cwd/$PWD/{dir}/file; echo x > /proc/$PPID/root$PWD/{dir}/file",
    "(while :; do ln -sfn sub l; ln -sfn {dir} l; done) 2>/dev/null & for i in $(seq 300); do echo x > l/file; \
     done 2>/dev/null; kill $!; wait",
    "mkdir l; (while :; do {helper} exchange l {dir}_link; done) 2>/dev/null & for i in $(seq 300); do \
     echo x > l/file; done 2>/dev/null; kill $!; wait",
];

/// Lines that print `done`, and that the rules leave alone.
const ALLOWED: &[&str] = &[
    "test \"$(cat kept/file)\" = old && ls kept kept/sub >/dev/null && echo done",
    "exec 3<kept/file; grep -q old <&3 && grep -q old /proc/self/fd/3 && echo done",
    "cp -r kept copied && echo x >> copied/file && rm -r copied && echo done",
    "mkdir -p kept/sub && rm -f kept/missing && echo done",
    "echo x > kept.txt && mv kept.txt kept_too && echo done",
    "mkdir -p free/kept && echo x > free/kept/file && echo done",
    "mkdir one && mv one two && echo x > two/kept && echo done",
    "mv free other && mv other free && echo done",
    "echo x > $TMPDIR/kept && chmod 600 $TMPDIR/kept && echo done",
    "git status --short >/dev/null && git add kept/file && git commit -qm more && echo done",
    "mkdir kept/sub 2>&1 | grep -q 'File exists' && rm kept/missing 2>&1 | grep -q 'No such file' && echo done",
    "touch . && chmod 755 . && echo done",
];

fn rule(pattern: &str, denies: DeniedActs) -> DenyingRule {
    DenyingRule { name: format!("Edit({pattern})"), pattern: pattern.into(), denies }
}

fn all(pattern: &str) -> Vec<DenyingRule> {
    vec![rule(pattern, DeniedActs::All)]
}

fn ruled(fixture: &SandboxFixture, rules: Vec<DenyingRule>) -> Shell {
    // Without rules, the control runs in the same sandbox.
    shell(&fixture.home(), Sandbox::Broker).denying_changes(rules)
}

fn fixture() -> SandboxFixture {
    let fixture = SandboxFixture::new();
    let work = fixture.work();
    for dir in [KEPT, FREE] {
        std::fs::create_dir_all(work.join(dir).join("empty")).unwrap();
        std::fs::create_dir_all(work.join(dir).join("sub")).unwrap();
        for name in ["file", "sub/inner"] {
            std::fs::write(work.join(dir).join(name), "old\n").unwrap();
        }
        symlink("file", work.join(dir).join("link")).unwrap();
        symlink(format!("{dir}/file"), work.join(format!("to_{dir}"))).unwrap();
        symlink(dir, work.join(format!("{dir}_link"))).unwrap();
    }
    fixture
}

/// The files below a folder, with their types, modes, links, times, contents and an attribute.
fn state(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let meta = path.symlink_metadata().unwrap();
        let content = if meta.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        let has_attribute = rustix::fs::lgetxattr(&path, "user.x", &mut [0_u8; 8]).is_ok();
        let facts = format!(
            "{:o} {} {} {}.{} {has_attribute} {content:?}",
            meta.mode(),
            meta.ino(),
            meta.nlink(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        all.insert(path.clone(), facts);
        if meta.is_dir() {
            all.extend(state(&path));
        }
    }
    all
}

struct Run {
    text: String,
    exit: Option<Exit>,
    has_changed: bool,
    refusals: Vec<RuleRefusal>,
}

/// Runs a line in a fixture of its own. `dir` is the folder that it is about.
async fn run(line: &str, dir: &str, rules: Vec<DenyingRule>) -> Run {
    let fixture = fixture();
    let line = fixture.fill_in(line).replace("{dir}", dir).replace("{python}", python());
    let shell = ruled(&fixture, rules);
    let sandbox = shell.workspace(&[fixture.work()]);
    let before = state(&fixture.work().join(dir));
    let process = shell.start(&line, &fixture.work(), &sandbox).await.unwrap();
    let events = CommandEvents::of(process, |_| panic!("a question: {line}")).await;
    let refusals = events.broker.iter().filter_map(|event| match event {
        BrokerEvent::RuleRefused(refusal) => Some(refusal.clone()),
        _ => None,
    });
    Run {
        has_changed: state(&fixture.work().join(dir)) != before,
        text: events.text(),
        exit: events.exit,
        refusals: refusals.collect(),
    }
}

#[tokio::test]
async fn no_attack_changes_a_denied_file() {
    require_sandbox();
    let attack = |(line, is_controlled): (&'static str, bool)| async move {
        let mut failures = Vec::new();
        let attacked = run(line, KEPT, all("kept/**")).await;
        if attacked.has_changed {
            failures.push(format!("{line}: changed the denied files: {}", attacked.text));
        }
        if is_controlled {
            let is_told = |refusal: &RuleRefusal| {
                refusal.rule == "Edit(kept/**)" && refusal.path.iter().any(|part| part == KEPT)
            };
            if attacked.refusals.is_empty() || !attacked.refusals.iter().all(is_told) {
                failures.push(format!("{line}: wrong reports {:?}: {}", attacked.refusals, attacked.text));
            }
            for (dir, rules, control) in
                [(FREE, all("kept/**"), "other files"), (KEPT, Vec::new(), "without the rule")]
            {
                let allowed = run(line, dir, rules).await;
                if !allowed.has_changed || !allowed.refusals.is_empty() {
                    let Run { text, refusals, .. } = allowed;
                    failures.push(format!("{line}: the control, {control}: {refusals:?} {text}"));
                }
            }
        }
        failures
    };
    let lines = ATTACKS.iter().map(|line| (*line, true));
    let lines = lines.chain(UNCONTROLLED.iter().map(|line| (*line, false)));
    let failures: Vec<_> =
        futures_util::stream::iter(lines).map(attack).buffer_unordered(CONCURRENT_CASES).concat().await;
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test]
async fn other_changes_are_left_alone() {
    require_sandbox();
    for line in ALLOWED {
        let Run { text, exit, refusals, .. } = run(line, KEPT, all("kept/**")).await;
        assert!(text.contains("done"), "{line}: {text} {refusals:?}");
        assert_eq!((exit, refusals), (Some(Exit::Status(0)), Vec::new()), "{line}: {text}");
    }
}

/// A rule for `delete_file` or `move_file` alone is about these changes alone, as for an external agent.
#[tokio::test]
async fn rule_denies_the_changes_of_its_tools() {
    require_sandbox();
    for (denies, line, is_denied) in [
        (DeniedActs::Deletions, "rm kept/file", true),
        (DeniedActs::Deletions, "rmdir kept/empty", true),
        (DeniedActs::Deletions, "echo x > kept/file", false),
        (DeniedActs::Deletions, "mv kept/file moved", false),
        (DeniedActs::Moves, "mv kept/file moved", true),
        (DeniedActs::Moves, "mv a.txt kept/file", true),
        (DeniedActs::Moves, "mv kept moved", true),
        (DeniedActs::Moves, "echo x > kept/file", false),
        (DeniedActs::Moves, "rm kept/file", false),
        (DeniedActs::DeletionsAndMoves, "rm kept/file", true),
        (DeniedActs::DeletionsAndMoves, "mv kept/file moved", true),
        (DeniedActs::DeletionsAndMoves, "chmod 600 kept/file", false),
        (DeniedActs::All, "chmod 600 kept/file", true),
    ] {
        let Run { has_changed, refusals, text, .. } = run(line, KEPT, vec![rule("kept/**", denies)]).await;
        assert_eq!(
            (has_changed, refusals.len()),
            (!is_denied, usize::from(is_denied)),
            "{denies:?} {line}: {text}"
        );
    }
}

/// The first matching rule is reported, and each path once.
#[tokio::test]
async fn refusals_name_the_rule_and_the_real_path() {
    require_sandbox();
    let line = "echo x > to_kept; echo x > kept/file; rm a.txt; mv kept moved";
    let rules = vec![rule("kept/file", DeniedActs::All), rule("*.txt", DeniedActs::All)];
    let Run { refusals, text, .. } = run(line, KEPT, rules).await;
    let named: Vec<_> = (refusals.iter())
        .map(|refusal| (refusal.rule.as_str(), refusal.path.file_name().unwrap().to_str().unwrap()))
        .collect();
    assert_eq!(named, [("Edit(kept/file)", "file"), ("Edit(*.txt)", "a.txt")], "{text}");
    assert!(text.contains("Permission denied"), "{text}");
}

/// A folder without denied files gets a file while it is moved to a name below which the rule denies files.
#[tokio::test]
async fn moving_a_folder_does_not_race_with_files_in_it() {
    require_sandbox();
    let line = |rounds: u32| format!("{} moved {rounds}", races().display());
    let Run { text, .. } = run(&line(10_000), KEPT, all("e/**")).await;
    assert_eq!(text, "moved 0\n");
    let Run { text, .. } = run(&line(1_000), KEPT, Vec::new()).await;
    println!("the control: {text}");
    assert!(text.starts_with("moved ") && text != "moved 0\n", "the control: {text}");
}

/// Caches and temporary folders are shared with other programs, and an absolute rule can be about them.
#[tokio::test]
async fn rules_hold_outside_of_the_sessions_folders() {
    require_sandbox();
    let fixture = fixture();
    let cache = fixture.home().join(".cache");
    std::fs::create_dir_all(cache.join("kept")).unwrap();
    let pattern = format!("{}/kept/**", cache.display());
    for (rules, expected) in [(all(&pattern), "free\n"), (Vec::new(), "free\nkept\n")] {
        let shell = shell(&fixture.home(), Sandbox::Workspace).denying_changes(rules);
        let line = fixture.fill_in(
            "echo x > {home}/.cache/new && echo free; (echo x > {home}/.cache/kept/new) 2>/dev/null && echo kept; true",
        );
        let sandbox = shell.workspace(&[fixture.work()]);
        let process = shell.start(&line, &fixture.work(), &sandbox).await.unwrap();
        assert_eq!(CommandEvents::of(process, |_| false).await.text(), expected);
    }
}

/// The attacks that would change files outside of the workspace, on denied files inside of it.
#[tokio::test]
async fn attacks_on_the_broker_change_no_denied_file() {
    require_sandbox();
    let attack = |text: &'static str| async move {
        let mut has_changed = Vec::new();
        for is_ruled in [true, false] {
            let mut fixture = SandboxFixture::new();
            let outside = fixture.fill_in("{outside}");
            let rules =
                vec![rule(&format!("{outside}/**"), DeniedActs::All), rule(&outside, DeniedActs::All)];
            let shell = ruled(&fixture, if is_ruled { rules } else { Vec::new() });
            let sandbox = shell.workspace(&[fixture.work(), PathBuf::from(&outside)]);
            let line = fixture.fill_in(&attack_line(text));
            let process = shell.start(&line, &fixture.work(), &sandbox).await.unwrap();
            let output = CommandEvents::of(process, |_| false).await.text();
            let effects = forbidden_effects(&mut fixture, &output, modegate::sandbox::BrokerPolicy::Roots);
            has_changed.push(effects.iter().any(|effect| effect.contains(&outside)));
        }
        (text, has_changed)
    };
    let results: Vec<_> = futures_util::stream::iter(ATTACKS_ON_THE_BROKER.iter().copied())
        .map(attack)
        .buffer_unordered(CONCURRENT_CASES)
        .collect()
        .await;
    let of = |number: usize| -> Vec<&str> {
        results.iter().filter(|(_, changed)| changed[number]).map(|(text, _)| *text).collect()
    };
    assert_eq!(of(0), Vec::<&str>::new());
    let control = of(1);
    assert!(control.len() * 2 > ATTACKS_ON_THE_BROKER.len(), "the control: {control:?}");
}
