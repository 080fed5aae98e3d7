//! Tells whether a process that asks for a mode is a person's or one that Modegate has started. A command of a session
//! can open UNIX sockets in modes that allow changes, and must not loosen the mode of another program.

use std::collections::HashSet;
use std::fs;

/// The first argument of the processes that start and end commands.
const SUPERVISOR: &[u8] = b"__supervise";

/// Most ancestors. Deeper processes are refused.
const MAX_DEPTH: usize = 4096;

/// Returns true if no supervisor is above the process but those that are above this one, too. False if its ancestors
/// cannot be found.
pub(super) fn is_outside(process: i32) -> bool {
    let own_supervisors = i32::try_from(std::process::id()).ok().and_then(|own| supervisors(own, &Proc));
    match (supervisors(process, &Proc), own_supervisors) {
        (Some(above), Some(own)) => above.is_subset(&own),
        _ => false,
    }
}

/// Returns true if Modegate has started this process as a command of another session.
pub(super) fn is_below_supervisor() -> bool {
    let own = i32::try_from(std::process::id()).ok().and_then(|own| supervisors(own, &Proc));
    own.is_some_and(|above| !above.is_empty())
}

trait Table {
    fn parent(&self, process: i32) -> Option<i32>;
    fn is_supervisor(&self, process: i32) -> bool;
}

/// The supervisors above a process.
fn supervisors(process: i32, table: &impl Table) -> Option<HashSet<i32>> {
    let mut supervisors = HashSet::new();
    let mut at = process;
    for _ in 0..MAX_DEPTH {
        if at <= 1 {
            // The first process, or one of another namespace.
            return (at == 1 || at != process).then_some(supervisors);
        }
        if table.is_supervisor(at) {
            supervisors.insert(at);
        }
        at = table.parent(at)?;
    }
    None
}

struct Proc;

impl Table for Proc {
    fn parent(&self, process: i32) -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name, in parentheses, can contain any character.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    fn is_supervisor(&self, process: i32) -> bool {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(SUPERVISOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parents by process; supervisors have numbers from 900.
    struct Known(&'static [(i32, i32)]);

    impl Table for Known {
        fn parent(&self, process: i32) -> Option<i32> {
            self.0.iter().find(|(child, _)| *child == process).map(|(_, parent)| *parent)
        }

        fn is_supervisor(&self, process: i32) -> bool {
            process >= 900
        }
    }

    #[test]
    fn supervisors_above_a_process_are_found() {
        let table = Known(&[(10, 1), (20, 10), (900, 20), (901, 900), (30, 901), (31, 30), (50, 51)]);
        for (process, expected) in [
            (10, Some(&[][..])),
            (20, Some(&[])),
            (30, Some(&[900, 901])),
            (31, Some(&[900, 901])),
            (900, Some(&[900])),
            (1, Some(&[])),
            // Of another namespace, gone, and with a parent that is gone.
            (0, None),
            (40, None),
            (50, None),
        ] {
            let expected = expected.map(|all| all.iter().copied().collect());
            assert_eq!(supervisors(process, &table), expected, "{process}");
        }
    }

    #[test]
    fn own_process_is_outside() {
        assert!(is_outside(i32::try_from(std::process::id()).unwrap()));
    }
}
