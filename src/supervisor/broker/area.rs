//! Kinds of folders in which a command may change something.

/// Says who decides about changes below a root: the policy, or Landlock, which allows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    Workspace,
    /// Caches, temporary folders and the like, which the session shares with other programs. Changes are not recorded.
    Unrecorded,
    /// The command's temporary folder and its state folders.
    Own,
}

impl Area {
    /// True if the policy decides.
    pub(super) fn is_brokered(self) -> bool {
        self != Self::Own
    }
}
