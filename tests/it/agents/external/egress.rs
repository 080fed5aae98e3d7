//! The network of brokered external agents follows the mode.

use std::net::{Ipv4Addr, TcpListener};

use serde_json::Value;

use crate::agents::external::sessions::{ExternalAgentClient, agent_text, agents};
use crate::support::requirements::python;

async fn client(options: &'static str) -> ExternalAgentClient {
    ExternalAgentClient::of("plan", agents("plain", options)).await.unwrap()
}

/// Returns a prompt that makes the agent connect to a loopback port.
fn connect(port: u16) -> String {
    format!("run {} -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 9)\" 2>&1", python())
}

fn warnings(messages: &[Value]) -> Vec<String> {
    let text = agent_text(messages);
    text.split("\n\n").filter(|part| part.contains("tried to connect")).map(str::to_owned).collect()
}

#[tokio::test]
async fn refused_hosts_are_shown_once_and_where_the_mode_limits_the_network() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = connect(address.port());
    let mut client = client(", sandbox: {state_dirs: ['~/.peer'], broker: true}").await;
    let messages = client.prompt(&connect, None).await;
    let text = agent_text(&messages);
    assert!(text.contains("exit 1 "), "{text}");
    let expected = format!(
        "The agent peer tried to connect to {address}, which plan mode does not allow. Allow it by adding \
         {address} to the agent's sandbox.hosts."
    );
    assert_eq!(warnings(&messages), [expected]);
    let messages = client.prompt(&connect, None).await;
    assert_eq!(warnings(&messages), Vec::<String>::new(), "once");
    client.mode("code").await;
    let text = agent_text(&client.prompt(&connect, None).await);
    assert!(text.contains("exit 0 "), "the control: {text}");
    client.mode("plan").await;
    let text = agent_text(&client.prompt(&connect, None).await);
    assert!(text.contains("exit 1 "), "{text}");
    client.end().await;
}

#[tokio::test]
async fn allowed_hosts_are_reached_in_plan_mode() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let connect = connect(listener.local_addr().unwrap().port());
    for options in [
        ", sandbox: {state_dirs: ['~/.peer'], broker: true, hosts: ['127.0.0.1']}".to_owned(),
        ", sandbox: {state_dirs: ['~/.peer'], broker: true, hosts: ['*']}".to_owned(),
        ", sandbox: {state_dirs: ['~/.peer'], broker: false}".to_owned(),
    ] {
        let mut client = client(options.clone().leak()).await;
        let messages = client.prompt(&connect, None).await;
        let text = agent_text(&messages);
        assert!(text.contains("exit 0 "), "{options}: {text}");
        assert_eq!(warnings(&messages), Vec::<String>::new(), "{options}");
        client.end().await;
    }
}
