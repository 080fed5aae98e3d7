//! A glob of names: paths, or the words of a command.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};

use crate::platform::Platform;

/// Matches exactly, or every spelling of a name that the system takes for the same.
#[derive(Debug, Clone)]
pub(super) struct NamePattern {
    exact: GlobMatcher,
    /// `None` on systems where names have one spelling.
    folded: Option<(Platform, GlobMatcher)>,
}

impl NamePattern {
    /// `*` matches no `/` if `separates`.
    pub(super) fn parse(pattern: &str, separates: bool, platform: Platform) -> Result<Self, globset::Error> {
        let glob = |pattern: &str| {
            let mut builder = GlobBuilder::new(pattern);
            builder.literal_separator(separates);
            if platform == Platform::Windows {
                builder.backslash_escape(false);
            }
            builder.build().map(|glob| glob.compile_matcher())
        };
        let folded = platform.has_spellings().then(|| glob(&platform.folded(pattern))).transpose()?;
        Ok(Self { exact: glob(pattern)?, folded: folded.map(|folded| (platform, folded)) })
    }

    pub(super) fn text(&self) -> &str {
        self.exact.glob().glob()
    }

    pub(super) fn is_path(&self, path: &Path) -> bool {
        self.exact.is_match(path)
    }

    pub(super) fn is_path_in_any_spelling(&self, path: &Path) -> bool {
        if self.is_path(path) {
            return true;
        }
        let Some((platform, folded)) = &self.folded else { return false };
        let text = platform.folded(&path.to_string_lossy()).into_owned();
        folded.is_match(&text) || folded.is_match(&*platform.plain_path(&text))
    }

    pub(super) fn is_words(&self, words: &str) -> bool {
        self.exact.is_match(words)
    }

    pub(super) fn is_words_in_any_spelling(&self, words: &str) -> bool {
        self.is_words(words)
            || self
                .folded
                .as_ref()
                .is_some_and(|(platform, folded)| folded.is_match(&*platform.folded(words)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a pattern matches a path exactly, and in any spelling.
    fn matches(platform: Platform, pattern: &str, path: &str) -> (bool, bool) {
        let pattern = NamePattern::parse(pattern, true, platform).unwrap();
        (pattern.is_path(Path::new(path)), pattern.is_path_in_any_spelling(Path::new(path)))
    }

    #[test]
    fn other_spellings_of_a_path_match() {
        use Platform::{Linux, MacOs, Windows};
        for platform in [Linux, MacOs, Windows] {
            assert_eq!(matches(platform, "**/secret.txt", "/a/secret.txt"), (true, true));
            assert_eq!(matches(platform, "**/secret.txt", "/a/secrets.txt"), (false, false));
            assert_eq!(matches(platform, "*.[Kk]ey", "a/b.key"), (false, false), "`*` matches no separator");
        }
        assert_eq!(matches(Linux, "**/secret.txt", "/a/SECRET.txt"), (false, false));
        for platform in [MacOs, Windows] {
            assert_eq!(matches(platform, "**/secret.txt", "/a/SECRET.txt"), (false, true));
            assert_eq!(matches(platform, "**/SECRET.txt", "/a/secret.txt"), (false, true));
            assert_eq!(matches(platform, "*.[K]EY", "b.key"), (false, true));
            assert_eq!(matches(platform, "[!a].txt", "A.txt"), (true, true), "an exact match remains one");
        }
        assert_eq!(matches(MacOs, "caf\u{e9}", "cafe\u{301}"), (false, true));
        assert_eq!(matches(MacOs, "/Users/**", "/System/Volumes/Data/Users/a"), (false, true));
        for path in [r"src\.env", "src/.env::$DATA", "src/.ENV. ", r"src\.env:x"] {
            assert!(matches(Windows, "src/.env", path).1, "{path}");
            assert!(matches(Windows, r"src\.env", path).1, "{path}");
        }
        assert!(matches(Windows, "C:/work/*", r"\\?\c:\work\a").1);
    }

    #[test]
    fn other_spellings_of_a_command_match() {
        let pattern = NamePattern::parse("git push*", false, Platform::MacOs).unwrap();
        assert!(!pattern.is_words("GIT push"));
        assert!(pattern.is_words_in_any_spelling("GIT push"));
        assert!(!pattern.is_words_in_any_spelling("git pull"));
    }
}
