//! Slash commands: prompts for Modegate, not for the model. Pure.
//!
//! ```text
//! block   = { mention } command
//! mention = "file `" PATH "` (with buffer number: " NUMBER ")" | "@" end of the path of an attached file
//! command = ( "/" | "\" ) NAME [ blank argument ]
//! ```
//!
//! Clients add files, selections and earlier messages to the user's text. So a command counts only at the
//! start of the first and the last text block. A mode command that allows no more than now counts at the
//! start of any text block, and after mentions of buffers and of attached files. Of repeated messages only the
//! newest counts. Contents of resources are never commands.

use super::typed_text::{Typed, typed};
use super::user_command::UserCommand;
use crate::acp::{
    AvailableCommand, AvailableCommandInput, ContentBlock, EmbeddedResourceResource, UnstructuredCommandInput,
};
use crate::mode::definition::{COMMANDS, near};
use crate::mode::{Mode, Modes, canonical};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlashCommand {
    SetMode {
        mode: String,
        rest: String,
    },
    ShowMode,
    Permissions,
    Servers,
    Undo(Option<u64>),
    Compact,
    Prompt(String),
    Help,
    /// Shows the usage of this command, whose argument is invalid.
    InvalidArgument(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub command: SlashCommand,
    block: usize,
    mention: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FoundCommands {
    pub command: Option<Placed>,
    /// Modes of commands that do not run, although the user may have meant them.
    pub ignored: Vec<String>,
}

/// Comparisons of modes, by ids as typed. An unknown mode allows more than any other.
pub(crate) struct ModeComparison<'a> {
    pub allows_more: &'a dyn Fn(&str, &str) -> bool,
    pub widens: &'a dyn Fn(&str) -> bool,
    pub is_on: &'a dyn Fn(&str) -> bool,
}

pub(crate) fn available(modes: &Modes, own: &[UserCommand]) -> Vec<AvailableCommand> {
    let ids: Vec<_> = modes.iter().map(|mode| mode.id.as_str()).collect();
    let mut commands: Vec<_> = modes.iter().map(mode_command).collect();
    commands.push(AvailableCommand::new("mode", "Show or switch the mode").input(input(&ids.join(" | "))));
    commands
        .push(AvailableCommand::new("permissions", "List the permission rules and the remembered answers"));
    commands.push(AvailableCommand::new("mcp", "List the MCP servers of this session and their status"));
    commands.push(AvailableCommand::new(
        "compact",
        "Summarise the older part of the conversation to free context",
    ));
    let undo = AvailableCommand::new("undo", "Restore the files that the last turn, or turn N, changed");
    commands.push(undo.input(input("a turn number (optional)")));
    commands.push(AvailableCommand::new("help", "List these commands"));
    commands.extend(own.iter().map(|own| {
        let command = AvailableCommand::new(own.name.clone(), own.description.clone());
        command.input(own.hint.as_deref().map(input))
    }));
    commands
}

fn mode_command(mode: &Mode) -> AvailableCommand {
    let text = format!("Switch to {} mode: {}", mode.id, mode.description);
    AvailableCommand::new(mode.id.clone(), text).input(input("a prompt to send in this mode (optional)"))
}

fn input(hint: &str) -> AvailableCommandInput {
    AvailableCommandInput::Unstructured(UnstructuredCommandInput::new(hint))
}

#[derive(Clone, Copy)]
pub(crate) struct Vocabulary<'a> {
    pub modes: &'a Modes,
    /// A command for such a mode is an error, not a prompt.
    pub unsupported_modes: &'a [String],
    pub own: &'a [UserCommand],
}

/// Finds the command that a prompt runs. Of several mode commands the tightest counts. Inner lines never
/// count, but commands at their start or end are reported as ignored unless they would widen the mode.
pub(crate) fn find(
    content: &[ContentBlock],
    words: Vocabulary<'_>,
    compare: &ModeComparison<'_>,
) -> FoundCommands {
    let Some(Typed { texts, first, last }) = typed(content) else { return FoundCommands::default() };
    let mut best: Option<Placed> = None;
    let mut other: Option<Placed> = None;
    let mut requested: Vec<String> = Vec::new();
    let attached = attached_uris(content);
    for &(block, text) in &texts {
        let begins = start(text, block == first, words).map(|command| (command, ""));
        let Some((command, mention)) = begins.or_else(|| parse_after_mentions(text, &attached, words)) else {
            continue;
        };
        let SlashCommand::SetMode { mode, .. } = &command else {
            if block == first || block == last {
                other = Some(Placed { command, block, mention: String::new() });
            }
            continue;
        };
        requested.push(mode.clone());
        if !mention.is_empty() && (compare.widens)(mode) {
            continue;
        }
        let is_tighter = match best.as_ref().map(|best| &best.command) {
            Some(SlashCommand::SetMode { mode: best, .. }) => !(compare.allows_more)(mode, best),
            _ => true,
        };
        if is_tighter {
            best = Some(Placed { command, block, mention: mention.to_owned() });
        }
    }
    let inner = texts.iter().flat_map(|(block, text)| {
        let begins = start(text, *block == first, words)
            .or(parse_after_mentions(text, &attached, words).map(|(command, _)| command));
        inner_modes(text, usize::from(begins.is_some()), words)
    });
    requested.extend(inner.filter(|mode| !(compare.widens)(mode)));
    let counted_mode = best.filter(|placed| match &placed.command {
        SlashCommand::SetMode { mode, .. } => {
            placed.block == first || placed.block == last || !(compare.widens)(mode)
        }
        _ => true,
    });
    let found_command = counted_mode.or(other);
    let chosen = match found_command.as_ref().map(|placed| &placed.command) {
        Some(SlashCommand::SetMode { mode, .. }) => Some(canonical(mode)),
        _ => None,
    };
    let mut ignored = requested;
    ignored.retain(|mode| match &chosen {
        Some(chosen) => canonical(mode) != *chosen,
        None => !(compare.is_on)(mode),
    });
    ignored.dedup();
    ignored.truncate(MAX_IGNORED);
    FoundCommands { command: found_command, ignored }
}

/// A word after a slash that is no command but resembles one.
#[derive(Debug, PartialEq, Eq)]
pub struct Misspelt {
    pub word: String,
    pub nearest: String,
}

impl Misspelt {
    /// Reads the word at the start of a text without a command. `names` are those of all commands.
    pub fn find(text: &str, names: &[&str]) -> Option<Self> {
        let word = text.trim().strip_prefix(SLASHES)?.split_whitespace().next()?;
        // Other characters occur in paths and in code.
        if !word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
            return None;
        }
        let nearest = near(&word.to_ascii_lowercase(), names)?;
        Some(Self { word: word.to_owned(), nearest: nearest.to_owned() })
    }
}

/// Finds a misspelt command at the start of a prompt without a command.
pub(crate) fn misspelt(content: &[ContentBlock], words: Vocabulary<'_>) -> Option<Misspelt> {
    let Typed { texts, first, .. } = typed(content)?;
    let (_, text) = texts.iter().find(|(block, _)| *block == first)?;
    let modes = words.modes.iter().map(|mode| mode.id.as_str());
    let user_commands = words.own.iter().map(|command| command.name.as_str());
    let names: Vec<&str> = COMMANDS.into_iter().chain(modes).chain(user_commands).collect();
    Misspelt::find(text, &names)
}

const MAX_IGNORED: usize = 3;

/// Parses the command at the start of a block. Only the first block may be indented: after a file mention,
/// clients continue a sentence with a space.
fn start(text: &str, is_first: bool, words: Vocabulary<'_>) -> Option<SlashCommand> {
    let text = if is_first { text.trim_start() } else { text.trim_start_matches(['\n', '\r']) };
    parse(text.trim_end(), words)
}

/// Parses a mode command after mentions of buffers, as codecompanion.nvim writes them for `#{buffer}`, and of
/// attached files, as Toad writes them.
fn parse_after_mentions<'t>(
    text: &'t str,
    attached: &[&str],
    words: Vocabulary<'_>,
) -> Option<(SlashCommand, &'t str)> {
    let mut rest = text;
    while let Some(text) = after_mention(rest.trim_start(), attached) {
        rest = text;
    }
    let mention = text[..text.len() - rest.len()].trim();
    match parse(rest.trim(), words)? {
        command @ SlashCommand::SetMode { .. } if !mention.is_empty() => Some((command, mention)),
        _ => None,
    }
}

fn after_mention<'t>(text: &'t str, attached: &[&str]) -> Option<&'t str> {
    after_buffer(text).or_else(|| after_file(text, attached))
}

fn after_buffer(text: &str) -> Option<&str> {
    let (path, rest) = text.strip_prefix("file `")?.split_once("` (with buffer number: ")?;
    let (number, rest) = rest.split_once(')')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !path.contains('\n')).then_some(rest)
}

/// Returns the text behind `@PATH` if PATH is the end of the URI of an attached file.
fn after_file<'t>(text: &'t str, attached: &[&str]) -> Option<&'t str> {
    let mention = text.strip_prefix('@')?.split_whitespace().next()?;
    let mut folders = attached.iter().filter_map(|uri| uri.strip_suffix(mention));
    folders.any(|folder| folder.ends_with('/')).then(|| &text[1 + mention.len()..])
}

fn attached_uris(content: &[ContentBlock]) -> Vec<&str> {
    let attached = content.iter().filter_map(|block| match block {
        ContentBlock::ResourceLink(link) => Some(link.uri.as_str()),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            EmbeddedResourceResource::TextResourceContents(file) => Some(file.uri.as_str()),
            EmbeddedResourceResource::BlobResourceContents(file) => Some(file.uri.as_str()),
            _ => None,
        },
        _ => None,
    });
    attached.collect()
}

fn inner_modes<'a>(
    text: &'a str,
    skipped: usize,
    words: Vocabulary<'a>,
) -> impl Iterator<Item = String> + 'a {
    text.trim().lines().skip(skipped).map(str::trim).filter_map(move |line| {
        let word = last_word(line);
        // `/mode plan` has two words.
        let two = last_word(line[..word].trim_end());
        mode_of(line, words, true)
            .or_else(|| mode_of(&line[word..], words, false))
            .or_else(|| mode_of(&line[two..], words, false))
    })
}

fn last_word(line: &str) -> usize {
    let gap = line.char_indices().rev().find(|(_, c)| c.is_whitespace());
    gap.map_or(0, |(at, c)| at + c.len_utf8())
}

/// Returns the mode that a mode command names. Unless `with_rest`, nothing may follow the command.
fn mode_of(text: &str, words: Vocabulary<'_>, with_rest: bool) -> Option<String> {
    match parse(text, words)? {
        SlashCommand::SetMode { mode, rest } if with_rest || rest.is_empty() => {
            words.modes.resolve(&mode).is_ok().then_some(mode)
        }
        _ => None,
    }
}

/// Editors that use the slash for themselves need the backslash.
const SLASHES: [char; 2] = ['/', '\\'];

fn parse(text: &str, words: Vocabulary<'_>) -> Option<SlashCommand> {
    let Vocabulary { modes, unsupported_modes, own } = words;
    let behind = text.strip_prefix(SLASHES)?;
    let (name, rest) = behind.split_once(char::is_whitespace).unwrap_or((behind, ""));
    let rest = rest.trim().to_owned();
    match name {
        "help" => Some(without_arguments(SlashCommand::Help, "help", &rest)),
        "permissions" => Some(without_arguments(SlashCommand::Permissions, "permissions", &rest)),
        "mcp" => Some(without_arguments(SlashCommand::Servers, "mcp", &rest)),
        "compact" => Some(without_arguments(SlashCommand::Compact, "compact", &rest)),
        "undo" if rest.is_empty() => Some(SlashCommand::Undo(None)),
        "undo" => Some(
            rest.parse().map_or(SlashCommand::InvalidArgument("undo"), |turn| SlashCommand::Undo(Some(turn))),
        ),
        "mode" if rest.is_empty() => Some(SlashCommand::ShowMode),
        "mode" => Some(SlashCommand::SetMode { mode: rest, rest: String::new() }),
        name if modes.resolve(name).is_ok() || unsupported_modes.contains(&canonical(name)) => {
            let rest = expand_user_command(&rest, own).unwrap_or(rest);
            Some(SlashCommand::SetMode { mode: name.to_owned(), rest })
        }
        _ => expand_user_command(text, own).map(SlashCommand::Prompt),
    }
}

fn without_arguments(command: SlashCommand, name: &'static str, rest: &str) -> SlashCommand {
    if rest.is_empty() { command } else { SlashCommand::InvalidArgument(name) }
}

pub(crate) fn usage(name: &str) -> String {
    let takes = match name {
        "undo" => {
            "/undo takes a turn number, or no argument for the last turn that changed something".to_owned()
        }
        name => format!("/{name} takes no argument"),
    };
    format!("{takes}. Nothing was done, and the model has not seen this message.\n")
}

fn expand_user_command(text: &str, own: &[UserCommand]) -> Option<String> {
    let text = text.strip_prefix(SLASHES)?;
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    own.iter().find(|own| own.name == name).map(|own| own.prompt(rest.trim()))
}

pub fn is_reserved_name(name: &str, modes: &Modes) -> bool {
    COMMANDS.contains(&name) || modes.resolve(name).is_ok()
}

pub(crate) fn without_command(content: &[ContentBlock], placed: &Placed) -> Vec<ContentBlock> {
    let rest = match &placed.command {
        SlashCommand::SetMode { rest, .. } => rest.as_str(),
        SlashCommand::Prompt(text) => text.as_str(),
        _ => "",
    };
    let gap = if placed.mention.is_empty() || rest.is_empty() { "" } else { " " };
    let rest = format!("{}{gap}{rest}", placed.mention);
    let rest = (!rest.is_empty()).then(|| ContentBlock::from(rest.as_str()));
    let (before, from) = content.split_at(placed.block.min(content.len()));
    before.iter().cloned().chain(rest).chain(from.iter().skip(1).cloned()).collect()
}

pub(crate) fn help(modes: &Modes, own: &[UserCommand]) -> String {
    let commands = available(modes, own);
    commands.iter().map(|command| format!("- `/{}`: {}\n", command.name, command.description)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::command::typed_text::WRAPPERS;

    fn rank(mode: &str) -> usize {
        let mode = canonical(mode);
        let mode = if mode == "architect" { "plan" } else { mode.as_str() };
        ["plan", "ask", "code"].iter().position(|known| *known == mode).unwrap_or(3)
    }

    fn found(content: &[ContentBlock], on: &str) -> FoundCommands {
        let (modes, gone) = (Modes::built_in(), ["gone".to_owned()]);
        let own = [UserCommand::parse("review", "Review $ARGUMENTS.").unwrap()];
        let words = Vocabulary { modes: &modes, unsupported_modes: &gone, own: &own };
        let compare = ModeComparison {
            allows_more: &|mode, other| rank(mode) > rank(other),
            widens: &|mode| rank(mode) > rank(on),
            is_on: &|mode| rank(mode) == rank(on),
        };
        find(content, words, &compare)
    }

    fn check(text: &str, expected: impl Into<Option<SlashCommand>>) {
        let command = found(&[text.into()], "ask").command;
        assert_eq!(command.map(|placed| placed.command), expected.into(), "{text}");
    }

    #[test]
    fn misspelt_command_is_found_only_at_the_start() {
        let modes = Modes::built_in();
        let own = [UserCommand::parse("review", "Review $ARGUMENTS.").unwrap()];
        let words = Vocabulary { modes: &modes, unsupported_modes: &[], own: &own };
        for (text, expected) in [
            ("/undoo", Some("undo")),
            (" /plam write tests", Some("plan")),
            ("/Reviw the file", Some("review")),
            ("/etc/hosts is wrong", None),
            ("/xyzzy", None),
            ("say /undoo", None),
            ("undoo", None),
        ] {
            let found = misspelt(&[text.into()], words).map(|misspelt| misspelt.nearest);
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    fn set(mode: &str, rest: &str) -> SlashCommand {
        SlashCommand::SetMode { mode: mode.into(), rest: rest.into() }
    }

    #[test]
    fn commands_are_distinguished_from_prompts() {
        check("/plan", set("plan", ""));
        check("/Plan", set("Plan", ""));
        check("\\plan make one", set("plan", "make one"));
        check("/architect x", set("architect", "x"));
        check(" /code  do it\nnow ", set("code", "do it\nnow"));
        check("/Gone x", set("Gone", "x"));
        check("/mode", Some(SlashCommand::ShowMode));
        check("/mode plan", set("plan", ""));
        check("/help", Some(SlashCommand::Help));
        check("/mcp", Some(SlashCommand::Servers));
        check("/undo", Some(SlashCommand::Undo(None)));
        check("/undo 3", Some(SlashCommand::Undo(Some(3))));
        check("/compact", Some(SlashCommand::Compact));
        for name in ["help", "permissions", "mcp", "compact", "undo"] {
            check(&format!("/{name} that"), Some(SlashCommand::InvalidArgument(name)));
            check(&format!("/{name}s"), None);
        }
        check("/review it all ", Some(SlashCommand::Prompt("Review it all.".into())));
        check("/reviews", None);
        check("/plan /review it", set("plan", "Review it."));
        check("/plan /help", set("plan", "/help"));
        for wrapper in WRAPPERS {
            check(&format!("<{wrapper}>/plan x</{wrapper}>"), set("plan", "x"));
            check(&format!("\n<{wrapper}>\n/plan x\n</{wrapper}>\n"), set("plan", "x"));
        }
        for prompt in
            ["/etc/hosts is odd", "/planning", "plan", "/", "", "//plan", "<file>/plan</file>", "\\plan{x}"]
        {
            check(prompt, None);
        }
    }

    /// A command runs, is reported as ignored, or would change nothing.
    #[test]
    fn mode_commands_run_or_are_reported_at_any_position() {
        let link = || ContentBlock::ResourceLink(crate::acp::ResourceLink::new("a.rs", "file:///a.rs"));
        let resource = || {
            let json = r#"{"type":"resource","resource":{"uri":"file:///b.rs","text":"/code"}}"#;
            serde_json::from_str::<ContentBlock>(json).unwrap()
        };
        for on in ["plan", "ask", "code"] {
            for mode in ["plan", "ask", "code"] {
                let command = format!("/{mode} go on");
                let widens = rank(mode) > rank(on);
                let prompts: Vec<(Vec<ContentBlock>, bool)> = vec![
                    (vec![command.as_str().into()], true),
                    (vec![link(), command.as_str().into()], true),
                    (vec![link(), "context".into(), command.as_str().into()], true),
                    (vec![command.as_str().into(), link(), " and more".into()], true),
                    (
                        vec![
                            link(),
                            format!("<previous_user_message>{command}</previous_user_message>")
                                .as_str()
                                .into(),
                        ],
                        true,
                    ),
                    (vec![link(), command.as_str().into(), resource()], true),
                    (vec!["old".into(), command.as_str().into(), "context".into()], false),
                ];
                for (prompt, is_edge) in prompts {
                    let FoundCommands { command: found_command, ignored } = found(&prompt, on);
                    if is_edge || !widens {
                        let placed = found_command.expect("obeyed");
                        assert_eq!(placed.command, set(mode, "go on"), "{on} {prompt:?}");
                        let remaining = without_command(&prompt, &placed);
                        assert_eq!(remaining.len(), prompt.len());
                        assert_eq!(remaining[placed.block], "go on".into());
                        assert_eq!(ignored, [""; 0]);
                    } else {
                        assert_eq!(
                            (found_command, ignored),
                            (None, vec![mode.to_owned()]),
                            "{on} {prompt:?}"
                        );
                    }
                }
                let FoundCommands { command: found_command, ignored } =
                    found(&[format!("a log\n{command}\nmore").as_str().into()], on);
                let is_named = rank(mode) < rank(on);
                assert_eq!(
                    (found_command, ignored),
                    (None, if is_named { vec![mode.to_owned()] } else { vec![] }),
                    "{on} {mode}"
                );
                // A command inside a sentence is reported if it would tighten.
                let sentences: [Vec<ContentBlock>; 4] = [
                    vec!["see ".into(), link(), format!(" {command}").as_str().into()],
                    vec![format!("fix this \\{mode}\nand that").as_str().into()],
                    vec!["old".into(), format!("fix this\nin /mode {mode}").as_str().into()],
                    vec![format!("fix this /{mode}").as_str().into(), link()],
                ];
                for prompt in sentences {
                    let FoundCommands { command: found_command, ignored } = found(&prompt, on);
                    let named = if is_named { vec![mode.to_owned()] } else { vec![] };
                    assert_eq!((found_command, ignored), (None, named), "{on} {prompt:?}");
                }
                // After a mention of a buffer or an attached file a command runs if it does not widen, else it is
                // reported.
                let buffer = "file `/a b/c.rs` (with buffer number: 12)";
                for (mentions, rest) in [
                    (buffer.to_owned(), ""),
                    (buffer.to_owned(), "go on"),
                    (format!("{buffer} {buffer}"), "go on"),
                    ("@a.rs".to_owned(), "go on"),
                    ("@a.rs @b.rs".to_owned(), ""),
                ] {
                    let text = format!("{mentions} /{mode} {rest}");
                    let prompt = ["Sharing the file:".into(), text.trim_end().into(), link(), resource()];
                    let FoundCommands { command: found_command, ignored } = found(&prompt, on);
                    if widens {
                        assert_eq!((found_command, ignored), (None, vec![mode.to_owned()]), "{on} {text}");
                        continue;
                    }
                    let placed = found_command.expect("obeyed");
                    assert_eq!((&placed.command, ignored), (&set(mode, rest), vec![]), "{on} {text}");
                    let remaining = without_command(&prompt, &placed);
                    assert_eq!(remaining[1], format!("{mentions} {rest}").trim_end().into());
                }
            }
            // Resources contain no commands, and other words behind `@` are no mentions.
            assert_eq!(found(&[link(), resource()], on), FoundCommands::default());
            for text in ["@rs /plan go on", "@c.rs /plan go on", "@ /plan go on", "@a.rs/plan go on"] {
                assert_eq!(found(&[text.into(), link()], on), FoundCommands::default(), "{text}");
            }
        }
    }

    /// avante sends the user's last messages with each prompt, the newest first. After it lost its session,
    /// it sends the oldest first, with replies between them.
    #[test]
    fn repeated_user_messages_do_not_run_commands_again() {
        let m = |text: &str| format!("<previous_user_message>{text}</previous_user_message>");
        let reply = || "<previous_assistant_message>/plan it</previous_assistant_message>".to_owned();
        let code = || "<selected_code>\n/plan\n</selected_code>".to_owned();
        let context = || "<system_context>Continuing from previous session</system_context>".to_owned();
        let cases = [
            (vec![m("/code go"), context()], Some((0, "code"))),
            (vec![m("/code go"), m("/plan x"), m("/ask"), context()], Some((0, "code"))),
            (vec![m("go on"), m("/plan x"), m("/code"), context()], None),
            (vec![code(), m("/code go"), m("/plan x"), context()], Some((1, "code"))),
            (vec![code(), m("/plan go"), m("/code x"), context()], Some((1, "plan"))),
            (vec![m("/plan x"), reply(), m("/code go"), context()], Some((2, "code"))),
            (vec![m("/code x"), reply(), m("explain"), context()], None),
            (vec![m("/code x"), m("/plan x"), "explain".into()], None),
            (vec![m("/code x"), "explain".into()], None),
            (vec![m("/plan x"), "explain".into()], Some((0, "plan"))),
        ];
        for on in ["plan", "ask", "code"] {
            for (texts, expected) in &cases {
                let blocks: Vec<ContentBlock> = texts.iter().map(|text| text.as_str().into()).collect();
                let found = found(&blocks, on);
                let found_command = found.command.as_ref().map(|placed| match &placed.command {
                    SlashCommand::SetMode { mode, .. } => (placed.block, mode.as_str()),
                    command => panic!("{command:?}"),
                });
                // A single earlier message beside other text counts if it does not widen.
                let is_seen =
                    texts.len() == 2 && texts[1] == "explain" && on == "code" && texts[0].contains("/code");
                let expected = if is_seen { Some((0, "code")) } else { *expected };
                assert_eq!(found_command, expected, "{on} {texts:?}");
            }
        }
    }

    #[test]
    fn tightest_of_several_mode_commands_runs() {
        for texts in [["/code a", "/plan b"], ["/plan b", "/code a"]] {
            for on in ["plan", "ask", "code"] {
                let content = texts.map(ContentBlock::from);
                let FoundCommands { command, ignored } = found(&content, on);
                assert_eq!(command.map(|placed| placed.command), Some(set("plan", "b")));
                assert_eq!(ignored, ["code"]);
            }
        }
    }
}
