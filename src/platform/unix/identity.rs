//! Properties of a file besides its content: owner, group, mode, access lists, labels and other extended attributes.

use std::io;

use cap_std::fs::File;
#[cfg(target_os = "linux")]
use rustix::fs::{FallocateFlags, fallocate};
use rustix::fs::{
    Gid, Mode, Uid, XattrFlags, fchmod, fchown, fgetxattr, fgetxattr_query, flistxattr, flistxattr_query,
    fremovexattr, fsetxattr, fstat,
};
use rustix::io::Errno;

/// Attributes that the system ties to a content, and removes at each write.
const OF_CONTENT: [&[u8]; 3] = [b"security.capability", b"security.ima", b"security.evm"];

/// Labels that the system gives to every new file, and lets no program remove.
const LABELS: &[u8] = b"security.";

/// Gives an empty file the owner, group, mode and extended attributes of another one.
///
/// # Errors
/// Returns an error if the process may not set one of these. The file is useless then.
pub fn copy_identity(from: &File, to: &File) -> io::Result<()> {
    let (from_stat, created) = (fstat(from)?, fstat(to)?);
    if (from_stat.st_uid, from_stat.st_gid) != (created.st_uid, created.st_gid) {
        fchown(to, Some(Uid::from_raw(from_stat.st_uid)), Some(Gid::from_raw(from_stat.st_gid)))?;
    }
    copy_attributes(from, to)?;
    // Last, because a change of the owner or of the access list changes the mode.
    let mode = Mode::from_raw_mode(from_stat.st_mode & 0o7777);
    if mode != Mode::from_raw_mode(fstat(to)?.st_mode & 0o7777) {
        fchmod(to, mode)?;
    }
    Ok(())
}

fn copy_attributes(from: &File, to: &File) -> io::Result<()> {
    let (wanted, inherited) = (attributes(from)?, attributes(to)?);
    for name in names(&inherited).filter(|name| names(&wanted).all(|wanted| wanted != *name)) {
        // A default access list of the folder, which the old file does not have.
        match fremovexattr(to, name) {
            Err(_) if name.starts_with(LABELS) => {}
            removed => removed?,
        }
    }
    for name in names(&wanted) {
        let Some(value) = value(from, name)? else { continue };
        if value_if_set(to, name).as_ref() == Some(&value) {
            continue;
        }
        match fsetxattr(to, name, &value, XattrFlags::empty()) {
            Err(_) if OF_CONTENT.contains(&name) => {}
            set => set?,
        }
    }
    Ok(())
}

/// Names, each with a zero byte at its end.
fn attributes(file: &File) -> io::Result<Vec<u8>> {
    let mut list = Vec::new();
    loop {
        let length = match flistxattr_query(file) {
            Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
            length => length?,
        };
        list.resize(length, 0);
        if list.is_empty() {
            return Ok(list);
        }
        match flistxattr(file, &mut list[..]) {
            // Another program has added one.
            Err(Errno::RANGE) => {}
            length => {
                list.truncate(length?);
                return Ok(list);
            }
        }
    }
}

fn names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == 0).filter(|name| !name.is_empty())
}

/// `None` if the attribute is gone, or cannot be read by anybody but the system.
fn value(file: &File, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut value = Vec::new();
    loop {
        match fgetxattr_query(file, name) {
            Err(Errno::NODATA) => return Ok(None),
            length => value.resize(length?, 0),
        }
        if value.is_empty() {
            return Ok(Some(value));
        }
        match fgetxattr(file, name, &mut value[..]) {
            // Another program has set a longer one.
            Err(Errno::RANGE) => {}
            Err(Errno::NODATA) => return Ok(None),
            length => {
                value.truncate(length?);
                return Ok(Some(value));
            }
        }
    }
}

fn value_if_set(file: &File, name: &[u8]) -> Option<Vec<u8>> {
    value(file, name).ok().flatten()
}

/// Reserves space behind a file's end, without changing its length. Does nothing on systems that cannot.
#[cfg(target_os = "linux")]
pub fn reserve(file: &File, from: u64, length: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, from, length) {
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        reserved => reserved.map_err(Into::into),
    }
}

#[cfg(not(target_os = "linux"))]
pub fn reserve(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}
