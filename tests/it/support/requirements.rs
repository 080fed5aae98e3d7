//! What tests need of the machine. Without it they fail and say what is missing; no test passes unchecked.

use std::path::Path;

/// Returns the interpreter of the servers in `tests/servers`.
pub(crate) fn python() -> &'static str {
    const PYTHON: &str = "/usr/bin/python3";
    assert!(Path::new(PYTHON).exists(), "this test needs {PYTHON}: install the package python3");
    PYTHON
}

/// Fails on a kernel that cannot sandbox commands.
pub(crate) fn require_sandbox() {
    let missing = modegate::sandbox::support().missing();
    assert!(
        missing.is_none(),
        "this test needs a Linux kernel that can sandbox: {}",
        missing.unwrap_or_default()
    );
}
