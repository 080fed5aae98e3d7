//! Collects the names and values that were translated or ignored in a call, as advice to the model. Pure.

use super::SHOWN;
use crate::text::shorten;
use crate::tool::json_repair::JsonRepair;

/// Advice to the model for its next call.
#[derive(Debug, Default)]
pub(super) struct TranslationNotes {
    pub(super) repairs: Vec<JsonRepair>,
    pub(super) renamed: Vec<(String, String)>,
    pub(super) ignored: Vec<String>,
    pub(super) has_milliseconds: bool,
    /// The member that the arguments stood below.
    pub(super) wrapper: Option<String>,
}

impl TranslationNotes {
    pub(super) fn rename(&mut self, name: &str, own: &str) {
        let renamed = (shorten(name, SHOWN).into_owned(), own.to_owned());
        if !self.renamed.contains(&renamed) {
            self.renamed.push(renamed);
        }
    }

    pub(super) fn ignore(&mut self, name: &str) {
        let name = shorten(name, SHOWN).into_owned();
        if !self.ignored.contains(&name) {
            self.ignored.push(name);
        }
    }

    pub(super) fn text(&self, called: &str, tool: &str) -> Option<String> {
        let mut parts = Vec::new();
        if called != tool {
            parts.push(format!("{} is {tool} here", shorten(called, SHOWN)));
        }
        parts.extend(
            self.wrapper.iter().map(|wrapper| format!("the arguments stand alone, without `{wrapper}`")),
        );
        parts.extend(self.renamed.iter().map(|(name, own)| format!("`{name}` is `{own}`")));
        parts.extend(self.has_milliseconds.then(|| "`timeout` is in seconds".to_owned()));
        if !self.ignored.is_empty() {
            parts.push(format!("ignored: `{}`", self.ignored.join("`, `")));
        }
        parts.extend(self.repairs.iter().map(|repair| repair.advice().to_owned()));
        (!parts.is_empty()).then(|| format!("[{}.]", parts.join("; ")))
    }
}
