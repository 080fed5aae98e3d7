//! Spellings of paths and names, which differ between systems. Pure functions of a [`Platform`], so the rules of
//! each system are tested on every system. [`files`] asks the disk.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use icu_normalizer::ComposingNormalizerBorrowed;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub mod files;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

pub use system::{AsDescriptor, stop_requested, terminal_width};
#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    Linux,
    MacOs,
    Windows,
}

/// Bytes of a path that stand for themselves in a URL.
const IN_URL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Second path of the files below `/` that users can write on macOS.
const DATA_VOLUME: &str = "/System/Volumes/Data";

/// Names of devices in every folder of Windows. Each also stands for itself before an ending: `nul.txt`.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

/// Names of devices if a digit follows.
const NUMBERED_DEVICES: [&str; 2] = ["com", "lpt"];

impl Platform {
    /// The system of this process. Other Unix systems count as Linux.
    pub const HERE: Self = if cfg!(windows) {
        Self::Windows
    } else if cfg!(target_os = "macos") {
        Self::MacOs
    } else {
        Self::Linux
    };

    /// True if two spellings of a name can lead to the same file. On Linux this is an option of few file systems,
    /// and counts as false.
    pub fn has_spellings(self) -> bool {
        self != Self::Linux
    }

    /// Returns the form that all spellings of a text share, in case, separators and Unicode normalization. Names
    /// that the file system tells apart may share a form, too.
    pub fn folded(self, text: &str) -> Cow<'_, str> {
        let lower =
            |text: &str| text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
        match self {
            Self::Linux => text.into(),
            Self::MacOs => {
                let lower: String = lower(text);
                ComposingNormalizerBorrowed::new_nfc().normalize(&lower).into_owned().into()
            }
            Self::Windows => Cow::Owned(lower(&text.replace('\\', "/"))),
        }
    }

    /// With `/` as separator, and without parts that change nothing about the file: the prefix `\\?\`,
    /// streams, and dots and blanks at the end of a name.
    pub fn plain_path(self, path: &str) -> Cow<'_, str> {
        match self {
            Self::Linux => path.into(),
            Self::MacOs => match path.split_at_checked(DATA_VOLUME.len()) {
                Some((volume, below))
                    if volume.eq_ignore_ascii_case(DATA_VOLUME) && below.starts_with('/') =>
                {
                    below.into()
                }
                _ => path.into(),
            },
            Self::Windows => {
                let path = path.replace('\\', "/");
                let (share, path) = match path.strip_prefix("//?/UNC/") {
                    Some(share) => ("//", share),
                    None => ("", path.strip_prefix("//?/").unwrap_or(&path)),
                };
                let names: Vec<_> =
                    path.split('/').enumerate().map(|(at, name)| plain_name(at, name)).collect();
                format!("{share}{}", names.join("/")).into()
            }
        }
    }

    /// The reason not to open a path, as the end of a sentence that begins with it: the system would open
    /// something else than the last name says, or reach another machine.
    pub fn fault_of(self, path: &str, roots: &[PathBuf]) -> Option<&'static str> {
        match self {
            Self::Linux => None,
            Self::MacOs => {
                let text = self.folded(path);
                if text.split('/').any(|name| name == "..namedfork") {
                    return Some("leads to a resource fork");
                }
                let path = self.plain_path(&text);
                let first = path.split('/').find(|name| !name.is_empty());
                let is_by_number = path.starts_with('/') && first == Some(".vol");
                is_by_number.then_some("names a file by its number")
            }
            Self::Windows => windows_fault(&self.folded(path), |share| {
                let root =
                    |root: &PathBuf| self.folded(&self.plain_path(&root.to_string_lossy())).into_owned();
                roots.iter().map(root).any(|root| Path::new(share).starts_with(root))
            }),
        }
    }

    pub fn file_url(self, path: &str) -> String {
        let path = if self == Self::Windows { self.plain_path(path) } else { path.into() };
        let encode = |text: &str| utf8_percent_encode(text, IN_URL).to_string();
        let (drive, rest) = match path.split_at_checked(2) {
            Some((drive, rest)) if self == Self::Windows && is_drive(drive) => (drive, rest),
            _ => ("", &*path),
        };
        match rest.strip_prefix("//") {
            Some(share) if self == Self::Windows => format!("file://{}", encode(share)),
            _ if drive.is_empty() => format!("file://{}", encode(rest)),
            _ => format!("file:///{drive}{}", encode(rest)),
        }
    }

    /// `None` for a text that is no `file:` URL.
    pub fn path_of_url(self, url: &str) -> Option<String> {
        let (scheme, rest) = url.split_at_checked("file:".len())?;
        if !scheme.eq_ignore_ascii_case("file:") {
            return None;
        }
        let path = match rest.strip_prefix("//") {
            Some(after) => after.strip_prefix("localhost/").map_or(after, |_| &after["localhost".len()..]),
            None => rest,
        };
        let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
        if self != Self::Windows {
            return Some(path);
        }
        let path = path.replace('\\', "/");
        Some(match path.strip_prefix('/') {
            Some(after) if after.split_at_checked(2).is_some_and(|(drive, _)| is_drive(drive)) => {
                after.into()
            }
            None if rest.starts_with("//") && !path.get(..2).is_some_and(is_drive) => format!("//{path}"),
            _ => path,
        })
    }

    /// Without its folder and, on Windows, without `.exe`.
    pub fn program_name(self, program: &str) -> &str {
        if self != Self::Windows {
            return program.rsplit('/').next().unwrap_or_default();
        }
        let name = program.rsplit(['/', '\\']).next().unwrap_or_default();
        let stem = name.len().saturating_sub(".exe".len());
        match name.split_at_checked(stem) {
            Some((stem, ending)) if !stem.is_empty() && ending.eq_ignore_ascii_case(".exe") => stem,
            _ => name,
        }
    }

    /// In the order in which the system tries them. `endings` is the variable `PATHEXT`.
    pub fn program_names(self, name: &str, endings: Option<&str>) -> Vec<String> {
        if self != Self::Windows {
            return vec![name.to_owned()];
        }
        let endings = endings.filter(|it| !it.is_empty()).unwrap_or(".COM;.EXE;.BAT;.CMD");
        let endings: Vec<_> =
            endings.split(';').map(str::to_ascii_lowercase).filter(|it| it.len() > 1).collect();
        if endings.iter().any(|ending| name.to_ascii_lowercase().ends_with(ending)) {
            return vec![name.to_owned()];
        }
        endings.iter().map(|ending| format!("{name}{ending}")).collect()
    }
}

fn is_drive(text: &str) -> bool {
    matches!(text.as_bytes(), [letter, b':'] if letter.is_ascii_alphabetic())
}

/// A name of a path on Windows, without its stream, and without dots and blanks at its end.
fn plain_name(at: usize, name: &str) -> &str {
    if at == 0 && is_drive(name) {
        return name;
    }
    let name = name.split(':').next().unwrap_or_default();
    match name.trim_end_matches(['.', ' ']) {
        // Dots alone lead to a folder.
        "" => name,
        plain => plain,
    }
}

/// `path` is folded. `is_own_share` tells whether the path of a share lies in a folder of the session.
fn windows_fault(path: &str, is_own_share: impl Fn(&str) -> bool) -> Option<&'static str> {
    const DEVICE: &str = "names a device";
    let (path, is_share) = match path.strip_prefix("//?/") {
        Some(verbatim) => match verbatim.strip_prefix("unc/") {
            Some(share) => (format!("//{share}"), true),
            None if verbatim.split('/').next().is_some_and(is_drive) => (verbatim.to_owned(), false),
            None => return Some(DEVICE),
        },
        None if path.starts_with("//./") || path.starts_with("/??/") => return Some(DEVICE),
        None => (path.to_owned(), path.starts_with("//")),
    };
    if is_share && !is_own_share(&path) {
        return Some("lies on another machine, outside of the session's folders");
    }
    let after_drive = path.split_at_checked(2).filter(|(drive, _)| is_drive(drive)).map(|(_, after)| after);
    if after_drive.is_some_and(|after| !after.is_empty() && !after.starts_with('/')) {
        return Some("is relative to the current folder of a drive");
    }
    after_drive.unwrap_or(&path).split('/').find_map(|name| {
        let is_dots = matches!(name, "" | "." | "..");
        if name.contains(':') {
            return Some("names a stream of a file");
        }
        if !is_dots && name.ends_with(['.', ' ']) {
            return Some("has a name that ends with a dot or a blank, which Windows drops");
        }
        is_device(name).then_some(DEVICE)
    })
}

fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end();
    let mut before = stem.chars();
    let is_numbered = before.next_back().is_some_and(|last| "0123456789¹²³".contains(last))
        && NUMBERED_DEVICES.contains(&before.as_str());
    is_numbered || DEVICES.contains(&stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_name_have_one_form() {
        use Platform::{Linux, MacOs, Windows};
        assert_ne!(Linux.folded("SECRET.txt"), Linux.folded("secret.txt"));
        for platform in [MacOs, Windows] {
            assert_eq!(platform.folded("SECRET.Txt"), platform.folded("secret.txt"));
            assert_eq!(platform.folded("ÄÖ\u{212A}ſ"), platform.folded("äöks"));
            assert_ne!(platform.folded("a"), platform.folded("b"));
        }
        assert_eq!(MacOs.folded("cafe\u{301}"), MacOs.folded("CAF\u{c9}"));
        assert_eq!(Windows.folded(r"Src\A.rs"), "src/a.rs");
    }

    #[test]
    fn plain_path_leaves_the_file() {
        let cases = [
            (r"\\?\C:\work\.env", "C:/work/.env"),
            (r"\\?\UNC\server\share\a", "//server/share/a"),
            (r"C:\work\.env::$DATA", "C:/work/.env"),
            (r"C:\work\a.txt:hidden", "C:/work/a.txt"),
            (r"src\.env. . ", "src/.env"),
            (r"..\.\a", ".././a"),
            ("a...", "a"),
        ];
        for (path, expected) in cases {
            assert_eq!(Platform::Windows.plain_path(path), expected);
            assert_eq!(Platform::Linux.plain_path(path), path);
        }
        for path in ["/System/Volumes/Data/Users/a", "/system/volumes/DATA/Users/a"] {
            assert_eq!(Platform::MacOs.plain_path(path), "/Users/a");
        }
        assert_eq!(Platform::MacOs.plain_path("/System/Volumes/Database"), "/System/Volumes/Database");
    }

    #[test]
    fn windows_opens_only_what_a_path_says() {
        let roots = [PathBuf::from(r"\\Server\share\work")];
        let refused = [
            (".env::$DATA", "stream"),
            (r"src\a.txt:hidden", "stream"),
            ("src/a.txt:hidden:$DATA", "stream"),
            (".env.", "dot"),
            (".env ", "dot"),
            (r"folder.\a", "dot"),
            ("a/.../b", "dot"),
            ("NUL", "device"),
            ("nul.txt", "device"),
            (r"src\Com1.log", "device"),
            ("LPT¹", "device"),
            ("CONOUT$", "device"),
            (r"\\.\PhysicalDrive0", "device"),
            ("//./pipe/x", "device"),
            (r"\??\C:\a", "device"),
            (r"\\?\GLOBALROOT\Device\x", "device"),
            (r"\\?\Volume{x}\a", "device"),
            (r"\\?\C:\work\.env.", "dot"),
            ("C:a.txt", "drive"),
            ("C:..", "drive"),
            (r"\\other\share\a", "machine"),
            ("//other/share/a", "machine"),
            (r"\\?\UNC\other\share\a", "machine"),
            (r"\\server\share\workshop\a", "machine"),
        ];
        for (path, reason) in refused {
            let fault = Platform::Windows.fault_of(path, &roots);
            assert!(fault.is_some_and(|fault| fault.contains(reason)), "{path}: {fault:?}");
            assert_eq!(Platform::Linux.fault_of(path, &roots), None);
        }
        let opened = [
            ".env",
            "src/a.rs",
            r"src\a.rs",
            "../a",
            ".",
            "..",
            r"C:\work\a.txt",
            "c:/work/a.txt",
            r"\\?\C:\work\a",
            r"\\SERVER\Share\Work\a",
            r"\\?\UNC\server\share\work\a",
            "null.txt",
            "com10",
            "console",
            "aux_file",
            "C:",
            "",
        ];
        for path in opened {
            assert_eq!(Platform::Windows.fault_of(path, &roots), None, "{path}");
        }
    }

    #[test]
    fn macos_opens_only_what_a_path_says() {
        let fault = |path| Platform::MacOs.fault_of(path, &[]);
        assert_eq!(fault("a.txt/..namedfork/rsrc"), Some("leads to a resource fork"));
        for path in ["/.vol/1/2", "//.vol/1/2", "/.VOL/1/2", "/System/Volumes/Data/.vol/1/2"] {
            assert_eq!(fault(path), Some("names a file by its number"), "{path}");
        }
        for path in ["a.txt", "/Users/a", "a:b", ".volume", "/.volume/a", "sub/.vol/a"] {
            assert_eq!(fault(path), None, "{path}");
        }
    }

    #[test]
    fn urls_of_files_are_read_as_written() {
        let cases = [
            (Platform::Linux, "/a b/ü.rs", "file:///a%20b/%C3%BC.rs"),
            (Platform::MacOs, "/Users/a#b", "file:///Users/a%23b"),
            (Platform::Windows, "C:/a b/c", "file:///C:/a%20b/c"),
            (Platform::Windows, "//server/share/a", "file://server/share/a"),
        ];
        for (platform, path, url) in cases {
            assert_eq!(platform.file_url(path), url);
            assert_eq!(platform.path_of_url(url).as_deref(), Some(path));
        }
        assert_eq!(Platform::Windows.file_url(r"\\?\C:\a"), "file:///C:/a");
        assert_eq!(Platform::Linux.path_of_url("FILE://localhost/a").as_deref(), Some("/a"));
        assert_eq!(Platform::Linux.path_of_url("file:/a").as_deref(), Some("/a"));
        assert_eq!(Platform::Linux.path_of_url("/a"), None);
        assert_eq!(Platform::Linux.path_of_url("https://a"), None);
    }

    #[test]
    fn programs_have_endings_on_windows() {
        let names = |name, endings| Platform::Windows.program_names(name, endings);
        assert_eq!(names("agent", Some(".EXE;.CMD")), ["agent.exe", "agent.cmd"]);
        assert_eq!(names("Agent.CMD", Some(".EXE;.CMD")), ["Agent.CMD"]);
        assert_eq!(names("a.js", None), ["a.js.com", "a.js.exe", "a.js.bat", "a.js.cmd"]);
        assert_eq!(Platform::Linux.program_names("agent", Some(".EXE")), ["agent"]);
        for (program, name) in
            [("C:/bin/RM.EXE", "RM"), (r"C:\bin\rm.exe", "rm"), ("rm", "rm"), (".exe", ".exe")]
        {
            assert_eq!(Platform::Windows.program_name(program), name);
        }
        assert_eq!(Platform::Linux.program_name("/bin/rm.exe"), "rm.exe");
    }
}
