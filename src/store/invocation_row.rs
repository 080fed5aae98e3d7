//! The programs of a command line, as JSON in an entry of the hash chain.

use serde::{Deserialize, Serialize};

use crate::permission::{CommandWord, Invocation, Invocations};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Runs {
    commands: Vec<CommandRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<Vec<WordRow>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    code: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hidden: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CommandRow {
    words: Vec<WordRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    essential: Option<Vec<WordRow>>,
}

/// A word, `{"start": TEXT}` or `null` for any number of unknown words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum WordRow {
    Text(String),
    Start { start: String },
    Any(()),
}

impl Runs {
    pub(super) fn new(invocations: &Invocations) -> Self {
        let Invocations { commands, arguments, code, hides_commands } = invocations;
        let command = |Invocation { words, essential }: &Invocation| CommandRow {
            words: rows(words),
            essential: essential.as_deref().map(rows),
        };
        Self {
            commands: commands.iter().map(command).collect(),
            arguments: arguments.iter().map(|words| rows(words)).collect(),
            code: code.clone(),
            hidden: *hides_commands,
        }
    }

    pub(super) fn to_invocations(&self) -> Invocations {
        let command = |CommandRow { words: row, essential }: &CommandRow| Invocation {
            words: words(row),
            essential: essential.as_deref().map(words),
        };
        Invocations {
            commands: self.commands.iter().map(command).collect(),
            arguments: self.arguments.iter().map(|row| words(row)).collect(),
            code: self.code.clone(),
            hides_commands: self.hidden,
        }
    }
}

fn rows(words: &[CommandWord]) -> Vec<WordRow> {
    words.iter().map(word_row).collect()
}

fn word_row(word: &CommandWord) -> WordRow {
    match word {
        CommandWord::Text(text) => WordRow::Text(text.clone()),
        CommandWord::Start(start) => WordRow::Start { start: start.clone() },
        CommandWord::Any => WordRow::Any(()),
    }
}

fn words(rows: &[WordRow]) -> Vec<CommandWord> {
    rows.iter().map(command_word).collect()
}

fn command_word(row: &WordRow) -> CommandWord {
    match row {
        WordRow::Text(text) => CommandWord::Text(text.clone()),
        WordRow::Start { start } => CommandWord::Start(start.clone()),
        WordRow::Any(()) => CommandWord::Any,
    }
}
