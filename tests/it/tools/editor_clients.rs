//! File tools with clients that answer as real editors do.

use serde_json::{Value, json};

use crate::agents::delegation::call;
use crate::agents::external::sessions::ExternalAgentClient;
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

/// marimo forgets new files in this way. The control is a buffer that the user has not saved.
#[tokio::test]
async fn new_file_that_the_editor_lost_is_created_on_disk() {
    let write = json!({ "path": "deep/n.txt", "content": "x\n" });
    for is_lost in [true, false] {
        for mut client in editors("code").await {
            client.saves = false;
            if is_lost {
                client.override_answer("fs/write_text_file", json!({}));
            }
            let text = client.call("write_file", write.clone()).await;
            assert_eq!(client.count("fs/write_text_file"), 1, "{text}");
            assert_eq!(client.saved("deep/n.txt").as_deref(), is_lost.then_some("x\n"), "{text}");
            assert_eq!(text.contains("has not saved it"), !is_lost, "{text}");
            let undo = client.client.prompt(&client.session, "/undo").await;
            client.until_answer(undo).await;
            assert_eq!(client.saved("deep/n.txt"), None, "undone");
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

/// Some clients write to the disk beside the editor, which keeps its unsaved text.
#[tokio::test]
async fn text_that_the_editor_keeps_is_reported_to_the_model_and_the_user() {
    for (shown, is_reported) in [(Some("one\nTWO\n"), true), (None, false)] {
        let mut client = EditorClient::vs_code("code").await;
        client.keeps_buffers = true;
        client.file("a.txt", "one\ntwo\n", shown);
        let edit = json!({ "path": "a.txt", "old_text": "one", "new_text": "1" });
        let prompt = client.begin(&[("edit_file", edit)]).await;
        let messages = client.until_answer(prompt).await;
        let result = client.last_tool_result();
        let note = "a.txt is changed on disk, but the editor still shows another text";
        assert_eq!(result.contains(note), is_reported, "{result}");
        let warned = messages.iter().any(|message| {
            let text = message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
            text.contains("your editor still shows another text")
        });
        assert_eq!(warned, is_reported);
        client.end().await;
    }
}

#[tokio::test]
async fn ask_mode_asks_and_plan_denies_with_each_editor() {
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

#[tokio::test]
async fn final_newline_stays_if_reads_lack_it() {
    for (shown, expected) in [(None, "1\ntwo\n"), (Some("one\nTWO"), "1\nTWO")] {
        let mut client = EditorClient::vs_code("code").await;
        client.hides_final_newline = true;
        client.file("a.txt", "one\ntwo\n", shown);
        let edit = json!({ "path": "a.txt", "old_text": "one", "new_text": "1" });
        assert_eq!(client.call("edit_file", edit).await, "Edited a.txt:1 (+1 -1)");
        assert_eq!(client.saved("a.txt").as_deref(), Some(expected), "unsaved text is taken as it is");
        let edit = json!({ "path": "a.txt", "old_text": "1", "new_text": "one" });
        assert_eq!(client.call("edit_file", edit).await, "Edited a.txt:1 (+1 -1)", "not stale");
        client.end().await;
    }
}

#[tokio::test]
async fn edit_result_names_lines_that_the_editor_saved_differently() {
    let formatted = "[The editor saved a.txt with a difference, such as formatting. Its lines that differ:\n\
                     @@ -2,1 +2,1 @@\n     2\tb]";
    let newline = "[The editor saved a.txt with 2 newlines at its end instead of 1.]";
    let unindent = |text: &str| text.replace("  ", "");
    let formats: [fn(&str) -> String; 3] = [unindent, |text| format!("{text}\n"), str::to_owned];
    for (format, note) in formats.into_iter().zip([Some(formatted), Some(newline), None]) {
        let mut client = EditorClient::vs_code("code").await;
        client.file("a.txt", "a\nx\n", None);
        client.format = format;
        let edit = json!({ "path": "a.txt", "old_text": "x", "new_text": "  b" });
        let text = client.call("edit_file", edit).await;
        let note = note.map(|note| format!("\n{note}")).unwrap_or_default();
        assert_eq!(text, format!("Edited a.txt:2 (+1 -1){note}"));
        let edit = json!({ "path": "a.txt", "old_text": "b", "new_text": "c" });
        let text = client.call("edit_file", edit).await;
        assert!(text.starts_with("Edited a.txt:2 (+1 -1)"), "the model knows the saved file: {text}");
        client.end().await;
    }
}

#[tokio::test]
async fn edit_reads_the_editor_once_and_checks_before_and_after_the_write() {
    let two = "--- a/a.txt\n+++ b/a.txt\n@@\n-a\n+b\n--- a/b.txt\n+++ b/b.txt\n@@\n-a\n+b\n";
    let edit = ("edit_file", json!({ "path": "a.txt", "old_text": "a", "new_text": "b" }));
    let patch_of_two = ("apply_patch", patch(two));
    for (mode, (tool, arguments), read_count) in
        [("code", &edit, 3), ("ask", &edit, 3), ("code", &patch_of_two, 6), ("ask", &patch_of_two, 8)]
    {
        let mut client = EditorClient::vs_code(mode).await;
        client.file("a.txt", "a\n", None);
        client.file("b.txt", "a\n", None);
        let text = client.call(tool, arguments.clone()).await;
        assert_eq!(client.saved("a.txt").as_deref(), Some("b\n"), "{text}");
        assert_eq!(client.count("fs/read_text_file"), read_count, "{tool} in {mode}: {text}");
        client.end().await;
    }
}

/// After the permission, a patch reads all of its files again before it writes the first one.
#[tokio::test]
async fn typing_while_a_patch_waits_for_permission_prevents_all_of_its_writes() {
    let two = "--- a/a.txt\n+++ b/a.txt\n@@\n-a\n+b\n--- a/b.txt\n+++ b/b.txt\n@@\n-a\n+b\n";
    for is_typed in [true, false] {
        let mut client = EditorClient::vs_code("ask").await;
        client.file("a.txt", "a\n", None);
        client.file("b.txt", "a\n", None);
        client.override_answer("session/request_permission", Value::Null);
        let prompt = client.begin(&[("apply_patch", patch(two))]).await;
        let asked = client.until(|message| message["method"] == "session/request_permission").await;
        if is_typed {
            client.file("b.txt", "a\n", Some("a and more\n"));
        }
        let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
        let yes = json!({ "jsonrpc": "2.0", "id": asked.last().unwrap()["id"], "result": yes });
        client.client.send_line(&yes.to_string()).await;
        client.until_answer(prompt).await;
        let text = client.last_tool_result();
        assert_eq!(client.count("fs/write_text_file"), if is_typed { 0 } else { 2 }, "{text}");
        client.end().await;
    }
}

/// Returns the locations of all calls in updates and permission requests.
fn locations(messages: &[Value]) -> Vec<Value> {
    let calls = messages.iter().flat_map(|message| {
        ["update", "toolCall"].map(|member| message["params"][member]["locations"].clone())
    });
    calls.filter(|locations| locations.as_array().is_some_and(|locations| !locations.is_empty())).collect()
}

#[tokio::test]
async fn zed_gets_rows_and_other_clients_get_lines() {
    for (name, line) in [("zed", 1), ("zeditor", 2)] {
        let mut client = EditorClient::named("ask", name).await;
        client.file("a.txt", "a\nb\n", None);
        let edit = json!({ "path": "a.txt", "old_text": "b", "new_text": "c" });
        let prompt = client.begin(&[("edit_file", edit)]).await;
        let sent = locations(&client.until_answer(prompt).await);
        let path = client.path("a.txt");
        let changed = json!([{ "path": path, "line": line }]);
        assert_eq!(sent, [json!([{ "path": path }]), changed.clone(), changed], "announced, asked, done");
        client.end().await;
    }
}

#[tokio::test]
async fn zed_gets_rows_of_other_agents() {
    for (name, line) in [("zed", 1), ("zeditor", 2)] {
        let mut client = EditorClient::named("ask", name).await;
        client.file("a.txt", "a\nb\n", None);
        let edit = json!({ "path": "a.txt", "old_text": "b", "new_text": "c" });
        let prompt = client.begin(&[("delegate", json!({ "task": "edit", "agent": "general" }))]).await;
        client.client.calls("sess_2", vec![call("edit_file", edit)]);
        client.client.answers("sess_2", "Edited.");
        let sent = locations(&client.until_answer(prompt).await);
        let path = client.path("a.txt");
        let changed = json!([{ "path": path, "line": line }]);
        assert_eq!(sent, [json!([{ "path": path }]), changed.clone(), changed], "announced, asked, done");
        client.end().await;

        let mut agent = ExternalAgentClient::new("ask", "plain").await;
        let info = json!({ "name": name, "version": "1.0.0" });
        let params = json!({ "protocolVersion": 1, "clientInfo": info });
        let initialize = agent.client.request("initialize", params).await;
        agent.client.until_answer(initialize).await;
        let path = agent.path("a.txt");
        let sent = locations(&agent.prompt(&format!("locates {}", path.display()), Some("yes")).await);
        let located = json!([{ "path": path, "line": line }]);
        assert_eq!(sent, vec![located; 3], "announced, asked, done");
        agent.end().await;
    }
}

#[tokio::test]
async fn locations_leave_folders_out() {
    let mut client = EditorClient::vs_code("code").await;
    client.file("a.txt", "a\n", None);
    for (path, expected) in [(".", vec![]), ("a.txt", vec![json!([{ "path": client.path("a.txt") }])])] {
        let prompt = client.begin(&[("search_files", json!({ "path": path, "pattern": "a" }))]).await;
        assert_eq!(locations(&client.until_answer(prompt).await), expected);
    }
    client.end().await;
}
