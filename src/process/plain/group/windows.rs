//! A job object. No process can leave it, and the system ends all of them when its last handle is closed, which
//! also happens when this process dies.
#![allow(unsafe_code, reason = "the functions for job objects have no safe wrapper")]

use std::io;
use std::mem;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle, RawHandle};
use std::ptr;
use std::time::Duration;

use tokio::process::{Child, Command};
use windows_sys::Win32::Foundation::{HANDLE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_BASIC_ACCOUNTING_INFORMATION, JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
    JobObjectBasicAccountingInformation, JobObjectExtendedLimitInformation, QueryInformationJobObject,
    SetInformationJobObject, TerminateJobObject,
};
use windows_sys::Win32::System::Threading::{
    CREATE_SUSPENDED, OpenThread, ResumeThread, THREAD_SUSPEND_RESUME,
};

/// Waits for the end of killed processes: this often, with this pause.
const CHECKS: u32 = 400;
const PAUSE: Duration = Duration::from_millis(5);

/// How a command ends together with its descendants.
pub const ENDING: &str = "a command ends with all processes of its job object, and their end is confirmed";

/// Dropping kills all processes of the job.
#[derive(Debug)]
pub(in crate::process::plain) struct Group(OwnedHandle);

impl Group {
    /// The command runs no instruction before it belongs to the job.
    pub(in crate::process::plain) fn spawn(command: &mut Command, _: bool) -> io::Result<(Child, Self)> {
        let job = Self::new()?;
        command.creation_flags(CREATE_SUSPENDED);
        // Killed when it is dropped after an error.
        let child = command.spawn()?;
        let (Some(process), Some(id)) = (child.raw_handle(), child.id()) else {
            return Err(io::Error::other("the command exited before it started"));
        };
        job.assign(process)?;
        resume(id)?;
        Ok((child, job))
    }

    fn new() -> io::Result<Self> {
        // SAFETY: both pointers may be null, for no security attributes and no name.
        let handle = unsafe { CreateJobObjectW(ptr::null(), ptr::null()) };
        let job = Self(owned(handle)?);
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
        // SAFETY: the pointer and the size are those of the value, whose type the class names.
        checked(unsafe {
            SetInformationJobObject(
                job.handle(),
                JobObjectExtendedLimitInformation,
                ptr::from_ref(&limits).cast(),
                size_of_u32(&limits),
            )
        })?;
        Ok(job)
    }

    fn assign(&self, process: RawHandle) -> io::Result<()> {
        // SAFETY: both handles are open.
        checked(unsafe { AssignProcessToJobObject(self.handle(), process.cast()) })
    }

    /// There is no request that every program understands, so this kills all of them.
    pub(in crate::process::plain) fn request_exit(&mut self) {
        self.kill();
    }

    pub(in crate::process::plain) fn kill(&mut self) {
        // SAFETY: the handle is open.
        if let Err(error) = checked(unsafe { TerminateJobObject(self.handle(), 1) }) {
            tracing::warn!(%error, "the processes of a command could not be ended");
        }
    }

    /// Kills the remaining processes.
    pub(in crate::process::plain) fn leader_exited(&mut self) {
        self.kill();
    }

    /// Waits for the end of all processes. False if one may still run.
    pub(in crate::process::plain) async fn is_gone(&self) -> bool {
        for _ in 0..CHECKS {
            match self.active() {
                Ok(0) => return true,
                Ok(_) => tokio::time::sleep(PAUSE).await,
                Err(error) => {
                    tracing::warn!(%error, "the processes of a command could not be counted");
                    return false;
                }
            }
        }
        false
    }

    fn active(&self) -> io::Result<u32> {
        let mut counts = JOBOBJECT_BASIC_ACCOUNTING_INFORMATION::default();
        let size = size_of_u32(&counts);
        // SAFETY: the pointer and the size are those of the value, whose type the class names.
        checked(unsafe {
            QueryInformationJobObject(
                self.handle(),
                JobObjectBasicAccountingInformation,
                ptr::from_mut(&mut counts).cast(),
                size,
                ptr::null_mut(),
            )
        })?;
        Ok(counts.ActiveProcesses)
    }

    fn handle(&self) -> HANDLE {
        self.0.as_raw_handle().cast()
    }
}

/// Resumes the only thread of a suspended process.
fn resume(process: u32) -> io::Result<()> {
    // SAFETY: the function takes no pointers.
    let snapshot = owned(unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0) })?;
    let mut entry = THREADENTRY32::default();
    entry.dwSize = size_of_u32(&entry);
    let handle = snapshot.as_raw_handle().cast();
    // SAFETY: the handle is open, and the entry holds its own size.
    let mut found = unsafe { Thread32First(handle, &raw mut entry) };
    while found != 0 {
        if entry.th32OwnerProcessID == process {
            // SAFETY: the function takes no pointers.
            let thread = owned(unsafe { OpenThread(THREAD_SUSPEND_RESUME, 0, entry.th32ThreadID) })?;
            // SAFETY: the handle is open.
            let before = unsafe { ResumeThread(thread.as_raw_handle().cast()) };
            return if before == u32::MAX { Err(io::Error::last_os_error()) } else { Ok(()) };
        }
        // SAFETY: as above.
        found = unsafe { Thread32Next(handle, &raw mut entry) };
    }
    Err(io::Error::other("the command has no thread"))
}

fn owned(handle: HANDLE) -> io::Result<OwnedHandle> {
    if handle.is_null() || handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new, open, and owned by nothing else.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle.cast()) })
}

fn checked(succeeded: i32) -> io::Result<()> {
    if succeeded == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn size_of_u32<T>(value: &T) -> u32 {
    u32::try_from(mem::size_of_val(value)).expect("small structures")
}
