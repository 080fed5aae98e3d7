//! The file of a record. Lines are written before their changes, so a supervisor that is killed loses nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::supervisor::record::{self, ENDING, GROWING, RecordLine};

#[derive(Debug)]
pub(super) struct RecordFile {
    folder: PathBuf,
    /// Number of the record.
    number: u64,
    /// `None` if the file could not be created so far.
    file: Option<File>,
    is_empty: bool,
    /// Error of the first write that failed. Concerns this record only.
    failure: Option<String>,
}

impl RecordFile {
    pub(super) fn new(folder: PathBuf) -> Self {
        let mut record_file = Self { folder, number: 0, file: None, is_empty: true, failure: None };
        record_file.create();
        record_file
    }

    fn create(&mut self) {
        match File::options().append(true).create_new(true).open(self.path(GROWING)) {
            Ok(file) => self.file = Some(file),
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn path(&self, ending: &str) -> PathBuf {
        self.folder.join(self.number.to_string()).with_extension(ending)
    }

    pub(super) fn append(&mut self, lines: &[RecordLine]) {
        if lines.is_empty() {
            return;
        }
        self.is_empty = false;
        if let Err(error) = self.write(lines) {
            self.failure.get_or_insert_with(|| error.to_string());
        }
    }

    fn write(&self, lines: &[RecordLine]) -> io::Result<()> {
        // A line that was cut must not cost the next one.
        let mut text = if self.failure.is_some() { vec![b'\n'] } else { Vec::new() };
        text.extend(record::to_text(lines)?);
        let mut file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.write_all(&text)
    }

    /// Finishes the record, of which `all` are the lines, and begins the next one unless it is the last.
    ///
    /// # Errors
    /// Returns why the record is not complete. Its whole lines can be read all the same.
    pub(super) fn finish(&mut self, all: &[RecordLine], is_last: bool) -> Result<(), String> {
        if self.is_empty && self.failure.is_none() {
            if is_last {
                // The reader takes a file that stays for the end of a killed supervisor.
                fs::remove_file(self.path(GROWING)).map_err(|error| error.to_string())?;
            }
            return Ok(());
        }
        let finished = match self.failure.take() {
            None => fs::rename(self.path(GROWING), self.path(ENDING)),
            Some(_) => write_again(&self.path("new"), &self.path(ENDING), &self.path(GROWING), all),
        };
        self.number += 1;
        self.is_empty = true;
        self.file = None;
        if !is_last {
            self.create();
        }
        finished.map_err(|error| error.to_string())
    }
}

/// Writes all lines again, in case the disk has space now. Otherwise the record keeps the lines that it has.
fn write_again(new: &Path, finished: &Path, growing: &Path, lines: &[RecordLine]) -> io::Result<()> {
    let written = fs::write(new, record::to_text(lines)?).and_then(|()| fs::rename(new, finished));
    if written.is_ok() {
        // The file may not exist.
        let _ = fs::remove_file(growing);
    } else {
        let _ = fs::remove_file(new);
        // A rename needs no space. The lines that could be written count, and the caller reports that others are missing.
        let _ = fs::rename(growing, finished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> RecordLine {
        RecordLine::Uncovered(text.to_owned())
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn lines_are_on_disk_before_the_record_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let mut record_file = RecordFile::new(dir.path().to_owned());
        record_file.append(&[line("one")]);
        let record = record::read(&fs::read(dir.path().join("0.growing")).unwrap());
        assert!(record.uncovered.contains("one") && !record.is_cut);
        record_file.finish(&[line("one")], false).unwrap();
        assert_eq!(names(dir.path()), ["0.jsonl", "1.growing"]);
        record_file.finish(&[], true).unwrap();
        assert_eq!(names(dir.path()), ["0.jsonl"]);
    }

    #[test]
    fn failed_write_is_reported_unless_the_disk_has_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut record_file = RecordFile::new(dir.path().to_owned());
        let full = || File::options().write(true).open("/dev/full").unwrap();
        record_file.file = Some(full());
        record_file.append(&[line("one")]);
        record_file.finish(&[line("one")], false).unwrap();
        let record = record::read(&fs::read(dir.path().join("0.jsonl")).unwrap());
        assert!(record.uncovered.contains("one"), "written again");
        record_file.file = Some(full());
        record_file.file = Some(File::options().append(true).open(dir.path().join("1.growing")).unwrap());
        record_file.append(&[line("two")]);
        record_file.file = Some(full());
        record_file.append(&[line("three")]);
        fs::create_dir(dir.path().join("1.new")).unwrap();
        assert!(record_file.finish(&[line("two"), line("three")], true).is_err());
        let record = record::read(&fs::read(dir.path().join("1.jsonl")).unwrap());
        assert!(record.uncovered.contains("two"), "a line that was written is not lost");
        assert_eq!(names(dir.path()), ["0.jsonl", "1.jsonl", "1.new"]);
    }

    #[test]
    fn unusable_folder_is_a_failure_of_each_record() {
        let mut record_file = RecordFile::new("/proc/no-folder".into());
        for _ in 0..2 {
            assert!(record_file.finish(&[], false).is_err());
        }
        assert!(record_file.finish(&[], true).is_err());
    }
}
