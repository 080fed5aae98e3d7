//! Recognises changes of attributes that have no effect. Editors make such changes after each write.

use rustix::fs::Stat;
use rustix::io::Errno;

use super::operation::AttributeChange;
use super::resolve::ResolvedFile;
use super::tracee::own_path;

/// The access list of a file, in the encoding of the kernel: a version, then a kind, rights and an id for each entry.
const ACCESS_LIST: &std::ffi::CStr = c"system.posix_acl_access";
const VERSION: [u8; 4] = 2_u32.to_le_bytes();
const ENTRY_LENGTH: usize = 8;
const OF_OWNER: u16 = 0x01;
const OF_GROUP: u16 = 0x04;
const OF_OTHERS: u16 = 0x20;

const SET_IDS: u32 = 0o6000;

/// Returns true if the owner or the mode would stay as they are.
pub(super) fn matches(change: &AttributeChange, stat: &Stat) -> bool {
    match change {
        AttributeChange::Owner(user, group) => {
            user.is_none_or(|user| user == stat.st_uid) && group.is_none_or(|group| group == stat.st_gid)
        }
        AttributeChange::Mode(mode) => mode & 0o7777 == stat.st_mode & 0o7777,
        AttributeChange::SetAttribute { .. }
        | AttributeChange::RemoveAttribute { .. }
        | AttributeChange::Times(_) => false,
    }
}

/// Returns true if the user of the broker owns the file, and may make the change, and the change has no effect.
pub(super) fn are_unchanged(file: &ResolvedFile, change: &AttributeChange) -> bool {
    let is_own = file.stat.st_uid == rustix::process::geteuid().as_raw();
    // A new owner clears these bits, even if he is the old one.
    let keeps_bits = file.stat.st_mode & SET_IDS == 0;
    let is_same = match change {
        AttributeChange::SetAttribute { name, value, flags: 0 } if name.as_c_str() == ACCESS_LIST => {
            rights(value) == Some(file.stat.st_mode & 0o777) && has_no_access_list(file)
        }
        _ => matches(change, &file.stat),
    };
    is_own && keeps_bits && is_same
}

fn has_no_access_list(file: &ResolvedFile) -> bool {
    let found = rustix::fs::getxattr(own_path(&file.file), ACCESS_LIST, &mut [0_u8; 0]);
    matches!(found, Err(Errno::NODATA))
}

/// The permission bits that are the same as an access list. `None` if the list names further users or groups.
fn rights(list: &[u8]) -> Option<u32> {
    let entries = list.strip_prefix(&VERSION)?;
    let (entries, rest) = entries.as_chunks::<ENTRY_LENGTH>();
    if entries.len() != 3 || !rest.is_empty() {
        return None;
    }
    Some(
        right(OF_OWNER, entries[0])? << 6 | right(OF_GROUP, entries[1])? << 3 | right(OF_OTHERS, entries[2])?,
    )
}

/// The rights of an entry, if it is of this kind.
fn right(kind: u16, entry: [u8; ENTRY_LENGTH]) -> Option<u32> {
    let [kind_low, kind_high, right_low, right_high, ..] = entry;
    let right = u16::from_le_bytes([right_low, right_high]);
    (u16::from_le_bytes([kind_low, kind_high]) == kind && right <= 7).then(|| u32::from(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_list_of_three_entries_is_a_mode() {
        let entry =
            |kind: u16, right: u16| [&kind.to_le_bytes()[..], &right.to_le_bytes(), &[0xff; 4]].concat();
        let list = |entries: &[(u16, u16)]| {
            let entries = entries.iter().flat_map(|(kind, right)| entry(*kind, *right));
            VERSION.into_iter().chain(entries).collect::<Vec<_>>()
        };
        let mode = [(OF_OWNER, 6), (OF_GROUP, 4), (OF_OTHERS, 0)];
        assert_eq!(rights(&list(&mode)), Some(0o640));
        for (entries, reason) in [
            (&[][..], "no entries"),
            (&mode[..2], "nobody else"),
            (&[(OF_OWNER, 6), (OF_GROUP, 4), (OF_GROUP, 0)], "another order"),
            (&[(OF_OWNER, 8), (OF_GROUP, 4), (OF_OTHERS, 0)], "an unknown right"),
            (&[(OF_OWNER, 6), (0x02, 7), (OF_GROUP, 4), (OF_OTHERS, 0)], "a further user"),
        ] {
            assert_eq!(rights(&list(entries)), None, "{reason}");
        }
        assert_eq!(rights(&list(&mode)[..20]), None);
        assert_eq!(rights(&[1, 0, 0, 0]), None);
    }
}
