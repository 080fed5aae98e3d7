//! Programs that Modegate started try to change the mode of another program.

use serde_json::json;

use crate::cli::run::{Place, Running, WRITER};
use crate::support::requirements::{lasting_folder, python, require_sandbox};

/// Sends the mode change over the socket, without the command.
const BY_SOCKET: &str = "import glob, os, socket, sys; s = socket.socket(socket.AF_UNIX); \
    s.connect(glob.glob(os.environ['HOME'] + '/.local/share/modegate/run/*' + sys.argv[1] + '.sock')[0]); \
    s.sendall(b'{\\\"set_mode\\\":\\\"code\\\"}\\n'); print(s.recv(9999), s.recv(9999))";

/// Lines for a session's `shell` that try to set a looser mode.
fn attacks(part: &str) -> Vec<String> {
    let binary = env!("CARGO_BIN_EXE_modegate");
    let order = format!("{binary} mode {part} code");
    let by_socket = format!("{} -c \"{BY_SOCKET}\" {part}", python());
    vec![
        order.clone(),
        by_socket.clone(),
        format!("setsid {order}; sleep 0.5"),
        format!("(nohup setsid {order} > log 2>&1 &); sleep 0.7; cat log"),
        format!("(({by_socket}) & ) & sleep 0.7"),
        format!("exec env -i HOME=$HOME PATH=$PATH {order}"),
        format!("echo code | {binary} mode {part}"),
        format!("script -qec '{order}' /dev/null"),
        format!("bash -c 'bash -c \"{order}\"'"),
    ]
}

#[test]
fn no_program_of_modegate_loosens_the_mode_of_another() {
    require_sandbox();
    // The folder is not temporary, because a brokered shell would have no UNIX sockets.
    let dir = lasting_folder();
    std::fs::create_dir(dir.path().join("work")).unwrap();
    let place = Place { dir };
    let running = Running::start(&place, "plan", WRITER);
    let part = running.session.clone();
    let denied = || running.later().iter().all(|line| line == "denied");
    assert!(denied());
    for line in attacks(&part) {
        let call = json!({ "tool_call": { "id": "1", "name": "shell", "arguments": { "command": line } } });
        let end = "{\"stop\":\"done\"}\n";
        let script = place.dir.path().join("script.jsonl");
        std::fs::write(&script, format!("{call}\n{end}{{\"text\":\"end\"}}\n{end}")).unwrap();
        let model = format!("scripted:{}", script.display());
        let arguments = ["--mode", "code", "--model", &model, "--output", "stream-json", "-p", "go"];
        let (_, output, messages) = place.run(&arguments);
        assert!(denied(), "{line}: {output}{messages}");
        assert!(output.contains("cannot change the mode of another"), "{line}: {output}{messages}");
        // Sandboxed programs have no UNIX sockets.
        let (_, output, messages) = place.run(&["run", "--mode", "code", "--", "bash", "-c", &line]);
        assert!(denied(), "{line}: {output}{messages}");
    }
    // The control: the user's terminal.
    let (code, output, messages) = place.run(&["mode", &part, "code"]);
    assert_eq!((code, output.trim()), (Some(0), "code"), "{messages}");
    assert!(!denied());
}
