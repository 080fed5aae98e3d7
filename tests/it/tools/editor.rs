//! File tools with an editor that has `fs` capabilities: reads return unsaved text, changes go through the
//! editor, and denied calls write nothing.

use serde_json::{Value, json};

use crate::support::editor_client::{EditorClient, all};

fn can(reads: bool, writes: bool) -> Value {
    json!({ "fs": { "readTextFile": reads, "writeTextFile": writes } })
}

fn edit(old: &str, new: &str) -> Value {
    json!({ "path": "a.txt", "old_text": old, "new_text": new })
}

async fn undo(client: &mut EditorClient) -> String {
    let prompt = client.client.prompt(&client.session, "/undo").await;
    let messages = client.until_answer(prompt).await;
    let text = messages.iter().filter_map(|message| message["params"]["update"]["content"]["text"].as_str());
    text.collect()
}

#[tokio::test]
async fn unsaved_text_is_read_and_edits_go_through_the_editor() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\ntwo\n", Some("one\nTWO\n"));
    assert_eq!(client.call("read_file", json!({ "path": "a.txt" })).await, "1\tone\n2\tTWO\n");
    assert_eq!(client.call("edit_file", edit("TWO", "2")).await, "Edited a.txt:2 (+1 -1)");
    assert_eq!(client.call("edit_file", edit("one", "1")).await, "Edited a.txt:1 (+1 -1)");
    assert_eq!(client.saved("a.txt").as_deref(), Some("1\n2\n"));
    assert_eq!(client.call("read_file", json!({ "path": "a.txt" })).await, "1\t1\n2\t2\n");
    let writes: Vec<_> =
        client.requests.iter().filter(|(method, _)| method == "fs/write_text_file").collect();
    assert_eq!(writes.len(), 2);
    assert_eq!(writes[0].1["path"], json!(client.path("a.txt")));
    assert_eq!(writes[0].1["content"], "one\n2\n");
    client.end().await;
}

#[tokio::test]
async fn without_fs_capabilities_only_the_disk_is_used() {
    let mut client = EditorClient::new("code", json!({})).await;
    client.file("a.txt", "one\n", Some("unsaved\n"));
    assert_eq!(client.call("read_file", json!({ "path": "a.txt" })).await, "1\tone\n");
    assert_eq!(client.call("edit_file", edit("one", "1")).await, "Edited a.txt:1 (+1 -1)");
    assert_eq!((client.saved("a.txt").as_deref(), client.methods().len()), (Some("1\n"), 0));
    client.end().await;
}

#[tokio::test]
async fn read_and_write_capabilities_are_independent() {
    let mut client = EditorClient::new("code", can(true, false)).await;
    client.file("a.txt", "one\r\ntwo\r\n", Some("one\nTWO\n"));
    assert_eq!(client.call("read_file", json!({ "path": "a.txt" })).await, "1\tone\n2\tTWO\n");
    client.call("edit_file", edit("one", "1")).await;
    assert_eq!(client.saved("a.txt").as_deref(), Some("1\r\nTWO\r\n"), "what was seen, as the file has it");
    assert_eq!(client.count("fs/write_text_file"), 0);
    let undone = undo(&mut client).await;
    assert!(undone.contains("unsaved changes"), "{undone}");
    assert_eq!(client.saved("a.txt").as_deref(), Some("one\r\ntwo\r\n"));
    client.end().await;

    let mut client = EditorClient::new("code", can(false, true)).await;
    client.file("a.txt", "one\n", Some("unsaved\n"));
    client.call("edit_file", edit("one", "1")).await;
    assert_eq!(client.methods(), ["fs/write_text_file"]);
    assert_eq!(client.saved("a.txt").as_deref(), Some("1\n"));
    client.end().await;
}

#[tokio::test]
async fn denied_calls_never_write_through_the_client() {
    let mut client = EditorClient::new("plan", all()).await;
    client.file("a.txt", "one\n", Some("one\n"));
    for (tool, arguments) in [
        ("write_file", json!({ "path": "a.txt", "content": "x" })),
        ("edit_file", edit("one", "1")),
        ("apply_patch", json!({ "patch": "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n" })),
    ] {
        client.call(tool, arguments).await;
        assert_eq!(client.methods(), [""; 0], "{tool}");
    }
    client.set_mode("ask").await;
    let no = json!({ "outcome": { "outcome": "selected", "optionId": "reject_once" } });
    client.override_answer("session/request_permission", no);
    client.call("edit_file", edit("one", "1")).await;
    assert_eq!(
        client.methods(),
        ["fs/read_text_file", "session/request_permission"],
        "only the preview reads"
    );
    client.call("edit_file", edit("one", "1")).await;
    assert_eq!(client.count("fs/write_text_file"), 1, "the control");
    client.end().await;
}

#[tokio::test]
async fn buffer_change_after_the_preview_fails_the_edit() {
    let mut client = EditorClient::new("ask", all()).await;
    client.file("a.txt", "one\n", Some("ONE\n"));
    client.override_answer("session/request_permission", Value::Null);
    let prompt = client.begin(&[("edit_file", edit("ONE", "1"))]).await;
    let request =
        client.until(|message| message["method"] == "session/request_permission").await.pop().unwrap();
    assert_eq!(request["params"]["toolCall"]["content"][0]["oldText"], "ONE\n");
    client.file("a.txt", "one\n", Some("ONE and more\n"));
    let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    let yes = json!({ "jsonrpc": "2.0", "id": request["id"], "result": yes });
    client.client.send_line(&yes.to_string()).await;
    client.until_answer(prompt).await;
    assert!(
        client.last_tool_result().contains("it has changed since the call began. Read it again"),
        "{}",
        client.last_tool_result()
    );
    assert_eq!(client.count("fs/write_text_file"), 0);
    client.end().await;
}

#[tokio::test]
async fn refused_editor_write_leaves_the_disk_unchanged() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", None);
    client.override_answer("fs/write_text_file", json!("the buffer is locked"));
    let text = client.call("edit_file", edit("one", "1")).await;
    assert_eq!(text, "a.txt: the editor refused to write it: the buffer is locked.");
    assert_eq!(client.saved("a.txt").as_deref(), Some("one\n"));
    assert_eq!(client.call("edit_file", edit("one", "1")).await, "Edited a.txt:1 (+1 -1)", "the control");
    client.end().await;
}

#[tokio::test]
async fn partly_refused_patch_is_rolled_back() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", None);
    client.file("b.txt", "two\n", None);
    client.file("c.txt", "three\n", None);
    let patch = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/c.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-three\n\
                 --- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+x\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-two\n+2\n";
    let names = ["a.txt", "b.txt", "c.txt", "new.txt"];
    let saved = |client: &EditorClient| names.map(|name| client.saved(name).unwrap_or_default());
    client.locked.push(client.path("b.txt"));
    let text = client.call("apply_patch", json!({ "patch": patch })).await;
    assert_eq!(text, "b.txt: the editor refused to write it: locked.");
    assert_eq!(client.count("fs/write_text_file"), 4, "two were made, and the one that was not new put back");
    assert_eq!(saved(&client), ["one\n", "two\n", "three\n", ""]);
    assert!(client.saved("new.txt").is_none());
    client.locked.clear();
    let text = client.call("apply_patch", json!({ "patch": patch })).await;
    assert_eq!(
        text,
        "Applied the patch:\nedited a.txt:1 (+1 -1)\ndeleted c.txt\ncreated new.txt\nedited b.txt:1 (+1 -1)"
    );
    assert_eq!(saved(&client), ["1\n", "2\n", "", "x\n"], "the control");
    undo(&mut client).await;
    assert_eq!(saved(&client), ["one\n", "two\n", "three\n", ""], "undone on the disk");
    client.end().await;
}

#[tokio::test]
async fn tightening_waits_for_sent_writes_or_names_them() {
    for answers in [true, false] {
        let mut client = EditorClient::new("code", all()).await;
        client.file("a.txt", "one\n", None);
        client.override_answer("fs/write_text_file", Value::Null);
        let prompt = client.begin(&[("edit_file", edit("one", "1"))]).await;
        let sent = client.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
        let params = json!({ "sessionId": client.session, "modeId": "plan" });
        let change = client.client.request("session/set_mode", params).await;
        let answer = json!({ "jsonrpc": "2.0", "id": sent["id"], "result": {} }).to_string();
        if answers {
            client.client.send_line(&answer).await;
        }
        let messages = client.until_answer(change).await;
        let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
        let (ended, unconfirmed) = (&effect["ended"], &effect["unconfirmed"]);
        if answers {
            // The call can end before the mode change arrives.
            assert!(*ended == json!(["call_1_1"]) || *ended == json!([]), "{ended}");
            assert_eq!(*unconfirmed, json!([]));
        } else {
            assert_eq!((ended, unconfirmed), (&json!([]), &json!(["call_1_1"])));
            // A late answer is ignored, and the call keeps its status.
            client.client.send_line(&answer).await;
        }
        client.until_answer(prompt).await;
        if !answers {
            assert!(
                client.last_tool_result().contains("did not confirm the write"),
                "{}",
                client.last_tool_result()
            );
            assert_eq!(client.count("$/cancel_request"), 1);
            client.set_mode("code").await;
            let (_, effect) = client.set_mode("plan").await;
            assert_eq!(effect["unconfirmed"], json!(["call_1_1"]), "and named again");
        }
        client.end().await;
    }
}

#[tokio::test]
async fn cancel_does_not_wait_for_a_silent_editor() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", None);
    client.override_answer("fs/read_text_file", Value::Null);
    let prompt = client.begin(&[("read_file", json!({ "path": "a.txt" }))]).await;
    client.until(|message| message["method"] == "fs/read_text_file").await;
    client.cancel().await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert_eq!(client.count("$/cancel_request"), 1, "the question is taken back");
    client.end().await;
}

#[tokio::test]
async fn malformed_read_answer_is_reported_and_blocks_edits() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", None);
    for _ in 0..2 {
        client.override_answer("fs/read_text_file", json!({ "text": "x" }));
    }
    let text = client.call("read_file", json!({ "path": "a.txt" })).await;
    assert!(text.starts_with("1\tone\n[This is the saved text: the editor could not be asked"), "{text}");
    let text = client.call("edit_file", edit("one", "1")).await;
    assert!(text.contains("could not be asked whether it has unsaved text"), "{text}");
    assert!(text.contains("Nothing is changed."), "{text}");
    assert_eq!((client.count("fs/write_text_file"), client.saved("a.txt").as_deref()), (0, Some("one\n")));
    client.end().await;
}

#[tokio::test]
async fn binary_and_unopened_files_are_read_from_disk() {
    let mut client = EditorClient::new("code", all()).await;
    std::fs::write(client.path("binary"), b"a\0b").unwrap();
    assert!(client.call("read_file", json!({ "path": "binary" })).await.contains("is a binary file"));
    assert_eq!(client.methods(), [""; 0], "the editor is not asked");
    client.file("a.txt", "one\n", None);
    assert_eq!(client.call("read_file", json!({ "path": "a.txt" })).await, "1\tone\n");
    assert_eq!(client.methods(), ["fs/read_text_file"]);
    client.call("delete_file", json!({ "path": "a.txt" })).await;
    client.buffers.insert(client.path("a.txt"), "still shown\n".into());
    let text = client.call("read_file", json!({ "path": "a.txt" })).await;
    assert!(text.contains("there is no such file"), "{text}");
    client.end().await;
}

#[tokio::test]
async fn new_files_get_folders_and_links_resolve_before_sending() {
    let mut client = EditorClient::new("code", all()).await;
    let text = client.call("write_file", json!({ "path": "deep/er/n.txt", "content": "x\n" })).await;
    assert_eq!(text, "Created deep/er/n.txt (2 bytes).");
    client.file("a.txt", "one\n", None);
    std::os::unix::fs::symlink("a.txt", client.path("link")).unwrap();
    client.call("read_file", json!({ "path": "a.txt" })).await;
    client.call("write_file", json!({ "path": "link", "content": "two\n" })).await;
    assert_eq!(client.requests.last().unwrap().1["path"], json!(client.path("a.txt")));
    assert_eq!(client.saved("link").as_deref(), Some("two\n"));
    undo(&mut client).await;
    assert_eq!(client.saved("a.txt").as_deref(), Some("one\n"));
    let outside = tempfile::tempdir().unwrap();
    let sent = client.count("fs/write_text_file");
    let path = outside.path().join("x");
    client.call("write_file", json!({ "path": path, "content": "x" })).await;
    assert_eq!((client.count("fs/write_text_file"), path.exists()), (sent, false));
    client.end().await;
}

#[tokio::test]
async fn undo_names_files_the_editor_did_not_save() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", None);
    client.saves = false;
    let text = client.call("edit_file", edit("one", "1")).await;
    let note = "[The editor has the change of a.txt and has not saved it: the file on disk is as before.]";
    assert_eq!(text, format!("Edited a.txt:1 (+1 -1)\n{note}"));
    assert_eq!(client.saved("a.txt").as_deref(), Some("one\n"));
    assert_eq!(
        client.call("read_file", json!({ "path": "a.txt" })).await,
        "1\t1\n",
        "it is what the editor shows"
    );
    let prompt = client.begin(&[("edit_file", edit("1", "2"))]).await;
    client.until_answer(prompt).await;
    let undone = undo(&mut client).await;
    assert!(
        undone
            .contains("a.txt: the editor accepted the change and did not save it; undo that in the editor."),
        "{undone}"
    );
    client.end().await;
}

#[tokio::test]
async fn undo_restores_files_the_editor_reformatted() {
    for (appended_on_save, has_reload_note) in [("\n", true), ("", false)] {
        let mut client = EditorClient::new("code", all()).await;
        client.file("a.txt", "one", None);
        client.appended_on_save = appended_on_save;
        let prompt = client.begin(&[("edit_file", edit("one", "1"))]).await;
        client.until_answer(prompt).await;
        assert_eq!(client.saved("a.txt"), Some(format!("1{appended_on_save}")));
        let undone = undo(&mut client).await;
        assert_eq!(client.saved("a.txt").as_deref(), Some("one"), "{undone}");
        assert_eq!(
            undone.contains("Note: a.txt: the editor saved it with a difference"),
            has_reload_note,
            "{undone}"
        );
        assert_eq!(undone.contains("reload it in the editor.\n"), has_reload_note, "{undone}");
        assert!(!undone.contains("undo that in the editor"), "{undone}");
        client.end().await;
    }
}

#[tokio::test]
async fn failed_client_read_is_not_file_not_found() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", Some("one\nand an hour of work\n"));
    let prompt = {
        client.override_answer("fs/read_text_file", Value::Null);
        client.begin(&[("edit_file", json!({ "path": "a.txt", "old_text": "one", "new_text": "1" }))]).await
    };
    let read = client.until(|message| message["method"] == "fs/read_text_file").await.pop().unwrap();
    let line = json!({ "jsonrpc": "2.0", "id": read["id"], "error": { "code": -32603, "message": "busy" } });
    client.client.send_line(&line.to_string()).await;
    client.until_answer(prompt).await;
    let text = client.last_tool_result();
    assert!(text.contains("(it answered with an error: busy). Nothing is changed."), "{text}");
    let shown = client.buffers[&client.path("a.txt")].clone();
    assert!(shown.contains("an hour of work"), "{shown}");
    client.buffers.clear();
    assert_eq!(client.call("edit_file", edit("one", "1")).await, "Edited a.txt:1 (+1 -1)", "the control");
    std::fs::write(client.path("old"), b"caf\xe9").unwrap();
    let request_count = client.count("fs/read_text_file");
    client.call("read_file", json!({ "path": "old" })).await;
    assert_eq!(client.count("fs/read_text_file"), request_count, "what is no text is not asked for");
    client.end().await;
}

#[tokio::test]
async fn typing_during_the_write_of_another_file_is_preserved() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", Some("one\n"));
    client.file("b.txt", "two\n", Some("two\n"));
    client.override_answer("fs/write_text_file", Value::Null);
    let patch =
        "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-two\n+2\n";
    let prompt = client.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
    let write = client.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    // The editor delays its answer, as for a formatter or a dialog, and the user types.
    client.file("b.txt", "two\n", Some("two\nand an hour of work\n"));
    let line = json!({ "jsonrpc": "2.0", "id": write["id"], "result": {} });
    client.client.send_line(&line.to_string()).await;
    client.until_answer(prompt).await;
    let shown = client.buffers[&client.path("b.txt")].clone();
    client.end().await;
    assert!(shown.contains("an hour of work"), "{shown}");
}

#[tokio::test]
async fn typing_before_a_patch_rollback_is_preserved() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", Some("one\n"));
    client.file("b.txt", "two\n", Some("two\n"));
    let patch =
        "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-two\n+2\n";
    client.override_answer("fs/write_text_file", json!({}));
    client.override_answer("fs/write_text_file", Value::Null);
    let prompt = client.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
    client.until(|message| message["method"] == "fs/write_text_file").await;
    let write = client.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    assert_eq!(write["params"]["path"], json!(client.path("b.txt")));
    client.file("a.txt", "1\n", Some("1\nand an hour of work\n"));
    let line =
        json!({ "jsonrpc": "2.0", "id": write["id"], "error": { "code": -32603, "message": "locked" } });
    client.client.send_line(&line.to_string()).await;
    client.until_answer(prompt).await;
    let shown = client.buffers[&client.path("a.txt")].clone();
    client.end().await;
    assert!(shown.contains("an hour of work"), "{shown}");
}

#[tokio::test]
async fn tightening_stops_folder_creation_of_a_running_patch() {
    for (mode, is_made) in [("plan", false), ("ask", true)] {
        let mut client = EditorClient::new("code", all()).await;
        client.override_answer("fs/write_text_file", Value::Null);
        let patch = "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n+++ b/new/deep/b.txt\n@@ -0,0 +1 @@\n+x\n";
        let prompt = client.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
        let write = client.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
        assert!(!client.path("new").exists(), "{mode}: the first file is written first");
        let params = json!({ "sessionId": client.session, "modeId": mode });
        let id = client.client.request("session/set_mode", params).await;
        // The mode is recorded and the permit cancelled by then; the writer waits 1.8 s.
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        let line = json!({ "jsonrpc": "2.0", "id": write["id"], "result": {} });
        client.client.send_line(&line.to_string()).await;
        let is_answer = |message: &Value, id: i64| message["id"] == id && message.get("method").is_none();
        let messages = client.until(|message| is_answer(message, id) || is_answer(message, prompt)).await;
        let rest = if is_answer(messages.last().unwrap(), id) { prompt } else { id };
        client.until_answer(rest).await;
        assert_eq!(client.path("new/deep").exists(), is_made, "{mode}");
        client.end().await;
    }
}

#[tokio::test]
async fn refused_editor_write_leaves_no_folder() {
    for is_refused in [true, false] {
        let mut client = EditorClient::new("code", all()).await;
        if is_refused {
            client.override_answer("fs/write_text_file", json!("locked"));
        }
        let text = client.call("write_file", json!({ "path": "new/deep/a.txt", "content": "x" })).await;
        assert_eq!(text.contains("locked"), is_refused, "{text}");
        assert_eq!(client.path("new").exists(), !is_refused, "{text}");
        client.end().await;
    }
}

#[tokio::test]
async fn never_saved_buffer_is_not_overwritten() {
    let mut client = EditorClient::new("code", all()).await;
    client.buffers.insert(client.path("new.txt"), "an hour of work\n".into());
    let write = json!({ "path": "new.txt", "content": "x\n" });
    let text = client.call("write_file", write.clone()).await;
    assert!(text.contains("has unsaved text for it"), "{text}");
    let shown = client.buffers[&client.path("new.txt")].clone();
    assert!(shown.contains("an hour"), "{shown}");
    client.buffers.clear();
    let created = "Created new.txt (2 bytes).";
    assert_eq!(client.call("write_file", write.clone()).await, created, "the control");
    std::fs::remove_file(client.path("new.txt")).unwrap();
    assert_eq!(client.buffers[&client.path("new.txt")], "x\n", "what was deleted is still shown");
    assert_eq!(client.call("write_file", write).await, created);
    client.end().await;
}

/// Errors that clients send for a missing file; acpx and marimo send the last two.
fn errors() -> [Value; 5] {
    [
        json!({ "code": -32002, "message": "Resource not found" }),
        json!({ "code": -32602, "message": "Invalid params" }),
        json!({ "code": -32000, "message": "no such file" }),
        json!({ "code": -32603, "message": "Internal error", "data": { "details": "ENOENT: no such file" } }),
        json!({ "code": -32603, "message": "Internal error" }),
    ]
}

type ThreeCalls = [(&'static str, Value); 3];

/// The calls that create `n.txt`, and the calls that change `a.txt`.
fn calls() -> (ThreeCalls, ThreeCalls) {
    let patch = |text: &str| json!({ "patch": text });
    let made = "--- /dev/null\n+++ b/n.txt\n@@ -0,0 +1 @@\n+x\n";
    let changed = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+x\n";
    let both = format!("{made}--- /dev/null\n+++ b/deep/m.txt\n@@ -0,0 +1 @@\n+y\n");
    (
        [
            ("write_file", json!({ "path": "n.txt", "content": "x\n" })),
            ("apply_patch", patch(made)),
            ("apply_patch", patch(&both)),
        ],
        [
            ("write_file", json!({ "path": "a.txt", "content": "x\n" })),
            ("edit_file", edit("one", "x")),
            ("apply_patch", patch(changed)),
        ],
    )
}

#[tokio::test]
async fn new_files_are_created_despite_client_read_errors() {
    for error in errors() {
        for (tool, arguments) in calls().0 {
            let mut client = EditorClient::new("code", all()).await;
            for _ in 0..4 {
                client.override_answer("fs/read_text_file", json!({ "error": error }));
            }
            let text = client.call(tool, arguments).await;
            assert_eq!(client.saved("n.txt").as_deref(), Some("x\n"), "{error} {text}");
            assert!(client.count("fs/write_text_file") > 0, "through the editor: {text}");
            client.end().await;
        }
    }
}

/// An editor that answers a read with an error may have unsaved text. The error "not found" is the exception.
#[tokio::test]
async fn client_read_errors_block_edits_of_existing_files() {
    for error in errors() {
        for (tool, arguments) in calls().1 {
            let mut client = EditorClient::new("code", all()).await;
            client.file("a.txt", "one\n", None);
            client.call("read_file", json!({ "path": "a.txt" })).await;
            for _ in 0..2 {
                client.override_answer("fs/read_text_file", json!({ "error": error }));
            }
            let text = client.call(tool, arguments.clone()).await;
            let is_unknown = error["code"] == -32002;
            assert_eq!(
                client.saved("a.txt").as_deref(),
                Some(if is_unknown { "x\n" } else { "one\n" }),
                "{error} {text}"
            );
            if !is_unknown {
                let message = error["message"].as_str().unwrap();
                assert!(
                    text.contains(message) && text.contains("unsaved text") && !text.contains('{'),
                    "{text}"
                );
                client.answer_overrides.clear();
                let text = client.call(tool, arguments).await;
                assert_eq!(client.saved("a.txt").as_deref(), Some("x\n"), "the control: {text}");
            }
            client.end().await;
        }
    }
}

/// A client that does not answer may have unsaved text.
#[tokio::test]
async fn unanswered_client_read_blocks_new_files() {
    // One call is enough, because each call waits ten seconds for the client.
    for (tool, arguments) in calls().0.into_iter().take(1) {
        let mut client = EditorClient::new("code", all()).await;
        for _ in 0..2 {
            client.override_answer("fs/read_text_file", Value::Null);
        }
        let text = client.call(tool, arguments.clone()).await;
        assert!(text.contains("did not answer within 10 s") && text.contains("Nothing is changed"), "{text}");
        assert_eq!((client.saved("n.txt"), client.count("fs/write_text_file")), (None, 0));
        client.answer_overrides.clear();
        client.call(tool, arguments).await;
        assert_eq!(client.saved("n.txt").as_deref(), Some("x\n"), "the control");
        client.end().await;
    }
}

#[tokio::test]
async fn large_files_are_shown_by_their_changed_lines() {
    let mut client = EditorClient::new("ask", json!({})).await;
    let lines = |range: std::ops::Range<usize>| range.map(|at| format!("line {at}\n")).collect::<String>();
    client.file("a.txt", &lines(1..9_000), None);
    let edit = json!({ "path": "a.txt", "old_text": "line 5000\n", "new_text": "new\n" });
    let prompt = client.begin(&[("edit_file", edit)]).await;
    let messages = client.until_answer(prompt).await;
    let question = messages.iter().find(|message| message["method"] == "session/request_permission").unwrap();
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    let completed = updates.filter(|update| update["status"] == "completed");
    let path = client.path("a.txt");
    let (before, after) = (lines(4_997..5_000), lines(5_001..5_004));
    for shown in completed.chain([&question["params"]["toolCall"]]) {
        assert_eq!(shown["locations"], json!([{ "path": path, "line": 5000 }]));
        let texts = [format!("{before}line 5000\n{after}"), format!("{before}new\n{after}")];
        let diff = json!([{ "type": "diff", "path": path, "oldText": texts[0], "newText": texts[1] }]);
        assert_eq!(shown["content"], diff);
    }
    client.end().await;
}

/// Editors notice a change on disk late, or never. Until then, their text has no work of the user.
#[tokio::test]
async fn stale_editor_text_does_not_undo_the_changes_of_commands() {
    for (reads_first, writes) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut client = EditorClient::new("code", can(true, writes)).await;
        client.file("a.txt", "one\ntwo\nthree\n", Some("one\ntwo\nthree\n"));
        if reads_first {
            client.call("read_file", json!({ "path": "a.txt" })).await;
        }
        client.call("shell", json!({ "command": "sed -i s/two/TWO/ a.txt" })).await;
        let text = client.call("read_file", json!({ "path": "a.txt" })).await;
        assert_eq!(text, "1\tone\n2\tTWO\n3\tthree\n", "{reads_first} {writes}");
        assert_eq!(client.call("edit_file", edit("three", "3")).await, "Edited a.txt:3 (+1 -1)");
        assert_eq!(client.saved("a.txt").as_deref(), Some("one\nTWO\n3\n"), "{reads_first} {writes}");
        client.end().await;
    }
}

/// Unsaved text may lack the change on disk. Modegate overwrites neither.
#[tokio::test]
async fn unsaved_work_beside_a_change_on_disk_is_named_and_not_edited() {
    for writes in [true, false] {
        let mut client = EditorClient::new("code", can(true, writes)).await;
        client.file("a.txt", "one\ntwo\n", Some("one\ntwo\n"));
        client.call("read_file", json!({ "path": "a.txt" })).await;
        client.call("shell", json!({ "command": "sed -i s/two/TWO/ a.txt" })).await;
        client.buffers.insert(client.path("a.txt"), "typed\none\ntwo\n".into());
        let text = client.call("read_file", json!({ "path": "a.txt" })).await;
        assert!(text.starts_with("1\tone\n2\tTWO\n[This is the text on disk."), "{text}");
        for (tool, arguments) in [
            ("edit_file", edit("one", "1")),
            ("write_file", json!({ "path": "a.txt", "content": "x\n" })),
            ("apply_patch", json!({ "patch": "--- a/a.txt\n+++ b/a.txt\n@@\n-one\n+1\n" })),
        ] {
            let text = client.call(tool, arguments).await;
            assert!(text.contains("a write would lose one of the two"), "{tool}: {text}");
        }
        assert_eq!(client.saved("a.txt").as_deref(), Some("one\nTWO\n"));
        client.file("a.txt", "typed\none\ntwo\n", Some("typed\none\ntwo\n"));
        let text = client.call("edit_file", edit("two", "2")).await;
        assert!(text.starts_with("Edited a.txt:3 (+1 -1)"), "the control: {text}");
        assert_eq!(client.saved("a.txt").as_deref(), Some("typed\none\n2\n"));
        client.buffers.insert(client.path("a.txt"), "more typed\none\n2\n".into());
        if writes {
            client.call("edit_file", edit("one", "1")).await;
            assert_eq!(
                client.saved("a.txt").as_deref(),
                Some("more typed\n1\n2\n"),
                "the editor had the last change"
            );
        }
        client.end().await;
    }
}

/// A client may ask the user to confirm each write.
#[tokio::test]
async fn a_write_waits_for_a_slow_confirmation() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", None);
    client.override_answer("fs/write_text_file", Value::Null);
    let prompt = client.begin(&[("edit_file", edit("one", "1"))]).await;
    let sent = client.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_mins(50)).await;
    tokio::time::resume();
    client.file("a.txt", "1\n", None);
    let answer = json!({ "jsonrpc": "2.0", "id": sent["id"], "result": {} });
    client.client.send_line(&answer.to_string()).await;
    client.until_answer(prompt).await;
    assert_eq!(client.last_tool_result(), "Edited a.txt:1 (+1 -1)");
    client.end().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_while_the_client_asks_about_a_write() {
    let mut client = EditorClient::new("code", all()).await;
    client.file("a.txt", "one\n", None);
    client.override_answer("fs/write_text_file", Value::Null);
    let prompt = client.begin(&[("edit_file", edit("one", "1"))]).await;
    client.until(|message| message["method"] == "fs/write_text_file").await;
    client.cancel().await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert_eq!(client.count("$/cancel_request"), 1, "the client is asked to withdraw its question");
    assert_eq!(client.saved("a.txt").as_deref(), Some("one\n"));
    client.end().await;
}

#[tokio::test]
async fn undo_tells_the_model_which_files_git_has_staged() {
    let mut client = EditorClient::new("code", json!({})).await;
    let cwd = client.client.cwd();
    let git = |arguments: &[&str]| {
        let ran = std::process::Command::new("git").args(arguments).current_dir(&cwd).status().unwrap();
        assert!(ran.success());
    };
    git(&["init", "-q"]);
    client.call("write_file", json!({ "path": "staged.txt", "content": "x\n" })).await;
    git(&["add", "staged.txt"]);
    let note = "git's index still has your undone versions of: staged.txt.";
    for is_staged in [true, false] {
        undo(&mut client).await;
        client.call("write_file", json!({ "path": "other.txt", "content": "y\n" })).await;
        let request = format!("{:?}", client.client.model.requests(&client.session).pop().unwrap());
        assert_eq!(request.matches(note).count(), 1, "{is_staged}");
    }
    client.end().await;
}
