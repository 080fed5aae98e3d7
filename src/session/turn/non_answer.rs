//! Replies that are no answer: cut by a limit, without words, or with a call that stands in the text. The text
//! stays in the history, the model learns what did not run, and gets another request. Pure.

use std::borrow::Cow;

use super::reply::Step;
use crate::model::ModelStop;

/// Such replies in a row after which the model gets another request.
pub(super) const MAX_NON_ANSWERS: u32 = 3;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NonAnswer {
    /// The reply reached the output limit, or ended in a call. Names of the tools whose calls are incomplete.
    Cut { calls: Vec<String>, has_text: bool },
    /// The reply filled the context.
    ContextFull { calls: Vec<String> },
    /// Thoughts or blanks only, or nothing at all.
    Wordless,
    /// The reply has a call in its text, which must not run for this reason.
    WrittenCall(Cow<'static, str>),
}

impl NonAnswer {
    pub(super) fn of(step: &Step) -> Option<Self> {
        let calls = step.cut_calls.clone();
        match step.stop {
            ModelStop::Refusal => None,
            ModelStop::MaxTokens => Some(Self::Cut { calls, has_text: step.has_words }),
            ModelStop::ContextFull => Some(Self::ContextFull { calls }),
            ModelStop::Empty => Some(Self::Wordless),
            ModelStop::Done if !calls.is_empty() => Some(Self::Cut { calls, has_text: step.has_words }),
            ModelStop::Done if !step.calls.is_empty() => None,
            ModelStop::Done => match &step.unclear_call {
                Some(reason) => Some(Self::WrittenCall(reason.clone())),
                None => (step.has_output && !step.has_words).then_some(Self::Wordless),
            },
        }
    }

    /// For the model, after the reply and its results.
    pub(super) fn note(&self) -> String {
        match self {
            Self::Cut { calls, has_text } => {
                let mut text = "Your reply above was cut off at the output limit.".to_owned();
                text.push_str(&did_not_run(calls));
                text.push_str(match (calls.is_empty(), has_text) {
                    (false, _) => {
                        " Make it again with less text: write a long file in parts of at most 200 lines."
                    }
                    (true, true) => " Go on exactly where the text ends, without repeating it.",
                    (true, false) => " Think less, and answer or call a tool.",
                });
                text
            }
            Self::ContextFull { calls } => format!(
                "Your reply above was cut off, because it filled your context.{} Older messages may have been \
                 summarized since. Go on from here.",
                did_not_run(calls)
            ),
            Self::Wordless => {
                "Your last reply had no words, so the user got no answer, and nothing ran. Answer in words, or \
                 call a tool."
                    .into()
            }
            Self::WrittenCall(reason) => format!(
                "Your reply above has a tool call in its text, which did not run: {reason}. Call tools in the way that \
                 your interface provides, not in the text. If it is no call, answer in words, with the example in a \
                 block of code that other text follows."
            ),
        }
    }

    /// For the user.
    pub(super) fn notice(&self) -> &'static str {
        match self {
            Self::Cut { .. } => {
                "\nThe reply was cut off at the model's output limit. The model is asked to go on.\n"
            }
            Self::ContextFull { .. } => {
                "\nThe reply was cut off, because it filled the model's context. The model is asked to go on.\n"
            }
            Self::Wordless => "\nThe reply has no words. The model is asked again.\n",
            Self::WrittenCall(_) => {
                "\nThe model wrote a call into its text, which did not run. It is asked again.\n"
            }
        }
    }
}

fn did_not_run(calls: &[String]) -> String {
    match calls {
        [] => String::new(),
        [call] => format!(" Its call of {call} is incomplete and did not run."),
        calls => format!(" Its last calls ({}) are incomplete and did not run.", calls.join(", ")),
    }
}
