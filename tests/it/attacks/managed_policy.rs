//! Attempts to get past the policy of an organisation. Each attempt runs under the policy, where it has no effect, and
//! without it as the control, where it has.
//!
//! A policy counts only at its place below `/etc`, so each test runs itself again in a mount namespace with a root folder
//! of its own. The `/etc` of this machine is not changed.

mod files;
mod lists;
mod machine;
mod modes;
mod shown;

use machine::{Machine, in_namespace};

/// True if a run has had the effect that the policy forbids.
type Effect = fn(&Machine) -> bool;

/// A run that attempts something that the policy forbids.
struct Attempt {
    name: &'static str,
    /// Runs before the policy exists.
    prepare: fn(&Machine),
    run: fn(&Machine) -> String,
    effect: Effect,
}

impl Attempt {
    const fn new(name: &'static str, prepare: fn(&Machine), run: fn(&Machine) -> String) -> Self {
        Self { name, prepare, run, effect: Machine::has_written }
    }

    /// The attempt has no effect under the policy, and has one with the other policy.
    fn check(&self, policy: &str, control: &str) {
        for (policy, is_control) in [(policy, false), (control, true)] {
            let machine = Machine::new();
            (self.prepare)(&machine);
            machine.set_policy(policy);
            let output = (self.run)(&machine);
            let has_effect = (self.effect)(&machine);
            let kind = if is_control { "the control has no effect" } else { "the policy does not hold" };
            assert_eq!(has_effect, is_control, "{}: {kind}\n{output}", self.name);
        }
    }
}

fn nothing(_: &Machine) {}
