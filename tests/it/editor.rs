//! Files through the editor: what is not saved is seen, what is written is written there, and what may not be is not sent.

use serde_json::{Value, json};

use crate::guest::{Guest, all};

fn can(reads: bool, writes: bool) -> Value {
    json!({ "fs": { "readTextFile": reads, "writeTextFile": writes } })
}

fn edit(old: &str, new: &str) -> Value {
    json!({ "path": "a.txt", "old_text": old, "new_text": new })
}

async fn undo(guest: &mut Guest) -> String {
    let prompt = guest.harness.prompt(&guest.session, "/undo").await;
    let messages = guest.until_answer(prompt).await;
    let said = messages.iter().filter_map(|message| message["params"]["update"]["content"]["text"].as_str());
    said.collect()
}

#[tokio::test]
async fn what_is_not_saved_is_read_and_edited_and_the_editor_writes_it() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\ntwo\n", Some("one\nTWO\n"));
    assert_eq!(guest.call("read_file", json!({ "path": "a.txt" })).await, "one\nTWO\n");
    assert_eq!(guest.call("edit_file", edit("TWO", "2")).await, "Edited a.txt: replaced once.");
    assert_eq!(guest.call("edit_file", edit("one", "1")).await, "Edited a.txt: replaced once.");
    assert_eq!(guest.saved("a.txt").as_deref(), Some("1\n2\n"));
    let told = guest.call("read_multiple_files", json!({ "paths": ["a.txt"] })).await;
    assert_eq!(told, "=== a.txt ===\n1\n2\n");
    let writes: Vec<_> = guest.asked.iter().filter(|(method, _)| method == "fs/write_text_file").collect();
    assert_eq!(writes.len(), 2);
    assert_eq!(writes[0].1["path"], json!(guest.path("a.txt")));
    assert_eq!(writes[0].1["content"], "one\n2\n");
    guest.end().await;
}

#[tokio::test]
async fn without_the_capability_nothing_is_asked_and_the_disk_is_what_there_is() {
    let mut guest = Guest::new("code", json!({})).await;
    guest.file("a.txt", "one\n", Some("unsaved\n"));
    assert_eq!(guest.call("read_file", json!({ "path": "a.txt" })).await, "one\n");
    assert_eq!(guest.call("edit_file", edit("one", "1")).await, "Edited a.txt: replaced once.");
    assert_eq!((guest.saved("a.txt").as_deref(), guest.methods().len()), (Some("1\n"), 0));
    guest.end().await;
}

#[tokio::test]
async fn each_capability_counts_by_itself() {
    let mut guest = Guest::new("code", can(true, false)).await;
    guest.file("a.txt", "one\r\ntwo\r\n", Some("one\nTWO\n"));
    assert_eq!(guest.call("read_file", json!({ "path": "a.txt" })).await, "one\r\nTWO\r\n");
    guest.call("edit_file", edit("one", "1")).await;
    assert_eq!(guest.saved("a.txt").as_deref(), Some("1\r\nTWO\r\n"), "what was seen, as the file has it");
    assert_eq!(guest.count("fs/write_text_file"), 0);
    let undone = undo(&mut guest).await;
    assert!(undone.contains("not saved"), "{undone}");
    assert_eq!(guest.saved("a.txt").as_deref(), Some("one\r\ntwo\r\n"));
    guest.end().await;

    let mut guest = Guest::new("code", can(false, true)).await;
    guest.file("a.txt", "one\n", Some("unsaved\n"));
    guest.call("edit_file", edit("one", "1")).await;
    assert_eq!(guest.methods(), ["fs/write_text_file"]);
    assert_eq!(guest.saved("a.txt").as_deref(), Some("1\n"));
    guest.end().await;
}

#[tokio::test]
async fn a_denied_call_never_reaches_the_client() {
    let mut guest = Guest::new("plan", all()).await;
    guest.file("a.txt", "one\n", Some("one\n"));
    for (tool, arguments) in [
        ("write_file", json!({ "path": "a.txt", "content": "x" })),
        ("edit_file", edit("one", "1")),
        ("apply_patch", json!({ "patch": "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n" })),
    ] {
        guest.call(tool, arguments).await;
        assert_eq!(guest.methods(), [""; 0], "{tool}");
    }
    guest.set_mode("ask").await;
    let no = json!({ "outcome": { "outcome": "selected", "optionId": "reject_once" } });
    guest.answer_oddly("session/request_permission", no);
    guest.call("edit_file", edit("one", "1")).await;
    assert_eq!(
        guest.methods(),
        ["fs/read_text_file", "session/request_permission"],
        "only the preview reads"
    );
    guest.call("edit_file", edit("one", "1")).await;
    assert_eq!(guest.count("fs/write_text_file"), 1, "the control");
    guest.end().await;
}

#[tokio::test]
async fn the_preview_shows_what_is_not_saved_and_a_change_after_it_is_noticed() {
    let mut guest = Guest::new("ask", all()).await;
    guest.file("a.txt", "one\n", Some("ONE\n"));
    guest.answer_oddly("session/request_permission", Value::Null);
    let prompt = guest.begin(&[("edit_file", edit("ONE", "1"))]).await;
    let asked = guest.until(|message| message["method"] == "session/request_permission").await.pop().unwrap();
    assert_eq!(asked["params"]["toolCall"]["content"][0]["oldText"], "ONE\n");
    guest.file("a.txt", "one\n", Some("ONE and more\n"));
    let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    let yes = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": yes });
    guest.harness.send_line(&yes.to_string()).await;
    guest.until_answer(prompt).await;
    assert!(guest.told().contains("has changed while the user was asked"), "{}", guest.told());
    assert_eq!(guest.count("fs/write_text_file"), 0);
    guest.end().await;
}

#[tokio::test]
async fn what_the_editor_refuses_to_write_is_not_written_behind_its_back() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", None);
    guest.answer_oddly("fs/write_text_file", json!("the buffer is locked"));
    let told = guest.call("edit_file", edit("one", "1")).await;
    assert_eq!(told, "a.txt: the editor refused to write it: the buffer is locked.");
    assert_eq!(guest.saved("a.txt").as_deref(), Some("one\n"));
    assert_eq!(
        guest.call("edit_file", edit("one", "1")).await,
        "Edited a.txt: replaced once.",
        "the control"
    );
    guest.end().await;
}

#[tokio::test]
async fn a_patch_of_which_a_part_is_refused_is_taken_back() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", None);
    guest.file("b.txt", "two\n", None);
    guest.file("c.txt", "three\n", None);
    let patch = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/c.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-three\n\
                 --- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+x\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-two\n+2\n";
    let names = ["a.txt", "b.txt", "c.txt", "new.txt"];
    let saved = |guest: &Guest| names.map(|name| guest.saved(name).unwrap_or_default());
    guest.locked.push(guest.path("b.txt"));
    let told = guest.call("apply_patch", json!({ "patch": patch })).await;
    assert_eq!(told, "b.txt: the editor refused to write it: locked.");
    assert_eq!(guest.count("fs/write_text_file"), 4, "two were made, and the one that was not new put back");
    assert_eq!(saved(&guest), ["one\n", "two\n", "three\n", ""]);
    assert!(guest.saved("new.txt").is_none());
    guest.locked.clear();
    let told = guest.call("apply_patch", json!({ "patch": patch })).await;
    assert_eq!(told, "Applied the patch to 4 files.");
    assert_eq!(saved(&guest), ["1\n", "2\n", "", "x\n"], "the control");
    undo(&mut guest).await;
    assert_eq!(saved(&guest), ["one\n", "two\n", "three\n", ""], "undone on the disk");
    guest.end().await;
}

#[tokio::test]
async fn a_write_that_was_sent_is_waited_for_when_the_mode_is_tightened_and_named_if_it_is_not_confirmed() {
    for answers in [true, false] {
        let mut guest = Guest::new("code", all()).await;
        guest.file("a.txt", "one\n", None);
        guest.answer_oddly("fs/write_text_file", Value::Null);
        let prompt = guest.begin(&[("edit_file", edit("one", "1"))]).await;
        let sent = guest.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
        let params = json!({ "sessionId": guest.session, "modeId": "plan" });
        let change = guest.harness.request("session/set_mode", params).await;
        let answer = json!({ "jsonrpc": "2.0", "id": sent["id"], "result": {} }).to_string();
        if answers {
            guest.harness.send_line(&answer).await;
        }
        let messages = guest.until_answer(change).await;
        let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
        let (ended, unconfirmed) = (&effect["ended"], &effect["unconfirmed"]);
        if answers {
            // It may have been over before the change came to it.
            assert!(*ended == json!(["call_1_1"]) || *ended == json!([]), "{ended}");
            assert_eq!(*unconfirmed, json!([]));
        } else {
            assert_eq!((ended, unconfirmed), (&json!([]), &json!(["call_1_1"])));
            // Late: it is void, and the call stays what it was.
            guest.harness.send_line(&answer).await;
        }
        guest.until_answer(prompt).await;
        if !answers {
            assert!(guest.told().contains("whether it did is not known"), "{}", guest.told());
            assert_eq!(guest.count("$/cancel_request"), 1);
            guest.set_mode("code").await;
            let (_, effect) = guest.set_mode("plan").await;
            assert_eq!(effect["unconfirmed"], json!(["call_1_1"]), "and named again");
        }
        guest.end().await;
    }
}

#[tokio::test]
async fn a_cancel_does_not_wait_for_an_editor_that_does_not_answer() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", None);
    guest.answer_oddly("fs/read_text_file", Value::Null);
    let prompt = guest.begin(&[("read_file", json!({ "path": "a.txt" }))]).await;
    guest.until(|message| message["method"] == "fs/read_text_file").await;
    guest.cancel().await;
    let messages = guest.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert_eq!(guest.count("$/cancel_request"), 1, "the question is taken back");
    guest.end().await;
}

#[tokio::test]
async fn an_answer_that_is_none_is_said_and_nothing_is_edited_on_it() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", None);
    for _ in 0..2 {
        guest.answer_oddly("fs/read_text_file", json!({ "text": "x" }));
    }
    let told = guest.call("read_file", json!({ "path": "a.txt" })).await;
    assert!(told.starts_with("one\n\n[This is the saved text: the editor could not be asked"), "{told}");
    let told = guest.call("edit_file", edit("one", "1")).await;
    assert!(told.contains("could not be asked whether it has unsaved text"), "{told}");
    assert!(told.contains("Nothing is changed."), "{told}");
    assert_eq!((guest.count("fs/write_text_file"), guest.saved("a.txt").as_deref()), (0, Some("one\n")));
    guest.end().await;
}

#[tokio::test]
async fn what_is_no_text_and_what_the_editor_does_not_know_is_read_from_the_disk() {
    let mut guest = Guest::new("code", all()).await;
    std::fs::write(guest.path("binary"), b"a\0b").unwrap();
    assert!(guest.call("read_file", json!({ "path": "binary" })).await.contains("is a binary file"));
    assert_eq!(guest.methods(), [""; 0], "the editor is not asked");
    guest.file("a.txt", "one\n", None);
    assert_eq!(guest.call("read_file", json!({ "path": "a.txt" })).await, "one\n");
    assert_eq!(guest.methods(), ["fs/read_text_file"]);
    guest.call("delete_file", json!({ "path": "a.txt" })).await;
    guest.buffers.insert(guest.path("a.txt"), "still shown\n".into());
    let told = guest.call("read_file", json!({ "path": "a.txt" })).await;
    assert!(told.contains("there is no such file"), "{told}");
    guest.end().await;
}

#[tokio::test]
async fn new_files_get_their_folders_and_links_are_followed_before_anything_is_sent() {
    let mut guest = Guest::new("code", all()).await;
    let told = guest.call("write_file", json!({ "path": "deep/er/n.txt", "content": "x\n" })).await;
    assert_eq!(told, "Created deep/er/n.txt (2 bytes).");
    guest.file("a.txt", "one\n", None);
    std::os::unix::fs::symlink("a.txt", guest.path("link")).unwrap();
    guest.call("write_file", json!({ "path": "link", "content": "two\n" })).await;
    assert_eq!(guest.asked.last().unwrap().1["path"], json!(guest.path("a.txt")));
    assert_eq!(guest.saved("link").as_deref(), Some("two\n"));
    undo(&mut guest).await;
    assert_eq!(guest.saved("a.txt").as_deref(), Some("one\n"));
    let outside = tempfile::tempdir().unwrap();
    let sent = guest.count("fs/write_text_file");
    let path = outside.path().join("x");
    guest.call("write_file", json!({ "path": path, "content": "x" })).await;
    assert_eq!((guest.count("fs/write_text_file"), path.exists()), (sent, false));
    guest.end().await;
}

#[tokio::test]
async fn what_an_editor_takes_and_does_not_save_is_named_when_it_is_undone() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", None);
    guest.saves = false;
    assert_eq!(guest.call("edit_file", edit("one", "1")).await, "Edited a.txt: replaced once.");
    assert_eq!(guest.saved("a.txt").as_deref(), Some("one\n"));
    assert_eq!(
        guest.call("read_file", json!({ "path": "a.txt" })).await,
        "1\n",
        "it is what the editor shows"
    );
    let prompt = guest.begin(&[("edit_file", edit("1", "2"))]).await;
    guest.until_answer(prompt).await;
    let undone = undo(&mut guest).await;
    assert!(
        undone
            .contains("a.txt: the editor accepted the change and did not save it; undo that in the editor."),
        "{undone}"
    );
    guest.end().await;
}

#[tokio::test]
async fn what_an_editor_saves_with_a_difference_is_put_back_and_to_be_reloaded() {
    for (adds, is_told) in [("\n", true), ("", false)] {
        let mut guest = Guest::new("code", all()).await;
        guest.file("a.txt", "one", None);
        guest.adds = adds;
        let prompt = guest.begin(&[("edit_file", edit("one", "1"))]).await;
        guest.until_answer(prompt).await;
        assert_eq!(guest.saved("a.txt"), Some(format!("1{adds}")));
        let undone = undo(&mut guest).await;
        assert_eq!(guest.saved("a.txt").as_deref(), Some("one"), "{undone}");
        assert_eq!(
            undone.contains("Note: a.txt: the editor saved it with a difference"),
            is_told,
            "{undone}"
        );
        assert_eq!(undone.contains("reload it in the editor.\n"), is_told, "{undone}");
        assert!(!undone.contains("undo that in the editor"), "{undone}");
        guest.end().await;
    }
}

#[tokio::test]
async fn a_client_that_fails_to_read_is_not_one_that_does_not_know_the_file() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", Some("one\nand an hour of work\n"));
    let prompt = {
        guest.answer_oddly("fs/read_text_file", Value::Null);
        guest.begin(&[("edit_file", json!({ "path": "a.txt", "old_text": "one", "new_text": "1" }))]).await
    };
    let read = guest.until(|message| message["method"] == "fs/read_text_file").await.pop().unwrap();
    let line = json!({ "jsonrpc": "2.0", "id": read["id"], "error": { "code": -32603, "message": "busy" } });
    guest.harness.send_line(&line.to_string()).await;
    guest.until_answer(prompt).await;
    let told = guest.told();
    assert!(told.contains("(it answered with an error: busy). Nothing is changed."), "{told}");
    let shown = guest.buffers[&guest.path("a.txt")].clone();
    assert!(shown.contains("an hour of work"), "{shown}");
    guest.buffers.clear();
    assert_eq!(
        guest.call("edit_file", edit("one", "1")).await,
        "Edited a.txt: replaced once.",
        "the control"
    );
    std::fs::write(guest.path("old"), b"caf\xe9").unwrap();
    let asked = guest.count("fs/read_text_file");
    guest.call("read_file", json!({ "path": "old" })).await;
    assert_eq!(guest.count("fs/read_text_file"), asked, "what is no text is not asked for");
    guest.end().await;
}

#[tokio::test]
async fn what_is_typed_while_another_file_is_written_is_not_lost() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", Some("one\n"));
    guest.file("b.txt", "two\n", Some("two\n"));
    guest.answer_oddly("fs/write_text_file", Value::Null);
    let patch =
        "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-two\n+2\n";
    let prompt = guest.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
    let write = guest.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    // The editor takes its time (a formatter, a question of its own), and the user types.
    guest.file("b.txt", "two\n", Some("two\nand an hour of work\n"));
    let line = json!({ "jsonrpc": "2.0", "id": write["id"], "result": {} });
    guest.harness.send_line(&line.to_string()).await;
    guest.until_answer(prompt).await;
    let shown = guest.buffers[&guest.path("b.txt")].clone();
    guest.end().await;
    assert!(shown.contains("an hour of work"), "{shown}");
}

#[tokio::test]
async fn what_is_typed_before_a_patch_is_taken_back_is_not_lost() {
    let mut guest = Guest::new("code", all()).await;
    guest.file("a.txt", "one\n", Some("one\n"));
    guest.file("b.txt", "two\n", Some("two\n"));
    let patch =
        "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-two\n+2\n";
    guest.answer_oddly("fs/write_text_file", json!({}));
    guest.answer_oddly("fs/write_text_file", Value::Null);
    let prompt = guest.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
    guest.until(|message| message["method"] == "fs/write_text_file").await;
    let write = guest.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    assert_eq!(write["params"]["path"], json!(guest.path("b.txt")));
    guest.file("a.txt", "1\n", Some("1\nand an hour of work\n"));
    let line =
        json!({ "jsonrpc": "2.0", "id": write["id"], "error": { "code": -32603, "message": "locked" } });
    guest.harness.send_line(&line.to_string()).await;
    guest.until_answer(prompt).await;
    let shown = guest.buffers[&guest.path("a.txt")].clone();
    guest.end().await;
    assert!(shown.contains("an hour of work"), "{shown}");
}

#[tokio::test]
async fn no_folder_is_made_after_the_mode_denies_it() {
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("fs/write_text_file", Value::Null);
    let patch = "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n+++ b/new/deep/b.txt\n@@ -0,0 +1 @@\n+x\n";
    let prompt = guest.begin(&[("apply_patch", json!({ "patch": patch }))]).await;
    let write = guest.until(|message| message["method"] == "fs/write_text_file").await.pop().unwrap();
    assert!(!guest.path("new").exists(), "the control");
    let params = json!({ "sessionId": guest.session, "modeId": "plan" });
    let id = guest.harness.request("session/set_mode", params).await;
    // The mode is recorded and the permit cancelled by then; the writer waits 1.8 s.
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    let line = json!({ "jsonrpc": "2.0", "id": write["id"], "result": {} });
    guest.harness.send_line(&line.to_string()).await;
    let (mut answered, mut ended) = (false, false);
    guest
        .until(|message| {
            let is = |wanted: i64| message["id"] == wanted && message.get("method").is_none();
            is(id) || is(prompt)
        })
        .await
        .iter()
        .for_each(|message| {
            answered |= message["id"] == id && message.get("method").is_none();
            ended |= message["id"] == prompt && message.get("method").is_none();
        });
    let rest = if answered { prompt } else { id };
    guest.until_answer(rest).await;
    let made = guest.path("new/deep").exists();
    guest.end().await;
    assert!(!made, "new/deep was made in plan mode");
}

#[tokio::test]
async fn what_the_editor_refuses_leaves_no_folder() {
    let mut guest = Guest::new("code", all()).await;
    guest.answer_oddly("fs/write_text_file", json!("locked"));
    let told = guest.call("write_file", json!({ "path": "new/deep/a.txt", "content": "x" })).await;
    let made = guest.path("new").exists();
    guest.end().await;
    assert!(!made, "{told}");
}

#[tokio::test]
async fn a_buffer_that_was_never_saved_is_not_overwritten() {
    let mut guest = Guest::new("code", all()).await;
    guest.buffers.insert(guest.path("new.txt"), "an hour of work\n".into());
    let write = json!({ "path": "new.txt", "content": "x\n" });
    let told = guest.call("write_file", write.clone()).await;
    assert!(told.contains("a text of that name that is not saved"), "{told}");
    let shown = guest.buffers[&guest.path("new.txt")].clone();
    assert!(shown.contains("an hour"), "{shown}");
    guest.buffers.clear();
    let created = "Created new.txt (2 bytes).";
    assert_eq!(guest.call("write_file", write.clone()).await, created, "the control");
    std::fs::remove_file(guest.path("new.txt")).unwrap();
    assert_eq!(guest.buffers[&guest.path("new.txt")], "x\n", "what was deleted is still shown");
    assert_eq!(guest.call("write_file", write).await, created);
    guest.end().await;
}

/// Errors with which clients answer that they have no such file; the last two are what acpx and marimo send.
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

/// The calls that make `n.txt`, and those that change `a.txt`.
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

/// A file that is not on the disk is made whatever error the client answers with, before the write and right before it is sent.
#[tokio::test]
async fn new_files_are_made_whatever_error_the_client_answers_with() {
    for error in errors() {
        for (tool, arguments) in calls().0 {
            let mut guest = Guest::new("code", all()).await;
            for _ in 0..4 {
                guest.answer_oddly("fs/read_text_file", json!({ "error": error }));
            }
            let told = guest.call(tool, arguments).await;
            assert_eq!(guest.saved("n.txt").as_deref(), Some("x\n"), "{error} {told}");
            assert!(guest.count("fs/write_text_file") > 0, "through the editor: {told}");
            guest.end().await;
        }
    }
}

/// A file that is on the disk is not changed where the client answers with an error: it may have unsaved text.
#[tokio::test]
async fn files_that_are_there_are_not_changed_on_an_error_unless_it_says_not_found() {
    for error in errors() {
        for (tool, arguments) in calls().1 {
            let mut guest = Guest::new("code", all()).await;
            guest.file("a.txt", "one\n", None);
            guest.call("read_file", json!({ "path": "a.txt" })).await;
            for _ in 0..2 {
                guest.answer_oddly("fs/read_text_file", json!({ "error": error }));
            }
            let told = guest.call(tool, arguments.clone()).await;
            let is_unknown = error["code"] == -32002;
            assert_eq!(
                guest.saved("a.txt").as_deref(),
                Some(if is_unknown { "x\n" } else { "one\n" }),
                "{error} {told}"
            );
            if !is_unknown {
                let message = error["message"].as_str().unwrap();
                assert!(
                    told.contains(message) && told.contains("unsaved text") && !told.contains('{'),
                    "{told}"
                );
                guest.odd.clear();
                let told = guest.call(tool, arguments).await;
                assert_eq!(guest.saved("a.txt").as_deref(), Some("x\n"), "the control: {told}");
            }
            guest.end().await;
        }
    }
}

/// Whoever does not answer has said nothing about unsaved text: nothing is made over it.
#[tokio::test]
async fn new_files_are_not_made_where_the_client_does_not_answer() {
    // Each waits for ten seconds.
    for (tool, arguments) in calls().0.into_iter().take(1) {
        let mut guest = Guest::new("code", all()).await;
        for _ in 0..2 {
            guest.answer_oddly("fs/read_text_file", Value::Null);
        }
        let told = guest.call(tool, arguments.clone()).await;
        assert!(told.contains("did not answer within 10 s") && told.contains("Nothing is changed"), "{told}");
        assert_eq!((guest.saved("n.txt"), guest.count("fs/write_text_file")), (None, 0));
        guest.odd.clear();
        guest.call(tool, arguments).await;
        assert_eq!(guest.saved("n.txt").as_deref(), Some("x\n"), "the control");
        guest.end().await;
    }
}
