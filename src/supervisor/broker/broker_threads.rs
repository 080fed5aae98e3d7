//! Starts the threads of a broker, and passes orders to them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use super::Broker;
use super::pending::ResumedCall;
use super::threads;
use crate::sandbox::BrokerPolicy;
use crate::sandbox::host::HostPattern;

/// Threads that answer calls.
const THREADS: usize = 2;

/// Passes orders to the threads of a broker. Orders never wait: a thread may be at work for long. Modegate sends one
/// order for each question, mode change and turn, so the queues need no bound.
pub(in crate::supervisor) struct BrokerThreads {
    broker: Arc<Broker>,
    policies: Sender<BrokerPolicy>,
    saves: Sender<()>,
}

impl BrokerThreads {
    /// Starts the threads that answer calls and follow orders. They end with this process.
    pub(in crate::supervisor) fn start(mut broker: Broker) -> io::Result<Self> {
        let (resumed, resumed_calls) = mpsc::channel();
        broker.resumed = Some(resumed);
        let broker = Arc::new(broker);
        for _ in 0..THREADS {
            let broker = Arc::clone(&broker);
            threads::start("broker", move || broker.listen())?;
        }
        let asking = Arc::clone(&broker);
        threads::start("questions", move || asking.withdraw_questions())?;
        let (resuming, setting, saving) = (Arc::clone(&broker), Arc::clone(&broker), Arc::clone(&broker));
        threads::follow("answers", resumed_calls, move |call| resuming.resume(call))?;
        let (policies, new_policies) = mpsc::channel();
        threads::follow("policies", new_policies, move |policy| setting.set_policy(policy))?;
        let (saves, saves_to_make) = mpsc::channel();
        threads::follow("records", saves_to_make, move |()| saving.save_record())?;
        Ok(Self { broker, policies, saves })
    }

    /// [`BrokerEvent::PolicySet`](crate::supervisor::protocol::BrokerEvent::PolicySet) follows.
    pub(in crate::supervisor) fn set_policy(&self, policy: BrokerPolicy) {
        // The thread ends with this process, here and below.
        let _ = self.policies.send(policy);
    }

    /// Carries out or refuses a call that waits for an answer.
    pub(in crate::supervisor) fn answer_question(&self, question: u64, allows: bool) {
        self.broker.resume_later(ResumedCall::Answered { question, allows });
    }

    pub(in crate::supervisor) fn allow_host(&self, host: HostPattern) {
        if let Some(egress) = &self.broker.egress {
            egress.allow(host);
        }
    }

    /// [`BrokerEvent::RecordSaved`](crate::supervisor::protocol::BrokerEvent::RecordSaved) follows.
    pub(in crate::supervisor) fn save_record(&self) {
        let _ = self.saves.send(());
    }

    /// Clears shared memory, and saves the last record. All processes of the command are gone.
    pub(in crate::supervisor) fn finish(&self) {
        self.broker.finish();
    }
}
