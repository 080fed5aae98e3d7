//! The sandbox of a command, completed when a command needs it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};

use crate::sandbox::{Brokered, Confinement};

#[derive(Clone)]
pub struct CommandSandbox(Arc<SandboxInner>);

struct SandboxInner {
    kind: CommandKind,
    confinement: LazyConfinement,
}

enum LazyConfinement {
    Known(Confinement),
    /// The function lives as long as the sandbox, because it may own a folder of it.
    Lazy(OnceLock<Confinement>, Box<dyn Fn() -> Confinement + Send + Sync>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandKind {
    Off,
    ReadOnly,
    Other,
}

impl CommandSandbox {
    pub(super) fn new(kind: CommandKind, complete: impl Fn() -> Confinement + Send + Sync + 'static) -> Self {
        let confinement = LazyConfinement::Lazy(OnceLock::new(), Box::new(complete));
        Self(Arc::new(SandboxInner { kind, confinement }))
    }

    pub(super) fn of(confinement: Confinement) -> Self {
        let kind = match confinement {
            Confinement::Off => CommandKind::Off,
            Confinement::ReadOnly { .. } => CommandKind::ReadOnly,
            _ => CommandKind::Other,
        };
        Self(Arc::new(SandboxInner { kind, confinement: LazyConfinement::Known(confinement) }))
    }

    pub fn none() -> Self {
        static NONE: LazyLock<CommandSandbox> = LazyLock::new(|| CommandSandbox::of(Confinement::Off));
        NONE.clone()
    }

    /// A read-only sandbox in which `folder` is readable too. Other sandboxes read everything.
    #[must_use]
    pub fn with_readable(&self, folder: Option<&Path>) -> Self {
        match (folder, self.confinement()) {
            (Some(folder), Confinement::ReadOnly { read, build, denied }) => {
                let read = read.iter().cloned().chain([folder.to_owned()]).collect();
                Self::of(Confinement::ReadOnly { read, build: build.clone(), denied: denied.clone() })
            }
            _ => self.clone(),
        }
    }

    /// A brokered sandbox that records changes in a folder.
    #[must_use]
    pub fn with_record(&self, folder: Option<&Path>) -> Self {
        match (folder, self.confinement()) {
            (Some(folder), Confinement::Brokered { write, broker }) => {
                let broker = Brokered { record: Some(folder.to_owned()), ..broker.clone() };
                Self::of(Confinement::Brokered { write: write.clone(), broker })
            }
            _ => self.clone(),
        }
    }

    pub(super) fn build_folder(&self) -> Option<&Path> {
        match self.confinement() {
            Confinement::ReadOnly { build, .. } => build.as_deref(),
            _ => None,
        }
    }

    pub(super) fn kind(&self) -> CommandKind {
        self.0.kind
    }

    pub fn is_read_only(&self) -> bool {
        self.0.kind == CommandKind::ReadOnly
    }

    /// The folders that an external agent writes in every mode.
    pub fn state_folders(&self) -> &[PathBuf] {
        match self.confinement() {
            Confinement::Agent { write } | Confinement::Brokered { write, .. } => write,
            _ => &[],
        }
    }

    /// Reads the file system on the first call.
    pub fn confinement(&self) -> &Confinement {
        match &self.0.confinement {
            LazyConfinement::Known(confinement) => confinement,
            LazyConfinement::Lazy(confinement, complete) => confinement.get_or_init(complete),
        }
    }

    pub fn is_off(&self) -> bool {
        self.0.kind == CommandKind::Off
    }
}
