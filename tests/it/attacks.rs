//! Attacks on what surrounds files: system calls, terminals, the network, Modegate's own files, and questions. Each
//! runs in every sandbox that has the surface, and without one as the control.

mod control;
mod held;
mod own_files;
mod questions;
mod system_calls;
mod taken_back;
mod terminals;
