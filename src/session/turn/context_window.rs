//! Keeps a session's model requests within the model's context: what the server refused as too long, and how
//! far the conversation has to be shortened.

use crate::conversation::Conversation;
use crate::conversation::compaction;
use crate::conversation::fitting::Shortened;
use crate::model::ModelId;
use crate::model::excess::Excess;
use crate::text::grouped;

/// Refusals of one step after which it is given up.
const MAX_REFUSALS: u32 = 8;

/// The next request, apart from the conversation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextFrame<'a> {
    pub(crate) model: &'a ModelId,
    /// Size of the model's context in tokens.
    pub(crate) context: u64,
    /// Bytes of the tools and the system prompt, or 0 if they are not known yet.
    pub(crate) fixed: usize,
}

/// A turn, and the number of replies in it so far.
pub(crate) type StepNumber = (u64, u32);

#[derive(Default)]
pub(crate) struct ContextWindow {
    /// Bytes of the last request.
    sent: usize,
    /// Bytes of the reminder in it.
    reminder: usize,
    /// Bytes that a request to this model may have, because its server refused a larger one.
    largest: Option<(ModelId, usize)>,
    refused_in: Option<StepNumber>,
    refusals: u32,
}

impl ContextWindow {
    pub(crate) fn note_sent(&mut self, sent: usize, reminder: usize) {
        (self.sent, self.reminder) = (sent, reminder);
    }

    /// Notes that the last request was too long. Returns the number of refusals in this step, or `None` if
    /// there were too many.
    pub(crate) fn refuse(&mut self, model: &ModelId, excess: Excess, step: StepNumber) -> Option<u32> {
        let largest = match excess {
            // The server counts differently: its numbers give the ratio.
            Excess { limit: Some(limit), requested: Some(requested) } => {
                scaled(self.sent, limit.saturating_mul(9), requested.saturating_mul(10))
            }
            Excess { .. } => self.sent / 10 * 7,
        };
        self.largest = Some((model.clone(), largest));
        self.refusals = if self.refused_in == Some(step) { self.refusals + 1 } else { 1 };
        self.refused_in = Some(step);
        Some(self.refusals).filter(|refusals| *refusals <= MAX_REFUSALS)
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    /// Bytes that the conversation may have in the next request. `None` if it fits as it is.
    pub(crate) fn budget(&self, conversation: &Conversation, frame: ContextFrame<'_>) -> Option<usize> {
        let ContextFrame { model, context, fixed } = frame;
        let bytes = conversation.history.bytes();
        let tokens = conversation.fill.estimate(bytes, fixed) + compaction::tokens(self.reminder);
        let by_tokens = compaction::is_due(tokens, context).then(|| {
            let excess = tokens - compaction::target(context);
            bytes.saturating_sub(compaction::bytes_of(excess))
        });
        let others = fixed + self.reminder;
        let largest = self.largest.as_ref().filter(|(refusing, _)| refusing == model);
        let by_size = largest
            .filter(|(_, largest)| others + bytes > *largest)
            .map(|(_, largest)| (largest / 10 * 9).saturating_sub(others));
        by_tokens.into_iter().chain(by_size).min()
    }

    /// Shortens the conversation, so that the next request fits.
    pub(crate) fn fit(&self, conversation: &mut Conversation, frame: ContextFrame<'_>) -> Shortened {
        let Some(budget) = self.budget(conversation, frame) else { return Shortened::default() };
        let bytes = conversation.history.bytes();
        let shortened = conversation.history.shorten(budget);
        conversation.fill.shorten(bytes, shortened.saved);
        if shortened.saved > 0 {
            let Shortened { saved, prompts } = shortened;
            tracing::debug!(saved, prompts, "older content was shortened for the model");
        }
        shortened
    }

    /// Bytes that the messages of a request for a summary may have.
    pub(crate) fn summary_budget(&self, frame: ContextFrame<'_>) -> usize {
        let ContextFrame { model, context, fixed } = frame;
        let by_tokens = compaction::bytes_of(context / 10 * 8);
        let largest = self.largest.as_ref().filter(|(refusing, _)| refusing == model);
        largest.map_or(by_tokens, |(_, largest)| by_tokens.min(*largest)).saturating_sub(fixed)
    }
}

/// `bytes * part / whole`, without an overflow.
fn scaled(bytes: usize, part: u64, whole: u64) -> usize {
    let scaled = bytes as u128 * u128::from(part) / u128::from(whole.max(1));
    usize::try_from(scaled).unwrap_or(usize::MAX).min(bytes / 10 * 9)
}

/// Says the size of a prompt, the limit, and what to do.
pub(crate) fn prompt_too_long(bytes: usize, limit: u64, model: &ModelId) -> String {
    let limit = grouped(usize::try_from(limit).unwrap_or(usize::MAX));
    let tokens = usize::try_from(compaction::tokens(bytes)).unwrap_or(usize::MAX);
    format!(
        "the prompt is too long: it has {} bytes, about {} tokens, and {model} takes {limit} tokens, with instructions and tools. It is not kept: shorten it, or save it as a file that the model can read in parts",
        grouped(bytes),
        grouped(tokens)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_request_gets_shorter_by_the_servers_numbers_or_by_a_third() {
        let model = ModelId::new("p/m");
        for (limit, requested, largest) in
            [(Some(16_000), Some(32_000), 45_000), (Some(16_000), None, 70_000), (None, None, 70_000)]
        {
            let mut window = ContextWindow::default();
            window.note_sent(100_000, 0);
            assert_eq!(window.refuse(&model, Excess { limit, requested }, (1, 0)), Some(1));
            assert_eq!(window.largest, Some((model.clone(), largest)));
            let frame = ContextFrame { model: &model, context: u64::MAX, fixed: 10_000 };
            assert_eq!(window.summary_budget(frame), largest - 10_000);
            let other = ModelId::new("p/other");
            assert_eq!(
                window.budget(&Conversation::default(), ContextFrame { model: &other, ..frame }),
                None
            );
        }
    }

    #[test]
    fn refusals_of_one_step_are_bounded() {
        let mut window = ContextWindow::default();
        let mut refuse = |step| window.refuse(&ModelId::new("p/m"), Excess::default(), step);
        assert!((1..=MAX_REFUSALS).all(|number| refuse((1, 0)) == Some(number)));
        assert_eq!((refuse((1, 0)), refuse((1, 1))), (None, Some(1)));
    }
}
