//! The session's model: the user's choice, and the choice of the current mode.

use serde_json::json;

use super::context_window::prompt_too_long;
use super::scaled_images::MAX_TO_SCALE;
use crate::acp::{ContentBlock, EmbeddedResourceResource, ImageContent, SessionConfigOption, SessionModeId};
use crate::agents::AgentSpec;
use crate::conversation::prompt_block::{MAX_PROMPT_TEXT, PICTURES};
use crate::error::AgentError;
use crate::mode::{Access, Consent, Mode};
use crate::model::Effort;
use crate::model::TraceContext;
use crate::model::catalog::ModelCatalog;
use crate::model::catalog::NoModel;
use crate::session::SessionContext;
use crate::session::handle::ModelSetting;
use crate::session::mode::decider::Decider;
use crate::session::mode::policy::Policy;
use crate::session::notes::Notes;
use crate::session::options::{self, ModelSelection};
use crate::session::session_snapshot::{ModePermits, SessionOffer, SessionSnapshot};
use crate::session::trace::TurnStart;
use crate::store::Row;

fn tool_names(policy: &Policy) -> Vec<String> {
    let tools = policy.available_tools(&policy.context.tools.all(), false);
    tools.iter().map(|tool| tool.spec().name.to_string()).collect()
}

fn permits(policy: &Policy, mode: &Mode) -> ModePermits {
    let id = mode.mode_id();
    let ceilings = policy.context.ceilings(std::iter::once(&id));
    if ceilings.modes.iter().any(|mode| mode.access == Access::ReadOnly) {
        ModePermits::Reading
    } else if ceilings.modes.iter().any(|mode| mode.permission == Consent::Ask) {
        ModePermits::AskedChanges
    } else {
        ModePermits::Changes
    }
}

pub(crate) struct Models {
    pub(crate) active: ModelSelection,
    /// The user's own selection, which the mode may override in `active`.
    pub(crate) chosen: ModelSelection,
}

impl Models {
    /// Begins the span of a turn, while telemetry is on.
    pub(crate) fn trace_turn(&self, number: u64, parent: Option<&TraceContext>, decider: &mut Decider) {
        let Decider { policy, log, .. } = decider;
        let start = TurnStart {
            number,
            agent: &policy.agent.id,
            mode: &policy.mode.0,
            model: self.active.model.as_str(),
            is_external: policy.agent.external_agent.is_some(),
            parent,
        };
        log.traced(|trace| trace.begin_turn(&start));
    }

    /// Without `chosen`, the user's choice is the default model.
    pub(crate) fn new(
        context: &SessionContext,
        mode: &SessionModeId,
        agent: &AgentSpec,
        chosen: Option<ModelSelection>,
    ) -> Self {
        let chosen = chosen.unwrap_or_else(|| ModelSelection::of(&context.models));
        let active = options::entering(&context.modes, &context.models, mode, agent, &chosen);
        context.model.prepare(&active.model);
        Self { active, chosen }
    }

    pub(crate) fn restore(&mut self, chosen: Option<&(String, String)>, policy: &Policy, notes: &mut Notes) {
        let Some((model, effort)) = chosen else { return };
        match policy.context.models.resolve(model) {
            Ok(model) => {
                let effort = Effort::parse(effort).unwrap_or_default();
                self.chosen = ModelSelection { model, effort };
            }
            Err(error) => {
                notes.warn(format!("{error}. The session continues with another model.\n\n"));
            }
        }
        self.active = self.of_mode(policy);
        policy.context.model.prepare(&self.active.model);
    }

    /// The state of the session, for a request that opens it.
    pub(crate) fn snapshot(&self, decider: &Decider, options: Vec<SessionConfigOption>) -> SessionSnapshot {
        let policy = &decider.policy;
        let context = &policy.context;
        let model = Some(&self.active.model).filter(|_| policy.agent.external_agent.is_none());
        let unusable_model =
            options::unusable_model(&context.modes, &context.models, &policy.mode, &policy.agent);
        SessionSnapshot {
            model: model.cloned(),
            is_fallback: model.is_some_and(|model| context.models.is_fallback(model)),
            is_read_only: policy.ceilings().modes.iter().any(|mode| mode.access == Access::ReadOnly),
            checks: context.checks.len(),
            modes: options::mode_state(&context.modes, &policy.mode),
            options,
            head: decider.log.head().clone(),
            has_unrecorded_modes: !policy.unrecorded_modes.is_empty(),
            unusable_model: unusable_model.filter(|_| model.is_some()),
            limited_to: policy.limited_to(),
        }
    }

    pub(crate) async fn offer(decider: &mut Decider) -> SessionOffer {
        let is_refused = decider.policy.context.refuses_unrecorded;
        let unrecordable = if is_refused { decider.log.unrecordable().await } else { None };
        let policy = &decider.policy;
        let tools = match policy.agent.external_agent {
            Some(_) => Vec::new(),
            None => tool_names(policy),
        };
        let modes = policy.context.modes.iter();
        let permits = modes.map(|mode| (mode.id.clone(), permits(policy, mode))).collect();
        SessionOffer { tools, max_steps: policy.max_steps(), permits, unrecordable }
    }

    pub(crate) fn entering(&self, policy: &Policy, mode: &SessionModeId) -> ModelSelection {
        let SessionContext { modes, models, .. } = &*policy.context;
        options::entering(modes, models, mode, &policy.agent, &self.chosen)
    }

    pub(crate) fn of_mode(&self, policy: &Policy) -> ModelSelection {
        self.entering(policy, &policy.mode)
    }

    pub(crate) fn options_in(
        policy: &Policy,
        mode: &SessionModeId,
        selection: &ModelSelection,
    ) -> Vec<SessionConfigOption> {
        let SessionContext { modes, models, agents, .. } = &*policy.context;
        options::config_options(modes, mode, models, selection, (agents, &policy.agent))
    }

    /// Notes the user's choice. Returns the selection that applies from the next request on. An error changes
    /// nothing.
    pub(crate) fn choose(
        &mut self,
        setting: ModelSetting,
        decider: &Decider,
    ) -> Result<ModelSelection, AgentError> {
        let Decider { policy, log, .. } = decider;
        let mut active = self.active.clone();
        let models = &policy.context.models;
        // Only the given setting becomes the user's choice; the other may be the mode's.
        match setting {
            ModelSetting::Model(model) => {
                active.model = models.resolve(&model).map_err(|error| no_model(&error, models, &active))?;
                self.chosen.model = active.model.clone();
                for selection in [&mut active, &mut self.chosen] {
                    if !options::efforts(models, &selection.model).contains(&selection.effort) {
                        selection.effort = Effort::Default;
                    }
                }
            }
            ModelSetting::Effort(effort) => {
                let valid = options::efforts(models, &active.model);
                if !valid.contains(&effort) {
                    return Err(unknown_effort(effort.as_str(), &valid));
                }
                active.effort = effort;
                self.chosen.effort = effort;
            }
        }
        let ModelSelection { model, effort } = self.chosen.clone();
        let session = log.id().clone();
        log.queue(Row::Chosen { session, model: model.to_string(), effort: effort.as_str() });
        Ok(active)
    }

    pub(crate) fn check_prompt(&self, content: &[ContentBlock], policy: &Policy) -> Result<(), AgentError> {
        if policy.agent.external_agent.is_some() {
            // An external agent checks its prompts.
            return Ok(());
        }
        let mut valid = vec!["text", "resource_link", "resource"];
        let sees = policy.context.models.facts(&self.active.model).images;
        valid.extend(sees.then_some("image"));
        let valid = json!({ "validTypes": valid });
        let mut blocks = content.iter();
        if blocks.all(|block| matches!(block, ContentBlock::Text(text) if text.text.trim().is_empty())) {
            return Err(AgentError::invalid_params("the prompt is empty", valid));
        }
        self.check_size(content, policy)?;
        if content.iter().map(text_bytes).sum::<usize>() > MAX_PROMPT_TEXT {
            let message = "the prompt is too long: give the model a file to read instead";
            return Err(AgentError::invalid_params(message, json!({ "maxBytesOfText": MAX_PROMPT_TEXT })));
        }
        for block in content {
            match block {
                ContentBlock::Text(_) | ContentBlock::ResourceLink(_) | ContentBlock::Resource(_) => {}
                ContentBlock::Image(image) if sees => check_picture(image)?,
                ContentBlock::Image(_) => {
                    let message = format!("the model {} does not accept images", self.active.model);
                    return Err(AgentError::invalid_params(message, valid));
                }
                _ => {
                    let message = "the prompt contains an unsupported type of content";
                    return Err(AgentError::invalid_params(message, valid));
                }
            }
        }
        Ok(())
    }

    /// Rejects a prompt that certainly does not fit in the model's context. The server decides about others.
    fn check_size(&self, content: &[ContentBlock], policy: &Policy) -> Result<(), AgentError> {
        let model = &self.active.model;
        let limit = policy.context.context_tokens(model);
        let bytes: usize = content.iter().map(text_bytes).sum();
        if bytes as u64 / MOST_BYTES_OF_A_TOKEN <= limit {
            return Ok(());
        }
        let data = json!({ "promptBytes": bytes, "contextTokens": limit });
        Err(AgentError::invalid_params(prompt_too_long(bytes, limit, model), data))
    }
}

/// Bytes of text that a token has at most, for a prompt that is certainly too long.
const MOST_BYTES_OF_A_TOKEN: u64 = 6;

fn text_bytes(block: &ContentBlock) -> usize {
    match block {
        ContentBlock::Text(text) => text.text.len(),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            EmbeddedResourceResource::TextResourceContents(resource) => resource.text.len(),
            _ => 0,
        },
        _ => 0,
    }
}

/// A rejected image would stay in the history and fail each later request.
fn check_picture(image: &ImageContent) -> Result<(), AgentError> {
    if !PICTURES.contains(&image.mime_type.as_str()) {
        let message = format!("images of type {:?} are not supported", image.mime_type);
        return Err(AgentError::invalid_params(message, json!({ "validMimeTypes": PICTURES })));
    }
    if image.data.len() > MAX_TO_SCALE {
        let message = "the image is too large";
        return Err(AgentError::invalid_params(message, json!({ "maxBytesInBase64": MAX_TO_SCALE })));
    }
    Ok(())
}

fn no_model(error: &NoModel, models: &ModelCatalog, selection: &ModelSelection) -> AgentError {
    let valid: Vec<_> =
        models.models(&selection.model).into_iter().map(|selection| selection.id.to_string()).collect();
    match error {
        NoModel::NoKey { .. } => AgentError::AuthRequired(error.to_string()),
        NoModel::Unknown { .. } | NoModel::NotAllowed { .. } | NoModel::Refused(_) => {
            AgentError::invalid_params(error.to_string(), json!({ "validModels": valid }))
        }
    }
}

pub(crate) fn unknown_effort(requested: &str, valid: &[Effort]) -> AgentError {
    let valid: Vec<_> = valid.iter().map(|effort| effort.as_str()).collect();
    AgentError::invalid_params(
        format!("the model does not support the effort {requested:?}"),
        json!({ "validValues": valid }),
    )
}
