//! Flows that the user controls: the mode, options and agent of a session, slash commands and undo.
//!
//! Order of a mode change: commit it; close permission requests that the new mode denies; end running calls that
//! no longer fit; notify the client; return. If recording fails, the mode stays, but a tighter new mode still
//! becomes a ceiling until a change is recorded.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::Actor;
use crate::acp::{
    AvailableCommand, AvailableCommandsUpdate, MessageId, SessionConfigId, SessionConfigOption,
    SessionConfigOptionValue, SessionModeId, SessionUpdate, StopReason, ToolCallId,
};
use crate::agents::AgentSpec;
use crate::budget::BudgetUse;
use crate::client::{SessionSignal, TurnOutcome};
use crate::conversation::mode_switch::FoundSwitch;
use crate::conversation::reminder::Transition;
use crate::error::AgentError;
use crate::event::{NoticeKind, SessionEvent};
use crate::external_agent::session::AgentMessage;
use crate::gate::Ended;
use crate::ids;
use crate::process::HostPattern;
use crate::session::ModeEffect;
use crate::session::command::parse::{self, SlashCommand};
use crate::session::command::set_option::Setting;
use crate::session::command::{set_option, slash_commands};
use crate::session::handle::{ChangeSoFar, Prompt, Undone};
use crate::session::history::changes_so_far;
use crate::session::history::checkpoint::{Undoer, not_undone, record_undone};
use crate::session::insertion::InsertedPrompt;
use crate::session::mode::exit;
use crate::session::mode::permission_options::PermissionReply;
use crate::session::mode::switch::{
    self, AnsweredSwitch, Chosen, Proposed, RequestedSwitch, StayReason, SwitchRequest,
};
use crate::session::mode::tightened::Tightened;
use crate::session::options::{self, AGENT_OPTION, ModelSelection};
use crate::session::subagent::handoff;
use crate::session::turn::model_selection::Models;
use crate::session::{CommandEnd, DEADLINE, EndReason, servers};
use crate::store::{ChangeReason, ModeSource};
use crate::text::capitalised;
use crate::tool::Proposal;

/// What answers a prompt instead of the model.
enum Answered {
    Command { has_failed: bool },
    Refused(BudgetUse),
}

impl Actor {
    /// Returns `None` if the mode is active already. After an error, the mode stays.
    pub(super) async fn change_mode(
        &mut self,
        mode: &SessionModeId,
        why: impl Into<ChangeReason>,
    ) -> Result<Option<ModeEffect>, AgentError> {
        let why = why.into();
        let (keeps_unrecorded, source) = (why.keeps_unrecorded, why.source.as_str());
        let is_by_client = matches!(why.source, ModeSource::SetMode | ModeSource::ConfigOption);
        let modes = Arc::clone(&self.decider.policy.context.modes);
        let new = modes.resolve(&mode.0).map_err(|unknown| {
            tracing::warn!(session = %self.decider.log.id(), "the mode was not changed: {unknown}");
            self.decider.policy.no_mode(&mode.0, &unknown)
        })?;
        let (from, to) = (self.decider.policy.mode.clone(), new.mode_id());
        if from == to {
            return Ok(None);
        }
        // They happened in the old mode.
        self.refused_changes.record_reported(&mut self.decider);
        let before = self.decider.policy.ceilings();
        let unsaved = self.decider.log.take_unsaved();
        let text = modes.text(&to.0);
        let change = self.decider.log.mode_change(Some(from.clone()), to.clone(), why, text);
        let link = change.link.clone();
        let tightened = self.decider.policy.is_tighter(&from, &to);
        // Nothing is decided during this wait: only this loop decides.
        if let Err(error) = self.decider.log.store().record_mode_change(unsaved, change).await {
            tracing::warn!(%error, "a mode change was not made");
            if !tightened {
                return Err(AgentError::Unrecorded);
            }
            // The recorded mode stays, but a full disk must not give more access than requested.
            if !self.decider.policy.unrecorded_modes.contains(&to) {
                self.decider.policy.unrecorded_modes.push(to.clone());
            }
            self.end_denied_calls().await;
            return Err(AgentError::ModeUnrecorded {
                mode: from.0.to_string(),
                unrecorded: to.0.to_string(),
            });
        }
        self.decider.log.follow(&link);
        self.decider.enter(from.clone(), to.clone(), source);
        if !is_by_client {
            self.decider.policy.left_in = None;
        }
        let void = self.switches.close(&self.decider);
        self.external_agent_message(AgentMessage::ModeChanging).await;
        if !keeps_unrecorded {
            self.decider.policy.unrecorded_modes.clear();
        }
        let selection = self.models.of_mode(&self.decider.policy);
        self.models.active = selection;
        let (mut closed, ended) = self.end_denied_calls().await;
        closed.extend(void);
        self.external_agent_message(AgentMessage::ModeChanged { tightened }).await;
        if !tightened {
            // Otherwise the agent's next call could still be refused.
            let applied = self.external_agent.applied();
            self.handle_reports_during(applied).await;
        }
        let during = self.turns.running.is_some().then_some(self.decider.log.turn());
        let unconfirmed = ended.unconfirmed.clone();
        self.requests.note_transition(
            Transition { from: from.clone(), to: to.clone(), before, unconfirmed: unconfirmed.len() },
            during,
        );
        // If the process ends before this event is stored, the next load adds it.
        let options = self.options();
        self.decider.log.record_with_options(SessionEvent::ModeChange { from, to, unconfirmed }, options);
        Ok(Some(ModeEffect { tightened, ended, closed }))
    }

    /// Closes questions about calls that are now denied and ends such calls, here and in all sub-agents,
    /// which decide under the new ceilings from the first line on (D40-D44).
    pub(super) async fn end_denied_calls(&mut self) -> (Vec<ToolCallId>, Ended) {
        self.decider.policy.publish_ceilings();
        let tightened = Tightened::new(&self.decider.policy);
        let mut closed = self.decider.close(|facts| tightened.is_denied(facts));
        closed.extend(self.external_agent.close_denied_requests(|| self.decider.policy.limits()));
        let below = self.subagents.tighten();
        let mut gate = std::mem::take(&mut self.gate);
        let ending = async { tokio::join!(gate.end(|facts| tightened.has_to_end(facts), DEADLINE), below) };
        let (mut ended, (closed_below, below)) = self.handle_reports_during(ending).await;
        self.gate.restore(gate);
        closed.extend(closed_below);
        ended.confirmed.extend(below.confirmed);
        ended.unconfirmed.extend(below.unconfirmed);
        self.show_ended_work(&ended).await;
        (closed, ended)
    }

    /// Shows the end of listed background work that has been ended.
    pub(super) async fn show_ended_work(&mut self, ended: &Ended) {
        while let Some(report) = self.subagents.reports.try_recv() {
            self.report(report).await;
        }
        self.jobs.show_ends_of(|call| ended.contains(call), &self.decider.log).await;
    }

    /// Handles a `mode_switch` block in the model's text. Replies once it is settled.
    pub(super) async fn in_band(
        &mut self,
        found: FoundSwitch,
        reply: oneshot::Sender<Option<Cow<'static, str>>>,
    ) {
        let is_cancelled = self.turns.is_cancelled();
        let requested = self.switches.read(found, &mut self.decider);
        match requested {
            Some(RequestedSwitch { target, switch, widens: false }) => {
                let analysis = switch.analysis;
                let from = self.decider.policy.mode.clone();
                let why = ChangeReason {
                    analysis: Some(analysis.clone()),
                    keeps_unrecorded: true,
                    ..ModeSource::InBand.into()
                };
                match self.change_mode(&target, why).await {
                    Ok(_) => self.record_applied_switch(&from, &target, &analysis),
                    Err(error) => self.switches.not_applied(error),
                }
            }
            // Nothing would close a request of a cancelled turn.
            Some(RequestedSwitch { target, switch, .. }) if is_cancelled => {
                let from = &self.decider.policy.mode;
                switch::record(from, &target.0, &switch.analysis, "cancelled", &mut self.decider.log);
            }
            Some(RequestedSwitch { target, switch, .. }) => {
                return self.switches.ask_in_band(target, switch, reply, &mut self.decider);
            }
            None => {}
        }
        // The turn may be cancelled by now.
        let _ = reply.send(None);
    }

    fn record_applied_switch(&mut self, from: &SessionModeId, to: &SessionModeId, analysis: &str) {
        switch::record_applied(from, to, analysis, self.requests.count, &mut self.decider.log);
    }

    pub(super) async fn switch_answered(&mut self, number: u64, answer: &PermissionReply) {
        let Some(answered) = self.switches.answered(number, answer, &self.decider.policy) else { return };
        let AnsweredSwitch { from, targets, request, chosen } = answered;
        match request {
            SwitchRequest::Exit { call, proposal, reply } => {
                let outcome = self.apply_exit_answer(call, proposal, chosen).await;
                let _ = reply.send(outcome);
            }
            SwitchRequest::InBand { switch, reply } => {
                let ends_turn = self.apply_in_band_answer(&from, &targets, switch.analysis, chosen).await;
                let _ = reply.send(ends_turn);
            }
        }
    }

    async fn apply_in_band_answer(
        &mut self,
        from: &SessionModeId,
        targets: &[SessionModeId],
        analysis: String,
        chosen: Chosen,
    ) -> Option<Cow<'static, str>> {
        let requested = targets.first().map(ToString::to_string).unwrap_or_default();
        let mut ends_turn = None;
        match chosen {
            Chosen::Mode(mode, _) => {
                let why = ChangeReason { analysis: Some(analysis.clone()), ..ModeSource::InBand.into() };
                match self.change_mode(&mode, why).await {
                    Ok(_) => {
                        self.record_applied_switch(from, &mode, &analysis);
                        return None;
                    }
                    Err(error) => self.switches.not_applied(error),
                }
            }
            Chosen::Stay(StayReason::Automatic(notice)) => {
                self.switches.not_applied("the client accepted without asking the user");
                ends_turn = Some(notice.into());
            }
            Chosen::Stay(StayReason::Feedback(_) | StayReason::No(_)) => {
                self.switches.reject_in_band(&requested);
                ends_turn = self.switches.rejected_again();
            }
        }
        switch::record(from, &requested, &analysis, "rejected", &mut self.decider.log);
        ends_turn
    }

    async fn apply_exit_answer(&mut self, call: ToolCallId, proposal: Proposal, chosen: Chosen) -> Proposed {
        let first = proposal.plan.lines().next().unwrap_or_default().to_owned();
        let plan_text = proposal.plan;
        let (mode, added) = match chosen {
            Chosen::Mode(mode, added) => (mode, added),
            Chosen::Stay(stay) => {
                switch::show_plan_removed(&self.decider.log);
                return self.switches.not_accepted(stay, &plan_text);
            }
        };
        let plan = Some(ids::hash(&plan_text));
        let source = ModeSource::SwitchTool.into();
        let why = ChangeReason { analysis: Some(first), call: Some(call), plan, ..source };
        if let Err(error) = self.change_mode(&mode, why).await {
            let message = format!("The mode could not be changed: {error}.");
            return Proposed::stayed(&plan_text, &message, message.clone(), None);
        }
        if !proposal.steps.is_empty() {
            let entries = proposal.steps.into_iter().map(exit::step).collect();
            self.decider.log.record(SessionEvent::Plan { entries }, None);
        }
        let added = added.map(|text| format!(" The user adds: {text}")).unwrap_or_default();
        let title = format!("Plan accepted, in {} mode", capitalised(&mode.0));
        let message = exit::accepted(&self.decider.policy, &mode) + &added;
        Proposed::Switched { message, title }
    }

    pub(super) async fn become_agent(&mut self, agent: Arc<AgentSpec>) {
        if agent.id == self.decider.policy.agent.id {
            return;
        }
        let before = std::mem::replace(&mut self.decider.policy.agent, Arc::clone(&agent));
        handoff::record(&before, &agent, &mut self.decider.log);
        if self.requests.system.take().is_some() {
            self.requests.freeze_system_prompt(&mut self.decider, self.workspace.cwd()).await;
        }
        self.end_denied_calls().await;
        self.models.active = self.models.of_mode(&self.decider.policy);
        let options = self.options();
        self.decider.log.record_with_options(SessionEvent::AgentChange { agent: agent.id.clone() }, options);
    }

    pub(super) async fn run_command(&mut self, mut prompt: Prompt) -> Option<Prompt> {
        let parse::FoundCommands { command: found_command, ignored } =
            slash_commands::find(&prompt, &self.decider.policy);
        let has_command = found_command.is_some();
        let Some(placed) = found_command
            .filter(|placed| !slash_commands::is_for_external_agent(&self.decider.policy, &placed.command))
        else {
            let notices = slash_commands::ignored(&self.decider.policy, &ignored, None);
            self.notes.tell(notices);
            if !has_command {
                self.notes.tell(slash_commands::misspelt(&prompt, &self.decider.policy));
            }
            return Some(prompt);
        };
        let command = &placed.command;
        let mut has_failed = matches!(command, SlashCommand::InvalidArgument(_));
        let mut text = match command {
            SlashCommand::Help => {
                parse::help(&self.decider.policy.context.modes, &self.decider.policy.context.commands)
            }
            SlashCommand::Prompt(_) | SlashCommand::Compact => {
                prompt.compacts = *command == SlashCommand::Compact;
                let notices = slash_commands::ignored(&self.decider.policy, &ignored, None);
                self.notes.tell(notices);
                return Some(slash_commands::model_prompt(prompt, &placed));
            }
            SlashCommand::ShowMode => slash_commands::describe_mode(&self.decider.policy),
            SlashCommand::Permissions => slash_commands::describe_permissions(&self.decider.policy),
            SlashCommand::Servers => servers::describe(&self.decider.policy.context),
            SlashCommand::InvalidArgument(name) => parse::usage(name),
            SlashCommand::Undo(turn) => match self.undo(*turn, Undoer::Session).await {
                Ok(undone) => slash_commands::describe_undone(&undone, self.workspace.cwd()),
                Err(error) => {
                    has_failed = true;
                    format!("/undo: {}.\n", error.to_string().trim_end_matches('.'))
                }
            },
            SlashCommand::SetMode { mode, .. } => {
                let mode = SessionModeId::new(mode.as_str());
                match self.change_mode(&mode, ModeSource::Command).await {
                    Ok(_) => slash_commands::describe_mode(&self.decider.policy),
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
            SlashCommand::SetMode { mode, .. } if !has_failed => Some(mode.as_str()),
            _ => None,
        };
        let notices = slash_commands::ignored(&self.decider.policy, &ignored, found_command);
        if found_command.is_some() && !prompt.content.is_empty() {
            self.notes.tell(notices);
            return Some(prompt);
        }
        text.extend(notices);
        self.answer(prompt, text, Answered::Command { has_failed }).await;
        None
    }

    /// Refuses a prompt, which the model never sees.
    pub(super) async fn refuse(&mut self, mut prompt: Prompt, exceeded: BudgetUse) {
        let content = std::mem::take(&mut prompt.content);
        prompt.typed.get_or_insert(content);
        let text = exceeded.end_notice(&self.decider.policy.context.today().ends);
        self.answer(prompt, text, Answered::Refused(exceeded)).await;
    }

    /// Answers a prompt with a notice, and without the model.
    async fn answer(&mut self, prompt: Prompt, text: String, answered: Answered) {
        let Prompt { typed, insertion, reply, .. } = prompt;
        let is_turn = !self.turns.is_running();
        if is_turn {
            self.decider.log.signal(SessionSignal::TurnBegan);
        }
        let message_id = MessageId::new(format!("msg_c{}_0", self.decider.log.conversation().answered + 1));
        self.decider.log.record_prompt(InsertedPrompt { message_id, content: Vec::new(), typed, insertion });
        let message_id = MessageId::new(format!("msg_c{}", self.decider.log.conversation().answered));
        let (reason, command) = match answered {
            Answered::Command { has_failed } => {
                (StopReason::EndTurn.into(), Some(CommandEnd { answer: message_id.clone(), has_failed }))
            }
            Answered::Refused(exceeded) => (EndReason::BudgetExceeded(exceeded), None),
        };
        self.decider.log.record_notice(NoticeKind::Message, message_id, text);
        self.decider.log.save().await;
        if is_turn {
            self.decider.log.signal_end(TurnOutcome::Stopped(reason.stop_reason()));
        }
        self.turns.reply(reply, Ok(reason), command, &mut self.decider.log);
    }

    /// Undoes a turn, tells the client, and notes it for the model.
    pub(super) async fn undo(&mut self, turn: Option<u64>, who: Undoer) -> Result<Undone, AgentError> {
        if self.turns.running.is_some() {
            return Err(not_undone("a turn is running: cancel it first"));
        }
        let undone = self.checkpoints.undo(turn, who, &mut self.decider, &self.workspace).await?;
        self.turns.forget(&undone.files);
        let note = record_undone(&undone, &self.workspace, &mut self.decider.log).await;
        self.notes.add(note, false, &mut self.decider);
        self.decider.log.save().await;
        Ok(undone)
    }

    pub(super) fn list_changes_so_far(&self, reply: oneshot::Sender<Vec<ChangeSoFar>>) {
        changes_so_far::send_list(self.external_agent.record(), &self.workspace, reply);
    }

    pub(super) async fn undo_so_far(&mut self, path: Option<PathBuf>) -> Result<Undone, AgentError> {
        let record = self.external_agent.record().map(Path::to_owned);
        let record = record.ok_or_else(|| not_undone("the changes are not recorded"))?;
        changes_so_far::undo(record, path, &self.workspace, &mut self.decider.log).await
    }

    pub(super) async fn allow_host(&mut self, host: HostPattern) -> Result<(), AgentError> {
        let agent = self.external_agent.client().cloned();
        let agent = agent.ok_or_else(|| AgentError::InvalidRequest("no program is running".into()))?;
        let text = format!("You have allowed connections to {host} until the program ends.\n\n");
        self.notes.record_warning(text, &mut self.decider.log);
        self.decider.log.save().await;
        agent.allow_host(host).await;
        Ok(())
    }

    pub(super) async fn set_option(
        &mut self,
        option: SessionConfigId,
        value: SessionConfigOptionValue,
        reply: set_option::OptionsReply,
    ) {
        if self.decider.policy.agent.external_agent.is_some() && &*option.0 != AGENT_OPTION {
            let agent = self.external_agent.client().cloned();
            let (offered, options) = (self.options(), self.external_agent.current_options());
            return set_option::of_external_agent(agent, &offered, options, option, value, reply);
        }
        let outcome = match set_option::parse(&option, &value) {
            Ok(Setting::Agent(id)) => match handoff::chosen(&id, &self.decider.policy) {
                Ok(agent) => {
                    self.become_agent(agent).await;
                    Ok(self.options())
                }
                Err(error) => Err(error),
            },
            Ok(Setting::Model(setting)) => self.models.choose(setting, &self.decider).map(|selection| {
                self.activate(selection);
                self.options()
            }),
            Err(error) => Err(error),
        };
        // The client may be gone; the option stays set.
        let _ = reply.send(outcome);
    }

    pub(super) fn options(&self) -> Vec<SessionConfigOption> {
        let of_session =
            Models::options_in(&self.decider.policy, &self.decider.policy.mode, &self.models.active);
        self.external_agent.options(of_session, &options::SHARED)
    }

    pub(super) fn activate(&mut self, selection: ModelSelection) {
        if selection == self.models.active {
            return;
        }
        self.models.active = selection.clone();
        let ModelSelection { model, effort } = selection;
        let options = self.options();
        self.decider.log.record_with_options(SessionEvent::ModelChange { model, effort }, options);
    }

    pub(super) async fn announce(&mut self, answered: BoxFuture<'static, ()>, has_commands: bool) {
        answered.await;
        if !has_commands {
            self.send_commands();
        }
        self.notes.show_interruptions(&mut self.decider.log);
        // Starts an external agent, so that its commands and options appear before the first prompt.
        self.external_agent_message(AgentMessage::Prepare).await;
    }

    pub(super) fn commands(&self) -> Vec<AvailableCommand> {
        slash_commands::all(&self.decider.policy, self.external_agent.commands())
    }

    pub(super) fn send_commands(&self) {
        let update = AvailableCommandsUpdate::new(self.commands());
        self.decider.log.send(SessionUpdate::AvailableCommandsUpdate(update), None);
    }
}
