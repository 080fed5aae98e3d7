//! Storage of snapshot copies in one folder, readable only by this user. Small copies share files: a file for each
//! would cost the file system more than its content.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File as StdFile;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use cap_std::fs::File;

use crate::platform::files::{create_private_file, create_private_folder, create_private_folders};

pub(super) type CopyNumber = u64;

/// Maximum number of bytes of a copy that shares a file.
const MAX_PACKED: u64 = 64 * 1024;

/// A pack of this size gets no more copies. Its file is removed when all its copies are forgotten.
const FULL_PACK: u64 = 1024 * 1024;

/// Bytes of a pack that wait for one write.
const BUFFER: usize = 256 * 1024;

/// The folder is created with the first copy and removed on drop.
#[derive(Debug)]
pub(super) struct Copies {
    folder: PathBuf,
    is_made: bool,
    next: CopyNumber,
    /// Copies without an entry have a file of their own.
    packed: HashMap<CopyNumber, PackPlace>,
    /// Packs by the number of their first copy.
    packs: HashMap<CopyNumber, Pack>,
    /// The pack that gets copies.
    open_pack: Option<CopyNumber>,
}

#[derive(Debug, Clone, Copy)]
struct PackPlace {
    pack: CopyNumber,
    start: u64,
    length: u64,
}

#[derive(Debug)]
struct Pack {
    file: StdFile,
    written: u64,
    /// The end of the pack, which is not in the file yet.
    buffer: Vec<u8>,
    /// Number of copies that were not forgotten.
    copies: usize,
}

impl Pack {
    fn length(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.written = self.length();
        self.buffer.clear();
        Ok(())
    }
}

impl Copies {
    /// The first copy removes an existing entry at `folder`.
    pub(super) fn new(folder: PathBuf) -> Self {
        let (packed, packs) = (HashMap::new(), HashMap::new());
        Self { folder, is_made: false, next: 0, packed, packs, open_pack: None }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Copies at most `length` bytes. The kernel copies large files, on some file systems without moving data.
    pub(super) fn make(&mut self, file: File, length: u64) -> io::Result<CopyNumber> {
        if !self.is_made {
            self.make_folder()?;
        }
        let number = self.next;
        let mut content = file.into_std().take(length);
        if length <= MAX_PACKED {
            self.pack(number, content)?;
        } else {
            let mut copy = create_private_file(&self.path(number))?;
            if let Err(error) = io::copy(&mut content, &mut copy) {
                self.remove(number);
                return Err(error);
            }
        }
        self.next += 1;
        Ok(number)
    }

    fn pack(&mut self, number: CopyNumber, mut content: impl Read) -> io::Result<()> {
        let open = self.open_pack.filter(|first| self.packs[first].length() < FULL_PACK);
        let first = open.unwrap_or(number);
        let path = self.path(first);
        let pack = match self.packs.entry(first) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => {
                let file = create_private_file(&path)?;
                place.insert(Pack { file, written: 0, buffer: Vec::new(), copies: 0 })
            }
        };
        let start = pack.length();
        content.read_to_end(&mut pack.buffer)?;
        if pack.buffer.len() >= BUFFER {
            pack.flush()?;
        }
        pack.copies += 1;
        self.packed.insert(number, PackPlace { pack: first, start, length: pack.length() - start });
        let former = self.open_pack.replace(first);
        self.remove_if_unused(former);
        Ok(())
    }

    pub(super) fn read(&self, number: CopyNumber) -> io::Result<Vec<u8>> {
        let Some(PackPlace { pack: first, start, length }) = self.packed.get(&number).copied() else {
            return std::fs::read(self.path(number));
        };
        let mut content = Vec::new();
        let pack = &self.packs[&first];
        if let Some(start) = start.checked_sub(pack.written).and_then(|start| usize::try_from(start).ok()) {
            (&pack.buffer[start..]).take(length).read_to_end(&mut content)?;
        } else {
            let mut file = StdFile::open(self.path(first))?;
            file.seek(SeekFrom::Start(start))?;
            file.take(length).read_to_end(&mut content)?;
        }
        if content.len() as u64 == length { Ok(content) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    pub(super) fn forget(&mut self, number: CopyNumber) {
        let Some(PackPlace { pack: first, .. }) = self.packed.remove(&number) else {
            return self.remove(number);
        };
        if let Some(pack) = self.packs.get_mut(&first) {
            pack.copies -= 1;
        }
        if self.open_pack != Some(first) {
            self.remove_if_unused(Some(first));
        }
    }

    fn remove_if_unused(&mut self, first: Option<CopyNumber>) {
        if let Some(first) = first.filter(|first| self.packs.get(first).is_some_and(|pack| pack.copies == 0))
        {
            self.packs.remove(&first);
            self.remove(first);
        }
    }

    fn remove(&self, number: CopyNumber) {
        if let Err(error) = std::fs::remove_file(self.path(number)) {
            tracing::warn!(%error, number, "a copy of a file could not be removed");
        }
    }

    pub(super) fn clear(&mut self) {
        if !std::mem::take(&mut self.is_made) {
            return;
        }
        self.packed.clear();
        self.packs.clear();
        self.open_pack = None;
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::warn!(%error, folder = %self.folder.display(), "copies of files could not be removed");
        }
    }

    fn make_folder(&mut self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if let Some(above) = self.folder.parent() {
            create_private_folders(above)?;
        }
        // Not recursive: succeeds only if this process creates the folder.
        create_private_folder(&self.folder)?;
        self.is_made = true;
        Ok(())
    }

    fn path(&self, number: CopyNumber) -> PathBuf {
        self.folder.join(number.to_string())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.clear();
    }
}
