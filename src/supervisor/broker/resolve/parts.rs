//! Parts of paths. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The path in the form in which the kernel names files: without `.`, and without a slash at its end.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// The rest of a path in a folder. Both are plain, so their bytes can be compared.
pub(super) fn inside<'p>(path: &'p Path, folder: &Path) -> Option<&'p Path> {
    let (path, folder) = (path.as_os_str().as_bytes(), folder.as_os_str().as_bytes());
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    let rest = path.strip_prefix(folder)?;
    let rest = if rest.is_empty() { rest } else { rest.strip_prefix(b"/")? };
    Some(Path::new(OsStr::from_bytes(rest)))
}

/// The path of the folder, and the last component with its slashes. `None` if the path names no entry of a folder.
pub(in crate::supervisor::broker) fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/')?;
    let (parent, name) = match bytes[..=end].iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&bytes[..=slash], &bytes[slash + 1..]),
        None => (&b"."[..], bytes),
    };
    let name = OsStr::from_bytes(name);
    let is_special = matches!(trim(name).as_bytes(), b"." | b"..");
    (!is_special).then(|| (Path::new(OsStr::from_bytes(parent)), name))
}

/// A component without the slashes after it.
pub(in crate::supervisor::broker) fn trim(name: &OsStr) -> &OsStr {
    let bytes = name.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    OsStr::from_bytes(&bytes[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_in_a_folder_is_that_of_whole_components() {
        for (path, folder, expected) in [
            ("/a/b/c", "/a", Some("b/c")),
            ("/a/b", "/a/b", Some("")),
            ("/a/bc", "/a/b", None),
            ("/a", "/a/b", None),
            ("/a/b", "/", Some("a/b")),
            ("/", "/", Some("")),
            ("b", "/", None),
        ] {
            assert_eq!(
                inside(Path::new(path), Path::new(folder)),
                expected.map(Path::new),
                "{path} {folder}"
            );
        }
        assert_eq!(plain(Path::new("//a/./b//")), Path::new("/a/b"));
    }
}
