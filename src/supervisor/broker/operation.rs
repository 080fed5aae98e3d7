//! System calls that change files, read from the arguments of a suspended call. Pure.
//!
//! The supervisor carries out changes of attributes, which Landlock does not know, for every sandboxed
//! command, and the other operations for a brokered one.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use libc::c_long;
use rustix::io::Errno;

use super::notification::SuspendedCall;
use super::tracee;
use crate::sandbox::{ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES, SYS_FCHMODAT2, TMPFILE};

const PATH_LENGTH: usize = 4096;

/// Longest name and value of an extended attribute.
const NAME_LENGTH: usize = 256;
const VALUE_LENGTH: usize = 64 * 1024;

/// Size of the first version of `struct open_how`.
const OPEN_HOW_LENGTH: usize = 24;

/// Largest structure of arguments that the kernel accepts.
const PAGE: usize = 4096;

/// Set by the kernel itself, except for `openat2`.
#[cfg(target_arch = "x86_64")]
const LARGE_FILE: u64 = 0o100_000;
#[cfg(not(target_arch = "x86_64"))]
const LARGE_FILE: u64 = 0o400_000;

/// Flags that `open` does not ignore.
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileOperation {
    Open {
        at: CallPath,
        how: OpenHow,
    },
    MakeFolder {
        at: CallPath,
        mode: u32,
    },
    MakeNode {
        at: CallPath,
        /// Permission bits and the type of the file.
        mode: u32,
    },
    MakeSymlink {
        target: PathBuf,
        at: CallPath,
    },
    /// Gives a file another name.
    Link {
        object: FileReference,
        to: CallPath,
    },
    Rename {
        from: CallPath,
        to: CallPath,
        /// Of `renameat2`.
        flags: u32,
    },
    Remove {
        at: CallPath,
        is_folder: bool,
    },
    Truncate {
        object: FileReference,
        length: i64,
    },
    Change {
        object: FileReference,
        change: AttributeChange,
    },
}

/// Path of a directory entry; a symbolic link stands for itself, except in [`FileOperation::Open`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallPath {
    /// Descriptor of the folder of a relative path; `None` for the working directory.
    pub folder: Option<i32>,
    pub path: PathBuf,
}

/// Flags, mode and limits, as in the kernel's `struct open_how`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenHow {
    pub flags: u64,
    pub mode: u64,
    pub resolve: u64,
}

/// An existing file, by a descriptor or a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileReference {
    Descriptor(i32),
    Path { place: CallPath, follows_link: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AttributeChange {
    Mode(u32),
    /// `None` leaves the user or the group.
    Owner(Option<u32>, Option<u32>),
    /// Of the last access and the last modification.
    Times([FileTime; 2]),
    SetAttribute {
        name: CString,
        value: Vec<u8>,
        /// Of `setxattr`.
        flags: u32,
    },
    RemoveAttribute {
        name: CString,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileTime {
    pub seconds: i64,
    /// Also `UTIME_NOW` and `UTIME_OMIT`.
    pub nanoseconds: i64,
}

impl FileReference {
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Descriptor(_) => None,
            Self::Path { place, .. } => Some(&place.path),
        }
    }

    /// The number of the caller's descriptor of the file.
    pub(super) fn descriptor(&self) -> Option<i32> {
        match self {
            Self::Descriptor(number) => Some(*number),
            Self::Path { place, follows_link: true } => tracee::named_descriptor(&place.path),
            Self::Path { .. } => None,
        }
    }
}

impl OpenHow {
    fn of_open(flags: u64, mode: u64) -> Self {
        let flags = u64::from((low(flags) & OPEN_FLAGS).cast_unsigned());
        let creates = low(flags) & libc::O_CREAT != 0 || low(flags) & TMPFILE != 0;
        let mode = if creates { mode & 0o7777 } else { 0 };
        Self { flags: flags | LARGE_FILE, mode, resolve: 0 }
    }

    /// Returns true if the descriptor could change a file, or the call creates one. `O_TRUNC` changes a file that is
    /// opened for reading, too.
    pub(super) fn writes(&self) -> bool {
        let flags = low(self.flags);
        flags & libc::O_PATH == 0 && flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | TMPFILE) != 0
    }

    /// The same for a file that exists.
    pub(super) fn of_existing(self) -> Self {
        Self { flags: self.flags & !u64::from(libc::O_CREAT.cast_unsigned()), mode: 0, ..self }
    }

    pub(super) fn is_unnamed(&self) -> bool {
        low(self.flags) & TMPFILE != 0
    }
}

/// Reads a call's arguments. `memory` copies up to as many bytes of the caller from an address. Returns `None`
/// if the call is another one, or its arguments cannot be read.
pub(super) fn operation(
    call: &SuspendedCall,
    memory: &impl Fn(u64, usize) -> Option<Vec<u8>>,
) -> Option<FileOperation> {
    use FileOperation as Op;
    let arg = call.arguments;
    let reader = ArgumentReader { memory };
    let place = |folder, path| reader.place(Some(folder), path);
    let here = |path| reader.place(None, path);
    let change = |object, change| Op::Change { object, change };
    let bits = |value| low(value).cast_unsigned();
    if has_unknown_flags(call) {
        return None;
    }
    Some(match call.number {
        libc::SYS_openat => Op::Open { at: place(arg[0], arg[1])?, how: OpenHow::of_open(arg[2], arg[3]) },
        libc::SYS_openat2 => Op::Open { at: place(arg[0], arg[1])?, how: reader.open_how(arg[2], arg[3])? },
        libc::SYS_mkdirat => Op::MakeFolder { at: place(arg[0], arg[1])?, mode: bits(arg[2]) },
        libc::SYS_mknodat => Op::MakeNode { at: place(arg[0], arg[1])?, mode: bits(arg[2]) },
        libc::SYS_symlinkat => Op::MakeSymlink { target: reader.path(arg[0])?, at: place(arg[1], arg[2])? },
        libc::SYS_linkat if low(arg[4]) & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) == 0 => {
            Op::Link { object: reader.linked(arg[0], arg[1], arg[4])?, to: place(arg[2], arg[3])? }
        }
        libc::SYS_renameat => {
            Op::Rename { from: place(arg[0], arg[1])?, to: place(arg[2], arg[3])?, flags: 0 }
        }
        libc::SYS_renameat2 if is_rename_flags(bits(arg[4])) => {
            Op::Rename { from: place(arg[0], arg[1])?, to: place(arg[2], arg[3])?, flags: bits(arg[4]) }
        }
        libc::SYS_unlinkat => {
            let is_folder = low(arg[2]) & libc::AT_REMOVEDIR != 0;
            (low(arg[2]) & !libc::AT_REMOVEDIR == 0)
                .then_some(Op::Remove { at: place(arg[0], arg[1])?, is_folder })?
        }
        libc::SYS_truncate => {
            Op::Truncate { object: reader.object(None, arg[0], 0)?, length: arg[1].cast_signed() }
        }
        libc::SYS_fchmod => change(FileReference::Descriptor(low(arg[0])), mode(arg[1])),
        libc::SYS_fchmodat => change(reader.object(Some(arg[0]), arg[1], 0)?, mode(arg[2])),
        SYS_FCHMODAT2 => change(reader.object(Some(arg[0]), arg[1], arg[3])?, mode(arg[2])),
        libc::SYS_fchown => change(FileReference::Descriptor(low(arg[0])), owner(arg[1], arg[2])),
        libc::SYS_fchownat => change(reader.object(Some(arg[0]), arg[1], arg[4])?, owner(arg[2], arg[3])),
        libc::SYS_utimensat => {
            let descriptor = (arg[1] == 0).then_some(FileReference::Descriptor(low(arg[0])));
            let object = descriptor.filter(|_| low(arg[0]) != libc::AT_FDCWD);
            change(object.or_else(|| reader.object(Some(arg[0]), arg[1], arg[3]))?, reader.times(arg[2], 1)?)
        }
        libc::SYS_setxattr => {
            change(reader.object(None, arg[0], 0)?, reader.attribute(arg[1], arg[2], arg[3], arg[4])?)
        }
        libc::SYS_lsetxattr => {
            change(reader.object(None, arg[0], NO_FOLLOW)?, reader.attribute(arg[1], arg[2], arg[3], arg[4])?)
        }
        libc::SYS_fsetxattr => {
            change(FileReference::Descriptor(low(arg[0])), reader.attribute(arg[1], arg[2], arg[3], arg[4])?)
        }
        libc::SYS_removexattr => change(reader.object(None, arg[0], 0)?, reader.removed(arg[1])?),
        libc::SYS_lremovexattr => change(reader.object(None, arg[0], NO_FOLLOW)?, reader.removed(arg[1])?),
        libc::SYS_fremovexattr => change(FileReference::Descriptor(low(arg[0])), reader.removed(arg[1])?),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => Op::Open { at: here(arg[0])?, how: OpenHow::of_open(arg[1], arg[2]) },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => Op::Open { at: here(arg[0])?, how: OpenHow::of_open(CREAT, arg[1]) },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => Op::MakeFolder { at: here(arg[0])?, mode: bits(arg[1]) },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mknod => Op::MakeNode { at: here(arg[0])?, mode: bits(arg[1]) },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_symlink => Op::MakeSymlink { target: reader.path(arg[0])?, at: here(arg[1])? },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link => Op::Link { object: reader.object(None, arg[0], NO_FOLLOW)?, to: here(arg[1])? },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => Op::Rename { from: here(arg[0])?, to: here(arg[1])?, flags: 0 },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rmdir => Op::Remove { at: here(arg[0])?, is_folder: true },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink => Op::Remove { at: here(arg[0])?, is_folder: false },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => change(reader.object(None, arg[0], 0)?, mode(arg[1])),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chown => change(reader.object(None, arg[0], 0)?, owner(arg[1], arg[2])),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lchown => change(reader.object(None, arg[0], NO_FOLLOW)?, owner(arg[1], arg[2])),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utimes => change(reader.object(None, arg[0], 0)?, reader.times(arg[1], 1000)?),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_futimesat => change(reader.object(Some(arg[0]), arg[1], 0)?, reader.times(arg[2], 1000)?),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utime => change(reader.object(None, arg[0], 0)?, reader.whole_seconds(arg[1])?),
        _ => return None,
    })
}

/// The flags of calls whose descriptor would be readable and not writable.
pub(super) fn flags_for_reading(call: &SuspendedCall) -> Option<i32> {
    let flags = match call.number {
        libc::SYS_openat => low(call.arguments[2]),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => low(call.arguments[1]),
        _ => return None,
    };
    (flags & (libc::O_ACCMODE | libc::O_PATH | libc::O_TRUNC) == libc::O_RDONLY).then_some(flags)
}

/// Nothing is opened for reading with other flags: an unnamed file is written, and no folder is created.
pub(super) fn is_valid(flags: i32) -> bool {
    let creation = libc::O_CREAT | libc::O_DIRECTORY;
    flags & TMPFILE == 0 && flags & creation != creation
}

/// The error of a call that opens a file and is no [`FileOperation`].
pub(super) fn path_error(call: &SuspendedCall, memory: &impl Fn(u64, usize) -> Option<Vec<u8>>) -> Errno {
    let path = if call.number == libc::SYS_openat { call.arguments[1] } else { call.arguments[0] };
    unread_path_error(path, memory)
}

fn unread_path_error(path: u64, memory: &impl Fn(u64, usize) -> Option<Vec<u8>>) -> Errno {
    let is_long =
        memory(path, PATH_LENGTH).is_some_and(|bytes| bytes.len() == PATH_LENGTH && !bytes.contains(&0));
    if is_long { Errno::NAMETOOLONG } else { Errno::FAULT }
}

/// The error of a call that changes attributes and is no [`FileOperation`].
pub(super) fn attribute_error(
    call: &SuspendedCall,
    memory: &impl Fn(u64, usize) -> Option<Vec<u8>>,
) -> Errno {
    let reader = ArgumentReader { memory };
    let arg = call.arguments;
    // The path, and times in microseconds.
    let (path, times) = match call.number {
        libc::SYS_fchmodat | SYS_FCHMODAT2 | libc::SYS_fchownat | libc::SYS_utimensat => (arg[1], None),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_futimesat => (arg[1], Some(arg[2])),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utimes => (arg[0], Some(arg[1])),
        _ => (arg[0], None),
    };
    let has_wrong_times = || {
        let times: Option<[i64; 4]> = times.filter(|address| *address != 0).and_then(|at| reader.numbers(at));
        times.is_some_and(|[_, a, _, b]| [a, b].iter().any(|part| !MICROSECONDS.contains(part)))
    };
    if has_unknown_flags(call) || has_wrong_times() { Errno::INVAL } else { unread_path_error(path, memory) }
}

/// Returns true for a change of attributes with flags that the kernel refuses before anything else.
fn has_unknown_flags(call: &SuspendedCall) -> bool {
    let arg = call.arguments;
    let at = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    match call.number {
        // Without a path, the call is about the descriptor and has no flags.
        libc::SYS_utimensat if arg[1] == 0 && low(arg[0]) != libc::AT_FDCWD => low(arg[3]) != 0,
        SYS_FCHMODAT2 | libc::SYS_utimensat => low(arg[3]) & !at != 0,
        libc::SYS_fchownat => low(arg[4]) & !at != 0,
        libc::SYS_setxattr | libc::SYS_lsetxattr | libc::SYS_fsetxattr => {
            low(arg[4]) & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0
        }
        _ => false,
    }
}

fn is_rename_flags(flags: u32) -> bool {
    let (exchange, others) = (libc::RENAME_EXCHANGE, libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT);
    flags & !(exchange | others) == 0 && (flags & exchange == 0 || flags & others == 0)
}

/// Returns true if the call changes rights, owners, times or extended attributes.
pub(super) fn changes_attributes(number: c_long) -> bool {
    [ATTRIBUTES, ATTRIBUTES_OLD, EXTENDED_ATTRIBUTES].iter().any(|calls| calls.contains(&number))
}

const NO_FOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW.cast_unsigned() as u64;

#[cfg(target_arch = "x86_64")]
const CREAT: u64 = (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC).cast_unsigned() as u64;

struct ArgumentReader<'a, Memory> {
    memory: &'a Memory,
}

impl<Memory: Fn(u64, usize) -> Option<Vec<u8>>> ArgumentReader<'_, Memory> {
    fn place(&self, folder: Option<u64>, address: u64) -> Option<CallPath> {
        let folder = folder.map(low).filter(|folder| *folder != libc::AT_FDCWD);
        Some(CallPath { folder, path: self.path(address)? })
    }

    /// An empty path with `AT_EMPTY_PATH` stands for the descriptor.
    fn object(&self, folder: Option<u64>, address: u64, flags: u64) -> Option<FileReference> {
        let mut place = self.place(folder, address)?;
        if place.path.as_os_str().is_empty() && low(flags) & libc::AT_EMPTY_PATH != 0 {
            match place.folder {
                Some(number) => return Some(FileReference::Descriptor(number)),
                None => place.path = ".".into(),
            }
        }
        Some(FileReference::Path { place, follows_link: low(flags) & libc::AT_SYMLINK_NOFOLLOW == 0 })
    }

    /// Unlike other calls, `linkat` follows links only if a flag says so.
    fn linked(&self, folder: u64, address: u64, flags: u64) -> Option<FileReference> {
        let follows = low(flags) & libc::AT_SYMLINK_FOLLOW != 0;
        let flags = flags & u64::from(libc::AT_EMPTY_PATH.cast_unsigned());
        self.object(Some(folder), address, if follows { flags } else { flags | NO_FOLLOW })
    }

    fn path(&self, address: u64) -> Option<PathBuf> {
        self.text(address, PATH_LENGTH).map(|text| OsString::from_vec(text).into())
    }

    /// Reads up to the zero byte, which must be one of the first `length` bytes. Each page costs time, and few texts are
    /// in two.
    fn text(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let page = u64::try_from(PAGE).ok()?;
        let in_page = usize::try_from(page - address % page).ok()?.min(length);
        let mut bytes = (self.memory)(address, in_page)?;
        if in_page < length && !bytes.contains(&0) {
            bytes = (self.memory)(address, length)?;
        }
        let end = bytes.iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        Some(bytes)
    }

    /// A later version of the structure has further members, which must be zero.
    fn open_how(&self, address: u64, length: u64) -> Option<OpenHow> {
        let length =
            usize::try_from(length).ok().filter(|length| (OPEN_HOW_LENGTH..=PAGE).contains(length))?;
        let bytes = (self.memory)(address, length).filter(|bytes| bytes.len() == length)?;
        if bytes[OPEN_HOW_LENGTH..].iter().any(|byte| *byte != 0) {
            return None;
        }
        let [flags, mode, resolve] = self.numbers(address)?.map(i64::cast_unsigned);
        Some(OpenHow { flags, mode, resolve })
    }

    fn attribute(&self, name: u64, address: u64, length: u64, flags: u64) -> Option<AttributeChange> {
        let length = usize::try_from(length).ok().filter(|length| *length <= VALUE_LENGTH)?;
        let value = if length == 0 { Vec::new() } else { (self.memory)(address, length)? };
        let name = CString::new(self.text(name, NAME_LENGTH)?).ok()?;
        let flags = low(flags).cast_unsigned();
        (value.len() == length).then_some(AttributeChange::SetAttribute { name, value, flags })
    }

    fn removed(&self, name: u64) -> Option<AttributeChange> {
        let name = CString::new(self.text(name, NAME_LENGTH)?).ok()?;
        Some(AttributeChange::RemoveAttribute { name })
    }

    /// Two pairs of seconds and parts of a second. No address means now.
    fn times(&self, address: u64, nanoseconds: i64) -> Option<AttributeChange> {
        if address == 0 {
            return Some(AttributeChange::Times([NOW; 2]));
        }
        let [a, b, c, d] = self.numbers(address)?;
        let are_microseconds = nanoseconds == 1000;
        if are_microseconds && [b, d].iter().any(|part| !MICROSECONDS.contains(part)) {
            return None;
        }
        let time = |seconds, part: i64| FileTime { seconds, nanoseconds: part.saturating_mul(nanoseconds) };
        Some(AttributeChange::Times([time(a, b), time(c, d)]))
    }

    #[cfg(target_arch = "x86_64")]
    fn whole_seconds(&self, address: u64) -> Option<AttributeChange> {
        if address == 0 {
            return Some(AttributeChange::Times([NOW; 2]));
        }
        let times: [i64; 2] = self.numbers(address)?;
        Some(AttributeChange::Times(times.map(|seconds| FileTime { seconds, nanoseconds: 0 })))
    }

    fn numbers<const COUNT: usize>(&self, address: u64) -> Option<[i64; COUNT]> {
        let bytes = (self.memory)(address, 8 * COUNT)?;
        let mut numbers = bytes.chunks_exact(8).map(|number| number.try_into().map(i64::from_ne_bytes));
        let mut read = [0; COUNT];
        for number in &mut read {
            *number = numbers.next()?.ok()?;
        }
        Some(read)
    }
}

const MICROSECONDS: std::ops::Range<i64> = 0..1_000_000;

const NOW: FileTime = FileTime { seconds: 0, nanoseconds: libc::UTIME_NOW };

fn mode(value: u64) -> AttributeChange {
    AttributeChange::Mode(low(value).cast_unsigned())
}

fn owner(user: u64, group: u64) -> AttributeChange {
    let id = |value| Some(low(value).cast_unsigned()).filter(|id| *id != u32::MAX);
    AttributeChange::Owner(id(user), id(group))
}

/// The kernel, too, ignores the upper half of these arguments.
#[expect(clippy::cast_possible_truncation, reason = "only the lower half counts")]
fn low(value: u64) -> i32 {
    (value as u32).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAG: u64 = 0x100;
    const CURRENT: u64 = (-100_i64).cast_unsigned();

    /// Address 8 holds the path `d/f`, address 16 an empty one, address 64 the numbers 1 to 4.
    fn memory(address: u64, length: usize) -> Option<Vec<u8>> {
        match address {
            8 => Some(b"d/f\0rest".to_vec()),
            16 => Some(vec![0]),
            64 => Some((1..=4_i64).flat_map(i64::to_ne_bytes).take(length).collect()),
            _ => None,
        }
    }

    fn check(number: c_long, arguments: [u64; 5], expected: impl Into<Option<FileOperation>>) {
        let mut all = [0; 6];
        all[..5].copy_from_slice(&arguments);
        let call = SuspendedCall { id: 0, thread: 1, number, arguments: all };
        assert_eq!(operation(&call, &memory), expected.into(), "{number} {arguments:?}");
    }

    fn place(folder: Option<i32>) -> CallPath {
        CallPath { folder, path: "d/f".into() }
    }

    fn path(folder: Option<i32>, follows_link: bool) -> FileReference {
        FileReference::Path { place: place(folder), follows_link }
    }

    fn change(object: FileReference, change: AttributeChange) -> FileOperation {
        FileOperation::Change { object, change }
    }

    #[test]
    fn attribute_changes_name_the_file_and_the_change() {
        use AttributeChange::{Mode, Owner, RemoveAttribute, SetAttribute, Times};
        let time = |seconds, nanoseconds| FileTime { seconds, nanoseconds };
        check(libc::SYS_fchmod, [3, 0o600, 0, 0, 0], change(FileReference::Descriptor(3), Mode(0o600)));
        check(libc::SYS_fchmodat, [CURRENT, 8, 0o755, 0, 0], change(path(None, true), Mode(0o755)));
        check(SYS_FCHMODAT2, [4, 8, 0o755, FLAG, 0], change(path(Some(4), false), Mode(0o755)));
        check(SYS_FCHMODAT2, [4, 16, 1, 0x1000, 0], change(FileReference::Descriptor(4), Mode(1)));
        check(
            libc::SYS_fchownat,
            [4, 8, u64::MAX, 7, FLAG],
            change(path(Some(4), false), Owner(None, Some(7))),
        );
        check(libc::SYS_utimensat, [4, 0, 0, 0, 0], change(FileReference::Descriptor(4), Times([NOW; 2])));
        check(
            libc::SYS_utimensat,
            [4, 8, 64, 0, 0],
            change(path(Some(4), true), Times([time(1, 2), time(3, 4)])),
        );
        check(libc::SYS_utimensat, [CURRENT, 0, 64, 0, 0], None);
        check(libc::SYS_fchmodat, [4, 24, 1, 0, 0], None);
        let name = c"d/f".to_owned();
        let attribute = SetAttribute { name: name.clone(), value: 1_i64.to_ne_bytes().to_vec(), flags: 1 };
        check(libc::SYS_fsetxattr, [5, 8, 64, 8, 1], change(FileReference::Descriptor(5), attribute));
        check(libc::SYS_fsetxattr, [5, 8, 64, 1 << 20, 1], None);
        check(libc::SYS_lremovexattr, [8, 8, 0, 0, 0], change(path(None, false), RemoveAttribute { name }));
        #[cfg(target_arch = "x86_64")]
        {
            check(libc::SYS_lchown, [8, 7, 7, 0, 0], change(path(None, false), Owner(Some(7), Some(7))));
            check(
                libc::SYS_utimes,
                [8, 64, 0, 0, 0],
                change(path(None, true), Times([time(1, 2000), time(3, 4000)])),
            );
            check(
                libc::SYS_utime,
                [8, 64, 0, 0, 0],
                change(path(None, true), Times([time(1, 0), time(2, 0)])),
            );
        }
    }

    #[test]
    fn entry_calls_name_the_entry_and_the_arguments() {
        let how = |flags, mode, resolve| OpenHow { flags, mode, resolve };
        let opened = |at, how| Some(FileOperation::Open { at, how });
        check(libc::SYS_openat, [4, 8, 1, 0o644, 0], opened(place(Some(4)), how(1 | LARGE_FILE, 0, 0)));
        check(libc::SYS_openat, [4, 8, 0o101, 0o644, 0], {
            opened(place(Some(4)), how(0o101 | LARGE_FILE, 0o644, 0))
        });
        check(libc::SYS_openat2, [CURRENT, 8, 64, 24, 0], opened(place(None), how(1, 2, 3)));
        check(libc::SYS_openat2, [CURRENT, 8, 64, 32, 0], None);
        check(
            libc::SYS_mkdirat,
            [4, 8, 0o700, 0, 0],
            Some(FileOperation::MakeFolder { at: place(Some(4)), mode: 0o700 }),
        );
        let remove = |is_folder| Some(FileOperation::Remove { at: place(Some(4)), is_folder });
        check(libc::SYS_unlinkat, [4, 8, 0, 0, 0], remove(false));
        check(libc::SYS_unlinkat, [4, 8, 0x200, 0, 0], remove(true));
        check(libc::SYS_unlinkat, [4, 8, 1, 0, 0], None);
        let rename = FileOperation::Rename { from: place(Some(4)), to: place(None), flags: 1 };
        check(libc::SYS_renameat2, [4, 8, CURRENT, 8, 1], Some(rename));
        let link = |follows_link| {
            let object = path(Some(4), follows_link);
            Some(FileOperation::Link { object, to: place(None) })
        };
        check(libc::SYS_linkat, [4, 8, CURRENT, 8, 0], link(false));
        check(libc::SYS_linkat, [4, 8, CURRENT, 8, 0x400], link(true));
        check(
            libc::SYS_symlinkat,
            [8, 4, 8, 0, 0],
            Some(FileOperation::MakeSymlink { target: "d/f".into(), at: place(Some(4)) }),
        );
        let truncate = FileOperation::Truncate { object: path(None, true), length: -1 };
        check(libc::SYS_truncate, [8, u64::MAX, 0, 0, 0], Some(truncate));
        check(libc::SYS_read, [4, 8, 1, 0, 0], None);
        check(libc::SYS_openat, [4, 24, 1, 0, 0], None);
    }

    #[test]
    fn calls_that_write_are_told_from_those_that_read() {
        let writes = |flags: i32| OpenHow::of_open(u64::from(flags.cast_unsigned()), 0).writes();
        for flags in [
            libc::O_WRONLY,
            libc::O_RDWR,
            libc::O_ACCMODE,
            libc::O_CREAT,
            libc::O_TRUNC,
            libc::O_TMPFILE | libc::O_RDWR,
        ] {
            assert!(writes(flags), "{flags:o}");
        }
        for flags in [libc::O_RDONLY, libc::O_PATH | libc::O_RDWR, libc::O_DIRECTORY, libc::O_APPEND] {
            assert!(!writes(flags), "{flags:o}");
        }
    }

    #[test]
    fn text_is_read_to_its_end_also_in_the_next_page() {
        let page = PAGE as u64;
        let text = [vec![b'x'; PATH_LENGTH - 1], vec![0]].concat();
        // The text ends in the page of `at`, if it is that short, or in the next one.
        for (at, length, is_text) in [
            (0, 10, true),
            (page - 1, 1, true),
            (page - 1, 10, true),
            (page - 10, 10, true),
            (1, PATH_LENGTH, true),
            (0, PATH_LENGTH + 1, false),
        ] {
            let stored: Vec<u8> = [vec![b'x'; length - 1], vec![0; 20]].concat();
            let memory = |address: u64, wanted: usize| {
                assert_eq!(address, at);
                Some(stored[..wanted.min(stored.len())].to_vec())
            };
            let read = ArgumentReader { memory: &memory }.text(at, PATH_LENGTH);
            let expected = is_text.then(|| text[..(length - 1).min(PATH_LENGTH - 1)].to_vec());
            assert_eq!(read, expected, "{at} {length}");
        }
    }

    proptest::proptest! {
        /// Any arguments give an operation or none, from any memory.
        #[test]
        fn no_arguments_are_too_odd(
            number in -1_i64..600,
            arguments in proptest::array::uniform6(proptest::num::u64::ANY),
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
        ) {
            let call = SuspendedCall { id: 0, thread: 1, number, arguments };
            let read = |_: u64, length: usize| {
                assert!(length <= VALUE_LENGTH, "a caller's number must not choose how much memory is used");
                Some(bytes[..length.min(bytes.len())].to_vec())
            };
            let _ = operation(&call, &read);
            let _ = operation(&call, &|_, _| None);
        }
    }
}
