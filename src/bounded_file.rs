//! Bounded reads of regular files that Modegate opens on its own: checked, opened without following a link
//! and without blocking, and checked again.
//!
//! In a project every link is an error, because it could lead to any file that the user may read. The user's
//! own files may be links, as dotfile managers create them: [`read_own_text`] resolves the link first.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Component, Path};
use std::time::Duration;

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, Metadata, OpenOptions};

use crate::platform::files::{nonblocking, real_path, special_kind};

/// The text continues a sentence that begins with the file's name.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("does not exist")]
    Missing,
    #[error("is a symbolic link, which is not followed here")]
    Link,
    #[error("is {0}, not a regular file")]
    NotRegular(&'static str),
    #[error("is larger than {}", size(*.0))]
    TooLarge(u64),
    #[error("is not UTF-8 text")]
    NotUtf8,
    #[error("cannot be read: {0}")]
    Io(io::Error),
}

impl ReadError {
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Missing,
            _ => Self::Io(error),
        }
    }
}

/// Reads a regular file of at most `limit` bytes. Fails on a link; links in parent folders are followed.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    check(&Metadata::from_just_metadata(path.symlink_metadata()?), limit)?;
    let file = File::open_ambient_with(path, &options(), ambient_authority())?;
    take(file, limit)
}

pub fn read_text(path: &Path, limit: u64) -> Result<String, ReadError> {
    read(path, limit).and_then(text)
}

pub fn read_own_text(path: &Path, limit: u64) -> Result<String, ReadError> {
    read_own(path, limit).and_then(text)
}

pub fn read_own(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let real = match real_path(path) {
        // A dangling link is an error, unlike a missing file.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_ok() => {
            return Err(ReadError::Io(io::Error::other("it is a dangling symbolic link")));
        }
        real => real?,
    };
    read(&real, limit)
}

pub fn read_text_below(root: &Path, path: &Path, limit: u64) -> Result<String, ReadError> {
    read_below(root, path, limit).and_then(text)
}

/// Fails if the file or a folder between `root` and the file is a link.
pub fn read_below(root: &Path, path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let below = path.strip_prefix(root).map_err(|_| ReadError::Missing)?;
    let mut names: Vec<&OsStr> = Vec::new();
    for part in below.components() {
        match part {
            Component::Normal(name) => names.push(name),
            _ => return Err(ReadError::Missing),
        }
    }
    let Some(name) = names.pop() else { return Err(ReadError::NotRegular("a folder")) };
    let mut dir = Dir::open_ambient_dir(root, ambient_authority())?;
    for part in names {
        if dir.symlink_metadata(part)?.is_symlink() {
            return Err(ReadError::Link);
        }
        dir = dir.open_dir_nofollow(part)?;
    }
    read_in(&dir, name, limit)
}

pub fn read_in(dir: &Dir, name: &OsStr, limit: u64) -> Result<Vec<u8>, ReadError> {
    check_kind(&dir.symlink_metadata(name)?)?;
    take(dir.open_with(name, &options())?, limit)
}

pub fn text(bytes: Vec<u8>) -> Result<String, ReadError> {
    String::from_utf8(bytes).map_err(|_| ReadError::NotUtf8)
}

/// Runs blocking work on another thread. Returns `None` after `deadline`; the thread keeps running.
pub async fn off_thread<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let done = tokio::time::timeout(deadline, tokio::task::spawn_blocking(work)).await.ok()?;
    done.inspect_err(|error| tracing::error!(%error, "reading files panicked")).ok()
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::No);
    nonblocking(&mut options);
    options
}

fn check(metadata: &Metadata, limit: u64) -> Result<(), ReadError> {
    check_kind(metadata)?;
    if metadata.len() > limit { Err(ReadError::TooLarge(limit)) } else { Ok(()) }
}

fn check_kind(metadata: &Metadata) -> Result<(), ReadError> {
    if metadata.is_file() {
        return Ok(());
    }
    if metadata.is_symlink() {
        return Err(ReadError::Link);
    }
    if metadata.is_dir() {
        return Err(ReadError::NotRegular("a folder"));
    }
    Err(ReadError::NotRegular(special_kind(metadata)))
}

/// Checks again, because the file may have been replaced and may grow.
fn take(file: File, limit: u64) -> Result<Vec<u8>, ReadError> {
    let metadata = file.metadata()?;
    check(&metadata, limit)?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(ReadError::TooLarge(limit)) } else { Ok(bytes) }
}

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 64;

    fn text_or_error(result: Result<String, ReadError>) -> String {
        result.unwrap_or_else(|error| error.to_string())
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        std::fs::write(at("good"), "good").unwrap();
        std::fs::write(at("full"), "x".repeat(64)).unwrap();
        std::fs::write(at("large"), "x".repeat(65)).unwrap();
        std::fs::File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        std::fs::write(at("latin"), b"caf\xe9").unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("folder/inner"), "inner").unwrap();
        crate::platform::files::make_fifo(&at("fifo"));
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (link, to) in
            [("dangling", "nowhere"), ("to_good", "good"), ("to_zero", "/dev/zero"), ("way", "folder")]
        {
            symlink(to, at(link)).unwrap();
        }
        let link = "is a symbolic link, which is not followed here";
        let large = "is larger than 64 bytes";
        // File, result of `read_text_below`, result of `read_own_text`.
        let table = [
            ("good", "good", "good"),
            ("missing", "does not exist", "does not exist"),
            ("good/below", "does not exist", "does not exist"),
            ("large", large, large),
            ("sparse", large, large),
            ("latin", "is not UTF-8 text", "is not UTF-8 text"),
            ("folder", "is a folder, not a regular file", "is a folder, not a regular file"),
            ("fifo", "is a FIFO, not a regular file", "is a FIFO, not a regular file"),
            ("socket", "is a socket, not a regular file", "is a socket, not a regular file"),
            ("dangling", link, "cannot be read: it is a dangling symbolic link"),
            ("to_good", link, "good"),
            ("to_zero", link, "is a device, not a regular file"),
            ("way/inner", link, "inner"),
            ("folder/inner", "inner", "inner"),
        ];
        for (file, project, own) in table {
            assert_eq!(text_or_error(read_text_below(&root, &at(file), LIMIT)), project, "{file}");
            assert_eq!(text_or_error(read_own_text(&at(file), LIMIT)), own, "{file}");
        }
        assert_eq!(read(&at("full"), LIMIT).unwrap().len(), 64);
        assert!(read_text_below(&root, Path::new("/etc/hostname"), LIMIT).unwrap_err().is_missing());
    }

    #[tokio::test]
    async fn off_thread_returns_none_after_the_timeout() {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let stuck = off_thread(Duration::from_millis(20), move || wait.recv().is_ok());
        assert_eq!(stuck.await, None);
        drop(release);
        assert_eq!(off_thread(Duration::from_secs(1000), || 7).await, Some(7));
    }
}
