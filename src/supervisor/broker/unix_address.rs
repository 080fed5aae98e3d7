//! The address of a UNIX socket, read from a suspended `bind` or `connect`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::AddressFamily;

use super::tracee::Tracee;

/// Size of `struct sockaddr_un`.
const MAX_ADDRESS: usize = 110;

/// Size of `sa_family_t`.
const FAMILY: usize = 2;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnixAddress {
    Path(PathBuf),
    /// An abstract name, or none.
    Other,
}

/// True if the call's address is one of a UNIX socket.
pub(super) fn is_unix(tracee: &Tracee<'_>) -> bool {
    let family = tracee.memory(tracee.call.arguments[1], FAMILY);
    family.is_some_and(|bytes| bytes.try_into().is_ok_and(|bytes| is_unix_family(u16::from_ne_bytes(bytes))))
}

fn is_unix_family(family: u16) -> bool {
    AddressFamily::from_raw(family) == AddressFamily::UNIX
}

pub(super) fn read(tracee: &Tracee<'_>) -> Result<UnixAddress, Errno> {
    let [_, address, length, ..] = tracee.call.arguments;
    let length = usize::try_from(length & 0xffff_ffff).ok().filter(|length| *length <= MAX_ADDRESS);
    let length = length.ok_or(Errno::INVAL)?;
    let bytes = tracee.memory(address, length).filter(|bytes| bytes.len() == length);
    parse(&bytes.ok_or(Errno::FAULT)?)
}

/// Reads a `struct sockaddr_un`.
fn parse(bytes: &[u8]) -> Result<UnixAddress, Errno> {
    let (family, name) = bytes.split_first_chunk::<FAMILY>().ok_or(Errno::INVAL)?;
    if !is_unix_family(u16::from_ne_bytes(*family)) {
        return Err(Errno::AFNOSUPPORT);
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    if end == 0 {
        return Ok(UnixAddress::Other);
    }
    Ok(UnixAddress::Path(OsString::from_vec(name[..end].to_vec()).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let address = |name: &[u8]| [&1_u16.to_ne_bytes()[..], name].concat();
        let path = |text: &str| Ok(UnixAddress::Path(text.into()));
        for (bytes, expected) in [
            (address(b"/a/b.sock\0"), path("/a/b.sock")),
            (address(b"a.sock"), path("a.sock")),
            (address(b"a\0b"), path("a")),
            (address(b"\0abstract"), Ok(UnixAddress::Other)),
            (address(b""), Ok(UnixAddress::Other)),
            (2_u16.to_ne_bytes().to_vec(), Err(Errno::AFNOSUPPORT)),
            (vec![1], Err(Errno::INVAL)),
        ] {
            assert_eq!(parse(&bytes), expected, "{bytes:?}");
        }
    }
}
