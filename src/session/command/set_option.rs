//! Sets config options: model, effort, agent, and those of an external agent.

use std::future::Future;

use serde_json::json;
use tokio::sync::oneshot;

use crate::acp::{SessionConfigId, SessionConfigOption, SessionConfigOptionValue};
use crate::error::AgentError;
use crate::external_agent::options::AGENT_MODE_OPTION;
use crate::external_agent::{ExternalAgent, ExternalAgentError};
use crate::model::Effort;
use crate::session::handle::ModelSetting;
use crate::session::options::{self, AGENT_OPTION, EFFORT_OPTION, MODEL_OPTION};
use crate::session::turn::model_selection;

pub(crate) type OptionsReply = oneshot::Sender<Result<Vec<SessionConfigOption>, AgentError>>;

pub(crate) enum Setting {
    Model(ModelSetting),
    Agent(String),
}

pub(crate) fn parse(
    option: &SessionConfigId,
    value: &SessionConfigOptionValue,
) -> Result<Setting, AgentError> {
    let text = value.as_value_id().map(|value| value.0.to_string());
    match (&*option.0, text) {
        (MODEL_OPTION, Some(model)) => Ok(Setting::Model(ModelSetting::Model(model))),
        (EFFORT_OPTION, Some(effort)) => Effort::parse(&effort)
            .map(|effort| Setting::Model(ModelSetting::Effort(effort)))
            .ok_or_else(|| model_selection::unknown_effort(&effort, &Effort::ALL)),
        (AGENT_OPTION, Some(agent)) => Ok(Setting::Agent(agent)),
        (MODEL_OPTION | EFFORT_OPTION | AGENT_OPTION, None) => {
            let message = format!("the option {:?} takes the id of a value", &*option.0);
            Err(AgentError::invalid_params(message, json!({ "expected": "a string" })))
        }
        (unknown, _) => {
            let message = format!("unknown config option {unknown:?}");
            Err(AgentError::invalid_params(message, json!({ "validOptions": options::ALL })))
        }
    }
}

/// Sets an option of the external agent. `look` reads the options of the session afterwards.
pub(crate) fn of_external_agent(
    agent: Option<ExternalAgent>,
    offered: &[SessionConfigOption],
    look: impl Future<Output = Option<Vec<SessionConfigOption>>> + Send + 'static,
    option: SessionConfigId,
    value: SessionConfigOptionValue,
    reply: OptionsReply,
) {
    let agent = match check(agent, offered, &option, &value) {
        Ok(agent) => agent,
        Err(error) => return drop(reply.send(Err(error))),
    };
    tokio::spawn(async move {
        let mode = value.as_value_id().filter(|_| &*option.0 == AGENT_MODE_OPTION);
        let outcome = match mode {
            Some(mode) => agent.set_mode(&mode.0).await,
            None => agent.set_option(&option, value).await.map(drop),
        };
        let outcome = match outcome {
            Ok(()) => look.await.ok_or(AgentError::SessionDied),
            Err(error @ ExternalAgentError::Unknown(_)) => {
                Err(AgentError::invalid_params(error.to_string(), json!({})))
            }
            Err(error) => Err(AgentError::Model(error.to_string())),
        };
        let _ = reply.send(outcome);
    });
}

fn check(
    agent: Option<ExternalAgent>,
    offered: &[SessionConfigOption],
    option: &SessionConfigId,
    value: &SessionConfigOptionValue,
) -> Result<ExternalAgent, AgentError> {
    let Some(requested) = offered.iter().find(|other| other.id == *option) else {
        let ids: Vec<&str> = offered.iter().map(|other| &*other.id.0).collect();
        let message = format!("unknown config option {:?}", &*option.0);
        return Err(AgentError::invalid_params(message, json!({ "validOptions": ids })));
    };
    if let (Some(values), Some(value)) = (options::values(requested), value.as_value_id())
        && !values.contains(&&*value.0)
    {
        let message = format!("the option {:?} has no value {:?}", &*option.0, &*value.0);
        return Err(AgentError::invalid_params(message, json!({ "validValues": values })));
    }
    agent.ok_or_else(|| {
        let text = "the agent is not running: its options can be set only while it runs";
        AgentError::InvalidRequest(text.into())
    })
}
