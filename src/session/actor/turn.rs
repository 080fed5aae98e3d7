//! The flows of a turn, and of the agents that it starts.

use super::Actor;
use crate::acp::MessageId;
use crate::acp::{ConfigOptionUpdate, SessionUpdate, ToolCallId};
use crate::conversation::acp_updates;
use crate::conversation::fitting::Shortened;
use crate::event::{Compaction, SessionEvent, ToolCallUpdateEvent};
use crate::external_agent::session::{CurrentTurn, Effect as AgentEffect, Message, Waiting};
use crate::permission::external::ChangeLevel;
use crate::permission::{CallFacts, Claim, Effect, FilesBelow};
use crate::session::command::slash_commands;
use crate::session::command::typed_text::title;
use crate::session::handle::{CommandEnd, Prompt};
use crate::session::history::checkpoint::{record_folder, record_uncovered};
use crate::session::history::intents;
use crate::session::mode::ancestry::Parent;
use crate::session::mode::approval::record_denial;
use crate::session::mode::approval::{Decided, Grant};
use crate::session::subagent::handoff;
use crate::session::subagent::relay::Report;
use crate::session::subagent::spawn::{Delegation, Inherited, Spawned};
use crate::session::turn::Turn;
use crate::session::turn::message::{Authorization, Background, Next, Room, TurnMessage};
use crate::session::turn::repetition::{self, Brake, Repetition};
use crate::session::turn::turns::{FROM_TURN, RunningTurn};
use crate::session::{DEADLINE, servers, turn};
use crate::store::Row;
use crate::store::entry::RecordedConsent;
use crate::text::counted;
use crate::tool::agent::background::BackgroundRole;
use crate::tool::{self, SessionAction};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::{Instrument, Span};

impl Actor {
    pub(in crate::session) async fn begin_turn(&mut self, prompt: Prompt) {
        let prompt = self.turns.resolve_chat_answer(prompt);
        let Prompt { content, compacts, typed, trace, cancel, reply, .. } = prompt;
        self.log.turns += 1;
        let turn = self.log.turns;
        let span = trace
            .as_ref()
            .map_or_else(Span::none, |trace| tracing::error_span!("turn", traceparent = %trace.parent));
        span.in_scope(|| tracing::debug!(session = %self.log.id, turn, "a turn begins"));
        self.requests.trace = trace;
        self.approvals.forget_denials();
        self.repetition = Repetition::default();
        self.switches.begin_turn();
        let message_id = MessageId::new(format!("msg_{turn}_0"));
        let title = (turn == 1).then(|| title(&content)).flatten();
        let external_agent = self.policy.agent.external_agent.is_some().then(|| self.policy.agent.id.clone());
        self.notes.deliver(&self.policy, &mut self.log);
        let to_it = if external_agent.is_some() { content.clone() } else { Vec::new() };
        self.log.record(SessionEvent::UserMessage { message_id, content, typed }, None);
        if let Some(title) = title {
            self.log.record(SessionEvent::Title { title }, None);
        }
        if external_agent.is_none() {
            self.requests.freeze_system_prompt(&self.policy, &self.log, self.workspace.cwd()).await;
        }
        self.notes.record_pending(&mut self.log);
        if external_agent.is_none() {
            // External agents have servers of their own.
            self.policy.context.tools.servers().start();
        }
        let (to_actor, messages) = mpsc::channel(FROM_TURN);
        let running = Turn {
            number: turn,
            compacts,
            external_agent,
            prompt: to_it,
            context: Arc::clone(&self.policy.context),
            workspace: self.workspace.clone(),
            cancel: cancel.clone(),
            client: self.log.client.clone(),
            client_io: self.client_io.clone(),
            actor: to_actor,
            changes: self.checkpoints.sender(),
            intents: intents::intent_log(&self.policy.ancestry, &self.log),
            snapshot: self.checkpoints.own_snapshot(),
        };
        let task = tokio::spawn(turn::steps::run(running).instrument(span));
        let command =
            compacts.then(|| CommandEnd { answer: turn::compact::notice_id(turn), has_failed: false });
        self.turns.running = Some(RunningTurn { messages, cancel, task, reply, joined: Vec::new(), command });
    }

    /// Returns `None`, without side effects, once the turn has used all requests that the mode allows.
    fn next_request(&mut self, steps: u32) -> Option<Next> {
        let mode = self.policy.context.modes.resolve(&self.policy.mode.0).ok();
        let limit =
            mode.map_or(1, |mode| mode.max_steps).min(self.policy.context.max_steps.unwrap_or(u32::MAX));
        if steps >= limit {
            return None;
        }
        match self.repetition.end_step(&self.policy.mode) {
            Some(Brake::Ask(question)) => {
                let text = repetition::end_of_turn(&question);
                self.turns.chat_questions.push(question);
                return Some(Next::Looping { question: text });
            }
            Some(Brake::Note(text)) => self.notes.add_later(text),
            None => {}
        }
        self.turns.steps = steps + 1;
        self.turns.saw_shown();
        let frame = self.requests.frame(&self.models, &self.policy);
        if let Some(mut summary) = self.requests.summary_if_due(frame, &self.models, &mut self.log) {
            self.requests.remind(&mut summary, &self.policy, &self.log);
            return Some(Next::Summarise(summary));
        }
        self.notes.warn_of_limit(self.log.turns, limit - steps, limit);
        self.notes.quote(servers::instructions(&self.policy, &self.log));
        self.notes.deliver(&self.policy, &mut self.log);
        let may_steer = |prompt: &Prompt| slash_commands::may_steer(prompt, &self.policy);
        while let Some(message) = self.turns.join_next(self.log.turns, may_steer) {
            self.approvals.forget_denials();
            self.repetition = Repetition::default();
            self.log.record(message, None);
        }
        let frame = self.requests.frame(&self.models, &self.policy);
        let shortened = self.requests.fit(frame, &mut self.log);
        self.note_shortened(shortened);
        let has_background = !self.jobs.list().is_empty() || !self.subagents.background().is_empty();
        let Self { policy, models, switches, log, .. } = self;
        Some(self.requests.next(policy, models, switches, log, has_background))
    }

    /// The user learns of cut messages of their own; results can be read again.
    fn note_shortened(&mut self, shortened: Shortened) {
        let Shortened { saved, prompts } = shortened;
        if saved > 0 {
            self.turns.leave_context();
        }
        if prompts > 0 {
            let messages = counted(prompts, "older message of yours was", "older messages of yours were");
            let text = format!(
                "The model's context is full, so {messages} shortened for it. Your record keeps the whole text.\n\n"
            );
            self.notes.record_warning(text, &mut self.log);
        }
    }

    pub(in crate::session) async fn turn_message(&mut self, message: TurnMessage) {
        match message {
            TurnMessage::Event(event, send_permit) => {
                if let SessionEvent::ToolCallUpdate(update) = &event {
                    self.count_repetition(update);
                }
                self.log.record(event, send_permit);
            }
            TurnMessage::Progress { id, content, send_permit } => {
                self.log.send(acp_updates::progress(id, &content), send_permit);
            }
            TurnMessage::Finished { update, seen, instructions, job, questions, send_permit } => {
                self.count_repetition(&update);
                self.turns.chat_questions.extend(questions);
                self.turns.saw(seen);
                self.notes.quote(instructions);
                if let Some(note) = job.and_then(|job| self.jobs.add(job, self.policy.context.live)) {
                    self.note_for_model(note);
                }
                self.log.record(SessionEvent::ToolCallUpdate(update), send_permit);
            }
            TurnMessage::Shown(files) => self.turns.show(files),
            TurnMessage::NextRequest { made, reply } => {
                // The turn may be cancelled by now.
                let _ = reply.send(self.next_request(made));
            }
            TurnMessage::Compact { refused, reply } => {
                let frame = self.requests.frame(&self.models, &self.policy);
                let mut summary = self.requests.summary_of_all(refused, frame, &self.models, &mut self.log);
                if let Some(summary) = &mut summary {
                    self.requests.remind(summary, &self.policy, &self.log);
                }
                let _ = reply.send(summary);
            }
            TurnMessage::TooLong { error, reply } => {
                let step = (self.log.turns, self.turns.steps);
                let frame = self.requests.frame(&self.models, &self.policy);
                let (models, log) = (&self.models, &mut self.log);
                let (mut room, shortened) = self.requests.too_long(error, step, frame, models, log);
                if let Room::Summarise(summary) = &mut room {
                    self.requests.remind(summary, &self.policy, &self.log);
                }
                self.note_shortened(shortened);
                let _ = reply.send(room);
            }
            TurnMessage::Summarised(summarised, send_permit) => {
                let command = self.turns.running.as_mut().and_then(|turn| turn.command.as_mut());
                if let Some(command) = command {
                    summarised.end_command(command);
                }
                if summarised.outcome.is_ok() || summarised.needs_list() {
                    self.turns.leave_context();
                }
                self.requests.summarised(summarised, send_permit, &mut self.log).await;
            }
            TurnMessage::Authorize { call, facts, fits, reply } => {
                let facts = facts.map(|facts| *facts);
                let decided = self.approvals.decide(call, facts, fits, &self.policy, &mut self.log);
                let _ = reply.send(Box::pin(self.authorization(decided)).await);
            }
            TurnMessage::BackgroundAtEnd { reply } => {
                let _ = reply.send(self.background_at_end());
            }
            TurnMessage::Snapshot { reply } => {
                let _ = reply.send(self.checkpoints.made_snapshot(&self.policy.ancestry));
            }
            TurnMessage::InBand { found, reply } => Box::pin(self.in_band(found, reply)).await,
            TurnMessage::Propose { call, proposal, reply } => {
                let is_cancelled = self.turns.is_cancelled();
                self.switches.propose(call, proposal, is_cancelled, &self.policy, &self.log, reply);
            }
            TurnMessage::ExternalAgent { reply } => {
                Box::pin(self.ready_external_agent(Some(reply))).await;
            }
            TurnMessage::AgentChanges(targets) => {
                self.approvals.record_agent_changes(targets, &self.policy, &mut self.log).await;
            }
            TurnMessage::SessionAction { call, action, cancel, reply } => {
                let spawned = if cancel.is_cancelled() {
                    // The mode changed, or the call was cancelled, after the permit.
                    Spawned::Refused("The call was cancelled before it started.".into())
                } else {
                    Box::pin(self.start_session_action(call, action)).await
                };
                let _ = reply.send(spawned);
            }
            TurnMessage::Ask { call, facts, preview, reply } => {
                let is_cancelled = self.turns.is_cancelled();
                let question = (call, *facts, preview.as_slice());
                let (policy, log) = (&self.policy, &mut self.log);
                if let Some((decided, reply)) = self.approvals.ask(question, is_cancelled, policy, log, reply)
                {
                    let _ = reply.send(Box::pin(self.authorization(decided)).await);
                }
            }
        }
    }

    fn count_repetition(&mut self, update: &ToolCallUpdateEvent) {
        let Some(call) = self.log.conversation.open_calls.get(&update.id) else { return };
        let tool = self.policy.context.tools.find(&call.name);
        let spec = tool.as_ref().map(|tool| tool.spec());
        // A look at running work is expected to find the same.
        if spec.is_none_or(|spec| spec.background != BackgroundRole::Controls) {
            self.repetition.call_ended(call, update, spec.map(|spec| spec.effect));
        }
    }

    /// Background work that would end with the session, at the end of its last turn.
    fn background_at_end(&mut self) -> Background {
        let running = self.subagents.background().iter().filter(|agent| !agent.is_over());
        let agents: Vec<_> = running.cloned().collect();
        if self.notes.has_ending || self.notes.warn_of_jobs(self.log.turns, &self.jobs.running()) {
            return Background::News;
        }
        if agents.is_empty() { Background::Nothing } else { Background::Agents(agents) }
    }

    /// Turns a grant into a permit, and records the call before it starts.
    pub(in crate::session) async fn authorization(&mut self, decided: Decided) -> Authorization {
        let grant = match decided {
            Decided::Final(authorization) => return authorization,
            Decided::Ask(facts) => {
                return Authorization::Ask { last_seen: self.turns.last_seen(&facts.targets) };
            }
            Decided::Granted(grant) => grant,
        };
        let Some(cancel) = self.turns.running.as_ref().map(|turn| turn.cancel.clone()) else {
            return Authorization::Cancelled;
        };
        if cancel.is_cancelled() {
            return Authorization::Cancelled;
        }
        let last_seen = self.turns.last_seen(&grant.facts.targets);
        self.approvals.forget_denials();
        let (jobs, agents) = (self.jobs.list().to_vec(), self.subagents.background().to_vec());
        let snapshot = {
            let (ancestry, log) = (&self.policy.ancestry, &self.log);
            self.checkpoints.snapshot_for(grant.facts.shell, ancestry, &self.workspace, log).await
        };
        // A server's hint is only a claim, so calls of its tools are always recorded.
        let is_recorded = grant.facts.effect.is_change() || grant.facts.server.is_some();
        let starts = !grant.facts.is_exit;
        if starts && is_recorded {
            self.approvals.record(&grant, &self.policy, &mut self.log).await;
            if let Some(refused) = self.approvals.refuse_unrecorded(&grant.call, &self.policy, &mut self.log)
            {
                return refused;
            }
        }
        let Grant { call, facts, has_user_consent } = grant;
        // The facts keep the claim only if no answer of the user allowed the call. Such a call ends under a
        // mode that denies changes.
        let claim = facts.claim.clone();
        let has_no_consent = |_: &Claim| {
            !has_user_consent && matches!(self.policy.without_asking(&facts), RecordedConsent::Mode)
        };
        let unconsented = claim.clone().filter(has_no_consent);
        let facts = CallFacts { claim: unconsented, ..facts };
        let files_of =
            |call: CallFacts| FilesBelow::new(self.policy.call_ceilings(), self.policy.grants.clone(), call);
        let names_files = matches!(facts.effect, Effect::Read | Effect::Edit) && !facts.targets.is_empty();
        let files = names_files.then(|| files_of(facts.clone()));
        // Decided as a call of the model, so that rules and lists of tools apply, also after an edit.
        let instruction_files =
            names_files.then(|| files_of(CallFacts::of_tool(tool::READ_FILE, Effect::Read)));
        let mut permit = self.gate.admit(call.clone(), facts, self.log.turns, &cancel);
        (permit.files, permit.instruction_files, permit.claim) = (files, instruction_files, claim);
        if starts {
            // Recorded together with the permit: no mode change comes between the two.
            let update = ToolCallUpdateEvent::in_progress(call);
            self.log.record(SessionEvent::ToolCallUpdate(update), None);
        }
        let compactions = self.log.conversation.compactions;
        Authorization::Granted { permit, last_seen, jobs, agents, snapshot, compactions }
    }

    pub(in crate::session) async fn turn_over(&mut self) {
        let Some(mut turn) = self.turns.running.take() else { return };
        self.close_questions();
        let effects = self.external_agent.end_turn();
        self.apply_effects(effects).await;
        let cancel = turn.cancel.clone();
        let joined = std::mem::take(&mut turn.joined);
        let (outcome, reply, command) = turn.outcome().await;
        let cancelled = cancel.is_cancelled();
        if cancelled {
            // Ends background work of this turn, but not of earlier turns.
            let (turn, mut gate) = (self.log.turns, std::mem::take(&mut self.gate));
            self.handle_reports_during(gate.end_turn(turn, DEADLINE)).await;
            self.gate.restore(gate);
        }
        if let Some(id) = self.log.conversation.compacting.take() {
            self.log.record(SessionEvent::Compaction { id, stage: Compaction::Cancelled }, None);
        }
        for id in self.log.conversation.take_open_calls() {
            let result = if cancelled { "Cancelled by the user." } else { "The call was not carried out." };
            self.log.record(SessionEvent::ToolCallUpdate(ToolCallUpdateEvent::failed(id, result)), None);
        }
        if let Ok(reason) = &outcome {
            let reason = reason.stop_reason();
            self.log.record(SessionEvent::Stop { reason }, None);
        }
        self.requests.forget_transition_after(self.log.turns);
        self.switches.end_turn();
        self.notes.deliver(&self.policy, &mut self.log);
        self.log.save().await;
        self.turns.reply(reply, outcome.clone(), command, &mut self.log);
        for prompt in joined {
            self.turns.reply(prompt.reply, outcome.clone(), None, &mut self.log);
        }
        self.start_next().await;
    }

    pub(in crate::session) fn note_for_model(&mut self, text: String) {
        self.notes.add(text, self.turns.is_running(), &self.policy, &mut self.log);
    }

    pub(super) async fn start_session_action(&mut self, call: ToolCallId, action: SessionAction) -> Spawned {
        let delegation = match action {
            SessionAction::Delegate { agent, task, is_background, is_reader: _ } => {
                Delegation::to_agent(agent.as_deref(), task, is_background, &self.policy)
            }
            SessionAction::Skill { skill, task } => Delegation::to_skill(&skill, &task, &self.policy),
            SessionAction::Handoff { agent } => match handoff::proposed(&agent, &self.policy) {
                Ok(agent) => {
                    let text =
                        format!("{} continues from the next step on. The mode stays the same.", agent.id);
                    self.become_agent(agent).await;
                    return Spawned::Done(text);
                }
                Err(text) => Err(text),
            },
        };
        let delegation = match delegation {
            Ok(delegation) => delegation,
            Err(text) => return Spawned::Refused(text),
        };
        let Self { policy, log, checkpoints, workspace, .. } = self;
        let parent = Parent {
            session: log.id.clone(),
            turn: log.turns,
            changes: checkpoints.sender(),
            intents: intents::intent_log(&policy.ancestry, log),
            snapshot: checkpoints.shared_snapshot(&policy.ancestry, workspace, log).await,
        };
        let inherited =
            Inherited { parent, workspace: workspace.clone(), chosen: self.models.chosen.clone() };
        let (spawned, discarded) = self.subagents.spawn(call, delegation, inherited, policy, log);
        if let Some(note) = discarded {
            self.note_for_model(note);
        }
        spawned
    }

    pub(super) fn report(&mut self, report: Report) {
        let Some(note) = self.subagents.handle(report, &mut self.gate, &mut self.log) else { return };
        self.notes.has_ending = true;
        if !self.turns.is_running() {
            self.notes.inform(format!("{note}\n\n"));
        }
        self.note_for_model(note);
    }

    /// Handles reports of sub-agents during `work`: the calls that `work` ends may need the client. An
    /// external agent may need the gate, so its messages wait.
    pub(super) async fn handle_reports_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(report) = self.subagents.next() => self.report(report),
            }
        }
    }

    pub(super) async fn ready_external_agent(&mut self, reply: Option<Waiting>) {
        let effects = self.external_agent.ready(reply, &self.policy.limits());
        self.apply_effects(effects).await;
    }

    pub(super) async fn external_agent_message(&mut self, message: Message) {
        let effects = self.external_agent.handle(message, || self.policy.limits(), &mut self.gate);
        self.apply_effects(effects).await;
    }

    pub(super) async fn apply_effects(&mut self, effects: Vec<AgentEffect>) {
        for effect in effects {
            match effect {
                AgentEffect::Record(event, send_permit) => self.log.record(event, send_permit),
                AgentEffect::Show(update, send_permit) => self.log.send(*update, send_permit),
                AgentEffect::Notice(text) => self.notes.record_warning(text, &mut self.log),
                AgentEffect::NoticeInTurn(text) if self.turns.is_running() => {
                    self.notes.record_warning(text, &mut self.log);
                }
                AgentEffect::NoticeInTurn(text) => self.notes.warn(text),
                AgentEffect::Denied { call, tool, rule } => {
                    record_denial(call, tool.to_owned(), rule, &self.policy, &mut self.log);
                }
                AgentEffect::Permitted { call, facts, has_user_consent } => {
                    let grant = Grant { call, facts: *facts, has_user_consent };
                    self.approvals.record(&grant, &self.policy, &mut self.log).await;
                }
                AgentEffect::Forward(forwarded) => self.external_agent.forward(*forwarded),
                AgentEffect::Uncovered(text) => {
                    record_uncovered(text, &self.policy.ancestry, &self.log);
                    self.log.save().await;
                }
                AgentEffect::Retain { session: external_session, mode: external_mode } => {
                    let session = self.log.id.clone();
                    self.log.store.post(Row::ExternalAgent { session, external_session, external_mode });
                }
                AgentEffect::ShowCommands => self.send_commands(),
                AgentEffect::ShowOptions => {
                    let options = ConfigOptionUpdate::new(self.options());
                    self.log.send(SessionUpdate::ConfigOptionUpdate(options), None);
                }
                // The receivers may be gone, here and below.
                AgentEffect::ReplyOptions(reply) => drop(reply.send(self.options())),
                AgentEffect::Answer(reply, answer) => drop(reply.send(answer)),
                AgentEffect::Start { is_sandboxed: sandboxed, limits_network } => {
                    self.approvals.record_process(sandboxed, false, &self.policy, &mut self.log).await;
                    let record = record_folder(&self.log).await;
                    self.external_agent.start(sandboxed, limits_network, record, &mut self.gate);
                }
                AgentEffect::PermitChanges(level) => {
                    let is_decided = level == ChangeLevel::Decided;
                    self.approvals.record_process(false, is_decided, &self.policy, &mut self.log).await;
                    self.external_agent.permit_changes(level, &mut self.gate);
                }
                AgentEffect::AnswerChange { number, allows } => {
                    if let Some(agent) = self.external_agent.client() {
                        agent.answer_change(number, allows).await;
                    }
                }
                AgentEffect::AskToRestart => {
                    if let Some(turn) = &self.turns.running {
                        let (number, mode) = (self.log.turns, &self.policy.mode);
                        self.external_agent.ask_to_restart(&CurrentTurn {
                            number,
                            mode,
                            cancel: &turn.cancel,
                        });
                    }
                }
                AgentEffect::BeginReply => {
                    self.policy.begin_reply();
                    self.external_agent.answer_waiting();
                }
            }
        }
    }
}
