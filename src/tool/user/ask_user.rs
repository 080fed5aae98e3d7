//! `ask_user`: asks the user questions, with choices or free text.
//!
//! Works in every mode: the tool changes nothing, and an answer is never a permission. Without forms, the
//! questions go to the chat ([`super::chat_question`]) and end the turn.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::chat_question::ChatQuestion;
use crate::acp::{ElicitationContentValue, ElicitationSchema, EnumOption, StringPropertySchema, ToolKind};
use crate::client::ClientError;
use crate::permission::Effect;
use crate::text::visible;
use crate::tool::client_io::{ClientIo, Elicited};
use crate::tool::{PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec};

pub(in crate::tool) const NAME: &str = "ask_user";

const TIMEOUT: Duration = Duration::from_hours(1);

const MAX_QUESTIONS: usize = 5;
const MAX_CHOICES: usize = 10;
const MAX_QUESTION: usize = 2000;
const MAX_CHOICE: usize = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AskUserArguments {
    /// The questions, at most 5, in order.
    questions: Vec<Question>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Question {
    /// One self-contained question.
    question: String,
    /// Answers to choose from, at most 10. Default: free text.
    #[serde(default)]
    choices: Vec<String>,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Ask the user what only the user can know or decide, and wait. Give choices where you can. An answer permits no \
                call. Never ask for passwords or keys.";
    let spec = ToolSpec::new(NAME, ToolKind::Other, Effect::Session, description);
    ToolSpec { timeout: TIMEOUT, ..spec }.tool(|arguments, _| prepare(arguments))
}

fn prepare(AskUserArguments { mut questions }: AskUserArguments) -> Result<PreparedCall, ToolError> {
    for choice in questions.iter_mut().flat_map(|question| &mut question.choices) {
        *choice = choice.trim().to_owned();
    }
    if let Some(reason) = questions.iter().find_map(invalid_question).or_else(|| too_many(&questions)) {
        return Err(ToolError::arguments(reason));
    }
    let more = if questions.len() > 1 { format!(" (1 of {})", questions.len()) } else { String::new() };
    let title = format!("Ask: {}{more}", visible(&questions[0].question));
    Ok(PreparedCall::new(title, |context| run(questions, context)))
}

fn too_many(questions: &[Question]) -> Option<String> {
    let count = questions.len();
    (!(1..=MAX_QUESTIONS).contains(&count))
        .then(|| format!("questions has {count} entries; 1 to {MAX_QUESTIONS} are asked"))
}

fn invalid_question(question: &Question) -> Option<String> {
    let Question { question, choices } = question;
    let is_invalid_text = |text: &str, most| text.trim().is_empty() || text.chars().count() > most;
    if is_invalid_text(question, MAX_QUESTION) {
        return Some(format!("question is empty, or longer than {MAX_QUESTION} characters"));
    }
    if choices.len() > MAX_CHOICES || choices.iter().any(|choice| is_invalid_text(choice, MAX_CHOICE)) {
        return Some(format!(
            "choices has more than {MAX_CHOICES} entries, or one that is empty or too long"
        ));
    }
    choices
        .iter()
        .enumerate()
        .any(|(at, choice)| choices[..at].contains(choice))
        .then(|| "choices has duplicate entries".into())
}

async fn run(questions: Vec<Question>, context: RunContext) -> Result<ToolOutput, ToolError> {
    let RunContext { permit, client_io, .. } = context;
    if !client_io.capabilities().forms {
        return Ok(ask_in_chat(questions, &client_io));
    }
    let mut text = String::new();
    for question in &questions {
        let answer = tokio::select! {
            biased;
            () = permit.cancel.cancelled() => {
                return Err(ToolError::Failed(format!("{text}The question was withdrawn because the turn was cancelled.")));
            }
            answer = question.ask(&client_io) => answer,
        };
        if questions.len() > 1 {
            text.push_str(&question.question);
            text.push('\n');
        }
        text.push_str(&answer);
        text.push('\n');
    }
    Ok(ToolOutput::text(text.trim_end()))
}

fn ask_in_chat(questions: Vec<Question>, client_io: &ClientIo) -> ToolOutput {
    if !client_io.capabilities().answers {
        return ToolOutput::text(not_asked(&ClientError::NotOffered));
    }
    let text = if questions.len() == 1 {
        "The question was shown in the chat, and this turn ends here. The user's next message is the answer."
    } else {
        "The questions were shown in the chat, and this turn ends here. The user's next message is the answer."
    };
    ToolOutput {
        questions: questions
            .into_iter()
            .map(|Question { question, choices }| ChatQuestion { question, choices })
            .collect(),
        ..ToolOutput::text(text)
    }
}

const CHOICE: &str = "choice";
const WORDS: &str = "words";

impl Question {
    async fn ask(&self, client_io: &ClientIo) -> String {
        let _turn = client_io.acquire_question_slot().await;
        match client_io.elicit(&visible(&self.question), self.form()).await {
            Ok(Elicited::Accepted(content)) => self.read(&content),
            Ok(Elicited::Declined) => describe_answer("The user does not want to answer"),
            Ok(Elicited::Cancelled) => describe_answer("The user closed the question without an answer"),
            Err(error) => not_asked(&error),
        }
    }

    fn form(&self) -> ElicitationSchema {
        let words = StringPropertySchema::new();
        if self.choices.is_empty() {
            return ElicitationSchema::new().property(WORDS, words.title("Answer".to_owned()), true);
        }
        let options = self.choices.iter().map(|choice| EnumOption::new(choice.clone(), visible(choice)));
        let choice =
            StringPropertySchema::new().title("Answer".to_owned()).one_of(options.collect::<Vec<_>>());
        let words = words.title("Or in your own words".to_owned());
        ElicitationSchema::new().property(CHOICE, choice, false).property(WORDS, words, false)
    }

    /// Reads the answer from a form. Free text takes precedence over a choice.
    fn read(&self, content: &std::collections::BTreeMap<String, ElicitationContentValue>) -> String {
        let field = |name: &str| match content.get(name) {
            Some(ElicitationContentValue::String(text)) => Some(text.trim()).filter(|text| !text.is_empty()),
            _ => None,
        };
        let chosen = field(CHOICE);
        let offered = chosen.filter(|choice| self.choices.iter().any(|offered| offered == choice));
        match (field(WORDS), offered) {
            (Some(words), None) => format!("The user answered: {words}"),
            (Some(words), Some(choice)) => format!("The user answered: {words} (and chose: {choice})"),
            (None, Some(choice)) => format!("The user answered: {choice}"),
            (None, None) if chosen.is_some() => {
                describe_answer("The client answered with a choice that was not offered")
            }
            (None, None) => describe_answer("The user sent no answer"),
        }
    }
}

fn describe_answer(what: &str) -> String {
    format!("{what}. Continue with your best guess, and state what you assumed.")
}

fn not_asked(error: &ClientError) -> String {
    match error {
        ClientError::NotOffered | ClientError::Gone => {
            describe_answer("The user cannot be asked in this client")
        }
        error => describe_answer(&format!("The user could not be asked: {error}")),
    }
}
