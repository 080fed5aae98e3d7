//! System calls of a read-only command that change rights, owners and times. Landlock does not restrict them,
//! so the kernel suspends each, and the supervisor carries out the change if the file is in the command's own
//! folder. This file reads the arguments of such a call. Pure.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use libc::c_long;

use super::kernel::Call;

const PATH_LENGTH: usize = 4096;

#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub object: Object,
    pub change: Change,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Object {
    Descriptor(i32),
    Path {
        /// Descriptor of the folder of a relative path; `None` for the working directory.
        folder: Option<i32>,
        path: PathBuf,
        follows_link: bool,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    Mode(u32),
    /// `None` leaves the user or the group.
    Owner(Option<u32>, Option<u32>),
    /// Of the last access and the last modification.
    Times([Time; 2]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    pub seconds: i64,
    /// Also `UTIME_NOW` and `UTIME_OMIT`.
    pub nanoseconds: i64,
}

/// Reads a call's arguments. `memory` copies up to as many bytes of the caller from an address. Returns `None`
/// if the call is another one, or its arguments cannot be read.
pub fn request(call: &Call, memory: &impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Request> {
    let arg = call.arguments;
    let reader = Reader { memory };
    let (object, change) = match call.number {
        libc::SYS_fchmod => (Object::Descriptor(low(arg[0])), mode(arg[1])),
        libc::SYS_fchmodat => (reader.path(Some(arg[0]), arg[1], 0)?, mode(arg[2])),
        libc::SYS_fchmodat2 => (reader.path(Some(arg[0]), arg[1], arg[3])?, mode(arg[2])),
        libc::SYS_fchown => (Object::Descriptor(low(arg[0])), owner(arg[1], arg[2])),
        libc::SYS_fchownat => (reader.path(Some(arg[0]), arg[1], arg[4])?, owner(arg[2], arg[3])),
        libc::SYS_utimensat => (reader.path(Some(arg[0]), arg[1], arg[3])?, reader.times(arg[2], 1)?),
        number => reader.old(number, [arg[0], arg[1], arg[2]])?,
    };
    Some(Request { object, change })
}

struct Reader<'a, Memory> {
    memory: &'a Memory,
}

impl<Memory: Fn(u64, usize) -> Option<Vec<u8>>> Reader<'_, Memory> {
    #[cfg(target_arch = "x86_64")]
    fn old(&self, number: c_long, [a, b, c]: [u64; 3]) -> Option<(Object, Change)> {
        let no_follow = u64::from(libc::AT_SYMLINK_NOFOLLOW.cast_unsigned());
        Some(match number {
            libc::SYS_chmod => (self.path(None, a, 0)?, mode(b)),
            libc::SYS_chown => (self.path(None, a, 0)?, owner(b, c)),
            libc::SYS_lchown => (self.path(None, a, no_follow)?, owner(b, c)),
            libc::SYS_utimes => (self.path(None, a, 0)?, self.times(b, 1000)?),
            libc::SYS_futimesat => (self.path(Some(a), b, 0)?, self.times(c, 1000)?),
            libc::SYS_utime => (self.path(None, a, 0)?, self.whole_seconds(b)?),
            _ => return None,
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn old(&self, _: c_long, _: [u64; 3]) -> Option<(Object, Change)> {
        None
    }

    /// A missing path, or an empty one with `AT_EMPTY_PATH`, stands for the descriptor.
    fn path(&self, folder: Option<u64>, address: u64, flags: u64) -> Option<Object> {
        let folder = folder.map(low).filter(|folder| *folder != libc::AT_FDCWD);
        let path = match address {
            0 => return folder.map(Object::Descriptor),
            address => self.text(address)?,
        };
        if path.is_empty() && low(flags) & libc::AT_EMPTY_PATH != 0 {
            return folder.map(Object::Descriptor);
        }
        let follows_link = low(flags) & libc::AT_SYMLINK_NOFOLLOW == 0;
        Some(Object::Path { folder, path: OsString::from_vec(path).into(), follows_link })
    }

    fn text(&self, address: u64) -> Option<Vec<u8>> {
        let mut bytes = (self.memory)(address, PATH_LENGTH)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        Some(bytes)
    }

    /// Two pairs of seconds and parts of a second. No address means now.
    fn times(&self, address: u64, nanoseconds: i64) -> Option<Change> {
        if address == 0 {
            return Some(Change::Times([NOW; 2]));
        }
        let [a, b, c, d] = self.numbers(address)?;
        let time = |seconds, part: i64| Time { seconds, nanoseconds: part.saturating_mul(nanoseconds) };
        Some(Change::Times([time(a, b), time(c, d)]))
    }

    #[cfg(target_arch = "x86_64")]
    fn whole_seconds(&self, address: u64) -> Option<Change> {
        if address == 0 {
            return Some(Change::Times([NOW; 2]));
        }
        let times: [i64; 2] = self.numbers(address)?;
        Some(Change::Times(times.map(|seconds| Time { seconds, nanoseconds: 0 })))
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

const NOW: Time = Time { seconds: 0, nanoseconds: libc::UTIME_NOW };

fn mode(value: u64) -> Change {
    Change::Mode(low(value).cast_unsigned())
}

fn owner(user: u64, group: u64) -> Change {
    let id = |value| Some(low(value).cast_unsigned()).filter(|id| *id != u32::MAX);
    Change::Owner(id(user), id(group))
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

    fn check(number: c_long, arguments: [u64; 5], expected: Option<(Object, Change)>) {
        let mut all = [0; 6];
        all[..5].copy_from_slice(&arguments);
        let call = Call { id: 0, thread: 1, number, arguments: all };
        let expected = expected.map(|(object, change)| Request { object, change });
        assert_eq!(request(&call, &memory), expected, "{number} {arguments:?}");
    }

    fn path(folder: Option<i32>, follows_link: bool) -> Object {
        Object::Path { folder, path: "d/f".into(), follows_link }
    }

    #[test]
    fn arguments_name_the_file_and_the_change() {
        use Change::{Mode, Owner, Times};
        let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
        check(libc::SYS_fchmod, [3, 0o600, 0, 0, 0], Some((Object::Descriptor(3), Mode(0o600))));
        check(libc::SYS_fchmodat, [CURRENT, 8, 0o755, 0, 0], Some((path(None, true), Mode(0o755))));
        check(libc::SYS_fchmodat2, [4, 8, 0o755, FLAG, 0], Some((path(Some(4), false), Mode(0o755))));
        check(libc::SYS_fchmodat2, [4, 16, 1, 0x1000, 0], Some((Object::Descriptor(4), Mode(1))));
        check(
            libc::SYS_fchownat,
            [4, 8, u64::MAX, 7, FLAG],
            Some((path(Some(4), false), Owner(None, Some(7)))),
        );
        check(libc::SYS_utimensat, [4, 0, 0, 0, 0], Some((Object::Descriptor(4), Times([NOW; 2]))));
        check(
            libc::SYS_utimensat,
            [4, 8, 64, 0, 0],
            Some((path(Some(4), true), Times([time(1, 2), time(3, 4)]))),
        );
        check(libc::SYS_utimensat, [CURRENT, 0, 64, 0, 0], None);
        check(libc::SYS_fchmodat, [4, 24, 1, 0, 0], None);
        check(libc::SYS_openat, [4, 8, 1, 0, 0], None);
        #[cfg(target_arch = "x86_64")]
        {
            check(libc::SYS_lchown, [8, 7, 7, 0, 0], Some((path(None, false), Owner(Some(7), Some(7)))));
            check(
                libc::SYS_utimes,
                [8, 64, 0, 0, 0],
                Some((path(None, true), Times([time(1, 2000), time(3, 4000)]))),
            );
            check(
                libc::SYS_utime,
                [8, 64, 0, 0, 0],
                Some((path(None, true), Times([time(1, 0), time(2, 0)]))),
            );
        }
    }
}
