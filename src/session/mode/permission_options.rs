//! Options of a permission request, and its answers. Only an offered option that allows is consent.

use crate::acp::{
    ElicitationContentValue, ElicitationSchema, PermissionOption, PermissionOptionKind,
    RequestPermissionOutcome, RequestPermissionResponse, SelectedPermissionOutcome, StringPropertySchema,
};
use crate::client::ClientError;
use crate::permission::Scope;
use crate::session::trace::PermissionOutcome;
use crate::text::visible;
use crate::tool::client_io::{ClientIo, Elicited};

const ALLOW_ONCE: &str = "allow_once";
const ALLOW_ALWAYS: &str = "allow_always";
const REJECT_ONCE: &str = "reject_once";
const REJECT_ALWAYS: &str = "reject_always";
pub(crate) const REJECT_WITH_FEEDBACK: &str = "reject_with_feedback";

const REJECTED: &str = "The user rejected this call.";

pub(crate) const NOT_OFFERED: &str =
    "The client chose an option that was not offered, which does not count as consent.";

pub(crate) const CANCELLED: &str = "The question to the user was cancelled.";

const REASON: &str = "reason";

pub(crate) type PermissionReply = Result<RequestPermissionResponse, ClientError>;

/// `_meta` key of an answer for the user's requested changes.
pub(crate) const FEEDBACK_META: &str = "modegate/feedback";

/// Texts are for the model.
pub(crate) enum PermissionAnswer {
    Once,
    Always,
    Never,
    No(String),
    /// The client could not ask the user.
    Unreachable(String),
    /// Rejected; a form must ask for the reason.
    AskReason,
}

impl PermissionAnswer {
    pub(crate) fn outcome(&self) -> PermissionOutcome {
        match self {
            Self::Once | Self::Always => PermissionOutcome::Allowed,
            Self::Never | Self::No(_) | Self::AskReason => PermissionOutcome::Rejected,
            Self::Unreachable(_) => PermissionOutcome::Unreachable,
        }
    }
}

pub(crate) fn options(scopes: &[Scope], mode: &str, has_forms: bool) -> Vec<PermissionOption> {
    let labels = scopes.iter().map(Scope::label).collect::<Vec<_>>().join(", ");
    let always = |verb: &str| format!("Always {verb} {labels} (this session, {mode} mode)");
    let mut options = vec![PermissionOption::new(ALLOW_ONCE, "Allow", PermissionOptionKind::AllowOnce)];
    if !scopes.is_empty() {
        options.push(PermissionOption::new(ALLOW_ALWAYS, always("allow"), PermissionOptionKind::AllowAlways));
    }
    options.push(PermissionOption::new(REJECT_ONCE, "Reject", PermissionOptionKind::RejectOnce));
    if has_forms {
        let name = "Reject, and say why";
        options.push(PermissionOption::new(REJECT_WITH_FEEDBACK, name, PermissionOptionKind::RejectOnce));
    }
    if !scopes.is_empty() {
        options.push(PermissionOption::new(
            REJECT_ALWAYS,
            always("reject"),
            PermissionOptionKind::RejectAlways,
        ));
    }
    options
}

pub(crate) fn read_answer(answer: PermissionReply) -> PermissionAnswer {
    let no = |why: &str| PermissionAnswer::No(why.to_owned());
    let response = match answer {
        Err(error) => return PermissionAnswer::Unreachable(format!("The user could not be asked: {error}.")),
        Ok(response) => response,
    };
    match &response.outcome {
        RequestPermissionOutcome::Selected(selected) => match &*selected.option_id.0 {
            ALLOW_ONCE => PermissionAnswer::Once,
            ALLOW_ALWAYS => PermissionAnswer::Always,
            REJECT_ALWAYS => PermissionAnswer::Never,
            REJECT_ONCE => no(REJECTED),
            REJECT_WITH_FEEDBACK => match feedback(&response, selected) {
                Some(text) => PermissionAnswer::No(with_reason(text)),
                None => PermissionAnswer::AskReason,
            },
            _ => no(NOT_OFFERED),
        },
        // No other outcome is consent, including future ones.
        _ => no(CANCELLED),
    }
}

/// The user's text beside the selected option.
pub(crate) fn feedback<'a>(
    response: &'a RequestPermissionResponse,
    selected: &'a SelectedPermissionOutcome,
) -> Option<&'a str> {
    selected.meta.as_ref().or(response.meta.as_ref())?.get(FEEDBACK_META)?.as_str()
}

pub(crate) async fn reason(client_io: &ClientIo, title: &str) -> String {
    let _turn = client_io.acquire_question_slot().await;
    let field = StringPropertySchema::new().title("Why, or what to do instead".to_owned());
    let form = ElicitationSchema::new().property(REASON, field, true);
    let message = format!("Rejected: {}. The agent receives your text.", visible(title));
    match client_io.elicit(&message, form).await {
        Ok(Elicited::Accepted(content)) => match content.get(REASON) {
            Some(ElicitationContentValue::String(text)) => with_reason(text),
            _ => REJECTED.to_owned(),
        },
        Ok(Elicited::Declined | Elicited::Cancelled) => REJECTED.to_owned(),
        Err(error) => {
            tracing::warn!(%error, "cannot ask the user for the reason of a rejection");
            REJECTED.to_owned()
        }
    }
}

fn with_reason(text: &str) -> String {
    match text.trim() {
        "" => REJECTED.to_owned(),
        text => format!("{REJECTED} In the user's words: {text}"),
    }
}
