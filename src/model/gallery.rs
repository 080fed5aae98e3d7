//! Scripts for developers of clients, as part of the binary: each shows some of what an agent can send.

#[derive(Debug, PartialEq, Eq)]
pub struct GalleryScript {
    pub name: &'static str,
    /// See [`super::scripted`].
    pub text: &'static str,
}

macro_rules! scripts {
    ($($name:literal)*) => {
        &[$(GalleryScript { name: $name, text: include_str!(concat!("gallery/", $name, ".jsonl")) }),*]
    };
}

pub const GALLERY: &[GalleryScript] = scripts![
    "agents" "calls" "changes" "characters" "commands" "endings" "flood" "images" "limit" "modes" "questions" "slow"
    "tasks" "text"
];

impl GalleryScript {
    /// The first line, without its mark.
    pub fn about(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
    }
}

/// # Errors
/// Returns a sentence that lists the names.
pub fn find(name: &str) -> Result<&'static GalleryScript, String> {
    GALLERY.iter().find(|script| script.name == name).ok_or_else(|| {
        let names: Vec<_> = GALLERY.iter().map(|script| script.name).collect();
        format!("there is no script {name:?}: the scripts are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::scripted::Scripted;

    #[test]
    fn scripts_are_valid_and_say_what_they_show() {
        for script in GALLERY {
            assert!(Scripted::parse(script.text).is_ok(), "{}", script.name);
            assert!(script.text.starts_with("# ") && script.about().ends_with('.'), "{}", script.name);
        }
        assert_eq!(find("text").map(|script| script.name), Ok("text"));
        assert!(find("nothing").unwrap_err().contains("agents, calls"));
    }
}
