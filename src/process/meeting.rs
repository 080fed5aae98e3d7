//! Waiting for a command's supervisor that somebody else starts, in a terminal of theirs: a socket in a folder that only
//! this user can enter, for one guest. Commands of this user may enter it, too: who comes shows that it knows the token.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::token::{SIGNATURE, Says, Token};
use super::{Command, Invitation, Order, Process, Processes, wrapper};

/// A socket at which a supervisor is expected. Dropping it takes it away: whoever comes late runs nothing.
#[derive(Debug)]
pub struct Meeting {
    folder: PathBuf,
    listener: UnixListener,
    order: Order,
    token: Token,
    /// The token as it is handed on.
    secret: String,
    program: PathBuf,
    settings: &'static [(&'static str, &'static str)],
}

impl Processes {
    /// Expects the supervisor of a command, whose output is that of the terminal in which it is started.
    ///
    /// # Errors
    /// This binary is not where it was, or there is no place for a socket.
    pub fn expect(&self, command: Command) -> io::Result<Meeting> {
        let Command { program, arguments, cwd, settings, confinement, keeps_terminal, .. } = command;
        // Not by the link of this process, which means another binary to whoever starts it.
        let binary = std::fs::canonicalize(self.binary())?;
        let (token, secret) = Token::new()?;
        let folder = self.scratch.join(format!("modegate-{}", uuid::Uuid::now_v7()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let own_folder = self.own_folder(&confinement);
        let cwd = Some(cwd);
        let order =
            Order { program, arguments, confinement, own_folder, cwd, keeps_terminal, own: Vec::new() };
        match UnixListener::bind(folder.join(NAME)) {
            Ok(listener) => Ok(Meeting { folder, listener, order, token, secret, program: binary, settings }),
            Err(error) => {
                // Nothing is in it.
                let _ = std::fs::remove_dir(&folder);
                Err(error)
            }
        }
    }
}

const NAME: &str = "s";

/// Guests that are listened to at once.
const GUESTS: usize = 64;

impl Meeting {
    /// What whoever starts it has to start.
    pub fn invitation(&self) -> Invitation {
        let socket = self.folder.join(NAME).display().to_string();
        let own = [(wrapper::SOCKET.to_owned(), socket), (wrapper::TOKEN.to_owned(), self.secret.clone())];
        let settings = self.settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Invitation {
            program: self.program.clone(),
            argument: wrapper::ARGUMENT,
            settings: own.into_iter().chain(settings).collect(),
        }
    }

    /// Waits for the supervisor, and gives it the order. Until then nothing is run. Whoever else comes is not heard.
    ///
    /// # Errors
    /// Nobody can come.
    pub async fn arrived(self) -> io::Result<Process> {
        let mut guests = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if guests.len() < GUESTS => {
                    guests.spawn(recognized(accepted?.0, self.token.clone()));
                }
                Some(guest) = guests.join_next() => if let Ok(Some(guest)) = guest {
                    return Process::of_guest(guest, &self.order, self.token.clone()).await;
                },
            }
        }
    }
}

/// The guest, if it is this user's and knows the token.
async fn recognized(mut guest: UnixStream, token: Token) -> Option<UnixStream> {
    if guest.peer_cred().ok()?.uid() != rustix::process::getuid().as_raw() {
        return None;
    }
    let mut said = [0; SIGNATURE];
    guest.read_exact(&mut said).await.ok()?;
    token.unseal(Says::Here, &said).map(|_| guest)
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // It is in a folder for temporary files, should it stay.
        let _ = std::fs::remove_file(self.folder.join(NAME));
        let _ = std::fs::remove_dir(&self.folder);
    }
}
