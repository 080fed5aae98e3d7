//! The processes that end with a command: a process group on Unix, a job object on Windows.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::ENDING;
#[cfg(unix)]
pub(super) use unix::Group;
#[cfg(windows)]
pub use windows::ENDING;
#[cfg(windows)]
pub(super) use windows::Group;
