//! Programs of external agents that a policy allows. Pure.
//!
//! ```text
//! pattern = PROGRAM { " " ARGUMENT }        the first words of the command line
//! PROGRAM = path of the program             the program that is found is this file
//!         | name                            the command line names it without a folder
//!         | *                               any program
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

/// A program that is to be started.
#[derive(Debug, Clone)]
pub struct AgentCommand<'a> {
    pub program: &'a str,
    pub arguments: &'a [String],
    /// The file, without links. `None` if there is none.
    pub place: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramPattern {
    words: Vec<String>,
}

impl ProgramPattern {
    /// The error is the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        match words.first() {
            None => Err("it names no program".into()),
            Some(program) if program.contains(['/', '\\']) && !Path::new(program).is_absolute() => {
                Err("a program is an absolute path, a name, or *".into())
            }
            Some(_) => Ok(Self { words }),
        }
    }

    pub fn is_path(&self) -> bool {
        Path::new(self.program()).is_absolute()
    }

    pub fn matches(&self, command: &AgentCommand<'_>) -> bool {
        let arguments = self.words.get(1..).unwrap_or_default();
        self.is_program(command) && command.arguments.starts_with(arguments)
    }

    fn is_program(&self, command: &AgentCommand<'_>) -> bool {
        match self.program() {
            "*" => true,
            path if self.is_path() => command.place.as_deref() == Some(Path::new(path)),
            name => command.program == name,
        }
    }

    fn program(&self) -> &str {
        self.words.first().map(String::as_str).unwrap_or_default()
    }
}

impl fmt::Display for ProgramPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_match_by_place_name_and_first_arguments() {
        let place = if cfg!(windows) { "C:/bin/gemini" } else { "/usr/bin/gemini" };
        let with_place = |rest: &str| format!("{place}{rest}");
        for (pattern, program, arguments, found, expected) in [
            (with_place(""), "gemini", &["--acp"][..], Some(place), true),
            (with_place(" --acp"), "gemini", &["--acp", "-m"], Some(place), true),
            (with_place(" --acp"), "gemini", &["-m", "--acp"], Some(place), false),
            (with_place(" --acp"), "gemini", &[], Some(place), false),
            (with_place(""), "gemini", &[], Some("/home/u/bin/gemini"), false),
            (with_place(""), place, &[], None, false),
            ("gemini".into(), "gemini", &[], None, true),
            ("gemini".into(), "./gemini", &[], None, false),
            ("gemini".into(), "/tmp/gemini", &[], Some("/tmp/gemini"), false),
            ("gemini".into(), "Gemini", &[], None, false),
            ("npx -y @google/gemini-cli".into(), "npx", &["-y", "@google/gemini-cli", "--acp"], None, true),
            ("npx -y @google/gemini-cli".into(), "npx", &["-y", "other"], None, false),
            ("*".into(), "anything", &[], None, true),
        ] {
            let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
            let command = AgentCommand { program, arguments: &arguments, place: found.map(PathBuf::from) };
            let matches = ProgramPattern::parse(&pattern).unwrap().matches(&command);
            assert_eq!(matches, expected, "{pattern}: {command:?}");
        }
        for invalid in ["", " ", "./gemini", "bin/gemini"] {
            assert!(ProgramPattern::parse(invalid).is_err(), "{invalid:?}");
        }
    }
}
