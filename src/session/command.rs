//! Slash commands: prompts that are for Modegate and not for the model. Pure.
//!
//! `/plan`, `/code` and `/ask` set the mode; text behind them is then the prompt. `/mode` says or sets the mode, `/help`
//! lists the commands. A command that a user wrote ([`super::user_command`]) is a prompt. Anything else that begins with a slash is an ordinary prompt.
//!
//! Clients put files, regions and earlier messages before or behind what the user typed, and only text blocks can be typed. So a
//! command counts at the start of the first and of the last text block, and one that tightens the mode at the start of any, also
//! behind the mention of a buffer. Of earlier messages that a client marks as such only the newest counts: it is the prompt.
//! [`find`] says which one is obeyed and which mode commands are not; contents of resources are never commands.

use super::user_command::UserCommand;
use crate::acp::{AvailableCommand, AvailableCommandInput, ContentBlock, UnstructuredCommandInput};
use crate::mode::{Mode, Modes, canonical};

/// The names of Modegate's own commands, besides those of the modes.
const OWN: [&str; 6] = ["mode", "permissions", "mcp", "compact", "undo", "help"];

/// What a prompt asks of Modegate itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Set this mode; what stands behind it, if anything, is the prompt.
    SetMode {
        /// The mode's id, as it was written.
        mode: String,
        /// The prompt behind it, possibly empty.
        rest: String,
    },
    /// Say which mode is on.
    ShowMode,
    /// List the rules and the remembered answers.
    Permissions,
    /// Say how the MCP servers stand.
    Servers,
    /// Put back what a turn changed: this one, or the last that changed something.
    Undo(Option<u64>),
    /// Summarise the conversation, to make room.
    Compact,
    /// Send this prompt: a command that a user wrote.
    Prompt(String),
    /// List the commands.
    Help,
    /// Say how the command of this name is used: what stands behind it is not an argument that it takes.
    Misused(&'static str),
}

/// A command where it stands in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// What it asks for.
    pub command: Command,
    /// The content block in which it stands.
    block: usize,
    /// The mention of a buffer before it in that block; empty where the block begins with the command.
    mention: String,
}

/// What a prompt has of commands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The command that is obeyed.
    pub command: Option<Placed>,
    /// Mode commands that are not obeyed and that the user may have meant: the modes.
    pub ignored: Vec<String>,
}

/// How modes compare, by ids as they were written. An unknown mode allows more than any other.
pub struct Comparison<'a> {
    /// Whether the first mode allows something that the second does not.
    pub allows_more: &'a dyn Fn(&str, &str) -> bool,
    /// Whether a mode allows something that is not allowed now.
    pub widens: &'a dyn Fn(&str) -> bool,
    /// Whether a mode is the one that is on.
    pub is_on: &'a dyn Fn(&str) -> bool,
}

/// The commands as a client lists them.
pub fn available(modes: &Modes, own: &[UserCommand]) -> Vec<AvailableCommand> {
    let input = |hint: &str| AvailableCommandInput::Unstructured(UnstructuredCommandInput::new(hint));
    let set = |mode: &Mode| {
        let text = format!("Switch to {} mode: {}", mode.id, mode.description);
        AvailableCommand::new(mode.id.clone(), text).input(input("a prompt to go on with (optional)"))
    };
    let ids: Vec<_> = modes.iter().map(|mode| mode.id.as_str()).collect();
    let mut commands: Vec<_> = modes.iter().map(set).collect();
    commands.push(
        AvailableCommand::new("mode", "Say which mode is on, or switch").input(input(&ids.join(" | "))),
    );
    commands
        .push(AvailableCommand::new("permissions", "List the rules and the remembered answers that hold"));
    commands.push(AvailableCommand::new("mcp", "List the MCP servers of this session and how they stand"));
    commands
        .push(AvailableCommand::new("compact", "Summarise the older part of the conversation, to make room"));
    let undo = AvailableCommand::new("undo", "Put back the files that the last turn, or turn N, changed");
    commands.push(undo.input(input("the number of a turn (optional)")));
    commands.push(AvailableCommand::new("help", "List these commands"));
    commands.extend(own.iter().map(|own| {
        let command = AvailableCommand::new(own.name.clone(), own.description.clone());
        command.input(own.hint.as_deref().map(input))
    }));
    commands
}

/// What can be commanded in a session.
#[derive(Clone, Copy)]
pub struct Vocabulary<'a> {
    /// The modes that there are.
    pub modes: &'a Modes,
    /// Modes that there are, and that are not possible here: a command for one is no prompt.
    pub unsupported_modes: &'a [String],
    /// The commands that users wrote.
    pub own: &'a [UserCommand],
}

/// Finds the command that a prompt is to be obeyed as, if any.
///
/// Of several mode commands the tightest counts. One that would widen counts only at the start of the first or the last text
/// block. Mode commands that do not count are named, as are those inside of a block that would tighten the mode: at the start or
/// the end of a line.
pub fn find(content: &[ContentBlock], words: Vocabulary<'_>, compare: &Comparison<'_>) -> Found {
    let Some(Typed { texts, first, last }) = typed(content) else { return Found::default() };
    let mut best: Option<Placed> = None;
    let mut other: Option<Placed> = None;
    let mut requested: Vec<String> = Vec::new();
    for &(block, text) in &texts {
        let begins = start(text, block == first, words).map(|command| (command, ""));
        let Some((command, mention)) = begins.or_else(|| behind_mention(text, words)) else { continue };
        let Command::SetMode { mode, .. } = &command else {
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
            Some(Command::SetMode { mode: best, .. }) => !(compare.allows_more)(mode, best),
            _ => true,
        };
        if is_tighter {
            best = Some(Placed { command, block, mention: mention.to_owned() });
        }
    }
    let inner = texts.iter().flat_map(|(block, text)| {
        let begins = start(text, *block == first, words).or(behind_mention(text, words).map(|it| it.0));
        inner_modes(text, usize::from(begins.is_some()), words)
    });
    requested.extend(inner.filter(|mode| !(compare.widens)(mode)));
    let is_at_edge = |placed: &Placed| placed.block == first || placed.block == last;
    let counts = |placed: &Placed| match &placed.command {
        Command::SetMode { mode, .. } => is_at_edge(placed) || !(compare.widens)(mode),
        _ => true,
    };
    let found_command = best.filter(counts).or(other);
    let chosen = match found_command.as_ref().map(|placed| &placed.command) {
        Some(Command::SetMode { mode, .. }) => Some(canonical(mode)),
        _ => None,
    };
    let is_ignored = |mode: &String| match &chosen {
        Some(chosen) => canonical(mode) != *chosen,
        None => !(compare.is_on)(mode),
    };
    let mut ignored: Vec<String> = requested.into_iter().filter(is_ignored).collect();
    ignored.dedup();
    ignored.truncate(MAX_IGNORED);
    Found { command: found_command, ignored }
}

/// Commands that are named as not obeyed, at most.
const MAX_IGNORED: usize = 3;

/// The element in which avante wraps every message of the user: the one that was just typed, and with it the last few before.
const MESSAGE: &str = "previous_user_message";

/// Elements in which clients wrap what the user typed.
const WRAPPERS: [&str; 4] = [MESSAGE, "user_message", "user_prompt", "user_query"];

/// What the agent said before, as avante repeats it.
const REPLY: &str = "<previous_assistant_message>";

/// How text blocks begin that clients make.
const MADE: [&str; 3] = [REPLY, "<system_context>", "<selected_code>"];

/// What the user may have typed of a prompt.
struct Typed<'a> {
    /// The blocks, and their texts without the wrapper of a client.
    texts: Vec<(usize, &'a str)>,
    /// The first and the last block at whose start a command counts that widens.
    first: usize,
    last: usize,
}

/// The text blocks that the user may have typed. Messages of before that a client repeats are none: what they command has been
/// obeyed.
fn typed(content: &[ContentBlock]) -> Option<Typed<'_>> {
    let texts = content.iter().enumerate().filter_map(|(block, content)| match content {
        ContentBlock::Text(text) => Some((block, text.text.as_str())),
        _ => None,
    });
    let begins = |text: &str, tag: &str| text.trim_start().starts_with(tag);
    let (made, texts): (Vec<_>, Vec<_>) =
        texts.partition(|(_, text)| MADE.iter().any(|tag| begins(text, tag)));
    let (messages, others): (Vec<_>, Vec<_>) =
        texts.into_iter().partition(|(_, text)| inside(text, MESSAGE).is_some());
    // Without replies the newest message is the first, with them it is the last.
    let newest =
        if made.iter().any(|(_, text)| begins(text, REPLY)) { messages.last() } else { messages.first() };
    let edges = if others.is_empty() {
        newest.map(|it| (it.0, it.0))
    } else {
        others.first().zip(others.last()).map(|(first, last)| (first.0, last.0))
    };
    let (first, last) = edges?;
    let repeats = messages.len() > 1;
    let current = newest.filter(|_| !repeats || others.is_empty()).copied();
    let mut texts: Vec<(usize, &str)> = others.into_iter().chain(current).collect();
    texts.sort_by_key(|(block, _)| *block);
    for (_, text) in &mut texts {
        let whole = *text;
        *text = WRAPPERS.iter().find_map(|name| inside(whole, name)).unwrap_or(whole);
    }
    Some(Typed { texts, first, last })
}

/// What stands in an element, if a text is one.
fn inside<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text.trim().strip_prefix('<')?.strip_prefix(name)?.strip_prefix('>')?;
    rest.strip_suffix('>')?.strip_suffix(name)?.strip_suffix("</")
}

/// The command at the start of a block. Only in the first one may it be indented: behind a mention of a file, a client goes on
/// with a space.
fn start(text: &str, is_first: bool, words: Vocabulary<'_>) -> Option<Command> {
    if is_first {
        return parse(text.trim(), words);
    }
    parse(text.trim_start_matches(['\n', '\r']).trim_end(), words)
}

/// The mode command behind mentions of buffers at the start of a block, and the mentions. codecompanion.nvim writes them where
/// the user types `#{buffer}`.
fn behind_mention<'t>(text: &'t str, words: Vocabulary<'_>) -> Option<(Command, &'t str)> {
    let mut rest = text;
    while let Some(behind) = after_mention(rest.trim_start()) {
        rest = behind;
    }
    let mention = text[..text.len() - rest.len()].trim();
    match parse(rest.trim(), words)? {
        command @ Command::SetMode { .. } if !mention.is_empty() => Some((command, mention)),
        _ => None,
    }
}

/// What stands behind "file `PATH` (with buffer number: N)", if a text begins so.
fn after_mention(text: &str) -> Option<&str> {
    let (path, rest) = text.strip_prefix("file `")?.split_once("` (with buffer number: ")?;
    let (number, rest) = rest.split_once(')')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !path.contains('\n')).then_some(rest)
}

/// The modes that lines of a block name by a command at their start or their end, but for the first `skipped` lines.
fn inner_modes<'a>(
    text: &'a str,
    skipped: usize,
    words: Vocabulary<'a>,
) -> impl Iterator<Item = String> + 'a {
    let named = move |text: &str, with_rest: bool| match parse(text, words)? {
        Command::SetMode { mode, rest } if with_rest || rest.is_empty() => {
            words.modes.resolve(&mode).is_ok().then_some(mode)
        }
        _ => None,
    };
    // The text from the last word on.
    let last = |line: &str| {
        let gap = line.char_indices().rev().find(|(_, c)| c.is_whitespace());
        gap.map_or(0, |(at, c)| at + c.len_utf8())
    };
    text.trim().lines().skip(skipped).map(str::trim).filter_map(move |line| {
        let word = last(line);
        // `/mode plan` are two.
        let two = last(line[..word].trim_end());
        named(line, true).or_else(|| named(&line[word..], false)).or_else(|| named(&line[two..], false))
    })
}

/// What commands begin with: some editors type a backslash, because the slash is their own.
const SLASHES: [char; 2] = ['/', '\\'];

/// Reads a text that may begin with a command.
fn parse(text: &str, words: Vocabulary<'_>) -> Option<Command> {
    let Vocabulary { modes, unsupported_modes: unsupported, own } = words;
    let behind = text.strip_prefix(SLASHES)?;
    let (name, rest) = behind.split_once(char::is_whitespace).unwrap_or((behind, ""));
    let rest = rest.trim().to_owned();
    match name {
        "help" => Some(alone(Command::Help, "help", &rest)),
        "permissions" => Some(alone(Command::Permissions, "permissions", &rest)),
        "mcp" => Some(alone(Command::Servers, "mcp", &rest)),
        "compact" => Some(alone(Command::Compact, "compact", &rest)),
        "undo" if rest.is_empty() => Some(Command::Undo(None)),
        "undo" => Some(rest.parse().map_or(Command::Misused("undo"), |turn| Command::Undo(Some(turn)))),
        "mode" if rest.is_empty() => Some(Command::ShowMode),
        "mode" => Some(Command::SetMode { mode: rest, rest: String::new() }),
        // What stands behind a mode may be a command that the user wrote.
        name if modes.resolve(name).is_ok() || unsupported.contains(&canonical(name)) => {
            let rest = written(&rest, own).unwrap_or(rest);
            Some(Command::SetMode { mode: name.to_owned(), rest })
        }
        _ => written(text, own).map(Command::Prompt),
    }
}

/// A command that takes no argument.
fn alone(command: Command, name: &'static str, rest: &str) -> Command {
    if rest.is_empty() { command } else { Command::Misused(name) }
}

/// What the user is told of a command with an argument that it does not take.
pub fn usage(name: &str) -> String {
    let takes = match name {
        "undo" => {
            "/undo takes the number of a turn, or nothing (the last turn that changed something)".to_owned()
        }
        name => format!("/{name} takes no argument"),
    };
    format!("{takes}. Nothing was done, and the model has not seen this message.\n")
}

/// The prompt of a command that a user wrote, if the text is one.
fn written(text: &str, own: &[UserCommand]) -> Option<String> {
    let text = text.strip_prefix(SLASHES)?;
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    own.iter().find(|own| own.name == name).map(|own| own.prompt(rest.trim()))
}

/// Whether a name is taken: a command of Modegate's own, or a mode.
pub fn is_taken(name: &str, modes: &Modes) -> bool {
    OWN.contains(&name) || modes.resolve(name).is_ok()
}

/// The prompt without the command: what the model sees. Empty if nothing is left.
pub fn without_command(content: &[ContentBlock], placed: &Placed) -> Vec<ContentBlock> {
    let rest = match &placed.command {
        Command::SetMode { rest, .. } => rest.as_str(),
        Command::Prompt(text) => text.as_str(),
        Command::ShowMode
        | Command::Help
        | Command::Permissions
        | Command::Servers
        | Command::Compact
        | Command::Misused(_)
        | Command::Undo(_) => "",
    };
    let gap = if placed.mention.is_empty() || rest.is_empty() { "" } else { " " };
    let rest = format!("{}{gap}{rest}", placed.mention);
    let rest = (!rest.is_empty()).then(|| ContentBlock::from(rest.as_str()));
    let (before, from) = content.split_at(placed.block.min(content.len()));
    before.iter().cloned().chain(rest).chain(from.iter().skip(1).cloned()).collect()
}

/// What `/help` answers.
pub fn help(modes: &Modes, own: &[UserCommand]) -> String {
    let line = |command: &AvailableCommand| format!("- `/{}`: {}\n", command.name, command.description);
    available(modes, own).iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far modes go, for tests: `plan` under `ask` under `code`, anything else above.
    fn rank(mode: &str) -> usize {
        let mode = canonical(mode);
        let mode = if mode == "architect" { "plan" } else { mode.as_str() };
        ["plan", "ask", "code"].iter().position(|known| *known == mode).unwrap_or(3)
    }

    fn found(content: &[ContentBlock], on: &str) -> Found {
        let (modes, gone) = (Modes::built_in(), ["gone".to_owned()]);
        let own = [UserCommand::parse("review", "Review $ARGUMENTS.").unwrap()];
        let words = Vocabulary { modes: &modes, unsupported_modes: &gone, own: &own };
        let compare = Comparison {
            allows_more: &|mode, other| rank(mode) > rank(other),
            widens: &|mode| rank(mode) > rank(on),
            is_on: &|mode| rank(mode) == rank(on),
        };
        find(content, words, &compare)
    }

    fn check(text: &str, expected: impl Into<Option<Command>>) {
        let command = found(&[text.into()], "ask").command;
        assert_eq!(command.map(|placed| placed.command), expected.into(), "{text}");
    }

    fn set(mode: &str, rest: &str) -> Command {
        Command::SetMode { mode: mode.into(), rest: rest.into() }
    }

    #[test]
    fn commands_are_told_from_prompts() {
        check("/plan", set("plan", ""));
        check("/Plan", set("Plan", ""));
        check("\\plan make one", set("plan", "make one"));
        check("/architect x", set("architect", "x"));
        check(" /code  do it\nnow ", set("code", "do it\nnow"));
        check("/Gone x", set("Gone", "x"));
        check("/mode", Some(Command::ShowMode));
        check("/mode plan", set("plan", ""));
        check("/help", Some(Command::Help));
        check("/mcp", Some(Command::Servers));
        check("/undo", Some(Command::Undo(None)));
        check("/undo 3", Some(Command::Undo(Some(3))));
        check("/compact", Some(Command::Compact));
        for name in ["help", "permissions", "mcp", "compact", "undo"] {
            check(&format!("/{name} that"), Some(Command::Misused(name)));
            check(&format!("/{name}s"), None);
        }
        check("/review it all ", Some(Command::Prompt("Review it all.".into())));
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

    /// Every mode command at every place of a prompt, in every mode: obeyed, or named, or nothing would change.
    #[test]
    fn a_mode_command_is_obeyed_or_named_wherever_it_stands() {
        let link = || ContentBlock::ResourceLink(crate::acp::ResourceLink::new("a.rs", "file:///a.rs"));
        let resource = || {
            let json = r#"{"type":"resource","resource":{"uri":"file:///b.rs","text":"/code"}}"#;
            serde_json::from_str::<ContentBlock>(json).unwrap()
        };
        for on in ["plan", "ask", "code"] {
            for mode in ["plan", "ask", "code"] {
                let command = format!("/{mode} go on");
                let widens = rank(mode) > rank(on);
                // The prompt, and whether its command is at an edge.
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
                    let Found { command: found_command, ignored } = found(&prompt, on);
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
                // On a line inside of a block: never obeyed, and named where it would tighten.
                let Found { command: found_command, ignored } =
                    found(&[format!("a log\n{command}\nmore").as_str().into()], on);
                let is_named = rank(mode) < rank(on);
                assert_eq!(
                    (found_command, ignored),
                    (None, if is_named { vec![mode.to_owned()] } else { vec![] }),
                    "{on} {mode}"
                );
                // Behind a mention on the same line, and at the end of a line, it is part of a sentence, and named where it would
                // tighten.
                let sentences: [Vec<ContentBlock>; 4] = [
                    vec!["see ".into(), link(), format!(" {command}").as_str().into()],
                    vec![format!("fix this \\{mode}\nand that").as_str().into()],
                    vec!["old".into(), format!("fix this\nin /mode {mode}").as_str().into()],
                    vec![format!("fix this /{mode}").as_str().into(), link()],
                ];
                for prompt in sentences {
                    let Found { command: found_command, ignored } = found(&prompt, on);
                    let named = if is_named { vec![mode.to_owned()] } else { vec![] };
                    assert_eq!((found_command, ignored), (None, named), "{on} {prompt:?}");
                }
                // Behind what codecompanion.nvim writes for `#{buffer}` it tightens, and is named where it would not.
                let buffer = "file `/a b/c.rs` (with buffer number: 12)";
                for (mentions, rest) in [
                    (buffer.to_owned(), ""),
                    (buffer.to_owned(), "go on"),
                    (format!("{buffer} {buffer}"), "go on"),
                ] {
                    let text = format!("{mentions} /{mode} {rest}");
                    let prompt = ["Sharing the file:".into(), text.trim_end().into()];
                    let Found { command: found_command, ignored } = found(&prompt, on);
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
            // What is in a resource is no command.
            assert_eq!(found(&[link(), resource()], on), Found::default());
        }
    }

    /// avante sends the user's last messages with each prompt, the newest first; after it has lost its session, the oldest first
    /// with replies between them.
    #[test]
    fn a_command_in_a_message_that_a_client_repeats_was_obeyed_before() {
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
            // The words that no element marks are the newest.
            (vec![m("/code x"), m("/plan x"), "explain".into()], None),
            (vec![m("/code x"), "explain".into()], None),
            (vec![m("/plan x"), "explain".into()], Some((0, "plan"))),
        ];
        for on in ["plan", "ask", "code"] {
            for (texts, expected) in &cases {
                let content: Vec<ContentBlock> = texts.iter().map(|text| text.as_str().into()).collect();
                let found = found(&content, on);
                let found_command = found.command.as_ref().map(|placed| match &placed.command {
                    Command::SetMode { mode, .. } => (placed.block, mode.as_str()),
                    command => panic!("{command:?}"),
                });
                // A message that is not repeated, beside other words, counts where it widens nothing.
                let is_seen =
                    texts.len() == 2 && texts[1] == "explain" && on == "code" && texts[0].contains("/code");
                let expected = if is_seen { Some((0, "code")) } else { *expected };
                assert_eq!(found_command, expected, "{on} {texts:?}");
            }
        }
    }

    #[test]
    fn of_several_mode_commands_the_tightest_counts_and_the_others_are_named() {
        for texts in [["/code a", "/plan b"], ["/plan b", "/code a"]] {
            for on in ["plan", "ask", "code"] {
                let content = texts.map(ContentBlock::from);
                let Found { command, ignored } = found(&content, on);
                assert_eq!(command.map(|placed| placed.command), Some(set("plan", "b")));
                assert_eq!(ignored, ["code"]);
            }
        }
    }
}
