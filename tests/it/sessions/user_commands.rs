//! Commands that users write as files: clients list them, the model gets their expansion, loads replay the
//! typed text, and no command widens the mode.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use modegate::session::UserCommand;
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, call, is_user_message, open, text, turn, updates};
use crate::support::Setup;

fn setup() -> Setup {
    let command = |name: &str, text: &str| UserCommand::parse(name, text).unwrap();
    let review = "---\ndescription: Look twice\nargument-hint: FILE\n---\nReview $1, twice.";
    Setup { commands: vec![command("review", review), command("hello", "Say hello.")], ..Setup::default() }
}

#[tokio::test]
async fn user_command_expands_for_the_model_only() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(setup());
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let answer = client.call("session/new", json!({ "cwd": client.cwd(), "mcpServers": [] })).await;
    let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
    let offered = client.next().await;
    let offered = offered["params"]["update"]["availableCommands"].as_array().unwrap().clone();
    let review = offered.iter().find(|command| command["name"] == "review").unwrap();
    assert_eq!((&review["description"], &review["input"]["hint"]), (&json!("Look twice"), &json!("FILE")));

    turn(&mut client, &session, "/review 'a file.rs'", &[&[text("Fine.")]]).await;
    let request = client.model.next_request(&session).await;
    assert!(format!("{:?}", request.messages).contains("Review a file.rs, twice."), "{request:?}");
    // A command after a mode also expands. The mode decides about the calls that follow.
    let write = call("w", "write_file", json!({ "path": "a.txt", "content": "x" }));
    turn(&mut client, &session, "/plan /hello", &[&[write], &[]]).await;
    let request = client.model.next_request(&session).await;
    assert!(format!("{:?}", request.messages).contains("Say hello."), "{request:?}");
    assert!(!client.cwd().join("a.txt").exists());
    let help = turn(&mut client, &session, "/help", &[]).await;
    assert!(help.iter().any(|message| message.to_string().contains("`/review`: Look twice")));
    client.end().await;
    let mut client = fixture.agent(setup());
    let again = updates(&open(&mut client, "session/load", &session).await);
    let typed: Vec<&Value> = again
        .iter()
        .filter(|update| is_user_message(update))
        .map(|update| &update["content"]["text"])
        .collect();
    assert_eq!(typed, ["/review 'a file.rs'", "/plan /hello", "/help"]);
    client.end().await;
}

#[test]
fn user_command_files_are_read_and_errors_reported() {
    let home = tempfile::tempdir().unwrap();
    let work = home.path().join("work");
    let user_folder = home.path().join(".config/modegate/commands");
    let project = work.join(".modegate/commands");
    for folder in [&user_folder, &project] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(user_folder.join("hello.md"), "Say hello.").unwrap();
    std::fs::write(user_folder.join("both.md"), "The user's.").unwrap();
    std::fs::write(project.join("both.md"), "The project's.").unwrap();
    std::fs::write(project.join("plan.md"), "Leave the mode.").unwrap();
    std::fs::write(project.join("empty.md"), "").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", project.join("link.md")).unwrap();
    let script = home.path().join("script.jsonl");
    std::fs::write(&script, "{\"text\":\"Yes.\"}\n{\"stop\":\"done\"}\n").unwrap();
    let run = |prompt: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args([
                "--store",
                "memory",
                "--output",
                "json",
                "--model",
                &format!("scripted:{}", script.display()),
            ])
            .args(["-p", prompt])
            .current_dir(&work)
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME")
            .output()
            .unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        (result, String::from_utf8(output.stderr).unwrap())
    };
    let (help, _) = run("/help");
    let listed = help["text"].to_string();
    assert!(
        listed.contains("`/hello`: Say hello.") && listed.contains("`/both`: The project's."),
        "{listed}"
    );
    assert!(listed.contains("Switch to plan mode") && !listed.contains("Leave the mode"), "{listed}");
    // Every new session reads the files again.
    let mut client = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--store", "memory", "--model", &format!("scripted:{}", script.display())])
        .env("HOME", home.path())
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, output) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
    let mut lines =
        BufReader::new(output).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut send = |id: u32, method: &str, params: Value| {
        writeln!(input, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .unwrap();
    };
    send(1, "initialize", json!({ "protocolVersion": 1 }));
    send(2, "session/new", json!({ "cwd": work, "mcpServers": [] }));
    lines.find(|line| line["id"] == 2).unwrap();
    let mut offered =
        || lines.find(|line| line["params"]["update"]["sessionUpdate"] == "available_commands_update");
    assert!(!offered().unwrap().to_string().contains("\"late\""));
    std::fs::write(project.join("late.md"), "Better late.").unwrap();
    send(3, "session/new", json!({ "cwd": work, "mcpServers": [] }));
    assert!(offered().unwrap().to_string().contains("\"late\""));
    drop(input);
    client.wait().unwrap();

    let (_, errors) = run("/hello");
    for text in [
        "/plan is the name of another command",
        "empty.md: the command has no text",
        "link.md: it is a symbolic link, which is not followed here",
    ] {
        assert!(errors.contains(text), "{text}: {errors}");
    }
}

#[tokio::test]
async fn compact_summarises_the_conversation() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(setup());
    let session = client.session().await;
    let output = |messages: &[Value]| messages.iter().map(Value::to_string).collect::<String>();
    let nothing = turn(&mut client, &session, "/compact", &[]).await;
    assert!(output(&nothing).contains("There is nothing to summarise yet."), "{nothing:?}");
    for number in 0..6 {
        let long = format!("{number} ").repeat(2000);
        turn(&mut client, &session, &format!("question {number}"), &[&[text(&long)]]).await;
    }
    let done = turn(&mut client, &session, "/compact", &[&[text("All was said.")]]).await;
    assert!(output(&done).contains("The older part of the conversation was summarised"), "{done:?}");
    turn(&mut client, &session, "and now?", &[&[text("Well.")]]).await;
    let mut last = None;
    for _ in 0..8 {
        last = Some(client.model.next_request(&session).await);
    }
    let request = format!("{:?}", last.unwrap().messages);
    assert!(request.contains("All was said.") && !request.contains("0 0 0"), "{request}");
    // Without a summary, Modegate lists the actions.
    let listed = turn(&mut client, &session, "/compact", &[&[]]).await;
    assert!(output(&listed).contains("The model gave no summary (the summary is empty)"), "{listed:?}");
    assert!(output(&listed).contains("The older part of the conversation was summarised"), "{listed:?}");
    client.end().await;
}
