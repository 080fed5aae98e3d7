//! Implements `modegate setup`. Asks only for values that no flag gives.
//!
//! A terminal does not echo the key; from a pipe, the key is the first line.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use secrecy::SecretString;

use super::{CliStreams, InputKind};
use crate::config;
use crate::config::environment::Environment;
use crate::config::online::{self, Trial};
use crate::config::user_file::{self, Setup};
use crate::model::catalog::{PROVIDERS, Provider, provider};
use crate::model::key_form;
use editor::{Editor, EditorEntry, settings_file};

mod editor;

#[derive(Debug, Args)]
pub(super) struct SetupArguments {
    /// Print the entry for the settings of this editor, and offer to write it, instead
    #[arg(value_enum)]
    editor: Option<Editor>,
    /// Agent that the editor starts under Modegate, such as "gemini --acp" [with an editor]
    #[arg(long, value_name = "COMMAND", requires = "editor")]
    wrap: Option<String>,
    /// Provider: anthropic, openai-responses, openai, gemini or ollama
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
    /// Name of the model at the provider [default: the provider's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Address of the server [default: the provider's]
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Shell command that prints the key, used instead of a stored key
    #[arg(long, value_name = "COMMAND")]
    key_command: Option<String>,
    /// Ask the provider for a short reply with the key before it is stored
    #[arg(long)]
    online: bool,
    /// Remove the stored key and address of this provider, and its model
    #[arg(long, value_name = "PROVIDER", exclusive = true)]
    remove: Option<String>,
}

pub(super) async fn run<I: Read, O: Write, E: Write>(
    arguments: SetupArguments,
    environment: &Environment,
    streams: CliStreams<I, O, E>,
) -> anyhow::Result<ExitCode> {
    let CliStreams { input, input_kind, mut output, errors } = streams;
    if let Some(editor) = arguments.editor {
        let mut dialog =
            Dialog { input: BufReader::new(input), errors, is_person: input_kind == InputKind::Terminal };
        let entry = EditorEntry::new(&config::replay_places()?.0, arguments.wrap.as_deref());
        let path = settings_file(editor, environment).filter(|_| dialog.is_person);
        return dialog.offer_entry(editor, &entry, path.as_deref(), output);
    }
    let folder =
        environment.config_folder.as_ref().context("there is no home directory to store settings in")?;
    if let Some(id) = &arguments.remove {
        return remove(folder, find(id)?, output);
    }
    let mut terminal =
        Dialog { input: BufReader::new(input), errors, is_person: input_kind == InputKind::Terminal };
    let provider = match &arguments.provider {
        Some(id) => find(id)?,
        None => terminal.provider()?,
    };
    let base_url = match arguments.base_url {
        None if provider.id == "openai" => terminal.ask("Address of the server", provider.base_url)?,
        given => given,
    };
    let base_url = base_url.filter(|url| url != provider.base_url);
    let key = match arguments.key_command {
        Some(_) => None,
        None => terminal.key(&provider, base_url.is_none())?,
    };
    let default = provider.models.first().copied().unwrap_or_default();
    let name = match arguments.name {
        Some(name) => name,
        None => terminal.ask("Model", default)?.unwrap_or_else(|| default.to_owned()),
    };
    let model = format!("{}/{name}", provider.id);
    let setup = Setup { provider: provider.id, key, key_command: arguments.key_command, base_url, model };
    if arguments.online || terminal.wants_trial(&setup)? {
        terminal.try_out(environment, &setup).await?;
    }
    let path = user_file::write(folder, &setup)?;
    let has_key = setup.key.is_some() || setup.key_command.is_some();
    let with = if has_key { "" } else { ", without a key" };
    writeln!(output, "Stored in {}{with}.", path.display())?;
    let (configured_model, config_path) =
        (user_file::read(Some(folder))?.model, folder.join(user_file::CONFIG));
    match configured_model.filter(|named| *named != setup.model) {
        None => writeln!(output, "New sessions use {}.", setup.model)?,
        Some(named) => {
            writeln!(output, "New sessions still use {named}, because {} says so.", config_path.display())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(folder: &Path, provider: Provider, mut output: impl Write) -> anyhow::Result<ExitCode> {
    if !user_file::remove(folder, provider.id)? {
        bail!(
            "nothing is stored of {}: keys of the environment and of {} stay",
            provider.id,
            user_file::CONFIG
        );
    }
    writeln!(output, "Removed what `modegate setup` had stored of {}.", provider.id)?;
    Ok(ExitCode::SUCCESS)
}

fn find(id: &str) -> anyhow::Result<Provider> {
    provider(id).with_context(|| {
        format!(
            "unknown provider {id:?}: the providers are {}",
            PROVIDERS.map(|provider| provider.id).join(", ")
        )
    })
}

struct Dialog<I, E> {
    input: BufReader<I>,
    errors: E,
    is_person: bool,
}

impl<I: Read, E: Write> Dialog<I, E> {
    fn provider(&mut self) -> anyhow::Result<Provider> {
        if !self.is_person {
            bail!("name the provider: --provider {}", PROVIDERS.map(|provider| provider.id).join("|"));
        }
        for (number, provider) in PROVIDERS.iter().enumerate() {
            writeln!(self.errors, "{} {} ({})", number + 1, provider.title, provider.id)?;
        }
        loop {
            let answer = self.ask("Provider", "1")?.unwrap_or_else(|| "1".into());
            let number = answer.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            let numbered = number.and_then(|number| PROVIDERS.get(number)).copied();
            match numbered.or_else(|| provider(&answer)) {
                Some(provider) => return Ok(provider),
                None => writeln!(
                    self.errors,
                    "modegate: {answer:?} is no provider: type a number from 1 to {}, or an id",
                    PROVIDERS.len()
                )?,
            }
        }
    }

    /// Prints the entry, and offers to write it if the file can take it.
    fn offer_entry(
        &mut self,
        editor: Editor,
        entry: &EditorEntry,
        path: Option<&Path>,
        mut output: impl Write,
    ) -> anyhow::Result<ExitCode> {
        writeln!(output, "{}", entry.text(editor))?;
        let Some(path) = path else { return Ok(ExitCode::SUCCESS) };
        match editor::with_entry(editor, entry, path) {
            Err(error) => writeln!(self.errors, "modegate: the entry is not written: {error:#}")?,
            Ok(settings) => {
                let question = format!("Write it to {}? y or n", path.display());
                if self.ask(&question, "n")?.as_deref() == Some("y") {
                    editor::write(&settings, path, &mut output)?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// `None` for an empty line, or without a terminal.
    fn ask(&mut self, what: &str, default: &str) -> anyhow::Result<Option<String>> {
        if !self.is_person {
            return Ok(None);
        }
        write!(self.errors, "{what} [{default}]: ")?;
        self.errors.flush()?;
        Ok(self.line()?.filter(|line| !line.is_empty()))
    }

    fn line(&mut self) -> anyhow::Result<Option<String>> {
        let mut line = String::new();
        let read = self.input.read_line(&mut line).context("reading the answer")?;
        Ok((read > 0).then(|| line.trim().to_owned()))
    }

    fn key(&mut self, provider: &Provider, is_official: bool) -> anyhow::Result<Option<SecretString>> {
        let line = if self.is_person {
            let optional = if provider.needs_key && is_official { "" } else { " (empty for none)" };
            let prompt = format!("Key of {}{optional}: ", provider.title);
            Some(rpassword::prompt_password(prompt).context("reading the key")?)
        } else {
            self.line()?
        };
        let key = line.map(|line| line.trim().to_owned()).filter(|key| !key.is_empty());
        if key.is_none() && provider.needs_key && is_official {
            bail!("{} needs a key: type or pipe one, or give --key-command", provider.title);
        }
        if let Some(fault) = key.as_deref().and_then(key_form::fault) {
            bail!("this is not a key: {fault}. Nothing is stored");
        }
        let official_key = key.as_deref().filter(|_| is_official);
        if let Some(doubt) = official_key.and_then(|key| key_form::doubt(key, provider.id)) {
            writeln!(self.errors, "modegate: {doubt}")?;
        }
        Ok(key.map(SecretString::from))
    }

    /// Returns false without a terminal, so that no request is sent unasked.
    fn agrees(&mut self, question: &str) -> anyhow::Result<bool> {
        let answer = self.ask(&format!("{question} y/n"), "n")?;
        Ok(answer.is_some_and(|answer| answer.to_ascii_lowercase().starts_with('y')))
    }

    fn wants_trial(&mut self, setup: &Setup) -> anyhow::Result<bool> {
        let has_key = setup.key.is_some() || setup.key_command.is_some();
        Ok(has_key && self.agrees("Try the key now, with a short request to the provider?")?)
    }

    /// Returns an error if the provider did not answer, and the user does not want to store the settings then.
    async fn try_out(&mut self, environment: &Environment, setup: &Setup) -> anyhow::Result<()> {
        let Some(Trial { host, route, outcome }) = online::try_setup(environment, setup).await? else {
            return Ok(());
        };
        match outcome {
            Ok(()) => writeln!(self.errors, "{host} answered (HTTP 200), {route}.")?,
            Err(error) => {
                writeln!(self.errors, "modegate: {} ({route})", error.text)?;
                if !self.agrees("Store the settings nevertheless?")? {
                    bail!("the provider did not answer, and nothing is stored");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialog(input: &str, is_person: bool) -> Dialog<&[u8], Vec<u8>> {
        Dialog { input: BufReader::new(input.as_bytes()), errors: Vec::new(), is_person }
    }

    fn setup() -> Setup {
        let base_url = Some("http://127.0.0.1:1".into());
        Setup {
            provider: "openai",
            key: Some("k".into()),
            key_command: None,
            base_url,
            model: "openai/m".into(),
        }
    }

    #[test]
    fn wrong_provider_is_asked_for_again() {
        let mut dialog = dialog("9\nopenia\n4\n", true);
        assert_eq!(dialog.provider().unwrap().id, "gemini");
        let shown = String::from_utf8(dialog.errors).unwrap();
        assert!(shown.contains("\"9\" is no provider: type a number from 1 to 5, or an id\n"), "{shown}");
        assert_eq!(shown.matches("Provider [1]: ").count(), 3, "{shown}");
    }

    #[test]
    fn entry_is_offered_only_for_a_file_that_can_take_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.json");
        let entry = EditorEntry::new(Path::new("/bin/modegate"), None);
        for (settings, is_offered) in [("// Zed settings\n{}\n", false), ("{}", true)] {
            std::fs::write(&path, settings).unwrap();
            let (mut dialog, mut output) = (dialog("y\n", true), Vec::new());
            dialog.offer_entry(Editor::Zed, &entry, Some(&path), &mut output).unwrap();
            let shown = String::from_utf8(dialog.errors).unwrap();
            assert_eq!(shown.contains("Write it to "), is_offered, "{shown}");
            assert_eq!(
                shown.contains("has comments, or is no JSON: paste the entry"),
                !is_offered,
                "{shown}"
            );
            assert!(String::from_utf8(output).unwrap().contains("\"agent_servers\""));
            assert_eq!(std::fs::read_to_string(&path).unwrap() != settings, is_offered);
        }
    }

    #[test]
    fn doubtful_key_is_stored_with_a_notice() {
        let openai = provider("openai").unwrap();
        for (key, is_official, has_notice) in
            [("notakey", true, true), ("sk-proj-1", true, false), ("notakey", false, false)]
        {
            let line = format!("{key}\n");
            let mut dialog = dialog(&line, false);
            assert!(dialog.key(&openai, is_official).unwrap().is_some());
            let shown = String::from_utf8(dialog.errors).unwrap();
            assert_eq!(shown.contains("keys of openai begin with sk-"), has_notice, "{shown}");
        }
    }

    #[test]
    fn key_is_tried_only_if_the_user_agrees() {
        for (input, is_person, expected) in [
            ("y\n", true, true),
            ("Yes\n", true, true),
            ("\n", true, false),
            ("n\n", true, false),
            ("y\n", false, false),
        ] {
            assert_eq!(dialog(input, is_person).wants_trial(&setup()).unwrap(), expected, "{input:?}");
        }
        let without_key = Setup { key: None, ..setup() };
        assert!(!dialog("y\n", true).wants_trial(&without_key).unwrap());
    }

    #[tokio::test]
    async fn settings_that_do_not_work_are_stored_only_if_the_user_agrees() {
        for (answer, is_stored) in [("y\n", true), ("\n", false)] {
            let mut dialog = dialog(answer, true);
            let tried = dialog.try_out(&Environment::default(), &setup()).await;
            assert_eq!(tried.is_ok(), is_stored);
            let shown = String::from_utf8(dialog.errors).unwrap();
            assert!(
                shown.contains("127.0.0.1:1: no connection") && shown.contains("without a proxy"),
                "{shown}"
            );
        }
    }
}
