//! Files that rules keep commands from reading. No command gets their content, and everything else can be
//! read. `tests/escape/reads.c` has the system calls.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use futures_util::StreamExt;
use modegate::process::shell::{AgentFolders, AgentNetwork, CommandSandbox, Sandbox};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::agent::make_state_folder;
use crate::sandbox::commands::{CONCURRENT_CASES, finish, free};
use crate::sandbox::fixture::{FixturePool, SECRET, SandboxFixture};
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// Lines that print a denied file if they run without a sandbox.
const ATTACKS: &[&str] = &[
    "cat .env",
    "cat ./sub/../.env",
    "cat $PWD/.env",
    "cat < .env",
    "cat secrets/key",
    "cd secrets && cat key",
    "cd secrets && cat ../secrets/key",
    "cat link_to_env",
    "cat folder_link/key",
    "cat link_to_link",
    "cp .env copy && cat copy",
    "ln .env hard && cat hard",
    "ln secrets/key hard && cat hard",
    "ln -s .env soft && cat soft",
    "mv .env moved && cat moved",
    "mv secrets moved && cat moved/key",
    "mkdir new && mv secrets new/ && cat new/secrets/key",
    "mkdir other && mv -T sub other/sub; cat other/sub/.env",
    "{helper} exchange secrets src; cat src/key",
    "{helper} exchange .env a.txt; cat a.txt",
    "mv secrets/key out && cat out",
    "grep -r token . --include=.env",
    "grep -rh token secrets",
    "tar cf - .env | tar xOf -",
    "tar cf - secrets | strings",
    "dd if=.env status=none",
    "head -c 100 .env; tail -n 1 secrets/key",
    "exec 3<.env; cat <&3",
    "exec 3<secrets; cat /proc/self/fd/3/key",
    "exec 3<secrets; cat /dev/fd/3/key",
    "cat /proc/self/cwd/.env",
    "cat /proc/$$/cwd/.env; cat /proc/$$/root/$PWD/.env",
    "cat /proc/thread-self/cwd/secrets/key",
    "ln -s /proc/self/cwd c; cat c/.env",
    "ln -s /proc/self/root r; cat r$PWD/.env",
    "git diff --no-index /dev/null .env",
    "bash -v .env; bash -v secrets/key",
    "bash -c 'mapfile -t a < .env; echo \"${a[@]}\"'",
    "diff .env /dev/null",
    "sort .env; wc -l .env; od -c .env | head; cat .env",
    "{reads} path .env",
    "{reads} path secrets/key",
    "{reads} openat2 .env",
    "{reads} flags .env",
    "{reads} flags secrets/key",
    "{reads} high-flags .env",
    "{reads} child .env",
    "{reads} race-path .env a.tx",
    "{reads} race-create .env a.tx",
    "{reads} race-write .env a.tx",
    "{reads} race-exchange secrets/key a.txt",
    "{reads} race-link .env a.txt",
    "{reads} race-link secrets/key a.txt",
];

/// Attacks without a control, because they remove or move the file, or because they attack the sandbox
/// itself.
const UNCONTROLLED: &[&str] = &[
    "{reads} race-exchange secrets src; cat src/key",
    "{reads} path-removed .env",
    "{reads} path-removed secrets/key; mv secrets moved",
    "{reads} writer .env",
    "for number in /proc/$PPID/fd/*; do cat $number; cat $number/.env; done",
    "cat /proc/$PPID/cwd/.env; cat /proc/$PPID/root$PWD/.env; cat /proc/$PPID/environ",
    "chmod 000 secrets; mv secrets moved; chmod 700 secrets moved; cat moved/key",
    "(while :; do mv sub/inner src/inner; mv src/inner sub/inner; done) 2>/dev/null & \
     for i in 1 2 3 4 5 6 7 8 9 10; do mv -T sub moved; mv -T moved sub; done; kill $!; cat moved/.env",
];

fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = dir.path().join("reads");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escape/reads.c");
        let built =
            Command::new("cc").args(["-O1", "-w", "-pthread"]).arg(source).arg("-o").arg(&program).status();
        assert!(built.unwrap().success(), "tests/escape/reads.c");
        (dir, program)
    });
    program
}

/// Adds files that the rules of [`sandbox`] deny.
fn add_denied_files(fixture: &SandboxFixture) {
    let work = fixture.work();
    std::fs::create_dir_all(work.join("secrets")).unwrap();
    std::fs::create_dir_all(work.join("sub/inner")).unwrap();
    for name in [".env", "sub/.env", "sub/inner/.env", "secrets/key"] {
        std::fs::write(work.join(name), format!("token={SECRET}\n")).unwrap();
    }
    std::fs::write(work.join("a.tx"), "allowed\n").unwrap();
    for (target, link) in
        [(".env", "link_to_env"), ("secrets", "folder_link"), ("link_to_env", "link_to_link")]
    {
        std::os::unix::fs::symlink(target, work.join(link)).unwrap();
    }
    make_state_folder(fixture);
}

const PATTERNS: [&str; 2] = ["**/.env", "secrets/**"];

/// The kinds of sandboxes that can keep a command from reading files.
const KINDS: [&str; 5] = ["read-only", "plan", "ask", "code", "shell"];

fn sandbox(kind: &str, fixture: &SandboxFixture) -> CommandSandbox {
    let patterns = PATTERNS.iter().map(|pattern| (*pattern).to_owned()).collect();
    let shell = shell(&fixture.home(), Sandbox::Workspace).denying_reads(patterns);
    let roots = [fixture.work()];
    let policy = match kind {
        "read-only" => return shell.read_only(&roots).unwrap(),
        "shell" => return shell.workspace(&roots),
        "plan" => BrokerPolicy::Nothing,
        "ask" => BrokerPolicy::Ask,
        "code" => BrokerPolicy::Roots,
        _ => panic!("{kind} is none of {KINDS:?}"),
    };
    let state = ["~/.state".into()];
    shell.brokered_agent(AgentFolders::of(&roots, &state), policy, None, AgentNetwork::OPEN).unwrap()
}

async fn run(fixture: &SandboxFixture, line: &str, sandbox: &CommandSandbox) -> String {
    let line = fixture.fill_in(line).replace("{reads}", &program().display().to_string());
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    finish(shell.start(&line, &fixture.work(), sandbox).await.unwrap()).await.0
}

/// Returns true if an attack succeeds without a sandbox. A race runs several times, because it can lose on a
/// busy machine.
async fn reads_without_sandbox(line: &str, pool: &FixturePool) -> bool {
    let tries = if line.contains("race-") { 10 } else { 1 };
    for _ in 0..tries {
        let fixture = pool.take();
        let text = free(&fixture, &line.replace("{reads}", &program().display().to_string())).await;
        pool.put_back(fixture);
        if text.contains(SECRET) {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn no_attack_reads_a_denied_file() {
    require_sandbox();
    let pool = FixturePool::new(add_denied_files);
    let attack = async |line: &'static str| {
        let mut read = Vec::new();
        for kind in KINDS {
            let fixture = pool.take();
            let text = run(&fixture, line, &sandbox(kind, &fixture)).await;
            if text.contains(SECRET) {
                read.push(format!("{line} ({kind}): {text}"));
            }
            pool.put_back(fixture);
        }
        (line, read, reads_without_sandbox(line, &pool).await)
    };
    let lines = ATTACKS.iter().chain(UNCONTROLLED).copied();
    let results: Vec<_> =
        futures_util::stream::iter(lines).map(attack).buffer_unordered(CONCURRENT_CASES).collect().await;
    let read: Vec<_> = results.iter().flat_map(|(_, read, _)| read.clone()).collect();
    assert!(read.is_empty(), "{} attacks read a denied file:\n{}", read.len(), read.join("\n"));
    let is_controlled = |line: &&str| ATTACKS.contains(line);
    let idle: Vec<_> = results
        .iter()
        .filter(|(line, _, reads)| is_controlled(line) && !reads)
        .map(|(line, ..)| line)
        .collect();
    assert!(idle.is_empty(), "the control reads nothing: {idle:?}");
}

/// Lines that print `done` without a sandbox, and in a sandbox that denies other files.
const ALLOWED: &[&str] = &[
    "test \"$(cat a.txt)\" = 'old a' && echo done",
    "grep -q 'old a' < a.txt && echo done",
    "cat /proc/self/status | grep -q '^Name:.*cat' && echo done",
    "test \"$(cat /proc/$$/comm)\" = bash && echo done",
    "read -r line < /proc/self/stat && test \"${line%% *}\" = $$ && echo done",
    "exec 3<a.txt; grep -q old /proc/self/fd/3 && grep -q old /dev/fd/3 && echo done",
    "exec 3<sub; grep -q deep /proc/self/fd/3/deep.txt && echo done",
    "echo text | grep -q text /dev/stdin && echo done",
    "grep -q text <(echo text) && echo done",
    "grep -q text /dev/stdin <<< text && echo done",
    "grep -q 'old a' /proc/self/cwd/a.txt && echo done",
    "cat /proc/meminfo /proc/sys/kernel/ostype > /dev/null && echo done",
    "head -c 4 /dev/urandom > /dev/null; cat /dev/null && echo done",
    "cat /dev/tty 2>&1 | grep -q 'No such device' && echo done",
    "cmp /proc/self/exe $(readlink -f $(command -v cmp)) && echo done",
    "ls . > /dev/null && ls sub/ > /dev/null && find . -name deep.txt | grep -q deep && echo done",
    "ulimit -n 20; bash -c 'exec {a}<a.txt; for i in $(seq 40); do exec {b}<a.txt; done' 2>&1 | grep -q 'Too many' && echo done",
    "cat none 2>&1 | grep -q 'No such file' && cat sub 2>&1 | grep -q 'Is a directory' && cat a.txt/x 2>&1 | grep -q 'Not a directory' && echo done",
    "sh ./script.sh 2>/dev/null; ./helper 2>/dev/null; test $? -lt 126 && echo done",
    "test \"$(wc -c < a.txt)\" = 6 && echo done",
    "mkfifo $TMPDIR/pipe && (echo text > $TMPDIR/pipe &) && grep -q text $TMPDIR/pipe && echo done",
    "echo text > $TMPDIR/file && grep -q text $TMPDIR/file && echo done",
    "exec 9<>$TMPDIR/lock && flock 9 && echo done",
    "flock -n $TMPDIR/other true && echo done",
];

/// Lines that print `done` if changes are allowed.
const CHANGES: &[&str] = &[
    "echo new > new.txt && grep -q new new.txt && echo done",
    "exec 9<>both.txt && echo text >&9 && grep -q text both.txt && echo done",
    "flock -n lock.txt true && flock -n lock.txt true && echo done",
    "mkfifo pipe && (echo text > pipe &) && grep -q text pipe && echo done",
    "mkfifo pipe && (grep -q text pipe && echo done) & while ! test -p pipe; do :; done; echo text > pipe; wait",
    "mkfifo one two && (cat one > two &) && (echo text > one &) && grep -q text two && echo done",
    "mv src renamed && test -f renamed/lib.rs && mv renamed src && echo done",
    "mkdir -p deep/er && touch deep/er/x && mv deep other && ls other/er | grep -q x && echo done",
    "printf '#!/bin/sh\\necho done\\n' > run.sh && chmod +x run.sh && ./run.sh",
    "ln a.txt again && grep -q old again && echo done",
    "git status --short | grep -q untracked && git add a.txt && echo done",
    "echo x > secrets/new; mv secrets/key secrets/other && echo done",
];

#[tokio::test]
async fn other_files_can_be_read() {
    require_sandbox();
    let mut failed = Vec::new();
    let pool = FixturePool::new(add_denied_files);
    for (lines, kinds) in [(ALLOWED, &KINDS[..]), (CHANGES, &["code", "shell"])] {
        for line in lines {
            for kind in kinds {
                let fixture = pool.take();
                let text = run(&fixture, line, &sandbox(kind, &fixture)).await;
                pool.put_back(fixture);
                // The read-only sandbox has no `/proc` of its own processes.
                let is_left_out = *kind == "read-only"
                    && ["/proc/", "/dev/fd", "/dev/stdin", "<(", "helper"]
                        .iter()
                        .any(|part| line.contains(part));
                if !text.contains("done") && !is_left_out {
                    failed.push(format!("{line} ({kind}): {text}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
