//! Signals of the system that ask this process to stop.

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use other::stop_requested;
#[cfg(unix)]
pub use unix::stop_requested;
