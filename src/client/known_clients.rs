//! The display of each client, by the name and version that it sends. Data only.
//!
//! A permission request or a plan is read before it is answered only if the client shows it. A client that is not
//! listed, or older than the first version that was tried, counts as one that shows titles and messages only.

/// How a client displays what Modegate sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a property of its own")]
pub struct ClientDisplay {
    /// The plan, before the question about it is answered.
    pub plans: bool,
    /// Text of a call, before its permission request is answered.
    pub text: bool,
    /// The change of an existing file, before its permission request is answered.
    pub changes: bool,
    /// The content of a new file, before its permission request is answered.
    pub new_files: bool,
    /// The output or the exit status of a command that has failed.
    pub failed_commands: bool,
    /// Titles of calls are read as Markdown.
    pub markdown_titles: bool,
    /// Messages with different ids are separate.
    pub separate_messages: bool,
    /// Characters of a title in view where a question stands apart from the chat, whose last messages may be
    /// out of view. `None` if questions follow the messages before them.
    pub question_width: Option<usize>,
}

impl ClientDisplay {
    /// Of a program that has Modegate inside, and reads all updates.
    pub const ALL: Self = Self {
        plans: true,
        text: true,
        changes: true,
        new_files: true,
        failed_commands: true,
        markdown_titles: true,
        separate_messages: true,
        question_width: None,
    };

    /// Of a client that is not known. A title with backticks is readable, but one without them, as Markdown,
    /// can lose characters.
    pub const UNKNOWN: Self = Self {
        plans: false,
        text: false,
        changes: false,
        new_files: false,
        failed_commands: false,
        markdown_titles: true,
        separate_messages: false,
        question_width: None,
    };
}

impl Default for ClientDisplay {
    fn default() -> Self {
        Self::ALL
    }
}

/// Whether a client answers permission requests without its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutomaticConsent {
    Never,
    /// Only with this setting.
    Setting(&'static str),
    Always,
}

/// Who changes a file that Modegate writes through the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileWriter {
    /// An open file changes in the editor, which saves it.
    Editor,
    /// The client writes to the disk. The editor may keep unsaved text.
    Disk,
    /// The client writes to the disk, and asks its user first.
    DiskAfterQuestion,
    /// Modegate, because the client offers no files.
    Modegate,
}

#[derive(Debug, Clone, Copy)]
pub struct KnownClient {
    /// `clientInfo.name`.
    pub name: &'static str,
    /// The first `clientInfo.version` that was tried.
    pub since: &'static str,
    pub label: &'static str,
    pub display: ClientDisplay,
    pub consent: AutomaticConsent,
    pub writer: FileWriter,
    /// The `line` of a location counts from 0.
    pub zero_based_lines: bool,
}

pub const KNOWN_CLIENTS: [KnownClient; 8] = [
    KnownClient {
        name: "vscode-acp-client",
        since: "0.2.0",
        label: "VS Code, ACP Client (formulahendry)",
        display: ClientDisplay { markdown_titles: false, question_width: Some(80), ..ClientDisplay::UNKNOWN },
        consent: AutomaticConsent::Setting("`acp.autoApprovePermissions: allowAll`"),
        writer: FileWriter::Disk,
        zero_based_lines: false,
    },
    KnownClient {
        name: "vscode-acp-chat",
        since: "0.0.1",
        label: "VS Code, ACP Chat (sonct1)",
        display: ClientDisplay { markdown_titles: false, ..ClientDisplay::UNKNOWN },
        consent: AutomaticConsent::Never,
        writer: FileWriter::Disk,
        zero_based_lines: false,
    },
    KnownClient {
        name: "vscode-acp",
        since: "0.0.1",
        label: "VS Code, VSCode ACP (omercnet)",
        display: ClientDisplay { markdown_titles: false, ..ClientDisplay::UNKNOWN },
        consent: AutomaticConsent::Always,
        writer: FileWriter::Modegate,
        zero_based_lines: false,
    },
    KnownClient {
        name: "CodeCompanion.nvim",
        since: "1.0.0",
        label: "codecompanion.nvim",
        display: ClientDisplay { changes: true, new_files: true, ..ClientDisplay::UNKNOWN },
        consent: AutomaticConsent::Never,
        writer: FileWriter::Editor,
        zero_based_lines: false,
    },
    KnownClient {
        name: "agent-shell",
        since: "0.50.1",
        label: "agent-shell",
        display: ClientDisplay {
            plans: true,
            changes: true,
            new_files: true,
            failed_commands: true,
            markdown_titles: false,
            ..ClientDisplay::UNKNOWN
        },
        consent: AutomaticConsent::Never,
        writer: FileWriter::Editor,
        zero_based_lines: false,
    },
    KnownClient {
        name: "toad",
        since: "0.6.20",
        label: "Toad",
        display: ClientDisplay {
            new_files: false,
            failed_commands: false,
            markdown_titles: false,
            separate_messages: false,
            ..ClientDisplay::ALL
        },
        consent: AutomaticConsent::Never,
        writer: FileWriter::Disk,
        zero_based_lines: false,
    },
    KnownClient {
        name: "acpx",
        since: "0.19.1",
        label: "acpx",
        display: ClientDisplay { failed_commands: true, markdown_titles: false, ..ClientDisplay::UNKNOWN },
        consent: AutomaticConsent::Setting("`--approve-all`"),
        writer: FileWriter::DiskAfterQuestion,
        zero_based_lines: false,
    },
    KnownClient {
        name: "zed",
        since: "",
        label: "Zed (from its source)",
        display: ClientDisplay { separate_messages: false, ..ClientDisplay::ALL },
        consent: AutomaticConsent::Setting("`agent.tool_permissions.default: allow`"),
        writer: FileWriter::Editor,
        zero_based_lines: true,
    },
];

/// Returns the row of a client. `None` if the name is not listed, or the version is older.
pub fn known_client(name: &str, version: &str) -> Option<&'static KnownClient> {
    KNOWN_CLIENTS.iter().find(|client| client.name == name && is_at_least(version, client.since))
}

/// Compares the numbers of versions. A version that has other parts is older than any.
fn is_at_least(version: &str, since: &str) -> bool {
    let numbers = |text: &str| text.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok();
    since.is_empty() || numbers(version).is_some_and(|version| Some(version) >= numbers(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_known_by_name_and_version() {
        for (name, version, expected) in [
            ("acpx", "0.19.1", true),
            ("acpx", "0.20.0", true),
            ("acpx", "1.0", true),
            ("acpx", "0.19.0", false),
            ("acpx", "", false),
            ("acpx", "dev", false),
            ("ACPX", "0.19.1", false),
            ("zed", "", true),
            ("zed", "0.200.1", true),
            ("another", "1.0.0", false),
        ] {
            let known = known_client(name, version);
            assert_eq!(known.map(|client| client.name), expected.then_some(name), "{name} {version}");
        }
    }

    #[test]
    fn names_stand_once() {
        let mut names: Vec<_> = KNOWN_CLIENTS.iter().map(|client| client.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KNOWN_CLIENTS.len());
    }
}
