//! Every way to write, forced by a model. In plan nothing changes. In code the same attempts change files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use modegate::model::{ModelEvent, ModelStop};
use serde_json::{Value, json};

use crate::support::{Setup, TestClient};

/// A call, and the change that is expected in code.
struct Attempt {
    tool: &'static str,
    arguments: Value,
    works_in_code: bool,
}

fn attempts(outside: &Path) -> Vec<Attempt> {
    let works = |tool, arguments| Attempt { tool, arguments, works_in_code: true };
    let never = |tool, arguments| Attempt { tool, arguments, works_in_code: false };
    vec![
        works("write_file", json!({ "path": "new.txt", "content": "x" })),
        works("write_file", json!({ "path": "deep/er/new.txt", "content": "x" })),
        // Denied in code, too, because the model has not read the file.
        never("write_file", json!({ "path": "a.txt", "content": "x" })),
        works("edit_file", json!({ "path": "b.txt", "old_text": "old", "new_text": "new" })),
        works("edit_file", json!({ "path": "link.txt", "old_text": "target", "new_text": "new" })),
        works("apply_patch", json!({ "patch": "--- a/link.txt\n+++ b/link.txt\n@@\n-target\n+new\n" })),
        works("write_file", json!({ "path": "sub/../new.txt", "content": "x" })),
        // Outside of the session's folders: by `..`, by an absolute path, and through links.
        never("write_file", json!({ "path": "../outside/kept.txt", "content": "x" })),
        never("write_file", json!({ "path": outside.join("kept.txt"), "content": "x" })),
        never("write_file", json!({ "path": "way_out/kept.txt", "content": "x" })),
        never("edit_file", json!({ "path": "file_out", "old_text": "kept", "new_text": "x" })),
        never("apply_patch", json!({ "patch": "--- a/file_out\n+++ b/file_out\n@@\n-kept\n+x\n" })),
        // Arguments that the tool does not have, and names of tools that do not exist.
        never("write_file", json!({ "path": "a.txt", "content": "x", "mode": "code" })),
        never("write_file", json!("a.txt")),
        never("Write_All", json!({ "path": "new.txt", "content": "x" })),
        never("shell", json!({ "command": "echo x > a.txt" })),
        never("switch_mode", json!({ "mode": "code" })),
        never("", json!({})),
    ]
}

fn create_files(dir: &Path) {
    let work = dir.join("work");
    fs::create_dir(dir.join("outside")).unwrap();
    fs::create_dir(work.join("sub")).unwrap();
    fs::write(dir.join("outside/kept.txt"), "kept").unwrap();
    for (name, text) in [("a.txt", "old a"), ("b.txt", "old b"), ("c.txt", "old c"), ("target.txt", "target")]
    {
        fs::write(work.join(name), text).unwrap();
    }
    #[cfg(unix)]
    for (to, link) in
        [("target.txt", "link.txt"), ("../outside", "way_out"), ("../outside/kept.txt", "file_out")]
    {
        std::os::unix::fs::symlink(to, work.join(link)).unwrap();
    }
}

/// Returns the paths, contents, modes and times of everything below a folder.
fn snapshot(folder: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let facts =
                format!("{:?} {:?} {:?} {content:?}", meta.permissions(), meta.modified(), meta.file_type());
            all.insert(path.display().to_string(), facts);
            if meta.is_dir() {
                folders.push(path);
            }
        }
        let meta = folder.metadata().unwrap();
        all.insert(folder.display().to_string(), format!("{:?}", meta.modified()));
    }
    all
}

/// Makes one attempt in a mode. Returns true if the tree changed, and the model's result.
async fn force(mode: &'static str, attempt: &Attempt) -> (bool, String) {
    let mut client = TestClient::with(Setup { mode, ..Setup::default() });
    let dir = client.dir.path().canonicalize().unwrap();
    create_files(&dir);
    let mut arguments = attempt.arguments.clone();
    // The absolute path differs in each run.
    if let Some(path) = arguments.get_mut("path")
        && path.as_str().is_some_and(|path| path.starts_with("/outside"))
    {
        *path = json!(dir.join(path.as_str().unwrap().trim_start_matches('/')));
    }
    let session = client.session().await;
    let before = snapshot(&dir);
    let id = client.prompt(&session, "write").await;
    let name = attempt.tool.into();
    client.model.say(&session, Ok(ModelEvent::ToolCall { id: "forced".into(), name, arguments }));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let messages = client.until_answer(id).await;
    assert!(
        messages.iter().all(|message| message["method"] != "session/request_permission"),
        "nothing is asked"
    );
    let requests = client.model.requests(&session);
    let offered = requests[0].tools.iter().any(|tool| tool.name == attempt.tool);
    let result = messages.iter().rfind(|message| message["params"]["update"]["status"].is_string()).unwrap();
    let text = crate::support::scripted_model::summary(&requests[1]);
    assert!(text.contains(" forced "), "the result has the call's id: {text}");
    let completed = result["params"]["update"]["status"] == "completed";
    assert!(offered || !completed, "what is not offered is not carried out");
    let changed = snapshot(&dir) != before;
    client.end().await;
    (changed, text)
}

#[tokio::test]
async fn forced_writes_change_nothing_in_plan_mode() {
    for attempt in attempts(Path::new("/outside")) {
        let case = format!("{} {}", attempt.tool, attempt.arguments);
        let (changed, text) = force("plan", &attempt).await;
        assert!(!changed, "plan: {case}: {text}");
        assert!(text.contains("error forced"), "plan: {case}: {text}");
        let (changed, text) = force("code", &attempt).await;
        assert_eq!(changed, attempt.works_in_code, "code: {case}: {text}");
    }
}
