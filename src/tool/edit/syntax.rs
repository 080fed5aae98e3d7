//! Tells the model that a change broke the syntax of a data file, for the formats whose parsers Modegate has anyway.
//! Pure.

use std::path::Path;

use serde::de::IgnoredAny;

use crate::text::one_line;
use crate::tool::file::text_file::TextFile;

/// Larger files are not parsed.
const MAX_BYTES: usize = 1 << 20;

/// Maximum characters of a parser's message.
const SHOWN: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataFormat {
    Json,
    Toml,
    Yaml,
}

/// A sentence about a fault that the file did not have before. A new file in a format with several dialects has none.
pub(super) fn new_fault(path: &Path, old: Option<&TextFile>, new: &[u8]) -> Option<String> {
    let format = DataFormat::of(path)?;
    if new.len() > MAX_BYTES || old.is_some_and(|old| old.text.len() > MAX_BYTES) {
        return None;
    }
    let fault = format.fault(&TextFile::decode(new).ok()?.text)?;
    let (name, words) =
        (path.file_name()?.to_string_lossy(), if old.is_some() { "no longer" } else { "not" });
    let is_new_fault = match old {
        Some(old) => format.fault(&old.text).is_none(),
        None => format.has_one_dialect(),
    };
    is_new_fault.then(|| {
        format!(
            "[{name} is {words} valid {}: {}.]",
            format.name(),
            one_line(fault.trim_end_matches('.'), SHOWN)
        )
    })
}

impl DataFormat {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "json" | "ipynb" | "geojson" | "webmanifest" => Some(Self::Json),
            "toml" => Some(Self::Toml),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Toml => "TOML",
            Self::Yaml => "YAML",
        }
    }

    /// Some programs read comments in JSON, and templates and several documents in YAML.
    fn has_one_dialect(self) -> bool {
        self == Self::Toml
    }

    fn fault(self, text: &str) -> Option<String> {
        match self {
            Self::Json => serde_json::from_str::<IgnoredAny>(text).err().map(|error| error.to_string()),
            Self::Toml => toml::from_str::<toml::Table>(text).err().map(|error| toml_fault(&error, text)),
            Self::Yaml => serde_saphyr::from_str::<IgnoredAny>(text)
                .err()
                .map(|error| error.without_snippet().to_string()),
        }
    }
}

fn toml_fault(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    match line {
        Some(line) => format!("{} at line {line}", error.message()),
        None => error.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str, old: Option<&str>, new: &str) -> Option<String> {
        let old = old.map(|old| TextFile::decode(old.as_bytes()).unwrap());
        new_fault(Path::new(name), old.as_ref(), new.as_bytes())
    }

    #[test]
    fn broken_syntax_is_told_where_it_was_right_before() {
        for (name, old, new, expected) in [
            (
                "a.json",
                "{}",
                "{\"a\": 1,}",
                "[a.json is no longer valid JSON: key must be a string at line 1 column 9.]",
            ),
            (
                "a.toml",
                "a = 1\n",
                "a = 1\na = 2\n",
                "[a.toml is no longer valid TOML: duplicate key at line 2.]",
            ),
            ("b.toml", "a = 1\n", "a = 1\nb = [1,\n", "[b.toml is no longer valid TOML: "),
            ("a.yml", "a: [1]\n", "a: [1\n", "[a.yml is no longer valid YAML: "),
            ("n.ipynb", "{\"cells\": []}", "{\"cells\": [}", "[n.ipynb is no longer valid JSON: "),
        ] {
            let told = fault(name, Some(old), new).unwrap_or_default();
            assert!(told.starts_with(expected) && !told.contains('\n'), "{name}: {told}");
        }
        let new_file = fault("new.toml", None, "a = \n").unwrap();
        assert!(new_file.starts_with("[new.toml is not valid TOML: "), "{new_file}");
    }

    #[test]
    fn nothing_is_told_without_a_new_fault() {
        for (name, old, new) in [
            ("a.json", Some("{}"), "{\"a\": [1, 2]}"),
            // A dialect with comments, and templates.
            ("tsconfig.json", Some("// c\n{}"), "// c\n{\"a\": 1}"),
            ("tsconfig.json", None, "// c\n{}"),
            ("chart.yaml", Some("a: {{ b }}\n"), "a: {{ c }}\n"),
            ("chart.yaml", None, "{{ if }}\na: [\n"),
            ("a.toml", Some("a = \n"), "a = \nb = \n"),
            ("a.rs", Some("fn a() {}"), "fn a( {}"),
        ] {
            assert_eq!(fault(name, old, new), None, "{name}: {new}");
        }
        let large = format!("{{\"a\": \"{}\"", "x".repeat(MAX_BYTES));
        assert_eq!(fault("a.json", Some("{}"), &large), None);
    }

    #[test]
    fn deep_nesting_is_parsed_without_a_crash() {
        for name in ["a.json", "a.toml", "a.yaml"] {
            let deep = format!("a = {}", "[".repeat(200_000));
            assert!(fault(name, Some("{}"), &deep).is_none_or(|told| told.len() < 400), "{name}");
            let deep = "[".repeat(200_000);
            assert!(fault(name, Some("{}"), &deep).is_none_or(|told| told.len() < 400), "{name}");
        }
    }
}
