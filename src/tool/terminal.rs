//! A command in a terminal of the client's: started there, held, watched and ended from here.
//!
//! What the client starts is this binary ([`crate::process::wrapper`]), which comes back for its order. So a command is
//! never run twice, never unheld, and its end is known from its own supervisor, not from the client. Once it was made, a
//! terminal is released, whatever happens: by [`Terminal::close`], else by its drop.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Editor;
use super::content::clip;
use crate::acp::{EnvVariable, TerminalId, WaitForTerminalExitResponse};
use crate::client::{ClientError, Open};
use crate::process::{Invitation, Meeting, Process};

/// How long a client may take to start what it was asked to.
const START: Duration = Duration::from_secs(10);

/// How long it may take to show all that was written, and to release it.
const CLOSE: Duration = Duration::from_secs(5);

/// The same for each step where a mode change may wait for all of them.
const SOON: Duration = Duration::from_millis(400);

/// Bytes of the command line that people see beside the terminal.
const SHOWN: usize = 400;

/// A terminal of the client's that was not released yet.
#[derive(Debug)]
pub struct Terminal {
    editor: Editor,
    id: TerminalId,
    /// Answered when what was started in it is over; none: nobody has asked yet.
    exit: Option<Open<WaitForTerminalExitResponse>>,
    is_released: bool,
}

/// Why a command does not run in a terminal.
#[derive(Debug)]
pub enum Elsewhere {
    /// It may not run any more.
    Cancelled,
    /// The client cannot start it. Nothing has been run.
    Unusable(String),
}

impl Terminal {
    /// Has the client start the command that is expected, and shows the terminal in the call. `line` is for people.
    ///
    /// # Errors
    /// Nothing was run.
    pub async fn open(
        editor: &Editor,
        meeting: Meeting,
        line: &str,
        output: usize,
        cancel: &CancellationToken,
    ) -> Result<(Self, Process), Elsewhere> {
        let open = async {
            let terminal = Self::create(editor, meeting.invitation(), line, output).await;
            let mut terminal = terminal.map_err(|error| Elsewhere::Unusable(error.to_string()))?;
            let process = tokio::select! {
                process = meeting.arrived() => process.map_err(|error| error.to_string()),
                _ = terminal.exited() => Err("it ended before it came here".to_owned()),
            };
            Ok((terminal, process.map_err(Elsewhere::Unusable)?))
        };
        let (terminal, process) = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Elsewhere::Cancelled),
            opened = tokio::time::timeout(START, open) => {
                opened.unwrap_or_else(|_| Err(Elsewhere::Unusable("it was not started in time".into())))?
            }
        };
        editor.embed(&terminal.id);
        Ok((terminal, process))
    }

    /// Creates it in a task of its own: the answer is waited for also when nobody wants it any more, to release what was
    /// made.
    async fn create(
        editor: &Editor,
        invitation: Invitation,
        line: &str,
        output: usize,
    ) -> Result<Self, ClientError> {
        let Invitation { program, argument, settings } = invitation;
        let arguments = vec![argument.to_owned(), clip(line, SHOWN).into_owned()];
        let settings: Vec<_> =
            settings.into_iter().map(|(name, value)| EnvVariable::new(name, value)).collect();
        let editor = editor.clone();
        let create = async move {
            let fill = |request: crate::acp::CreateTerminalRequest| {
                request.args(arguments).env(settings).output_byte_limit(output as u64)
            };
            let id = editor.create_terminal(fill, &program).await?;
            Ok(Self { editor, id, exit: None, is_released: false })
        };
        // A task that is lost with the runtime is lost with the connection.
        tokio::spawn(create).await.unwrap_or(Err(ClientError::Gone))
    }

    /// Waits until what was started in it is over. May be given up and asked again.
    async fn exited(&mut self) -> Result<(), ClientError> {
        let exit = self.exit.get_or_insert_with(|| self.editor.terminal_exit(&self.id));
        exit.answer().await.map(|_| ())
    }

    /// Its id.
    pub fn id(&self) -> &TerminalId {
        &self.id
    }

    /// Takes what was written and releases it. `ended`: the command came to its own end; else it is killed first, should its
    /// supervisor not have been able to. What could not be had is said in the text.
    pub async fn close(mut self, ended: bool) -> String {
        let bound = if ended { CLOSE } else { SOON };
        if !ended && let Err(error) = self.editor.kill_terminal(&self.id, bound).await {
            tracing::debug!(%error, "a terminal was not killed");
        }
        // What it wrote last may still be on its way to the client.
        let exit = tokio::time::timeout(bound, self.exited()).await;
        let trouble = exit.unwrap_or(Err(ClientError::Late(bound))).err();
        let output = self.editor.terminal_output(&self.id, bound).await;
        self.is_released = true;
        if let Err(error) = self.editor.release_terminal(&self.id, bound).await {
            tracing::warn!(%error, "the client has not said that it released a terminal");
        }
        match output {
            Ok(output) => {
                let text = output.output.replace("\r\n", "\n");
                let start = if output.truncated { "[The start is not shown.]\n" } else { "" };
                let end = trouble.map(|error| format!("\n[There may be more: {error}.]\n"));
                format!("{start}{text}{}", end.unwrap_or_default())
            }
            Err(error) => format!("[What it wrote is not known: {error}.]\n"),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.is_released {
            self.editor.let_go_of_terminal(&self.id);
        }
    }
}
