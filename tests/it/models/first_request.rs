//! The size of the first request of a session. Each request repeats it, and each new session pays for it.

use modegate::model::known::facts_of;
use modegate::model::wire::Ask;
use modegate::model::{ModelEvent, ModelId, ModelRequest, ModelStop};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;

use crate::models::providers::wires;
use crate::support::requirements::require_sandbox;
use crate::support::{Setup, TestClient, shell};

fn anthropic_bytes(request: &ModelRequest) -> usize {
    let (provider, name, wire) = wires().into_iter().find(|(provider, ..)| *provider == "anthropic").unwrap();
    let request = ModelRequest { model: ModelId::new(format!("{provider}/{name}")), ..request.clone() };
    let ask = Ask {
        request: &request,
        name,
        facts: &facts_of(name),
        is_official: true,
        without: &[],
        left_out_images: &[],
    };
    wire.body(&ask).len()
}

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
        let bytes = anthropic_bytes(&request);
        println!("{mode}: {} tools, {bytes} bytes", request.tools.len());
        assert_eq!(request.tools.len(), tools, "{mode}: all tools of a session");
        assert!(bytes <= most, "{mode}: {bytes} bytes");
    }
}
