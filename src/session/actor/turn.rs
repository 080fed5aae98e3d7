//! The flows of a turn, and of the agents that it starts.

use super::Actor;
use crate::acp::{ConfigOptionUpdate, MessageId, SessionUpdate, ToolCallId};
use crate::budget::BudgetUse;
use crate::client::SessionSignal;
use crate::conversation::acp_updates;
use crate::conversation::fitting::Shortened;
use crate::event::{Compaction, NoticeKind, SessionEvent, ToolCallUpdateEvent};
use crate::external_agent::session::{AgentMessage, AgentOutput, WaitingPrompt};
use crate::permission::external::ChangeLevel;
use crate::permission::{CallFacts, Effect};
use crate::session::command::slash_commands;
use crate::session::command::typed_text::title;
use crate::session::handle::Prompt;
use crate::session::history::checkpoint::{record_folder, record_uncovered};
use crate::session::history::intents;
use crate::session::insertion::InsertedPrompt;
use crate::session::mode::ancestry::Parent;
use crate::session::mode::decider::{Authorization, Decided, Decider, Grant};
use crate::session::notes::endings::BackgroundEnd;
use crate::session::prompt_end::CommandEnd;
use crate::session::subagent::relay::SubagentReport;
use crate::session::subagent::spawn::{Delegation, Inherited, Requested, Spawned};
use crate::session::turn::Turn;
use crate::session::turn::message::{Background, FinishedCall, Next, Room, TurnMessage};
use crate::session::turn::model_request::Requests;
use crate::session::turn::repetition::{self, Brake, Repetition};
use crate::session::turn::turns::{self, FROM_TURN, RunningTurn};
use crate::session::{DEADLINE, servers, turn};
use crate::store::Row;
use crate::tool::{self, SessionAction, SessionState};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tracing::{Instrument, Span};

impl Actor {
    pub(super) async fn begin_turn(&mut self, prompt: Prompt) {
        let prompt = self.turns.resolve_chat_answer(prompt);
        let Prompt { content, compacts, typed, trace, insertion, cancel, reply, .. } = prompt;
        let turn = self.decider.log.begin_turn();
        let span = trace
            .as_ref()
            .map_or_else(Span::none, |trace| tracing::error_span!("turn", traceparent = %trace.parent));
        span.in_scope(|| tracing::debug!(session = %self.decider.log.id(), turn, "a turn begins"));
        self.models.trace_turn(turn, trace.as_deref(), &mut self.decider);
        self.requests.trace = trace;
        self.decider.forget_denials();
        self.repetition = Repetition::default();
        self.switches.begin_turn();
        self.checks.begin_turn();
        self.spending.begin_turn(&self.decider.policy.context.budgets.limits);
        let message_id = MessageId::new(format!("msg_{turn}_0"));
        let title = (turn == 1).then(|| title(&content)).flatten();
        let external_agent =
            self.decider.policy.agent.external_agent.is_some().then(|| self.decider.policy.agent.id.clone());
        self.notes.deliver(&mut self.decider).await;
        let to_it = if external_agent.is_some() { content.clone() } else { Vec::new() };
        self.decider.log.signal(SessionSignal::TurnBegan);
        self.decider.log.record_prompt(InsertedPrompt { message_id, content, typed, insertion });
        if let Some(title) = title {
            self.decider.log.record(SessionEvent::Title { title }, None);
        }
        if external_agent.is_none() {
            self.requests.freeze_system_prompt(&mut self.decider, self.workspace.cwd()).await;
        }
        self.notes.record_pending(&mut self.decider.log);
        if external_agent.is_none() {
            // External agents have servers of their own.
            self.decider.policy.context.tools.servers().start();
        }
        let (to_actor, messages) = mpsc::channel(FROM_TURN);
        let running = Turn {
            number: turn,
            compacts,
            external_agent,
            prompt: to_it,
            context: Arc::clone(&self.decider.policy.context),
            workspace: self.workspace.clone(),
            cancel: cancel.clone(),
            client: self.decider.log.client().clone(),
            client_io: self.client_io.clone(),
            actor: to_actor,
            changes: self.checkpoints.sender(),
            intents: intents::intent_log(&self.decider.policy.ancestry, &self.decider.log),
            snapshot: self.checkpoints.own_snapshot(),
            trace: self.decider.log.traced(|trace| trace.turn().cloned()).flatten(),
        };
        let task = tokio::spawn(turn::steps::run(running).instrument(span));
        let command =
            compacts.then(|| CommandEnd { answer: turn::compact::notice_id(turn), has_failed: false });
        self.turns.running =
            Some(RunningTurn { messages, cancel, task, reply, joined: Vec::new(), command, exceeded: None });
    }

    /// Returns `None` once the turn has used all requests that the mode allows, or a budget.
    async fn next_request(&mut self, steps: u32) -> Option<Next> {
        let limit = self.decider.policy.max_steps();
        if steps >= limit {
            return None;
        }
        if let Some(exceeded) = self.spending.before_request(&mut self.notes, &mut self.decider).await {
            self.end_by_budget(exceeded);
            return None;
        }
        match self.repetition.end_step(&self.decider.policy.mode) {
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
        let frame = self.requests.frame(&self.models, &self.decider.policy);
        if let Some(mut summary) = self.requests.summary_if_due(frame, &self.models, &mut self.decider.log) {
            self.requests.remind(&mut summary, &self.decider);
            return Some(Next::Summarise(summary));
        }
        self.notes.warn_of_limit(self.decider.log.turn(), limit - steps, limit);
        self.notes.quote(servers::instructions(&self.decider));
        self.decider.allowed_note.take().into_iter().for_each(|note| self.notes.add_later(note));
        self.notes.deliver(&mut self.decider).await;
        while let Some(message) = self.turns.join_next(self.decider.log.turn(), |prompt| {
            slash_commands::may_steer(prompt, &self.decider.policy)
        }) {
            self.decider.forget_denials();
            self.repetition = Repetition::default();
            self.decider.log.record_prompt(message);
        }
        let frame = self.requests.frame(&self.models, &self.decider.policy);
        Requests::supersede(frame, &mut self.decider);
        let shortened = self.requests.fit(frame, &mut self.decider.log);
        self.note_shortened(shortened);
        let has_background = !self.jobs.list().is_empty() || !self.subagents.background().is_empty();
        let Self { decider, models, switches, .. } = self;
        Some(self.requests.next(decider, models, switches, has_background))
    }

    /// Tells the user once. Returns false if the turn ends already.
    pub(super) fn end_by_budget(&mut self, exceeded: BudgetUse) -> bool {
        let is_first = self.turns.exceed(exceeded);
        if is_first {
            let text = exceeded.end_notice(&self.decider.policy.context.today().ends);
            let message_id = MessageId::new(format!("msg_{}_budget", self.decider.log.turn()));
            self.decider.log.record_notice(NoticeKind::Message, message_id, text);
        }
        is_first
    }

    /// The user learns of cut messages of their own; results can be read again.
    fn note_shortened(&mut self, shortened: Shortened) {
        let Shortened { saved, prompts } = shortened;
        if saved > 0 {
            self.turns.leave_context();
        }
        self.notes.warn_of_shortened(prompts, &mut self.decider.log);
    }

    pub(super) async fn turn_message(&mut self, message: TurnMessage) {
        match message {
            TurnMessage::Event(event, send_permit) => self.record_turn_event(event, send_permit),
            TurnMessage::SummaryUsage(usage) => self.count(Some(&usage)),
            TurnMessage::Progress { id, content, send_permit } => {
                let update = acp_updates::progress(id, &[content], self.decider.log.accepted());
                self.decider.log.send(update, send_permit);
            }
            TurnMessage::Finished(finished, send_permit) => {
                self.call_finished(*finished, send_permit);
            }
            TurnMessage::Shown(files) => self.turns.show(files),
            TurnMessage::NextRequest { made, reply } => {
                // The turn may be cancelled by now.
                let _ = reply.send(self.next_request(made).await);
            }
            TurnMessage::Compact { refused, reply } => {
                let frame = self.requests.frame(&self.models, &self.decider.policy);
                let mut summary =
                    self.requests.summary_of_all(refused, frame, &self.models, &mut self.decider.log);
                if let Some(summary) = &mut summary {
                    self.requests.remind(summary, &self.decider);
                }
                let _ = reply.send(summary);
            }
            TurnMessage::TooLong { error, reply } => {
                let step = (self.decider.log.turn(), self.turns.steps);
                let frame = self.requests.frame(&self.models, &self.decider.policy);
                let (models, log) = (&self.models, &mut self.decider.log);
                let (mut room, shortened) = self.requests.too_long(error, step, frame, models, log);
                if let Room::Summarise(summary) = &mut room {
                    self.requests.remind(summary, &self.decider);
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
                self.requests.summarised(summarised, send_permit, &mut self.decider.log).await;
            }
            TurnMessage::Authorize { request, reply } => {
                let decided = self.decider.decide_with_hooks(*request);
                let _ = reply.send(Box::pin(self.authorization(decided)).await);
            }
            TurnMessage::BackgroundAtEnd { reply } => {
                let _ = reply.send(self.background_at_end());
            }
            TurnMessage::Snapshot { reply } => {
                let _ = reply.send(self.checkpoints.made_snapshot(&self.decider.policy.ancestry));
            }
            TurnMessage::Check(message) => self.check(message),
            TurnMessage::InBand { found, reply } => Box::pin(self.in_band(found, reply)).await,
            TurnMessage::Propose { call, proposal, reply } => {
                let is_cancelled = self.turns.is_cancelled();
                self.switches.propose(call, proposal, is_cancelled, &mut self.decider, reply);
            }
            TurnMessage::ExternalAgent { reply } => {
                let (turn, cancel) = (self.decider.log.turn(), self.turns.cancel_token());
                let prompt = WaitingPrompt { reply, turn, cancel: cancel.unwrap_or_default() };
                Box::pin(self.external_agent_message(AgentMessage::Prompt(prompt))).await;
            }
            TurnMessage::AgentChanges(targets) => self.decider.record_agent_changes(targets).await,
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
                if let Some((decided, reply)) = self.decider.ask(call, &facts, &preview, is_cancelled, reply)
                {
                    let _ = reply.send(Box::pin(self.authorization(decided)).await);
                }
            }
        }
    }

    fn call_finished(&mut self, finished: FinishedCall, send_permit: Option<OwnedSemaphorePermit>) {
        let FinishedCall { mut update, seen, instructions, job, questions, command_output, warnings } =
            finished;
        self.repetition.count(&update, &self.decider);
        self.checks.call_ended(&update, command_output);
        self.turns.chat_questions.extend(questions);
        self.turns.saw(seen);
        self.notes.quote(instructions);
        let job = job.inspect(|job| self.jobs.show(job, &mut update, &self.decider, self.workspace.cwd()));
        if let Some(note) = job.and_then(|job| self.jobs.add(job, self.decider.policy.context.live)) {
            self.note_for_model(note);
        }
        self.decider.log.record(update.into(), send_permit);
        for text in warnings {
            self.notes.record_warning(text, &mut self.decider.log);
        }
    }

    /// Background work that runs, or has ended since the last request. Without another turn, jobs count, too.
    fn background_at_end(&mut self) -> Background {
        let running = self.subagents.background().iter().filter(|agent| !agent.is_over());
        let agents: Vec<_> = running.cloned().collect();
        let is_last = self.decider.policy.context.ends_with_turn;
        if is_last
            && (self.notes.endings.has_unseen()
                || self.notes.warn_of_jobs(self.decider.log.turn(), &self.jobs.running()))
        {
            return Background::News;
        }
        if agents.is_empty() { Background::Nothing } else { Background::Agents(agents) }
    }

    /// Turns a grant into a permit, and records the call before it starts.
    pub(super) async fn authorization(&mut self, decided: Decided) -> Authorization {
        let grant = match decided {
            Decided::Final(authorization) => return authorization,
            Decided::Ask(facts) => {
                let last_seen = self.turns.last_seen(&facts.targets);
                let reads = CallFacts::of_tool(tool::READ_FILE, Effect::Read);
                return Authorization::Ask { last_seen, files: Box::new(self.decider.files_of(reads)) };
            }
            Decided::Granted(grant) => grant,
        };
        self.decider.tell_of_grant(&grant);
        let Some(cancel) = self.turns.running.as_ref().map(|turn| turn.cancel.clone()) else {
            return Authorization::Cancelled;
        };
        if cancel.is_cancelled() {
            return Authorization::Cancelled;
        }
        let last_seen = self.turns.last_seen(&grant.facts.targets);
        self.decider.forget_denials();
        let (jobs, agents) = (self.jobs.list().to_vec(), self.subagents.background().to_vec());
        let snapshot = {
            let (ancestry, log) = (&self.decider.policy.ancestry, &self.decider.log);
            self.checkpoints.snapshot_for(grant.facts.shell, ancestry, &self.workspace, log).await
        };
        let starts = !grant.facts.is_exit;
        if starts && let Some(refused) = self.decider.record_start(&grant).await {
            return refused;
        }
        let Grant { call, facts, has_user_consent } = grant;
        let claim = facts.claim.clone();
        let facts = self.decider.without_consented_claim(facts, has_user_consent);
        let names_files = matches!(facts.effect, Effect::Read | Effect::Edit) && !facts.targets.is_empty();
        let files = names_files.then(|| self.decider.files_of(facts.clone()));
        // Decided as a call of the model, so that rules and lists of tools apply, also after an edit.
        let instruction_files =
            names_files.then(|| self.decider.files_of(CallFacts::of_tool(tool::READ_FILE, Effect::Read)));
        let reporter = self.refused_changes.reporter(&call, &facts, &self.decider);
        let mut permit = self.gate.admit(call.clone(), facts, self.decider.log.turn(), &cancel);
        (permit.files, permit.instruction_files, permit.claim) = (files, instruction_files, claim);
        permit.rule_reporter = reporter;
        if starts {
            // Recorded together with the permit: no mode change comes between the two.
            let update = ToolCallUpdateEvent::in_progress(call);
            self.decider.log.record(update.into(), None);
        }
        let compactions = self.decider.log.conversation().compactions;
        let state = SessionState { last_seen, jobs, agents, snapshot, compactions };
        Authorization::Granted { permit, state }
    }

    pub(super) async fn turn_over(&mut self) {
        let Some(mut turn) = self.turns.running.take() else { return };
        self.close_questions();
        self.external_agent_message(AgentMessage::TurnEnded).await;
        let cancel = turn.cancel.clone();
        let joined = std::mem::take(&mut turn.joined);
        let (outcome, reply, command) = turn.outcome().await;
        self.spending.end_turn(&mut self.decider);
        let cancelled = cancel.is_cancelled();
        if cancelled {
            // Ends background work of this turn, but not of earlier turns.
            let (turn, mut gate) = (self.decider.log.turn(), std::mem::take(&mut self.gate));
            let keeps_background = self.decider.policy.context.capabilities.lists_background;
            self.handle_reports_during(gate.end_turn(turn, keeps_background, DEADLINE)).await;
            self.gate.restore(gate);
        }
        if let Some(id) = self.decider.log.conversation_mut().compacting.take() {
            self.decider.log.record(SessionEvent::Compaction { id, stage: Compaction::Cancelled }, None);
        }
        turns::end_open_calls(&outcome, cancelled, &mut self.decider.log);
        if let Ok(reason) = &outcome {
            self.decider.log.record(SessionEvent::Stop { reason: reason.stop_reason() }, None);
        }
        self.decider.log.traced(|trace| trace.end_turn(turns::traced_outcome(&outcome)));
        self.requests.end_transition_after(self.decider.log.turn());
        self.switches.end_turn();
        self.notes.deliver(&mut self.decider).await;
        self.decider.log.save().await;
        self.decider.signal_end(turns::outcome(&outcome));
        self.turns.reply(reply, outcome.clone(), command, &mut self.decider.log);
        for prompt in joined {
            self.turns.reply(prompt.reply, outcome.clone(), None, &mut self.decider.log);
        }
        self.start_next().await;
    }

    pub(super) fn note_for_model(&mut self, text: String) {
        self.notes.add(text, self.turns.is_running(), &mut self.decider);
    }

    pub(super) async fn start_session_action(&mut self, call: ToolCallId, action: SessionAction) -> Spawned {
        let delegation = match Delegation::of(action, &self.decider.policy) {
            Ok(Requested::Subagent(delegation)) => delegation,
            Ok(Requested::Handoff(agent)) => {
                let text = format!("{} continues from the next step on. The mode stays the same.", agent.id);
                self.become_agent(agent).await;
                return Spawned::Done(text);
            }
            Err(text) => return Spawned::Refused(text),
        };
        let Self { decider, checkpoints, workspace, .. } = self;
        let Decider { policy, log, .. } = &*decider;
        let parent = Parent {
            session: log.id().clone(),
            turn: log.turn(),
            changes: checkpoints.sender(),
            intents: intents::intent_log(&policy.ancestry, log),
            snapshot: checkpoints.shared_snapshot(&policy.ancestry, workspace, log).await,
            tallies: self.spending.tallies(),
        };
        let inherited =
            Inherited { parent, workspace: workspace.clone(), chosen: self.models.chosen.clone() };
        let (spawned, discarded) = self.subagents.spawn(call, delegation, inherited, decider);
        if let Some(note) = discarded {
            self.note_for_model(note);
        }
        spawned
    }

    pub(super) async fn report(&mut self, report: SubagentReport) {
        let Some(end) = self.subagents.handle(report, &mut self.gate, &mut self.decider.log) else { return };
        if !self.turns.is_running() {
            self.notes.inform(format!("{}\n\n", end.headline()));
        }
        self.background_ended(end).await;
    }

    /// During a turn, the model may look at the work before its next request.
    pub(super) async fn background_ended(&mut self, end: BackgroundEnd) {
        if self.turns.is_running() {
            self.notes.endings.add(end);
        } else if let Some(note) = end.note().await {
            self.note_for_model(note);
        }
    }

    /// Handles reports of sub-agents during `work`: the calls that `work` ends may need the client. An
    /// external agent may need the gate, so its messages wait.
    pub(super) async fn handle_reports_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(report) = self.subagents.next() => self.report(report).await,
            }
        }
    }

    pub(super) async fn external_agent_message(&mut self, message: AgentMessage) {
        let outputs = self.external_agent.handle(message, || self.decider.policy.limits(), &mut self.gate);
        for output in outputs {
            self.agent_output(output).await;
        }
    }

    async fn agent_output(&mut self, output: AgentOutput) {
        match output {
            AgentOutput::Record(event, send_permit) => self.decider.log.record(event, send_permit),
            AgentOutput::Show(update, send_permit) => {
                let has_spent = self.spending.count_reported(&update, &mut self.decider);
                self.decider.log.send(*update, send_permit);
                if has_spent {
                    Box::pin(self.check_budgets()).await;
                }
            }
            AgentOutput::Notice(text) => self.notes.record_warning(text, &mut self.decider.log),
            AgentOutput::NoticeInTurn(text) if self.turns.is_running() => {
                self.notes.record_warning(text, &mut self.decider.log);
            }
            AgentOutput::NoticeInTurn(text) => self.notes.warn(text),
            AgentOutput::Denied { call, tool, rule } => {
                self.decider.record_denial(call, tool.to_owned(), &rule);
            }
            AgentOutput::Permitted { call, facts, has_user_consent } => {
                let grant = Grant { call, facts: *facts, has_user_consent };
                self.decider.record(&grant).await;
            }
            AgentOutput::Forward { id, request, reply } => {
                self.decider.forward(self.workspace.cwd(), id, request, reply);
            }
            AgentOutput::Uncovered(text) => {
                record_uncovered(text, &self.decider.policy.ancestry, &self.decider.log);
                self.decider.log.save().await;
            }
            AgentOutput::Retain { session: external_session, mode: external_mode } => {
                let session = self.decider.log.id().clone();
                self.decider.log.queue(Row::ExternalAgent { session, external_session, external_mode });
            }
            AgentOutput::ShowCommands => self.send_commands(),
            AgentOutput::ShowOptions => {
                let options = ConfigOptionUpdate::new(self.options());
                self.decider.log.send(SessionUpdate::ConfigOptionUpdate(options), None);
            }
            // The receivers may be gone, here and below.
            AgentOutput::ReplyOptions(reply) => drop(reply.send(self.options())),
            AgentOutput::Answer(reply, answer) => drop(reply.send(answer)),
            AgentOutput::RecordStart { is_sandboxed, is_decided, recorded } => {
                self.decider.record_process(is_sandboxed, is_decided).await;
                let _ = recorded.send(record_folder(&self.decider.log).await);
            }
            AgentOutput::RecordChanges { level, recorded } => {
                self.decider.record_process(false, level == ChangeLevel::Decided).await;
                let _ = recorded.send(());
            }
            AgentOutput::AnswerChange { program, number, allows } => program.answer(number, allows).await,
            AgentOutput::BeginReply => self.decider.policy.begin_reply(),
            AgentOutput::AnswerPrompts(prompts, ready) => WaitingPrompt::answer_all(prompts, &ready),
        }
    }
}
