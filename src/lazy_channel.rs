//! An unbounded channel that takes no memory until its first sender is made. One of tokio takes several
//! kilobytes from the start, in each idle session.

use std::sync::OnceLock;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[derive(Debug)]
pub struct LazyChannel<T>(OnceLock<(UnboundedSender<T>, UnboundedReceiver<T>)>);

impl<T> Default for LazyChannel<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> LazyChannel<T> {
    pub fn sender(&self) -> UnboundedSender<T> {
        self.0.get_or_init(unbounded_channel).0.clone()
    }

    /// Returns `None`, without waiting, if no sender was made. Cancel-safe.
    pub async fn recv(&mut self) -> Option<T> {
        self.0.get_mut()?.1.recv().await
    }

    /// Returns a message that is already there.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.get_mut()?.1.try_recv().ok()
    }

    /// Drops the channel's own sender: the receiver then ends with the last of the others.
    pub fn take_receiver(&mut self) -> Option<UnboundedReceiver<T>> {
        self.0.take().map(|(_, receiver)| receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_arrive_and_the_receiver_ends_with_the_last_sender() {
        let mut channel = LazyChannel::default();
        assert_eq!(channel.recv().await, None);
        let sender = channel.sender();
        sender.send(1).unwrap();
        channel.sender().send(2).unwrap();
        assert_eq!(channel.recv().await, Some(1));
        let mut receiver = channel.take_receiver().unwrap();
        assert_eq!(receiver.recv().await, Some(2));
        drop(sender);
        assert_eq!(receiver.recv().await, None);
    }
}
