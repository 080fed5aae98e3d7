//! The size of the first request of a session. Each request repeats it, and each new session pays for it.

use modegate::model::{ModelEvent, ModelStop};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;

use crate::models::providers::anthropic_body;
use crate::support::requirements::require_sandbox;
use crate::support::{Setup, TestClient, shell};

#[tokio::test]
async fn first_request_is_small_in_every_mode() {
    require_sandbox();
    for (mode, tools, most) in [("plan", 14, 11_000), ("ask", 20, 12_750), ("code", 20, 12_500)] {
        let home = tempfile::tempdir().unwrap();
        let toolset = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let mut client = TestClient::with(Setup { mode, tools: toolset, ..Setup::default() });
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        let request = client.model.next_request(&session).await;
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.until_answer(prompt).await;
        client.end().await;
        let bytes = anthropic_body(&request).len();
        println!("{mode}: {} tools, {bytes} bytes", request.tools.len());
        assert_eq!(request.tools.len(), tools, "{mode}: all tools of a session");
        assert!(bytes <= most, "{mode}: {bytes} bytes");
    }
}
