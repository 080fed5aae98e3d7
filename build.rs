//! Sets `MODEGATE_VERSION`: the version, with the commit and its date if they are known. A release sets
//! `MODEGATE_BUILD` to them; other optimised builds ask git. Builds for development do not, so that a commit does not
//! make all tests compile again. Builds for development are linked for fixed addresses.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MODEGATE_BUILD");
    let given = env::var("MODEGATE_BUILD").ok().filter(|build| !build.is_empty());
    let is_optimised = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let build = given.or_else(|| if is_optimised { of_git() } else { None });
    let build = build.map(|build| format!(" ({build})")).unwrap_or_default();
    println!("cargo::rustc-env=MODEGATE_VERSION={}{build}", env!("CARGO_PKG_VERSION"));
    let is_measured = env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu");
    if !is_optimised && is_measured {
        // Tests start Modegate often. With fixed addresses, the loader relocates nothing, and a start takes half of the
        // processor time.
        println!("cargo::rustc-link-arg=-no-pie");
    }
}

/// Commit and date, if this is a checkout of its own.
fn of_git() -> Option<String> {
    let prefix = git(&["rev-parse", "--show-prefix"])?;
    if !prefix.is_empty() {
        // A folder in the repository of another project.
        return None;
    }
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["log", "-1", "--abbrev=9", "--format=%h %cs"]).filter(|build| !build.is_empty())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
