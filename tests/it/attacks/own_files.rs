//! Modegate's own files in every place where the user can keep them: settings, store, recording, and the
//! copies for undo.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::requirements::{lasting_folder, python, require_sandbox};

/// A home folder and a session's folder. The session's folder is neither temporary nor in the home.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        require_sandbox();
        let dir = lasting_folder();
        for folder in ["work", "home", "elsewhere"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn fill_in(&self, text: &str) -> String {
        text.replace("{dir}", self.path("").display().to_string().trim_end_matches('/'))
    }

    fn modegate(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command.args(arguments.iter().map(|argument| self.fill_in(argument)));
        command.current_dir(self.path("work")).env("HOME", self.path("home")).stdin(Stdio::null());
        for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().map(|(name, value)| (name, self.fill_in(value))));
        command
    }

    fn output(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.modegate(arguments, variables).output().unwrap();
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
    }
}

/// The place of a protected file: options, variables, and the file.
#[derive(Clone, Copy)]
struct Kept {
    options: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    file: &'static str,
}

const KEPT: &[Kept] = &[
    Kept { options: &["--store", "{dir}/work/s.db"], variables: &[], file: "{dir}/work/s.db" },
    Kept { options: &["--store", "s.db"], variables: &[], file: "{dir}/work/s.db" },
    Kept { options: &["--store", "{dir}/work/sub/../s.db"], variables: &[], file: "{dir}/work/s.db" },
    Kept { options: &["--store", "{dir}/work/s.db"], variables: &[], file: "{dir}/work/s.db-wal" },
    Kept { options: &["--store", "{dir}/work/s.db"], variables: &[], file: "{dir}/work/s.db-shm" },
    Kept {
        options: &[],
        variables: &[("XDG_DATA_HOME", "{dir}/work/data")],
        file: "{dir}/work/data/modegate/modegate.db",
    },
    Kept {
        options: &[],
        variables: &[("XDG_CONFIG_HOME", "{dir}/work/config")],
        file: "{dir}/work/config/modegate/config.yaml",
    },
    Kept {
        options: &[],
        variables: &[("XDG_CONFIG_HOME", "{dir}/work/config")],
        file: "{dir}/work/config/modegate/new.yaml",
    },
];

/// Shell lines that change a file.
const CHANGES: &[&str] = &[
    "echo forged >> {file}",
    "rm -f {file}",
    "mv {file} moved",
    "echo x > x; mv x {file}",
    "ln -sf /dev/null {file}",
    "ln {file} hard && echo forged >> hard",
    "truncate -s 1 {file}",
    "cp /dev/null {file}",
    "mkdir -p evil; mv $(dirname {file}) old && mv -T evil $(dirname {file})",
    "exec 9<>{file} && echo forged >&9",
];

/// Prints EFFECT if the file has another content or inode, or was created or removed.
fn changing(line: &str, file: &str) -> String {
    let state = format!("stat -c '%i %s %h %F' {file} 2>&1; head -c 12 {file} 2>/dev/null | od -c");
    let line = line.replace("{file}", file);
    format!(
        "cd {{dir}}/work; before=$({state}); ({line}) 2>/dev/null; [ \"$before\" = \"$({state})\" ] || echo EFFECT"
    )
}

fn prepare(scene: &Scene, kept: Kept) -> String {
    let file = scene.fill_in(kept.file);
    std::fs::create_dir_all(scene.path("work/sub")).unwrap();
    if file.contains("/config/") {
        std::fs::create_dir_all(Path::new(&file).parent().unwrap()).unwrap();
        std::fs::write(scene.path("work/config/modegate/config.yaml"), "{}\n").unwrap();
    }
    file
}

#[test]
fn sandboxed_programs_change_no_file_of_modegate() {
    for kept in KEPT {
        let scene = Scene::new();
        let file = prepare(&scene, *kept);
        let attempt = |line: &&str| format!("(echo '{line}'; {})\n", changing(line, &file));
        let lines = CHANGES.iter().map(attempt).collect::<String>() + "echo end";
        let arguments = [kept.options, &["run", "--mode", "code", "--", "bash", "-c", &lines]].concat();
        let text = scene.output(&arguments, kept.variables);
        assert!(text.contains("modegate: code mode") && text.lines().any(|line| line == "end"), "{text}");
        assert!(!text.lines().any(|line| line == "EFFECT"), "{text}");
    }
    // The control: without Modegate.
    let is_settings = |kept: &&Kept| kept.file.ends_with("config.yaml");
    for line in CHANGES {
        let scene = Scene::new();
        let file = prepare(&scene, *KEPT.iter().find(is_settings).unwrap());
        let line = scene.fill_in(&changing(line, &file));
        let free = Command::new("bash").args(["-c", &line]).output().unwrap();
        assert!(String::from_utf8_lossy(&free.stdout).contains("EFFECT"), "{line}");
    }
}

#[test]
fn state_folders_that_contain_own_files_are_refused() {
    for (options, variables) in [
        (&["--store", "{dir}/elsewhere/s.db"][..], &[][..]),
        (&["--store", "{dir}/elsewhere/deep/s.db"], &[]),
        (&[], &[("XDG_DATA_HOME", "{dir}/elsewhere/data")]),
        (&[], &[("XDG_CONFIG_HOME", "{dir}/elsewhere/config")]),
        (&["--store", "{dir}/elsewhere/link/s.db"], &[]),
    ] {
        let scene = Scene::new();
        std::fs::create_dir(scene.path("elsewhere/deep")).unwrap();
        std::os::unix::fs::symlink("deep", scene.path("elsewhere/link")).unwrap();
        let inside = "echo x > {dir}/elsewhere/deep/forged; echo x > {dir}/elsewhere/forged";
        let run = ["run", "--state-dir", "{dir}/elsewhere", "--mode", "plan", "--", "bash", "-c", inside];
        let text = scene.output(&[options, &run].concat(), variables);
        assert!(
            text.contains("shares files with Modegate's settings or session store"),
            "{options:?}: {text}"
        );
        assert!(!scene.path("elsewhere/forged").exists() && !scene.path("elsewhere/deep/forged").exists());
        let text = scene.output(&run, &[]);
        assert!(scene.path("elsewhere/forged").exists(), "the control: {text}");
    }
}

/// Runs calls of built-in tools in code mode, and returns their results.
fn call(scene: &Scene, options: &[&str], calls: &[(&str, Value)]) -> String {
    let mut script = String::new();
    for (index, (name, arguments)) in calls.iter().enumerate() {
        let call = json!({ "tool_call": { "id": index.to_string(), "name": name, "arguments": arguments } });
        script += &format!("{call}\n{{\"stop\":\"done\"}}\n");
    }
    script += "{\"text\":\"end\"}\n{\"stop\":\"done\"}\n";
    std::fs::write(scene.path("script.jsonl"), script).unwrap();
    let call_options =
        ["--mode", "code", "--model", "scripted:{dir}/script.jsonl", "--output", "stream-json", "-p", "go"];
    scene.output(&[options, &call_options].concat(), &[])
}

#[test]
fn tools_do_not_touch_the_store() {
    let scene = Scene::new();
    let path = scene.fill_in("{dir}/work/s.db");
    let call_all = |path: &str| {
        let text = scene.path("work/text.txt");
        std::fs::write(&text, "text\n").unwrap();
        let scene = &scene;
        [
            ("write_file", json!({ "path": path, "content": "forged" })),
            ("delete_file", json!({ "path": path })),
            ("move_file", json!({ "from": path, "to": "moved.txt" })),
            ("move_file", json!({ "from": "text.txt", "to": path })),
            ("edit_file", json!({ "path": path, "old_text": "SQLite", "new_text": "forged" })),
            ("read_file", json!({ "path": path })),
            ("shell", json!({ "command": format!("echo forged >> {path} && echo EFFECT") })),
            ("shell", json!({ "command": format!("mv {path} m && echo EFFECT") })),
            ("shell", json!({ "command": format!("cat {path} && echo EFFECT") })),
            ("shell_read_only", json!({ "command": format!("cat {path} && echo EFFECT") })),
        ]
        .map(|(name, arguments)| (name, call(scene, &["--store", "{dir}/work/s.db"], &[(name, arguments)])))
    };
    for (name, text) in call_all(&path) {
        let refused = text.contains("belongs to Modegate") || text.contains("ermission denied");
        assert!(refused && !text.contains("EFFECT\\n"), "{name}: {text}");
    }
    let head = std::fs::read(&path).unwrap();
    assert!(head.starts_with(b"SQLite format 3"));
    // The control: a file beside the store.
    std::fs::write(scene.path("work/s.db.txt"), "SQLite\n").unwrap();
    let shell = json!({ "command": "echo forged >> s.db.txt && cat s.db.txt && echo EFFECT" });
    let text = call(&scene, &["--store", "{dir}/work/s.db"], &[("shell", shell)]);
    assert!(text.contains("EFFECT\\n"), "{text}");
    let search = json!({ "pattern": "go", "path": "." });
    let text = call(&scene, &["--store", "{dir}/work/s.db"], &[("search_files", search)]);
    assert!(!text.contains("s.db-"), "{text}");
}

#[test]
fn recording_is_not_changed_by_the_session_that_it_records() {
    let scene = Scene::new();
    let shell = json!({ "command": "echo forged >> r.jsonl && echo EFFECT; echo x > other && echo CONTROL" });
    let text = {
        let call = json!({ "tool_call": { "id": "1", "name": "shell", "arguments": shell } });
        let script = format!("{call}\n{{\"stop\":\"done\"}}\n{{\"text\":\"end\"}}\n{{\"stop\":\"done\"}}\n");
        std::fs::write(scene.path("script.jsonl"), script).unwrap();
        let arguments =
            ["--record", "{dir}/work/r.jsonl", "--mode", "code", "--model", "scripted:{dir}/script.jsonl"];
        let work = scene.path("work").display().to_string();
        let requests = [
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } }),
            json!({ "jsonrpc": "2.0", "id": 2, "method": "session/new", "params": { "cwd": work, "mcpServers": [] } }),
        ];
        let mut agent =
            scene.modegate(&arguments, &[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut input, output) = (agent.stdin.take().unwrap(), agent.stdout.take().unwrap());
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(output));
        let mut send =
            |value: &Value| std::io::Write::write_all(&mut input, format!("{value}\n").as_bytes()).unwrap();
        requests.iter().for_each(&mut send);
        let mut answer = |id: i64| loop {
            let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            if line["id"] == id && line.get("method").is_none() {
                break line;
            }
        };
        let session = answer(2)["result"]["sessionId"].clone();
        let prompt = json!([{ "type": "text", "text": "go" }]);
        let params = json!({ "sessionId": session, "prompt": prompt });
        send(&json!({ "jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params }));
        answer(3);
        drop(input);
        agent.wait().unwrap();
        std::fs::read_to_string(scene.path("work/r.jsonl")).unwrap()
    };
    assert!(text.contains("nCONTROL\\\\n"), "{text}");
    assert!(!text.contains("nEFFECT\\\\n") && !text.lines().any(|line| line == "forged"), "{text}");
}

/// Neither the copies for undo nor the store reveal a file that a rule denies.
#[test]
fn denied_file_is_not_read_from_its_copy() {
    let copies = "{dir}/home/.local/share/modegate";
    let python = format!(
        "{} -c 'import glob, os; print([open(f, \"rb\").read() for f in glob.glob(\"{{copies}}/**\", recursive=True) if os.path.isfile(f)])'",
        python()
    );
    for read in [
        "find {copies} -type f -exec cat {} +",
        "cd {copies}; for f in *-owners/*/*-agent/*; do cat $f; done",
        "cp -r {copies} copied; find copied -type f -exec cat {} +",
        "ln -s {copies} link; find -L link -type f -exec cat {} +",
        "cat {copies}/modegate.db {copies}/modegate.db-wal",
        "for f in $(find {copies} -type f); do ln $f hard; cat hard; rm -f hard; done",
        &python,
    ] {
        let inside = format!("rm .env; {read}").replace("{copies}", copies);
        let run = |rules: &str| {
            let scene = Scene::new();
            std::fs::create_dir_all(scene.path("home/.config/modegate")).unwrap();
            std::fs::write(scene.path("home/.config/modegate/permissions.yaml"), rules).unwrap();
            std::fs::write(scene.path("work/.env"), "KEY=s3cret\n").unwrap();
            scene.output(&["run", "--mode", "code", "--", "bash", "-c", &inside], &[])
        };
        let text = run("permissions:\n  deny: [\"read_file(**/.env)\"]\n");
        assert!(!text.contains("s3cret"), "{read}: {text}");
        if !read.contains("modegate.db ") && !read.contains("ln $f") {
            let text = run("{}\n");
            assert!(text.contains("s3cret"), "the control of {read}: {text}");
        }
    }
}
