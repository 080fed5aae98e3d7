//! `cargo bench`: instructions of common operations, and sizes, compared with `baseline.txt`.
//!
//! Instructions are counted by valgrind, because times depend on the machine and on what else it does. Growth
//! is reported and never fails. `docs/internals/performance.md` describes the cases.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the report is for a terminal")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the bench with its place and reason")]

mod baseline;
mod cases;
mod sizes;
mod valgrind;

use std::process::ExitCode;

use baseline::Figure;
use cases::CASES;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [flag, name, iterations] = arguments.as_slice()
        && flag == valgrind::CASE_FLAG
    {
        cases::run_inside(name, iterations.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    if !valgrind::is_installed() {
        eprintln!(
            "cargo bench counts instructions with valgrind, which is not installed; install it and repeat."
        );
        return ExitCode::FAILURE;
    }
    let updates = std::env::var_os("UPDATE_EXPECT").is_some();
    if updates && !arguments.is_empty() {
        eprintln!("UPDATE_EXPECT writes all figures; repeat it without the names of cases.");
        return ExitCode::FAILURE;
    }
    let is_wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|wanted| name.contains(wanted));
    let cases = CASES.iter().filter(|case| is_wanted(case.name));
    let mut figures: Vec<Figure> = cases.map(valgrind::measure).collect();
    figures.extend(sizes::all().into_iter().filter(|size| is_wanted(size.name)));
    if updates {
        baseline::write(&figures);
    }
    baseline::report(&figures);
    ExitCode::SUCCESS
}
