//! The programs of a command line, as far as its text tells. Plain data for rules that deny or ask.

/// A word that a program gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandWord {
    Text(String),
    /// One word of which only the start is known.
    Start(String),
    /// Any number of unknown words, also none.
    Any,
}

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// As in the line.
    pub words: Vec<CommandWord>,
    /// Without the options before the sub-command. `None` if that is the same.
    pub essential: Option<Vec<CommandWord>>,
}

impl Invocation {
    pub fn essential(&self) -> &[CommandWord] {
        self.essential.as_ref().unwrap_or(&self.words)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Invocations {
    pub commands: Vec<Invocation>,
    /// Arguments of programs that may run them as a command.
    pub arguments: Vec<Vec<CommandWord>>,
    /// Texts that may be code, for example of Python.
    pub code: Vec<String>,
    /// True if the line may run any command.
    pub hides_commands: bool,
}
