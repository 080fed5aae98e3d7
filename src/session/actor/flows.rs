//! The flows of a session that need several of its components.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::Actor;
use crate::acp::{
    MessageId, SessionConfigId, SessionConfigOption, SessionConfigOptionValue, SessionModeId, StopReason,
};
use crate::conversation::acp_updates;
use crate::error::AgentError;
use crate::event::{Compaction, SessionEvent, ToolCallUpdateEvent};
use crate::permission::{CallFacts, Claim, Effect, FilesBelow};
use crate::session::approval::{Decided, Grant};
use crate::session::checkpoint::{Undoer, not_undone, record_undone};
use crate::session::command::{self, Command, Found};
use crate::session::event_log::title;
use crate::session::handle::{CommandEnd, Prompt, Undone};
use crate::session::model_selection::Models;
use crate::session::options::{self, AGENT_OPTION, ModelSelection};
use crate::session::set_option::Setting;
use crate::session::spawn::Spawned;
use crate::session::turn::Turn;
use crate::session::turn_message::{Authorization, Next, TurnMessage};
use crate::session::turns::{FROM_TURN, RunningTurn};
use crate::session::{DEADLINE, handoff, intents, servers, set_option, slash_commands, turn};
use crate::store::ModeSource;
use crate::store::entry::Consent;

impl Actor {
    /// Turns a grant into a permit, and records the call before it starts.
    pub(in crate::session) async fn authorization(&mut self, decided: Decided) -> Authorization {
        let grant = match decided {
            Decided::Final(authorization) => return authorization,
            Decided::Granted(grant) => grant,
        };
        let Some(cancel) = self.turns.running.as_ref().map(|turn| turn.cancel.clone()) else {
            return Authorization::Cancelled;
        };
        if cancel.is_cancelled() {
            return Authorization::Cancelled;
        }
        let targets = grant.facts.targets.iter();
        let last_seen = targets.map(|target| self.turns.seen.get(&target.path).copied()).collect();
        self.approvals.forget_denials();
        let (jobs, agents) = (self.jobs.list().to_vec(), self.subagents.background().to_vec());
        let snapshot = {
            let (ancestry, log) = (&self.policy.ancestry, &self.log);
            self.checkpoints.snapshot_for(grant.facts.shell, ancestry, &self.workspace, log).await
        };
        // A server's hint is only a claim, so calls of its tools are always recorded.
        let is_recorded = grant.facts.effect.is_change() || grant.facts.is_servers();
        let starts = !grant.facts.is_exit;
        if starts && is_recorded {
            self.approvals.record(&grant, &self.policy, &mut self.log).await;
        }
        let Grant { call, facts, has_user_consent } = grant;
        // The facts keep the claim only if no answer of the user allowed the call. Such a call ends under a
        // mode that denies changes.
        let claim = facts.claim.clone();
        let has_no_consent =
            |_: &Claim| !has_user_consent && matches!(self.policy.without_asking(&facts), Consent::Mode);
        let unconsented = claim.clone().filter(has_no_consent);
        let facts = CallFacts { claim: unconsented, ..facts };
        let reads = facts.effect == Effect::Read && !facts.targets.is_empty();
        let files = reads
            .then(|| FilesBelow::new(self.policy.call_ceilings(), self.policy.grants.clone(), facts.clone()));
        let mut permit = self.gate.admit(call.clone(), facts, self.log.turns, &cancel);
        (permit.files, permit.claim) = (files, claim);
        if starts {
            // Recorded together with the permit: no mode change comes between the two.
            let update = ToolCallUpdateEvent::in_progress(call);
            self.log.record(SessionEvent::ToolCallUpdate(update), None).await;
        }
        Authorization::Granted { permit, last_seen, jobs, agents, snapshot }
    }

    /// Config options as the client sees them.
    pub(in crate::session) fn options(&self) -> Vec<SessionConfigOption> {
        let own = Models::options_in(&self.policy, &self.policy.mode, &self.models.active);
        self.external_agent.options(own, &options::SHARED)
    }

    pub(in crate::session) async fn activate(&mut self, selection: ModelSelection) {
        if selection == self.models.active {
            return;
        }
        self.models.active = selection.clone();
        let ModelSelection { model, effort } = selection;
        let options = self.options();
        self.log.record_with_options(SessionEvent::ModelChange { model, effort }, options).await;
    }

    pub(in crate::session) async fn announce_commands(&mut self, answered: BoxFuture<'static, ()>) {
        answered.await;
        self.send_commands();
        self.notes.show_interruptions(&self.log);
        // Starts an external agent, so that its commands and options appear before the first prompt.
        self.ready_external_agent(None).await;
    }

    pub(in crate::session) fn send_commands(&self) {
        slash_commands::announce(&self.policy, self.external_agent.commands(), &self.log);
    }

    pub(in crate::session) async fn run_command(&mut self, mut prompt: Prompt) -> Option<Prompt> {
        let Found { command: found_command, ignored } = slash_commands::find(&prompt, &self.policy);
        let has_command = found_command.is_some();
        let Some(placed) = found_command
            .filter(|placed| !slash_commands::is_for_external_agent(&self.policy, &placed.command))
        else {
            let notices = slash_commands::ignored(&self.policy, &ignored, None);
            self.notes.for_user.extend(notices);
            if !has_command {
                self.notes.for_user.extend(slash_commands::misspelt(&prompt, &self.policy));
            }
            return Some(prompt);
        };
        let command = &placed.command;
        let mut has_failed = matches!(command, Command::InvalidArgument(_));
        let mut text = match command {
            Command::Help => command::help(&self.context.modes, &self.context.commands),
            Command::Prompt(_) | Command::Compact => {
                prompt.compacts = *command == Command::Compact;
                let notices = slash_commands::ignored(&self.policy, &ignored, None);
                self.notes.for_user.extend(notices);
                return Some(slash_commands::model_prompt(prompt, &placed));
            }
            Command::ShowMode => slash_commands::describe_mode(&self.policy),
            Command::Permissions => slash_commands::describe_permissions(&self.policy),
            Command::Servers => servers::describe(&self.context),
            Command::InvalidArgument(name) => command::usage(name),
            Command::Undo(turn) => match self.undo(*turn, Undoer::Session).await {
                Ok(undone) => slash_commands::describe_undone(&undone, self.workspace.cwd()),
                Err(error) => {
                    has_failed = true;
                    format!("/undo: {}.\n", error.to_string().trim_end_matches('.'))
                }
            },
            Command::SetMode { mode, .. } => {
                let mode = SessionModeId::new(mode.as_str());
                match self.change_mode(&mode, ModeSource::Command).await {
                    Ok(_) => slash_commands::describe_mode(&self.policy),
                    Err(error @ AgentError::InvalidParams { .. }) => {
                        has_failed = true;
                        format!("{error}.\n")
                    }
                    Err(error) => {
                        let _ = prompt.reply.send(Err(error));
                        return None;
                    }
                }
            }
        };
        let prompt = slash_commands::model_prompt(prompt, &placed);
        let found_command = match &placed.command {
            Command::SetMode { mode, .. } if !has_failed => Some(mode.as_str()),
            _ => None,
        };
        let notices = slash_commands::ignored(&self.policy, &ignored, found_command);
        if found_command.is_some() && !prompt.content.is_empty() {
            self.notes.for_user.extend(notices);
            return Some(prompt);
        }
        text.extend(notices);
        let Prompt { typed, reply, .. } = prompt;
        let message_id = MessageId::new(format!("msg_c{}_0", self.log.conversation.answered + 1));
        let content = Vec::new();
        self.log.record(SessionEvent::UserMessage { message_id, content, typed }, None).await;
        let message_id = MessageId::new(format!("msg_c{}", self.log.conversation.answered));
        let command = CommandEnd { answer: message_id.clone(), has_failed };
        self.log.record_notice(message_id, text).await;
        self.log.save().await;
        self.turns.reply(reply, Ok(StopReason::EndTurn.into()), Some(command), &mut self.log);
        None
    }

    /// Undoes a turn, tells the client, and notes it for the model.
    pub(in crate::session) async fn undo(
        &mut self,
        turn: Option<u64>,
        who: Undoer,
    ) -> Result<Undone, AgentError> {
        if self.turns.running.is_some() {
            return Err(not_undone("a turn is running: cancel it first"));
        }
        let (policy, log) = (&self.policy, &mut self.log);
        let undone = self.checkpoints.undo(turn, who, policy, &self.workspace, log).await?;
        for file in &undone.files {
            self.turns.seen.remove(file);
        }
        let note = record_undone(&undone, &self.workspace, log).await;
        self.notes.add(note, false, policy, log);
        log.save().await;
        Ok(undone)
    }

    pub(in crate::session) async fn set_option(
        &mut self,
        option: SessionConfigId,
        value: SessionConfigOptionValue,
        reply: set_option::Reply,
    ) {
        if self.policy.agent.external_agent.is_some() && &*option.0 != AGENT_OPTION {
            let agent = self.external_agent.client().cloned();
            let (offered, options) = (self.options(), self.external_agent.current_options());
            return set_option::of_external_agent(agent, &offered, options, option, value, reply);
        }
        let outcome = match set_option::parse(&option, &value) {
            Ok(Setting::Agent(id)) => match handoff::chosen(&id, &self.policy) {
                Ok(agent) => {
                    self.become_agent(agent).await;
                    Ok(self.options())
                }
                Err(error) => Err(error),
            },
            Ok(Setting::Model(setting)) => match self.models.choose(setting, &self.policy, &self.log) {
                Ok(selection) => {
                    self.activate(selection).await;
                    Ok(self.options())
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        // The client may be gone; the option stays set.
        let _ = reply.send(outcome);
    }

    /// Returns `None`, without side effects, once the turn has used all requests that the mode allows.
    fn next_request(&mut self, made: u32) -> Option<Next> {
        let mode = self.context.modes.resolve(&self.policy.mode.0).ok();
        if made >= mode.map_or(1, |mode| mode.max_steps) {
            return None;
        }
        if let Some(summary) = self.requests.summary_if_due(&self.models, &self.policy, &mut self.log) {
            return Some(Next::Summarise(summary));
        }
        self.notes.deliver(&self.policy, &mut self.log);
        Some(self.requests.next(&mut self.policy, &self.models, &mut self.switches, &mut self.log))
    }

    pub(in crate::session) async fn begin_turn(&mut self, prompt: Prompt) {
        let prompt = self.turns.resolve_chat_answer(prompt);
        let Prompt { content, compacts, typed, cancel, reply } = prompt;
        self.log.turns += 1;
        let turn = self.log.turns;
        self.approvals.forget_denials();
        self.switches.begin_turn();
        let message_id = MessageId::new(format!("msg_{turn}_0"));
        let title = (turn == 1).then(|| title(&content)).flatten();
        let external_agent = self.policy.agent.external_agent.is_some().then(|| self.policy.agent.id.clone());
        self.notes.deliver(&self.policy, &mut self.log);
        let to_it = if external_agent.is_some() { content.clone() } else { Vec::new() };
        self.log.record(SessionEvent::UserMessage { message_id, content, typed }, None).await;
        if let Some(title) = title {
            self.log.record(SessionEvent::Title { title }, None).await;
        }
        if external_agent.is_none() {
            self.requests.freeze_system_prompt(&self.policy, &self.log, self.workspace.cwd()).await;
        }
        for (number, text) in std::mem::take(&mut self.notes.for_user).into_iter().enumerate() {
            let message_id = MessageId::new(format!("msg_{turn}_n{number}"));
            self.log.record_notice(message_id, text).await;
        }
        if external_agent.is_none() {
            // External agents have servers of their own.
            self.context.tools.servers().start();
        }
        let (to_actor, messages) = mpsc::channel(FROM_TURN);
        let running = Turn {
            number: turn,
            compacts,
            external_agent,
            prompt: to_it,
            model: Arc::clone(&self.context.model),
            tools: self.context.tools.clone(),
            workspace: self.workspace.clone(),
            parallel: self.context.parallel,
            live: self.context.live,
            server_timeout: self.context.server_timeout.unwrap_or_default(),
            cancel: cancel.clone(),
            client: self.log.client.clone(),
            client_io: self.client_io.clone(),
            actor: to_actor,
            changes: self.checkpoints.sender(),
            intents: intents::intent_log(&self.policy.ancestry, &self.log),
            snapshot: self.checkpoints.own_snapshot(),
        };
        let task = tokio::spawn(turn::steps::run(running));
        let command =
            compacts.then(|| CommandEnd { answer: turn::compact::notice_id(turn), has_failed: false });
        self.turns.running = Some(RunningTurn { messages, cancel, task, reply, command });
    }

    pub(in crate::session) async fn turn_message(&mut self, message: TurnMessage) {
        match message {
            TurnMessage::Event(event, send_permit) => self.log.record(event, send_permit).await,
            TurnMessage::Progress { id, content, send_permit } => {
                self.log.send(acp_updates::progress(id, &content), send_permit);
            }
            TurnMessage::Finished { update, seen, job, questions, send_permit } => {
                self.turns.chat_questions.extend(questions);
                self.turns.seen.extend(seen);
                if let Some(note) = job.and_then(|job| self.jobs.add(job, self.context.live)) {
                    self.note_for_model(note);
                }
                self.log.record(SessionEvent::ToolCallUpdate(update), send_permit).await;
            }
            TurnMessage::NextRequest { made, reply } => {
                // The turn may be cancelled by now.
                let _ = reply.send(self.next_request(made));
            }
            TurnMessage::Compact { reply } => {
                let _ =
                    reply.send(self.requests.summary_on_overflow(&self.models, &self.policy, &mut self.log));
            }
            TurnMessage::Summarised(summarised, send_permit) => {
                let command = self.turns.running.as_mut().and_then(|turn| turn.command.as_mut());
                if let Some(command) = command {
                    summarised.end_command(command);
                }
                self.requests.summarised(summarised, send_permit, &mut self.log).await;
            }
            TurnMessage::Authorize { call, facts, fits, reply } => {
                let decided = self.approvals.decide(call, facts, fits, &self.policy, &mut self.log);
                let _ = reply.send(self.authorization(decided).await);
            }
            TurnMessage::Snapshot { reply } => {
                let _ = reply.send(self.checkpoints.made_snapshot(&self.policy.ancestry));
            }
            TurnMessage::InBand { found, reply } => self.in_band(found, reply).await,
            TurnMessage::Propose { call, proposal, reply } => {
                let is_cancelled = self.turns.is_cancelled();
                self.switches.propose(call, proposal, is_cancelled, &self.policy, &self.log, reply);
            }
            TurnMessage::ExternalAgent { reply } => self.ready_external_agent(Some(reply)).await,
            TurnMessage::SessionAction { call, action, cancel, reply } => {
                let spawned = if cancel.is_cancelled() {
                    // The mode changed, or the call was cancelled, after the permit.
                    Spawned::Refused("The call was cancelled before it started.".into())
                } else {
                    self.start_session_action(call, action).await
                };
                let _ = reply.send(spawned);
            }
            TurnMessage::Ask { call, facts, preview, reply } => {
                let is_cancelled = self.turns.is_cancelled();
                let question = (call, facts, preview.as_slice());
                let (policy, log) = (&self.policy, &mut self.log);
                if let Some((decided, reply)) = self.approvals.ask(question, is_cancelled, policy, log, reply)
                {
                    let _ = reply.send(self.authorization(decided).await);
                }
            }
        }
    }

    pub(in crate::session) async fn turn_over(&mut self) {
        let Some(turn) = self.turns.running.take() else { return };
        self.close_questions();
        let cancel = turn.cancel.clone();
        let (outcome, reply, command) = turn.outcome().await;
        let cancelled = cancel.is_cancelled();
        if cancelled {
            // Ends background work of this turn, but not of earlier turns.
            let (turn, mut gate) = (self.log.turns, std::mem::take(&mut self.gate));
            self.handle_reports_during(gate.end_turn(turn, DEADLINE)).await;
            self.gate.restore(gate);
        }
        if let Some(id) = self.log.conversation.compacting.take() {
            self.log.record(SessionEvent::Compaction { id, stage: Compaction::Cancelled }, None).await;
        }
        for id in self.log.conversation.take_open_calls() {
            let result = if cancelled { "Cancelled by the user." } else { "The call was not carried out." };
            self.log
                .record(SessionEvent::ToolCallUpdate(ToolCallUpdateEvent::failed(id, result)), None)
                .await;
        }
        if let Ok(reason) = outcome {
            let reason = reason.stop_reason();
            self.log.record(SessionEvent::Stop { reason }, None).await;
        }
        self.requests.forget_transition_after(self.log.turns);
        self.switches.end_turn();
        self.notes.deliver(&self.policy, &mut self.log);
        self.log.save().await;
        self.turns.reply(reply, outcome, command, &mut self.log);
        self.start_next().await;
    }

    /// Adds a fact for the model, immediately if no turn is running.
    pub(in crate::session) fn note_for_model(&mut self, text: String) {
        self.notes.add(text, self.turns.is_running(), &self.policy, &mut self.log);
    }
}
