//! Modes and permissions: what each mode denies and asks, and changes of mode.

mod changes;
mod checks;
mod contract;
mod effects;
mod forced_writes;
mod foreign_names;
mod injection;
mod loosening;
mod matrix;
mod no_user;
mod plan_exit;
mod rejections;
pub(crate) mod stored;
mod untrusted_project;
mod version_2;
