//! Answers for a program that does not speak ACP and has the user's terminal: one session, and one prompt that lasts
//! as long as the program.

use std::io;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};

use crate::event::PROGRAM_META;
use crate::process::program::{Program, ProgramEnd};
use crate::process::{ChildStdio, Exit, JobState};

/// On the call that stands for the program, when it has ended: `{"status": N}`, `{"signal": N}`, or
/// `{"error": TEXT, "code": N}` if the program was not executed or had to be killed; N is a shell's exit code, or null.
pub const EXIT_META: &str = "modegate/exit";

/// On the call that stands for the program, when it stops or continues: a [`JobState`].
pub const JOB_META: &str = "modegate/job";

/// On the call that stands for the program, when an act of the program was refused: a `RefusedAct`.
pub const REFUSED_META: &str = "modegate/refused";

const BUFFER: usize = 64 * 1024;

const SESSION: &str = "program";

/// The call that stands for the program.
pub const PROGRAM_CALL: &str = "program";

/// The program must wait for its release.
pub(super) fn connect(program: Program) -> ChildStdio {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let (from, to) = tokio::io::split(theirs);
    tokio::spawn(async move {
        // Fails only if the other end is gone.
        let _ = serve(ours, program).await;
    });
    ChildStdio { from: Box::new(from), to: Box::new(to) }
}

async fn serve(connection: DuplexStream, program: Program) -> io::Result<()> {
    let (input, mut output) = tokio::io::split(connection);
    let mut lines = BufReader::new(input).lines();
    // The id of the open prompt.
    let mut prompt: Option<Value> = None;
    let mut job = program.job();
    loop {
        tokio::select! {
            line = lines.next_line() => {
                let Some(line) = line? else { return Ok(()) };
                let message: Value = serde_json::from_str(&line)?;
                let id = message.get("id").cloned();
                let result = match (message["method"].as_str(), &id) {
                    (Some("initialize"), _) => json!({ "protocolVersion": 1, "agentCapabilities": {} }),
                    (Some("session/new"), _) => json!({ "sessionId": SESSION }),
                    (Some("session/prompt"), _) => {
                        prompt = id;
                        let title = message["params"]["prompt"][0]["text"].as_str().unwrap_or_default();
                        let call = json!({
                            "sessionUpdate": "tool_call", "toolCallId": PROGRAM_CALL, "title": title, "kind": "execute",
                            "status": "in_progress", "_meta": { PROGRAM_META: true },
                        });
                        write(&mut output, &update(&call)).await?;
                        program.release().await;
                        continue;
                    }
                    (Some("session/cancel"), _) => {
                        program.shut_down().await;
                        continue;
                    }
                    _ => continue,
                };
                write(&mut output, &json!({ "jsonrpc": "2.0", "id": id, "result": result })).await?;
            }
            Ok(()) = job.changed(), if prompt.is_some() => {
                let state = *job.borrow_and_update();
                write(&mut output, &job_changed(state)).await?;
            }
            over = program.over(), if prompt.is_some() => {
                for message in ending(prompt.take().as_ref(), &over) {
                    write(&mut output, &message).await?;
                }
            }
        }
    }
}

/// The last messages of a prompt.
fn ending(prompt: Option<&Value>, over: &ProgramEnd) -> Vec<Value> {
    let exit = match over.exit {
        Some(Exit::Status(status)) => json!({ "status": status }),
        Some(Exit::Signal(signal)) => json!({ "signal": signal }),
        None => json!({ "error": over.how, "code": over.failure_status }),
    };
    let status = if over.exit == Some(Exit::Status(0)) { "completed" } else { "failed" };
    let text = json!({ "type": "text", "text": format!("[{}.]", over.how) });
    let call = json!({
        "sessionUpdate": "tool_call_update", "toolCallId": PROGRAM_CALL, "status": status,
        "content": [{ "type": "content", "content": text }],
        "_meta": { EXIT_META: exit },
    });
    vec![update(&call), json!({ "jsonrpc": "2.0", "id": prompt, "result": { "stopReason": "end_turn" } })]
}

fn job_changed(state: JobState) -> Value {
    update(
        &json!({ "sessionUpdate": "tool_call_update", "toolCallId": PROGRAM_CALL, "_meta": { JOB_META: state } }),
    )
}

fn update(update: &Value) -> Value {
    let params = json!({ "sessionId": SESSION, "update": update });
    json!({ "jsonrpc": "2.0", "method": "session/update", "params": params })
}

async fn write(output: &mut (impl AsyncWriteExt + Unpin), message: &Value) -> io::Result<()> {
    output.write_all(format!("{message}\n").as_bytes()).await?;
    output.flush().await
}
