//! Collects the events of a command.

use modegate::process::{BrokerEvent, ChangeQuestion, Event, Exit, Process};

#[derive(Default)]
pub(super) struct CommandEvents {
    output: Vec<u8>,
    pub exit: Option<Exit>,
    pub broker: Vec<BrokerEvent>,
    /// `None` until the command is gone. Then false if a process may still run.
    pub confirmed: Option<bool>,
}

impl CommandEvents {
    /// Collects all events of a command. `allows` answers its questions.
    pub(super) async fn of(mut process: Process, allows: impl Fn(&ChangeQuestion) -> bool) -> Self {
        let mut events = Self::default();
        events.collect(&mut process, allows).await;
        events
    }

    /// After a cancellation, the events so far remain.
    pub(super) async fn collect(&mut self, process: &mut Process, allows: impl Fn(&ChangeQuestion) -> bool) {
        while let Some(event) = process.next().await {
            match event {
                Event::Output(bytes) | Event::Error(bytes) => self.output.extend(bytes),
                Event::Exited(exit) => self.exit = Some(exit),
                Event::Broker(event) => {
                    if let BrokerEvent::Asked(question) = &event {
                        process.answer(question.number, allows(question)).await;
                    }
                    self.broker.push(event);
                }
                Event::Job(_) => {}
                Event::Failed(failure) => panic!("{failure}"),
                Event::Gone { confirmed, .. } => self.confirmed = Some(confirmed),
            }
        }
    }

    /// Standard output and standard error.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    pub(super) fn was_killed(&self) -> bool {
        matches!(self.exit, Some(Exit::Signal(_)))
    }
}
