//! The form in which the user decides on a plan. Pure.
//!
//! Its answer becomes a permission response, so that forms and permission requests share one decision.

use serde_json::Value;

use super::permission_options::{FEEDBACK_META, REJECT_WITH_FEEDBACK};
use super::switch::REJECT;
use crate::acp::{
    CreateElicitationRequest, CreateElicitationResponse, ElicitationAction, ElicitationContentValue,
    ElicitationFormMode, ElicitationSchema, ElicitationSessionScope, EnumOption, Meta, PermissionOption,
    RequestPermissionOutcome, RequestPermissionResponse, SelectedPermissionOutcome, SessionId,
    StringPropertySchema, ToolCallId,
};
use crate::client::ClientError;
use crate::conversation::content::{TEXT, clip};

// Clients show the members in alphabetical order: the decision stands first.
const DECISION: &str = "decision";
const FEEDBACK: &str = "feedback";

pub(crate) fn request(
    session: &SessionId,
    call: &ToolCallId,
    plan: &str,
    options: &[PermissionOption],
) -> CreateElicitationRequest {
    let offered = options.iter().filter(|option| &*option.option_id.0 != REJECT_WITH_FEEDBACK);
    let offered: Vec<_> =
        offered.map(|option| EnumOption::new(option.option_id.0.to_string(), option.name.clone())).collect();
    let decision = StringPropertySchema::new().title("Decision".to_owned()).one_of(offered);
    let feedback = StringPropertySchema::new().title("What should change in the plan?".to_owned());
    let schema =
        ElicitationSchema::new().property(DECISION, decision, true).property(FEEDBACK, feedback, false);
    let scope = ElicitationSessionScope::new(session.clone()).tool_call_id(Some(call.clone()));
    let message = format!("{}\n\nImplement this plan?", clip(plan, TEXT).trim_end());
    CreateElicitationRequest::new(ElicitationFormMode::new(scope, schema), message)
}

/// Reads the answer. A closed form, or one without a decision, is no consent.
pub(crate) fn read(answer: Result<Value, ClientError>) -> Result<RequestPermissionResponse, ClientError> {
    let answer: CreateElicitationResponse =
        serde_json::from_value(answer?).map_err(|error| ClientError::Malformed(error.to_string()))?;
    let content = match answer.action {
        ElicitationAction::Accept(accept) => accept.content.unwrap_or_default(),
        ElicitationAction::Decline => return Ok(selected(REJECT, None)),
        _ => return Ok(RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled)),
    };
    let field = |name: &str| match content.get(name) {
        Some(ElicitationContentValue::String(text)) => Some(text.trim()).filter(|text| !text.is_empty()),
        _ => None,
    };
    Ok(match (field(DECISION), field(FEEDBACK)) {
        (None | Some(REJECT), Some(message)) => selected(REJECT_WITH_FEEDBACK, Some(message)),
        (None, None) => selected(REJECT, None),
        (Some(decision), message) => selected(decision, message),
    })
}

fn selected(option: &str, text: Option<&str>) -> RequestPermissionResponse {
    let meta = text.map(|text| Meta::from_iter([(FEEDBACK_META.to_owned(), Value::from(text))]));
    let selected = SelectedPermissionOutcome::new(option.to_owned()).meta(meta);
    RequestPermissionResponse::new(RequestPermissionOutcome::Selected(selected))
}
