//! What the sandbox of a brokered agent refuses: the user gets one notice for each kind, and the audit log has a denial
//! for each call.

use crate::agents::external::record::{client, client_with};
use crate::agents::external::sessions::{ExternalAgentClient, agent_text};
use crate::sessions::hooks;
use crate::sessions::load::StoreFixture;
use crate::sessions::undo::report;
use crate::support::Setup;
use crate::support::requirements::python;

/// Notices about refused calls. A notice can come after the command: otherwise it would be part of the next turn.
async fn notices(client: &mut ExternalAgentClient, line: &str) -> Vec<String> {
    let text = agent_text(&client.prompt(&format!("run {line}; sleep 0.3"), None).await);
    text.split("\n\n")
        .filter(|part| part.contains("Modegate ") && part.contains("refused"))
        .map(str::to_owned)
        .collect()
}

/// The exit status of these lines does not show the refusal.
#[tokio::test]
async fn refused_calls_are_told_once_for_each_kind() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "code").await;
    let outside = client.home.path().canonicalize().unwrap();
    let outside = outside.display();
    let trace = format!("{} -c 'import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0)'", python());
    for (line, expected) in [
        (format!("mkdir {outside}/.tool 2>&1 | tail -1"), format!("a change of {outside}/.tool by mkdir")),
        (format!("echo x 2>&1 > {outside}/file || true"), format!("a change of {outside}/file by sh")),
        ("unshare -r true || true".to_owned(), "a mount or a namespace of unshare".to_owned()),
        (
            format!(
                "{} -c \"import socket; socket.socket(socket.AF_UNIX).bind('{outside}/s')\" || true",
                python()
            ),
            format!("a change of {outside}/s by python"),
        ),
        (format!("{trace} || true"), "reads or controls another process".to_owned()),
    ] {
        let told = notices(&mut client, &line).await;
        assert!(matches!(&told[..], [one] if one.contains(&expected)), "{line}: {told:?}");
        let both = notices(&mut client, &format!("({line}); {line}")).await;
        assert_eq!(both.len(), 1, "{line}: {both:?}");
    }
    let told =
        notices(&mut client, &format!("mkdir {outside}/a; mkdir {outside}/b; mkdir {outside}/c")).await;
    assert_eq!(told.len(), 2, "{told:?}");
    let further = format!("outside of the session's folders: {outside}/b, {outside}/c.");
    assert!(told[1].ends_with(&further), "{told:?}");
    // These calls fail without the sandbox, too, or succeed.
    let harmless = format!(
        "mkdir -p {outside}; rm -f {outside}/missing; mkdir d; echo > /dev/null; echo > $TMPDIR/t; ls {outside} /x"
    );
    assert_eq!(notices(&mut client, &harmless).await, Vec::<String>::new(), "the control");
    let session = client.session.clone();
    client.end().await;
    let report = report(&fixture.store(), &session, None).await;
    assert_eq!((report.denials, report.findings), (5 + 5 + 3, Vec::new()));
}

/// In `plan` each refused change is a denial. The first prompt came with a notice that all changes fail.
#[tokio::test]
async fn refused_changes_in_plan_are_denials() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "plan").await;
    std::fs::write(client.path("a"), "").unwrap();
    let outside = client.home.path().canonicalize().unwrap();
    let told = notices(&mut client, "true").await;
    assert_eq!(told, Vec::<String>::new());
    let line =
        format!("echo > a; rm a; mv a b; mkdir c; chmod 700 a; mkdir {}/d; mkdir c", outside.display());
    let told = notices(&mut client, &line).await;
    assert_eq!(told, Vec::<String>::new());
    let session = client.session.clone();
    client.end().await;
    let report = report(&fixture.store(), &session, None).await;
    // `a`, `c` and `d`, once each.
    assert_eq!((report.denials, report.findings), (3, Vec::new()));
}

/// The agent's model gets a note with the next prompt, once.
#[tokio::test]
async fn refusals_are_told_to_the_model_with_the_next_prompt() {
    for (mode, line, expected) in [
        ("code", "mkdir OUTSIDE/.tool || true", "a change of OUTSIDE/.tool by mkdir: it is outside"),
        ("plan", "mkdir inside || true", "because plan mode changes nothing"),
        ("ask", "mkdir inside || true", "The user rejected this change. Create the folder inside (peer)"),
        ("code", "mkdir inside || true", ""),
    ] {
        let fixture = StoreFixture::new();
        let mut client = client(&fixture, mode).await;
        let outside = client.home.path().canonicalize().unwrap().display().to_string();
        let line = line.replace("OUTSIDE", &outside);
        client.prompt(&format!("run {line}; sleep 0.3"), Some("reject_once")).await;
        let noted = agent_text(&client.prompt("noted", None).await);
        let noted = noted[noted.find("noted: ").unwrap()..].to_owned();
        assert!(noted.contains(&expected.replace("OUTSIDE", &outside)), "{mode} {line}: {noted}");
        assert_eq!(noted == "noted: ", expected.is_empty(), "{mode} {line}: {noted}");
        let again = agent_text(&client.prompt("noted", None).await);
        assert!(again.ends_with("noted: "), "{mode} {line}: {again}");
        client.end().await;
    }
}

/// A `deny` hook sees each change, also in `code`, and no question comes for a refused one.
#[tokio::test]
async fn hooks_refuse_changes_of_a_brokered_agent() {
    for mode in ["code", "ask"] {
        let (fixture, folder) = (StoreFixture::new(), tempfile::tempdir().unwrap());
        let body = r#"if grep -q secret; then echo '{"decision":"deny","reason":"keep out"}'; fi"#;
        hooks::script(folder.path(), "guard", body);
        let hooks = hooks::hooks(folder.path(), &hooks::deny(""));
        let mut client = client_with(&fixture, Setup { mode, hooks, ..Setup::default() }).await;
        let line = "run echo x > fine; echo x > secret || true; sleep 0.3";
        let messages = client.prompt(line, Some("allow_once")).await;
        assert_eq!((client.path("fine").exists(), client.path("secret").exists()), (true, false), "{mode}");
        assert!(agent_text(&messages).contains("Refused by the hook guard: keep out."), "{messages:?}");
        let asked = messages.iter().filter(|message| message["method"] == "session/request_permission");
        assert_eq!(asked.count(), usize::from(mode == "ask"), "{messages:?}");
        let session = client.session.clone();
        client.end().await;
        let report = report(&fixture.store(), &session, None).await;
        assert_eq!((report.denials, report.findings), (1, Vec::new()), "{mode}");
    }
}

#[tokio::test]
async fn hooks_refuse_calls_that_an_agent_asks_about() {
    for (body, outcome, denials) in [("exit 1", "cancelled", 1), ("exit 0", "yes", 0)] {
        let (fixture, folder) = (StoreFixture::new(), tempfile::tempdir().unwrap());
        hooks::script(folder.path(), "guard", body);
        let hooks = hooks::hooks(folder.path(), &hooks::deny(""));
        let mut client = client_with(&fixture, Setup { mode: "code", hooks, ..Setup::default() }).await;
        let messages = client.prompt("permission", None).await;
        assert!(agent_text(&messages).contains(outcome), "{body}: {messages:?}");
        let session = client.session.clone();
        client.end().await;
        let report = report(&fixture.store(), &session, None).await;
        assert_eq!((report.denials, report.findings), (denials, Vec::new()), "{body}");
    }
}

/// The program waits no longer than the time limit.
#[tokio::test]
async fn hook_that_hangs_refuses_the_change_of_an_agent() {
    let (fixture, folder) = (StoreFixture::new(), tempfile::tempdir().unwrap());
    hooks::script(folder.path(), "guard", "sleep 60");
    let hooks = hooks::hooks(folder.path(), &hooks::deny(", timeout_s: 1"));
    let mut client = client_with(&fixture, Setup { mode: "code", hooks, ..Setup::default() }).await;
    let messages = client.prompt("run echo x > file || true; sleep 0.3", None).await;
    assert!(!client.path("file").exists());
    assert!(agent_text(&messages).contains("it did not end within 1 s"), "{messages:?}");
    client.end().await;
}

/// Reports are bounded, for each turn anew.
#[tokio::test]
async fn number_of_reports_is_bounded() {
    let fixture = StoreFixture::new();
    let mut client = client(&fixture, "plan").await;
    for _ in 0..2 {
        notices(&mut client, "for i in $(seq 200); do echo > f$i; done").await;
    }
    let session = client.session.clone();
    client.end().await;
    let report = report(&fixture.store(), &session, None).await;
    assert_eq!((report.denials, report.findings), (2 * 64, Vec::new()));
}
