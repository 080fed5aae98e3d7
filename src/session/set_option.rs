//! Sets config options: model, effort, agent, and those of an external agent.

use serde_json::json;
use tokio::sync::oneshot;

use super::actor::Actor;
use super::handle::ModelSetting;
use super::model_selection;
use super::options::{self, AGENT_OPTION, EFFORT_OPTION, MODEL_OPTION};
use crate::acp::{SessionConfigId, SessionConfigOption, SessionConfigOptionValue};
use crate::error::AgentError;
use crate::external_agent::ExternalAgentError;
use crate::external_agent::options::AGENT_MODE_OPTION;
use crate::model::Effort;

type Reply = oneshot::Sender<Result<Vec<SessionConfigOption>, AgentError>>;

impl Actor {
    pub(super) async fn set_option(
        &mut self,
        option: &SessionConfigId,
        value: SessionConfigOptionValue,
        reply: Reply,
    ) {
        let is_outside = self.policy.agent.external_agent.is_some() && &*option.0 != AGENT_OPTION;
        if is_outside {
            return self.set_external_agent_option(option.clone(), value, reply);
        }
        let text = value.as_value_id().map(|value| value.0.to_string());
        let outcome = match (&*option.0, text) {
            (MODEL_OPTION, Some(model)) => self.select_model(ModelSetting::Model(model)).await,
            (EFFORT_OPTION, Some(effort)) => match Effort::parse(&effort) {
                Some(effort) => self.select_model(ModelSetting::Effort(effort)).await,
                None => Err(model_selection::unknown_effort(&effort, &Effort::ALL)),
            },
            (AGENT_OPTION, Some(agent)) => self.set_agent(&agent).await,
            (MODEL_OPTION | EFFORT_OPTION | AGENT_OPTION, None) => {
                let message = format!("the option {:?} takes the id of a value", &*option.0);
                Err(AgentError::invalid_params(message, json!({ "expected": "a string" })))
            }
            (unknown, _) => {
                let message = format!("unknown config option {unknown:?}");
                Err(AgentError::invalid_params(message, json!({ "validOptions": options::ALL })))
            }
        };
        // The client may be gone; the option stays set.
        let _ = reply.send(outcome);
    }

    fn set_external_agent_option(
        &self,
        option: SessionConfigId,
        value: SessionConfigOptionValue,
        reply: Reply,
    ) {
        let offered = self.options();
        let requested = offered.iter().find(|it| it.id == option);
        if requested.is_none() {
            let ids: Vec<&str> = offered.iter().map(|it| &*it.id.0).collect();
            let message = format!("unknown config option {:?}", &*option.0);
            return drop(
                reply.send(Err(AgentError::invalid_params(message, json!({ "validOptions": ids })))),
            );
        }
        if let (Some(values), Some(value)) = (requested.and_then(options::values), value.as_value_id())
            && !values.contains(&&*value.0)
        {
            let message = format!("the option {:?} has no value {:?}", &*option.0, &*value.0);
            return drop(
                reply.send(Err(AgentError::invalid_params(message, json!({ "validValues": values })))),
            );
        }
        let Some(agent) = self.external_agent.client().cloned() else {
            let text = "the agent is not running: its options can be set only while it runs".to_owned();
            return drop(reply.send(Err(AgentError::InvalidRequest(text))));
        };
        let look = self.external_agent.current_options();
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
}
