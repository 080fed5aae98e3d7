//! The messages between Modegate, the supervisors and the guard. Plain data, in one encoding for every direction: a
//! line of JSON.
//!
//! Modegate starts the other processes from its own binary, so both ends are of one [`BUILD`]. A supervisor refuses a
//! request of another one. For a new report, see `docs/internals/adding.md#a-report-of-the-supervisor`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::record::RecordState;
use crate::path_bytes;
use crate::sandbox::host::HostPattern;
use crate::sandbox::{BrokerPolicy, Confinement};

pub const BUILD: &str = env!("MODEGATE_VERSION");

/// First argument of the process that becomes the fork server and its guard.
pub const FORK_SERVER_ARGUMENT: &str = "__supervise";

/// Longest message to a supervisor, in bytes. More than a kernel takes as arguments and environment of a program.
pub const MAX_ORDER: usize = 64 * 1024 * 1024;

/// Longest message to Modegate, in bytes.
pub const MAX_REPORT: usize = 2 * 1024 * 1024;

/// The first message to a supervisor. A descriptor beside its first byte becomes the command's stdin.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnRequest {
    /// Always [`BUILD`].
    pub build: String,
    pub program: String,
    pub arguments: Vec<String>,
    /// `None` inherits the environment of Modegate.
    pub environment: Option<Vec<(OsString, OsString)>>,
    pub settings: Vec<(String, String)>,
    pub confinement: Confinement,
    /// Created for this command alone, and removed afterwards.
    pub own_folder: Option<PathBuf>,
    pub terminal: TerminalAccess,
    /// The command is executed after [`SupervisorOrder::Release`].
    pub waits: bool,
    /// Variables that the supervisor itself must not have.
    pub own: Vec<(String, String)>,
}

/// How a command uses the terminal of Modegate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalAccess {
    /// The command has a session of its own.
    None,
    /// The command stays in the session and the process group of Modegate.
    Shared,
    /// The command has a process group of its own in the session of Modegate, which is that of its terminal. The group
    /// is in the foreground when the command is executed. [`SupervisorReport::Job`] follows when the command stops.
    Foreground,
}

/// Sent to the supervisor after the request. Closing the connection kills the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupervisorOrder {
    /// Asks the command's process group for a graceful end.
    RequestExit,
    /// Has a waiting command executed.
    Release,
    /// [`BrokerEvent::RecordSaved`] follows.
    SaveRecord,
    /// [`BrokerEvent::PolicySet`] follows.
    SetPolicy(BrokerPolicy),
    Answer {
        question: u64,
        allows: bool,
    },
    /// Lets the command connect to a further host.
    AllowHost(HostPattern),
}

/// Sent by the supervisor. [`Self::Gone`] is the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupervisorReport {
    Failed(ProcessFailure),
    Exited(Exit),
    Job(JobState),
    Broker(BrokerEvent),
    Gone { left_behind: usize },
}

/// Why a command was not executed, or was ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct ProcessFailure {
    pub reason: String,
    /// Exit code of a shell for a program that cannot be executed. `None` after any other failure.
    pub status: Option<i32>,
}

impl ProcessFailure {
    pub(super) fn of(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        inner.cloned().unwrap_or_else(|| Self { reason: error.to_string(), status: None })
    }
}

/// Of a command with [`TerminalAccess::Foreground`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Stopped {
        /// The process of the command.
        command: i32,
        /// The process group of the command.
        group: i32,
    },
    Running,
}

/// Sent to the guard.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardOrder {
    /// Ends all children but the fork server and these supervisors. [`GuardReport::OrphansEnded`] follows.
    EndOrphans { supervisors: Vec<i32> },
}

/// Sent by the guard.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardReport {
    OrphansEnded {
        is_complete: bool,
    },
    /// The fork server was killed, and no process is left. The guard ends.
    NothingLeft,
}

/// Events of a brokered command. Modegate passes each on to the command's owner as it is. Reports about the process
/// alone are variants of [`SupervisorReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerEvent {
    /// A policy applies; see [`SupervisorOrder::SetPolicy`].
    PolicySet {
        /// Processes that were killed because they went on writing.
        ended: usize,
        /// If false, a process may still be able to write under a tighter policy.
        is_complete: bool,
    },
    /// Processes that were killed before [`Self::PolicySet`], the first ones only.
    Ended(Vec<EndedWriter>),
    /// The record of changes is in its folder; see [`SupervisorOrder::SaveRecord`]. Also comes at the end of a command
    /// whose changes are recorded.
    RecordSaved(RecordState),
    /// A change waits for [`SupervisorOrder::Answer`].
    Asked(ChangeQuestion),
    /// The change with this number needs no answer any more.
    Withdrawn(u64),
    /// A connection to this host, or a question for its address, was refused for the first time. A name, or an address
    /// with its port.
    HostRefused(String),
    /// A connection to the UNIX socket with this path was refused for the first time.
    #[serde(with = "path_bytes")]
    SocketRefused(PathBuf),
    /// A call of the command was refused. Sent once for each kind and path until the record is saved or the policy
    /// changes, and for the first ones only.
    Refused(RefusedCall),
    /// A rule refused a change of the command. Sent once for each path, and for the first ones only.
    RuleRefused(RuleRefusal),
}

/// A change that a rule of the user denies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRefusal {
    /// As messages name it.
    pub rule: String,
    /// The path that the rule matches, absolute and without symbolic links.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
}

/// A process that went on writing under a tighter policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedWriter {
    /// Name of the program, in its own words.
    pub program: String,
    /// The file or named pipe that it could write to.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
}

/// A call that the sandbox refuses and the user could make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCall {
    pub kind: RefusalKind,
    /// What would have changed. `None` for calls without a path.
    #[serde(with = "path_bytes::option")]
    pub path: Option<PathBuf>,
    /// Name of the program that made the call, in its own words.
    pub program: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// A change of the session's files under [`BrokerPolicy::Nothing`].
    Change,
    /// A change of other files.
    Outside,
    /// A mount, or namespaces as sandboxes and containers use them.
    Namespace,
    /// Reading or controlling another process, as debuggers do.
    Trace,
}

/// A change that a brokered command wants to make under [`BrokerPolicy::Ask`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeQuestion {
    /// Unique for the command.
    pub number: u64,
    pub change: ChangeKind,
    /// Absolute, without symbolic links.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    /// Path after a move, or the new name of a link.
    #[serde(with = "path_bytes::option")]
    pub to: Option<PathBuf>,
    /// UTF-8. Files that move with a folder, relative to it.
    pub files: Vec<PathBuf>,
    /// Name of the program that makes the change, in its own words.
    pub program: String,
    /// `None` if the command could change the program's file.
    pub executable: Option<Executable>,
}

/// The file of a program, which the command cannot change. The program's own words and its variables can still lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executable {
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    /// The outermost process with this file above the caller, or the caller, and the time of its start.
    pub process: u32,
    pub started: u64,
    /// Of that process, without the folder of the program.
    pub command_line: String,
}

impl ChangeQuestion {
    /// The path, and the one after the change.
    pub fn ends(&self) -> impl Iterator<Item = &Path> + Clone {
        [Some(&self.path), self.to.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Create,
    CreateFolder,
    Write,
    Delete,
    DeleteFolder,
    Move,
    /// Another name (hard link) for a file.
    Link,
    /// Of permissions, times or extended attributes.
    Attributes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Status(i32),
    Signal(i32),
}

/// A message as it is sent.
///
/// # Errors
/// Returns an error for a path in the request that is not UTF-8.
pub fn encode(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// The bytes of one direction of a connection, taken apart into messages.
#[derive(Debug)]
pub struct MessageReader {
    /// Received, and not taken yet.
    bytes: Vec<u8>,
    /// Start of the bytes that may contain the end of a message.
    unsearched: usize,
    longest: usize,
}

impl MessageReader {
    /// `longest` is the length of the longest message, in bytes.
    pub fn new(longest: usize) -> Self {
        Self { bytes: Vec::new(), unsearched: 0, longest }
    }

    /// Adds received bytes. Returns false, and adds nothing, if the bytes that were not taken are too many.
    pub fn add(&mut self, received: &[u8]) -> bool {
        let has_room = self.bytes.len() < self.longest;
        if has_room {
            self.bytes.extend_from_slice(received);
        }
        has_room
    }

    /// Takes the next message. `None` until it is whole.
    pub fn take<Message: DeserializeOwned>(&mut self) -> Option<serde_json::Result<Message>> {
        let Some(end) = self.bytes[self.unsearched..].iter().position(|byte| *byte == b'\n') else {
            self.unsearched = self.bytes.len();
            return None;
        };
        let line: Vec<u8> = self.bytes.drain(..=self.unsearched + end).collect();
        self.unsearched = 0;
        Some(serde_json::from_slice(&line))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt;

    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    /// Parts that bytes are received in.
    fn parts() -> impl Strategy<Value = Vec<usize>> {
        vec(1..40_usize, 1..8)
    }

    /// Adds bytes in parts, and takes all messages. `None` if a message is too long.
    fn read<Message: DeserializeOwned>(
        reader: &mut MessageReader,
        mut bytes: &[u8],
        parts: &[usize],
    ) -> Option<Vec<serde_json::Result<Message>>> {
        let mut messages = Vec::new();
        for part in parts.iter().cycle() {
            if bytes.is_empty() {
                break;
            }
            let (received, rest) = bytes.split_at(bytes.len().min(*part));
            if !reader.add(received) {
                return None;
            }
            messages.extend(std::iter::from_fn(|| reader.take()));
            bytes = rest;
        }
        Some(messages)
    }

    fn path() -> impl Strategy<Value = PathBuf> {
        vec(1_u8..=255, 1..20).prop_map(path_bytes::from_bytes)
    }

    /// Names of variants. The compiler demands the names of new ones, and [`strategies_make_every_variant`] a strategy
    /// that makes them.
    trait Variants {
        const ALL: &[&str];
        fn variant(&self) -> &'static str;
    }

    macro_rules! variants {
        ($($type:ident { $($variant:ident)* })*) => {
            $(impl Variants for $type {
                const ALL: &[&str] = &[$(stringify!($variant)),*];

                fn variant(&self) -> &'static str {
                    match self {
                        $(Self::$variant { .. } => stringify!($variant),)*
                    }
                }
            })*
        };
    }

    variants! {
        SupervisorOrder { RequestExit Release SaveRecord SetPolicy Answer AllowHost }
        BrokerPolicy { Nothing Ask Roots }
        SupervisorReport { Failed Exited Job Broker Gone }
        Exit { Status Signal }
        JobState { Stopped Running }
        BrokerEvent { PolicySet Ended RecordSaved Asked Withdrawn HostRefused SocketRefused Refused RuleRefused }
        RecordState { Complete Incomplete Cut }
        RefusalKind { Change Outside Namespace Trace }
        ChangeKind { Create CreateFolder Write Delete DeleteFolder Move Link Attributes }
        GuardOrder { EndOrphans }
        GuardReport { OrphansEnded NothingLeft }
    }

    fn order() -> impl Strategy<Value = SupervisorOrder> {
        prop_oneof![
            Just(SupervisorOrder::RequestExit),
            Just(SupervisorOrder::Release),
            Just(SupervisorOrder::SaveRecord),
            policy().prop_map(SupervisorOrder::SetPolicy),
            (any::<u64>(), any::<bool>())
                .prop_map(|(question, allows)| SupervisorOrder::Answer { question, allows }),
            any::<u16>().prop_map(|number| {
                let host = format!("*.example{number}.com:{}", number.max(1));
                SupervisorOrder::AllowHost(host.parse().unwrap())
            }),
        ]
    }

    fn policy() -> impl Strategy<Value = BrokerPolicy> {
        select(vec![BrokerPolicy::Nothing, BrokerPolicy::Ask, BrokerPolicy::Roots])
    }

    fn report() -> impl Strategy<Value = SupervisorReport> {
        prop_oneof![
            (any::<String>(), any::<Option<i32>>())
                .prop_map(|(reason, status)| SupervisorReport::Failed(ProcessFailure { reason, status })),
            exit().prop_map(SupervisorReport::Exited),
            job_state().prop_map(SupervisorReport::Job),
            broker_event().prop_map(SupervisorReport::Broker),
            any::<usize>().prop_map(|left_behind| SupervisorReport::Gone { left_behind }),
        ]
    }

    fn exit() -> impl Strategy<Value = Exit> {
        prop_oneof![any::<i32>().prop_map(Exit::Status), any::<i32>().prop_map(Exit::Signal)]
    }

    fn job_state() -> impl Strategy<Value = JobState> {
        prop_oneof![
            any::<(i32, i32)>().prop_map(|(command, group)| JobState::Stopped { command, group }),
            Just(JobState::Running)
        ]
    }

    fn broker_event() -> impl Strategy<Value = BrokerEvent> {
        let writer = (any::<String>(), path()).prop_map(|(program, path)| EndedWriter { program, path });
        let call = (refusal_kind(), option::of(path()), any::<String>())
            .prop_map(|(kind, path, program)| RefusedCall { kind, path, program });
        let rule = (any::<String>(), path()).prop_map(|(rule, path)| RuleRefusal { rule, path });
        prop_oneof![
            (any::<usize>(), any::<bool>())
                .prop_map(|(ended, is_complete)| BrokerEvent::PolicySet { ended, is_complete }),
            vec(writer, 0..3).prop_map(BrokerEvent::Ended),
            record_state().prop_map(BrokerEvent::RecordSaved),
            question().prop_map(BrokerEvent::Asked),
            any::<u64>().prop_map(BrokerEvent::Withdrawn),
            any::<String>().prop_map(BrokerEvent::HostRefused),
            path().prop_map(BrokerEvent::SocketRefused),
            call.prop_map(BrokerEvent::Refused),
            rule.prop_map(BrokerEvent::RuleRefused),
        ]
    }

    fn record_state() -> impl Strategy<Value = RecordState> {
        prop_oneof![
            Just(RecordState::Complete),
            any::<String>().prop_map(RecordState::Incomplete),
            Just(RecordState::Cut),
        ]
    }

    fn question() -> impl Strategy<Value = ChangeQuestion> {
        (any::<u64>(), change_kind(), path(), option::of(path()), any::<String>()).prop_map(
            |(number, change, path, to, program)| {
                let files = vec!["a/b".into()];
                let executable = to.clone().map(|path| {
                    let command_line = program.clone();
                    Executable { path, process: 7, started: number, command_line }
                });
                ChangeQuestion { number, change, path, to, files, program, executable }
            },
        )
    }

    fn refusal_kind() -> impl Strategy<Value = RefusalKind> {
        select(vec![RefusalKind::Change, RefusalKind::Outside, RefusalKind::Namespace, RefusalKind::Trace])
    }

    fn change_kind() -> impl Strategy<Value = ChangeKind> {
        select(vec![
            ChangeKind::Create,
            ChangeKind::CreateFolder,
            ChangeKind::Write,
            ChangeKind::Delete,
            ChangeKind::DeleteFolder,
            ChangeKind::Move,
            ChangeKind::Link,
            ChangeKind::Attributes,
        ])
    }

    fn guard_order() -> impl Strategy<Value = GuardOrder> {
        vec(any::<i32>(), 0..4).prop_map(|supervisors| GuardOrder::EndOrphans { supervisors })
    }

    fn guard_report() -> impl Strategy<Value = GuardReport> {
        prop_oneof![
            any::<bool>().prop_map(|is_complete| GuardReport::OrphansEnded { is_complete }),
            Just(()).prop_map(|()| GuardReport::NothingLeft),
        ]
    }

    #[test]
    fn strategies_make_every_variant() {
        fn check<Value: Variants + fmt::Debug>(strategy: impl Strategy<Value = Value>) {
            let mut runner = TestRunner::deterministic();
            let value = |_| strategy.new_tree(&mut runner).unwrap().current();
            let made: BTreeSet<&str> = (0..300).map(value).map(|value| value.variant()).collect();
            assert_eq!(made, Value::ALL.iter().copied().collect(), "{}", std::any::type_name::<Value>());
        }
        check(order());
        check(policy());
        check(report());
        check(exit());
        check(job_state());
        check(broker_event());
        check(record_state());
        check(refusal_kind());
        check(change_kind());
        check(guard_order());
        check(guard_report());
    }

    /// Sends messages, and receives them in parts.
    fn round_trip<Message: Serialize + DeserializeOwned>(
        messages: &[Message],
        longest: usize,
        parts: &[usize],
    ) -> serde_json::Result<Vec<Message>> {
        let sent: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        read(&mut MessageReader::new(longest), &sent, parts).unwrap().into_iter().collect()
    }

    proptest! {
        #[test]
        fn messages_are_read_as_they_were_sent_whatever_the_parts(
            orders in vec(order(), 0..6),
            reports in vec(report(), 0..6),
            guard_orders in vec(guard_order(), 0..3),
            guard_reports in vec(guard_report(), 0..3),
            parts in parts(),
        ) {
            prop_assert_eq!(round_trip(&orders, MAX_ORDER, &parts).unwrap(), orders);
            prop_assert_eq!(round_trip(&reports, MAX_REPORT, &parts).unwrap(), reports);
            prop_assert_eq!(round_trip(&guard_orders, MAX_ORDER, &parts).unwrap(), guard_orders);
            prop_assert_eq!(round_trip(&guard_reports, MAX_REPORT, &parts).unwrap(), guard_reports);
        }

        #[test]
        fn any_bytes_are_messages_or_errors_within_the_limit(
            bytes in vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'{'), Just(b'"')], 0..400),
            parts in parts(),
            longest in 1..100_usize,
        ) {
            let mut reader = MessageReader::new(longest);
            drop(read::<SupervisorReport>(&mut reader, &bytes, &parts));
            prop_assert!(reader.bytes.len() < longest + 40);
            drop(read::<SupervisorOrder>(&mut MessageReader::new(longest), &bytes, &parts));
            drop(read::<SpawnRequest>(&mut MessageReader::new(longest), &bytes, &parts));
            drop(read::<GuardOrder>(&mut MessageReader::new(longest), &bytes, &parts));
        }

        #[test]
        fn damaged_message_costs_itself(damage in vec(any::<u8>(), 1..40), order in order(), parts in parts()) {
            let mut sent: Vec<u8> = damage.into_iter().map(|byte| if byte == b'\n' { b'x' } else { byte }).collect();
            sent.insert(0, b'!');
            sent.push(b'\n');
            sent.extend(encode(&order).unwrap());
            let mut received = read::<SupervisorOrder>(&mut MessageReader::new(100), &sent, &parts).unwrap();
            prop_assert_eq!(received.pop().unwrap().unwrap(), order);
            prop_assert!(received.pop().unwrap().is_err() && received.is_empty());
        }
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let mut line = vec![b'['; 1_000_000];
        line.push(b'\n');
        let mut reader = MessageReader::new(MAX_REPORT);
        assert!(reader.add(&line));
        assert!(reader.take::<SpawnRequest>().unwrap().is_err());
    }

    #[test]
    fn request_with_line_breaks_is_one_message() {
        let request = SpawnRequest {
            build: BUILD.into(),
            program: "true".into(),
            arguments: vec!["line\nbreak".into()],
            environment: Some(vec![("A".into(), "b".into())]),
            settings: Vec::new(),
            confinement: Confinement::Off,
            own_folder: None,
            terminal: TerminalAccess::None,
            waits: true,
            own: Vec::new(),
        };
        let mut reader = MessageReader::new(MAX_ORDER);
        assert!(reader.add(&encode(&request).unwrap()));
        assert_eq!(reader.take::<SpawnRequest>().unwrap().unwrap(), request);
    }
}
