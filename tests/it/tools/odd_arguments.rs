//! Generated arguments for every tool. No arguments of a model cause a panic, and each run ends.

use std::fmt::Write;
use std::process::{Command, Stdio};

use modegate::tool::Toolset;
use serde_json::{Map, Value, json};

const FILE: &str = "def f():\n    a = 1\n    b = “2”\n\tc = 3\r\n\n    return a\n";

/// Calls of each tool.
const CALLS: usize = 30;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// Returns parts of the file with other blanks at their ends, or text that no tool expects.
    fn text(&mut self) -> String {
        let lines: Vec<&str> = FILE.split_inclusive('\n').collect();
        match self.below(4) {
            0 => {
                let from = self.below(lines.len());
                let to = from + 1 + self.below(lines.len() - from);
                let part = lines[from..to].concat();
                let tail = self.one(&["", "\t", "  ", "\n\t", "\r\n", "\u{a0}", "\n"]);
                let part = if self.below(3) == 0 { part.replace(['“', '”'], "\"") } else { part };
                part.trim_end_matches(|c| self.below(2) == 0 && c == '\n').to_owned() + tail
            }
            1 => self
                .one(&["a.txt", "b.txt", ".", "..", "/", "*", "**/[", "~", "new/x.txt", "a.txt/x"])
                .to_owned(),
            2 => self
                .one(&[
                    "",
                    " ",
                    "\t",
                    "\n",
                    "\r\n\r",
                    "\u{feff}",
                    "\0",
                    "é\u{301}💥",
                    "\u{202e}x",
                    "@@",
                    "*** Begin Patch",
                ])
                .to_owned(),
            _ => {
                let unit = self.one(&["x", "é", " \t", "\n", "(", "[a", "{}"]);
                unit.repeat(self.one(&[1, 7, 300, 70_000]))
            }
        }
    }

    /// Returns a value that fits the schema, or sometimes a value of another type.
    fn value(&mut self, schema: &Value, whole: &Value, depth: usize) -> Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            return self.value(&whole["$defs"][name], whole, depth);
        }
        if depth > 6 || self.below(25) == 0 {
            return self.one(&[
                json!(null),
                json!([]),
                json!({}),
                json!(-1),
                json!("x"),
                json!(1.5),
                json!(true),
            ]);
        }
        if let Some(words) = schema["enum"].as_array().filter(|_| self.below(4) > 0) {
            return self.one(words);
        }
        if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            let choice = self.one(choices);
            return self.value(&choice, whole, depth + 1);
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => self.one(kinds),
            kind => kind.clone(),
        };
        match kind.as_str() {
            Some("object") => {
                let mut object = Map::new();
                for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                    if self.below(6) > 0 {
                        object.insert(name.clone(), self.value(schema, whole, depth + 1));
                    }
                }
                Value::Object(object)
            }
            Some("array") => {
                let length = self.one(&[0, 1, 1, 2, 5]);
                (0..length).map(|_| self.value(&schema["items"], whole, depth + 1)).collect()
            }
            Some("integer" | "number") => self.one(&[
                json!(0),
                json!(1),
                json!(2),
                json!(-1),
                json!(99_999),
                json!(u64::MAX),
                json!(i64::MIN),
            ]),
            Some("boolean") => json!(self.below(2) == 0),
            _ => json!(self.text()),
        }
    }
}

fn run(name: &str, schema: &Value, seed: u64) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("work")).unwrap();
    for file in ["a.txt", "b.txt"] {
        std::fs::write(dir.path().join("work").join(file), FILE).unwrap();
    }
    let mut random = Random(seed);
    let mut script = String::new();
    for call in 0..CALLS {
        let mut arguments = random.value(schema, schema, 0);
        // Half of the calls name the file, so that most edits reach it.
        if let Some(path) = arguments.get_mut("path").filter(|_| call % 2 == 0) {
            *path = json!("a.txt");
        }
        let call = json!({ "tool_call": { "id": format!("c{call}"), "name": name, "arguments": arguments } });
        write!(script, "{call}\n{{\"stop\":\"done\"}}\n").unwrap();
    }
    script.push_str("{\"text\":\"end\"}\n{\"stop\":\"done\"}\n{\"loop\":true}\n");
    std::fs::write(dir.path().join("script.jsonl"), script).unwrap();
    let model = format!("scripted:{}", dir.path().join("script.jsonl").display());
    let steps = (CALLS + 2).to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--store", "memory", "--mode", "code", "--model", &model, "--output", "stream-json"])
        .args(["--max-steps", &steps, "--timeout", "60", "-p", "go"])
        .current_dir(dir.path().join("work"))
        .env_clear()
        .env("HOME", dir.path())
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let errors = text(&output.stderr);
    assert!(!errors.contains("panicked"), "{name}, seed {seed}: {errors}");
    assert_ne!(output.status.code(), Some(6), "{name}, seed {seed}: the calls did not end");
    let lines = text(&output.stdout);
    crate::support::headless_output::check_lines(&lines);
    lines
}

/// `ODD_SEEDS=20 cargo test --test it -- odd_arguments` tries more seeds.
#[test]
fn odd_arguments_never_cause_a_panic() {
    let seeds = std::env::var("ODD_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    let mut ended = 0;
    for tool in Toolset::built_in().all() {
        let spec = tool.spec();
        let schema: Value = serde_json::from_str(spec.schema.as_json().get()).unwrap();
        for seed in 0..seeds {
            let output = run(&spec.name, &schema, seed);
            assert!(!output.contains("failed unexpectedly"), "{}, seed {seed}: {output}", spec.name);
            ended += output.matches("\"status\":\"completed\"").count();
        }
    }
    assert!(ended > 40, "the control: only {ended} calls succeeded");
}
