//! File tools with clients that answer as real editors do.

use serde_json::{Value, json};

use crate::support::editor_client::EditorClient;

async fn editors(mode: &'static str) -> [EditorClient; 2] {
    [EditorClient::vs_code(mode).await, EditorClient::older_zed(mode).await]
}

fn patch(text: &str) -> Value {
    json!({ "patch": text })
}

#[tokio::test]
async fn each_editor_creates_files() {
    let in_folder =
        "--- /dev/null\n+++ b/n.txt\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n+++ b/deep/m.txt\n@@ -0,0 +1 @@\n+y\n";
    let calls =
        [("write_file", json!({ "path": "n.txt", "content": "x\n" })), ("apply_patch", patch(in_folder))];
    for (tool, arguments) in calls {
        for mut client in editors("code").await {
            let text = client.call(tool, arguments.clone()).await;
            assert_eq!(client.saved("n.txt").as_deref(), Some("x\n"), "{text}");
            assert!(client.count("fs/write_text_file") > 0, "through the editor: {text}");
            assert_eq!(client.saved("deep/m.txt").is_some(), tool == "apply_patch", "{text}");
            client.end().await;
        }
    }
}

#[tokio::test]
async fn each_editor_edits_unsaved_text() {
    for mut client in editors("code").await {
        client.file("a.txt", "one\ntwo\n", Some("one\nTWO\n"));
        client.call("read_file", json!({ "path": "a.txt" })).await;
        let edit = json!({ "path": "a.txt", "old_text": "one", "new_text": "1" });
        assert_eq!(client.call("edit_file", edit).await, "Edited a.txt:1 (+1 -1)");
        assert_eq!(client.saved("a.txt").as_deref(), Some("1\nTWO\n"));
        client.end().await;
    }
}

/// The permission that is asked for in `ask`, and the mode that refuses, are the same in each editor.
#[tokio::test]
async fn each_editor_is_asked_and_refused() {
    let write = json!({ "path": "n.txt", "content": "x\n" });
    for (mode, question_count) in [("ask", 1), ("plan", 0)] {
        for mut client in editors(mode).await {
            let text = client.call("write_file", write.clone()).await;
            assert_eq!(client.saved("n.txt").is_some(), mode == "ask", "{text}");
            assert_eq!(client.count("session/request_permission"), question_count, "{text}");
            client.end().await;
        }
    }
}
