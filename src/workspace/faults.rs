//! Points at which a write can fail. Tests let each of them fail, as a full disk or a broken one does.

use std::io::{self, Write};

/// A system call that changes the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    Create,
    Write,
    Identity,
    Rename,
    Reserve,
    Truncate,
}

#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "it fails in tests")]
pub(super) fn check(_: Point) -> io::Result<()> {
    Ok(())
}

#[cfg(not(test))]
pub(super) fn write_all(file: &mut impl Write, content: &[u8]) -> io::Result<()> {
    check(Point::Write)?;
    file.write_all(content)
}

/// Runs `work` without faults.
#[cfg(not(test))]
pub(super) fn without<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[cfg(test)]
pub(super) use injected::{Faults, check, without, write_all};

#[cfg(test)]
mod injected {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static PLAN: RefCell<Option<Faults>> = const { RefCell::new(None) };
    }

    /// Lets one point of this thread fail, or acts there as another program.
    pub(in crate::workspace) struct Faults {
        /// Points to pass before the fault.
        left: usize,
        /// Points after the first fault fail, too, as on a disk that stays full.
        stays: bool,
        error: i32,
        failed: Vec<Point>,
        act: Option<Box<dyn FnOnce()>>,
    }

    impl Faults {
        /// Runs `work` with a fault at the given point. Returns the points that failed; none if there are fewer.
        pub(in crate::workspace) fn run<T>(
            at: usize,
            error: i32,
            stays: bool,
            work: impl FnOnce() -> T,
        ) -> (T, Vec<Point>) {
            Self { left: at, stays, error, failed: Vec::new(), act: None }.around(work)
        }

        /// Runs `work`, and `act` right before the call at the given point.
        pub(in crate::workspace) fn act<T>(
            at: usize,
            act: impl FnOnce() + 'static,
            work: impl FnOnce() -> T,
        ) -> (T, Vec<Point>) {
            let act: Box<dyn FnOnce()> = Box::new(act);
            Self { left: at, stays: false, error: 0, failed: Vec::new(), act: Some(act) }.around(work)
        }

        fn around<T>(self, work: impl FnOnce() -> T) -> (T, Vec<Point>) {
            PLAN.with_borrow_mut(|of_thread| *of_thread = Some(self));
            let done = work();
            let plan = PLAN.with_borrow_mut(Option::take);
            (done, plan.map(|plan| plan.failed).unwrap_or_default())
        }
    }

    pub(in crate::workspace) fn check(point: Point) -> io::Result<()> {
        PLAN.with_borrow_mut(|plan| {
            let Some(plan) = plan else { return Ok(()) };
            if plan.left > 0 {
                plan.left -= 1;
                return Ok(());
            }
            if !plan.failed.is_empty() && !plan.stays {
                return Ok(());
            }
            plan.failed.push(point);
            if let Some(act) = plan.act.take() {
                act();
                return Ok(());
            }
            Err(io::Error::from_raw_os_error(plan.error))
        })
    }

    pub(in crate::workspace) fn without<T>(work: impl FnOnce() -> T) -> T {
        let plan = PLAN.with_borrow_mut(Option::take);
        let done = work();
        PLAN.with_borrow_mut(|of_thread| *of_thread = plan);
        done
    }

    /// Writes a half before the fault.
    pub(in crate::workspace) fn write_all(file: &mut impl Write, content: &[u8]) -> io::Result<()> {
        if let Err(error) = check(Point::Write) {
            file.write_all(&content[..content.len() / 2])?;
            return Err(error);
        }
        file.write_all(content)
    }
}
