//! Keys in the binary: `modegate setup` stores them, no child process inherits them, and no output shows
//! them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const KEY: &str = "k-very-secret-51";

/// Runs the binary in this home, with a key in the environment and a line at stdin.
fn run(home: &Path, arguments: &[&str], input: &str) -> (i32, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .current_dir(home)
        .args(arguments)
        .env_clear()
        .env("HOME", home)
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("ANTHROPIC_API_KEY", KEY)
        .env("MODEGATE_LOG", "trace")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The process may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
    (status.code().unwrap_or(-1), text)
}

#[test]
fn child_processes_logs_and_store_contain_no_keys() {
    let home = tempfile::tempdir().unwrap();
    let seen = home.path().join("seen");
    let folder = home.path().join(".config/modegate");
    fs::create_dir_all(&folder).unwrap();
    let command = format!("env > '{}'; echo {KEY}", seen.display());
    let config =
        format!("providers: {{openai: {{base_url: 'http://127.0.0.1:1/v1', key_command: \"{command}\"}}}}\n");
    fs::write(folder.join("config.yaml"), config).unwrap();
    let (code, text) = run(home.path(), &["--model", "openai/m", "-p", "hello"], "");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("127.0.0.1:1: no connection"), "{text}");
    assert!(text.contains("; the address comes from base_url of openai in "), "{text}");
    assert!(!text.contains(KEY), "{text}");
    let environment = fs::read_to_string(seen).unwrap();
    assert!(environment.contains("HOME="), "the command ran: {environment}");
    assert!(!environment.contains(KEY), "{environment}");
    let folder = home.path().join(".local/share/modegate");
    // The file may still be empty, with all rows in the write-ahead log.
    let store =
        ["modegate.db", "modegate.db-wal"].map(|name| fs::read(folder.join(name)).unwrap_or_default());
    let store = store.concat();
    let is_stored = |text: &str| store.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    assert!(is_stored("hello"), "the control: the prompt is stored");
    assert!(!is_stored(KEY));
}

#[test]
fn setup_stores_keys_readable_only_by_the_owner() {
    let home = tempfile::tempdir().unwrap();
    let (code, text) = run(home.path(), &["setup"], "");
    assert_eq!(code, 1);
    assert!(text.contains("--provider anthropic|openai-responses|openai|gemini|ollama"), "{text}");
    // Clients append `setup` to the command line that starts the agent.
    let arguments = ["--mode", "plan", "--store", "memory", "setup", "--provider", "gemini"];
    let (code, text) = run(home.path(), &arguments, &format!("{KEY}\n"));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("gemini/gemini-4-hydrogen") && !text.contains(KEY), "{text}");
    let path = home.path().join(".config/modegate/setup.yaml");
    assert!(fs::read_to_string(&path).unwrap().contains(KEY));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let (code, text) = run(home.path(), &["setup", "--remove", "openai"], "");
    assert!(code == 1 && text.contains("nothing is stored of openai"), "{text}");
    let (code, text) = run(home.path(), &["setup", "--remove", "gemini"], "");
    assert_eq!(code, 0, "{text}");
    let left = fs::read_to_string(&path).unwrap();
    assert!(!left.contains(KEY) && !left.contains("gemini"), "{left}");
    let (code, text) =
        run(home.path(), &["setup", "--provider", "openai", "--base-url", "localhost:1"], "\n");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("does not start with http"), "{text}");
}
