//! Requirements of tests. A test without its requirements fails and names them. No test passes unchecked.

use std::path::Path;

/// Returns the interpreter of the servers in `tests/servers`.
pub(crate) fn python() -> &'static str {
    const PYTHON: &str = "/usr/bin/python3";
    assert!(Path::new(PYTHON).exists(), "this test needs {PYTHON}: install the package python3");
    PYTHON
}

/// Creates a folder that is not below a temporary folder of the system. With a home in a temporary folder,
/// commands could write Modegate's own files, and would therefore be brokered.
pub(crate) fn lasting_folder() -> tempfile::TempDir {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let temporary = [Path::new("/tmp"), Path::new("/var/tmp"), &std::env::temp_dir()];
    let is_temporary = temporary.iter().any(|folder| target.starts_with(folder));
    let home = std::env::home_dir().filter(|_| is_temporary);
    tempfile::tempdir_in(home.as_deref().unwrap_or(target)).unwrap()
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
