//! Aliases and settings on the command line of git, which can run anything. Pure.

use super::invoked::Finder;
use crate::permission::CommandWord;

impl Finder {
    /// An alias that the line itself defines can run anything.
    pub(super) fn git(
        &mut self,
        words: &[CommandWord],
        essential: &mut Option<Vec<CommandWord>>,
        depth: usize,
    ) {
        let essential_length = essential.as_deref().unwrap_or(words).len();
        let options = &words[1..=words.len() - essential_length];
        let mut has_alias = false;
        for (at, word) in options.iter().enumerate() {
            let is_setting = at > 0 && options[at - 1] == CommandWord::Text("-c".into());
            match word {
                CommandWord::Any => has_alias = true,
                CommandWord::Text(text) | CommandWord::Start(text) => {
                    let setting = text.strip_prefix("--config-env=").unwrap_or(text);
                    let lower = setting.to_ascii_lowercase();
                    let is_unknown =
                        is_setting && !text.contains('.') && matches!(word, CommandWord::Start(_));
                    has_alias |= lower.starts_with("alias.") || is_unknown;
                    has_alias |= lower.starts_with("include");
                    let Some((_, value)) = setting.split_once('=').filter(|(key, _)| key.contains('.'))
                    else {
                        continue;
                    };
                    match value.strip_prefix('!') {
                        Some(script) if lower.starts_with("alias.") => {
                            self.script(script, depth + 1);
                        }
                        _ if value.contains(char::is_whitespace) => self.may_be_code(value),
                        _ => {}
                    }
                }
            }
        }
        let rest = &words[words.len() - essential_length + 1..];
        let is_config = rest.first() == Some(&CommandWord::Text("config".into()));
        if is_config {
            has_alias |= rest.iter().any(|word| match word {
                CommandWord::Text(text) => text.to_ascii_lowercase().starts_with("alias."),
                CommandWord::Start(_) | CommandWord::Any => true,
            });
            for word in rest {
                if let CommandWord::Text(text) = word
                    && let Some(script) = text.strip_prefix('!')
                {
                    self.script(script, depth + 1);
                }
            }
        }
        if has_alias {
            *essential = Some(vec![words[0].clone(), CommandWord::Any]);
        }
    }
}
