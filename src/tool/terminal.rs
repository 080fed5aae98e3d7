//! A command in a terminal of the client's: started there, held, watched and ended from here.
//!
//! What the client starts is this binary ([`crate::process::wrapper`]), which comes back for its order. So a command is
//! never run twice, never unheld, and its end is known from its own supervisor, not from the client. Once it was made, a
//! terminal is released, whatever happens: by [`Terminal::close`], else by its drop.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Editor;
use super::content::{clip, visible};
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

/// What is left of a command when its terminal is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing: it came to its own end.
    Over,
    /// Nothing: it was ended. Its terminal is killed, should the client think otherwise.
    Ended,
    /// Nobody vouches for it: its supervisor was killed.
    Unknown,
}

/// Why a command does not run in a terminal.
#[derive(Debug)]
pub enum Elsewhere {
    /// It may not run any more.
    Cancelled,
    /// The client, or its user, did not make the terminal. Nothing has been run, and nothing is to be.
    Refused(String),
    /// There is a terminal, and this binary does not run in it, as where the client is on another machine. Nothing has been
    /// run.
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
            let mut terminal = terminal.map_err(|error| Elsewhere::Refused(error.reason()))?;
            let process = tokio::select! {
                process = meeting.arrived() => process.map_err(|error| error.to_string()),
                () = terminal.is_over() => Err("it ended before it came here".to_owned()),
                () = tokio::time::sleep(START) => Err("it was not started in time".to_owned()),
            };
            Ok((terminal, process.map_err(Elsewhere::Unusable)?))
        };
        let (terminal, process) = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Elsewhere::Cancelled),
            opened = open => opened?,
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
        let arguments = vec![argument.to_owned(), clip(&visible(line), SHOWN).into_owned()];
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
        let created = tokio::time::timeout(START, tokio::spawn(create)).await;
        // A task that is lost with the runtime is lost with the connection.
        created.map_or(Err(ClientError::Late(START)), |created| created.unwrap_or(Err(ClientError::Gone)))
    }

    /// Waits until what was started in it is over. May be given up and asked again.
    async fn exited(&mut self) -> Result<(), ClientError> {
        let exit = self.exit.get_or_insert_with(|| self.editor.terminal_exit(&self.id));
        exit.answer().await.map(|_| ())
    }

    /// Waits until the client says that what was started in it is over.
    async fn is_over(&mut self) {
        if let Err(error) = self.exited().await {
            tracing::debug!(%error, "a client does not say how a terminal ended");
            std::future::pending::<()>().await;
        }
    }

    /// Its id.
    pub fn id(&self) -> &TerminalId {
        &self.id
    }

    /// Takes what was written and releases it. What could not be had is said in the text. It hurries once `cancel` is
    /// cancelled: a mode change may wait.
    pub async fn close(mut self, left: Left, cancel: &CancellationToken) -> String {
        let bound = if left == Left::Over { CLOSE } else { SOON };
        let hurry = async || {
            tokio::select! {
                () = tokio::time::sleep(bound) => bound,
                () = async { cancel.cancelled().await; tokio::time::sleep(SOON).await } => SOON,
            }
        };
        if left == Left::Unknown {
            // Whoever was started there ends what is left, unless it is killed before it has.
            let _ = tokio::time::timeout(SOON, self.exited()).await;
        }
        if left != Left::Over
            && let Err(error) = self.editor.kill_terminal(&self.id, bound).await
        {
            tracing::debug!(%error, "a terminal was not killed");
        }
        // What it wrote last may still be on its way to the client.
        let trouble = tokio::select! {
            exit = self.exited() => exit.err(),
            bound = hurry() => Some(ClientError::Late(bound)),
        };
        let output = tokio::select! {
            output = self.editor.terminal_output(&self.id, CLOSE) => output,
            bound = hurry() => Err(ClientError::Late(bound)),
        };
        self.is_released = true;
        let (editor, id) = (self.editor.clone(), self.id.clone());
        // In a task of its own, which goes on: that the client is late does not take it back.
        let release = tokio::spawn(async move {
            if let Err(error) = editor.release_terminal(&id, CLOSE).await {
                tracing::warn!(%error, "the client has not said that it released a terminal");
            }
        });
        tokio::select! {
            // It does not panic; what is lost with the runtime is lost with the connection.
            _ = release => {}
            _ = hurry() => {}
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
