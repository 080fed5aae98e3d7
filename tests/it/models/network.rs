//! The connection to a provider in the binary: proxies, exceptions, certificates, and a busy server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::models::http_server::{Reply, Server};
use crate::models::provider_streams;

fn answer() -> Reply {
    Reply::stream(provider_streams::text("openai", "Here."))
}

/// Returns the output of a headless run with these variables and this `config.yaml`.
async fn ask(variables: &[(&str, &str)], config: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.yaml"), config).unwrap();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_modegate"));
    command.current_dir(home.path()).args(["--model", "openai/m", "-p", "hello"]).env_clear();
    command.env("HOME", home.path()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs(variables.iter().copied()).stdin(std::process::Stdio::null());
    let output = command.output().await.unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Returns the server's address as `0.0.0.0`, which does not count as loopback, so a proxy is used.
fn remote_address(server: &Server) -> String {
    server.url.replace("127.0.0.1", "0.0.0.0")
}

#[cfg(unix)]
#[tokio::test]
async fn no_proxy_keeps_requests_from_the_proxy() {
    let (server, proxy) = (Server::start([]).await, Server::start([]).await);
    let url = remote_address(&server);
    let port = url.rsplit_once(':').unwrap().1;
    for (variable, value, is_direct) in [
        ("NO_PROXY", "*", true),
        ("no_proxy", "a.example,0.0.0.0", true),
        ("NO_PROXY", &format!("0.0.0.0:{port}"), true),
        ("NO_PROXY", "0.0.0.0/8", true),
        ("NO_PROXY", "0.0.0.0:1", false),
        ("NO_PROXY", "10.0.0.0/8,example.org", false),
        ("OTHER", "*", false),
    ] {
        let chosen = if is_direct { &server } else { &proxy };
        chosen.reply(answer());
        let variables = [("OPENAI_BASE_URL", url.as_str()), ("HTTP_PROXY", &proxy.url), (variable, value)];
        let text = ask(&variables, "").await;
        assert!(text.contains("Here."), "{variable}={value}: {text}");
    }
    assert_eq!((server.requests().len(), proxy.requests().len()), (4, 3));
    let asked = &proxy.requests()[0].path;
    assert_eq!(*asked, format!("{url}/chat/completions"), "a proxy gets the whole address");
}

#[cfg(unix)]
#[tokio::test]
async fn errors_name_the_proxy_without_its_password() {
    let proxy = Server::start([Reply::error(403, "{}")]).await;
    let closed = "http://user:secret@127.0.0.1:1";
    for (proxy, words) in [
        (proxy.url.as_str(), format!("through the proxy {} of all_proxy", &proxy.url["http://".len()..])),
        (closed, "through the proxy 127.0.0.1:1 of all_proxy".to_owned()),
    ] {
        let text = ask(&[("OPENAI_BASE_URL", "http://0.0.0.0:2"), ("all_proxy", proxy)], "").await;
        assert!(text.contains(&words) && !text.contains("secret"), "{text}");
    }
    let text = ask(&[("OPENAI_BASE_URL", "http://0.0.0.0:2")], "").await;
    assert!(text.contains("0.0.0.0:2: no connection") && !text.contains("proxy"), "the control: {text}");
    let text = ask(&[("OPENAI_BASE_URL", "http://0.0.0.0:2"), ("HTTP_PROXY", "http://[")], "").await;
    assert!(text.contains("HTTP_PROXY is not the address of an HTTP proxy"), "{text}");
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tls").join(name)
}

/// Starts an `https://` server with a certificate of the authority in `ca.pem`. Returns the server's address.
fn encrypted_server() -> String {
    let certificates = CertificateDer::pem_file_iter(fixture("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates.map(Result::unwrap).collect(), key);
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            // A client that does not trust the certificate closes the connection.
            let _ = serve(StreamOwned::new(connection, stream.unwrap()));
        }
    });
    url
}

fn serve(stream: impl Read + Write) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim_end().parse().unwrap();
        }
    }
    stream.read_exact(&mut vec![0; length])?;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream.get_mut().write_all(&[head.as_bytes(), &provider_streams::text("openai", "Here.")].concat())?;
    stream.get_mut().flush()
}

/// Other systems check certificates themselves, and reject a validity of a hundred years.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn certificates_come_from_variables_and_settings_and_errors_name_both() {
    let url = encrypted_server();
    let (ca, key) = (fixture("ca.pem").display().to_string(), fixture("server.key").display().to_string());
    let setting = |path: &str| format!("network: {{ca_file: '{path}'}}\n");
    for (variables, config, words) in [
        (&[("SSL_CERT_FILE", ca.as_str())][..], String::new(), "Here."),
        (&[], setting(&ca), "Here."),
        (
            &[],
            String::new(),
            "Trusted are the system's certificates. If a company's proxy opens TLS, set SSL_CERT_FILE",
        ),
        (&[("SSL_CERT_FILE", "/none.pem")], setting(&ca), "SSL_CERT_FILE (/none.pem) does not exist"),
        (&[], setting("/none.pem"), "ca_file /none.pem: No such file"),
        (&[], setting(&key), "it contains no certificate in PEM"),
        (&[], setting("ca.pem"), "network.ca_file: \"ca.pem\" is not an absolute path"),
    ] {
        let variables = [&[("OPENAI_BASE_URL", url.as_str())], variables].concat();
        let text = ask(&variables, &config).await;
        assert!(text.contains(words), "{variables:?} {config}: {text}");
        assert!(!text.contains("attempts"), "a retry does not help: {text}");
    }
}

#[tokio::test]
async fn headless_run_waits_for_a_busy_server_up_to_the_limit() {
    let busy = |wait| Reply::error(429, "{}").header("retry-after-ms", wait);
    let server = Server::start([busy("1500"), busy("1"), answer()]).await;
    let variables = [("OPENAI_BASE_URL", server.url.as_str())];
    let text = ask(&variables, "network: {busy_wait_s: 1}\n").await;
    assert!(text.contains("waits 1 s at most for a busy provider (network: busy_wait_s"), "{text}");
    assert_eq!(server.requests().len(), 1);
    let text = ask(&variables, "network: {busy_wait_s: 1}\n").await;
    assert!(text.contains("Here."), "the control: {text}");
    assert!(text.contains("Retrying in 0.0 s (attempt 1; gives up after 1.0 s)."), "{text}");
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn settings_for_azure_reach_the_server() {
    let server = Server::start([answer()]).await;
    let config = format!(
        "providers: {{openai: {{base_url: '{}/openai/deployments/m?api-version=v1', key_header: api-key, \
         key_command: echo k-azure}}}}\n",
        server.url
    );
    let text = ask(&[], &config).await;
    assert!(text.contains("Here."), "{text}");
    let request = &server.requests()[0];
    assert_eq!(request.path, "/openai/deployments/m/chat/completions?api-version=v1");
    assert_eq!((request.header("api-key"), request.header("authorization")), (Some("k-azure"), None));
}
