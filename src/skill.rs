//! Skills: instructions for one kind of task, in a folder with a `SKILL.md`. Pure: `config/skill_files` reads
//! the folders.
//!
//! The format is <https://agentskills.io/specification>. A skill is only text: it never changes permissions.

use std::path::PathBuf;

use serde::Deserialize;

use crate::front_matter;
use crate::yaml_error;

pub const FILE: &str = "SKILL.md";

const MAX_NAME: usize = 64;

const MAX_DESCRIPTION: usize = 1024;

const HEADER: &str = "SKILL.md begins with a header between two lines of ---, which has name and description";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkillOrigin {
    User,
    Project,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// Also the folder's name: lower-case letters, digits and single hyphens.
    pub name: String,
    /// Purpose and use, in one line.
    pub description: String,
    /// Content of `SKILL.md` below its header.
    pub body: String,
    /// Absolute path without symbolic links.
    pub folder: PathBuf,
    pub origin: SkillOrigin,
}

/// Fields that Modegate reads. `allowed-tools` is ignored: it would let calls run without asking, which only
/// the user may decide.
#[derive(Debug, Default, Deserialize)]
struct Header {
    name: Option<String>,
    description: Option<String>,
}

impl Skill {
    /// The error is one sentence.
    pub fn parse(name: &str, folder: PathBuf, origin: SkillOrigin, text: &str) -> Result<Self, String> {
        let (header, body) = front_matter::split(text)?;
        let header = header.ok_or(HEADER)?;
        let header: Header = serde_saphyr::from_str(header)
            .map_err(|error| format!("{} ({HEADER})", yaml_error::describe_with_place(&error, header)))?;
        let given = header.name.ok_or_else(|| format!("name is missing: {HEADER}"))?;
        if !is_name(&given) {
            return Err(format!(
                "name: {given:?} is no name: lower-case letters, digits and single hyphens between them, at most {MAX_NAME} characters"
            ));
        }
        if given != name {
            return Err(format!(
                "name: {given:?} is not the name of its folder, {name:?}: they have to be the same"
            ));
        }
        let description = header.description.unwrap_or_default();
        let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
        let length = description.chars().count();
        if length == 0 || length > MAX_DESCRIPTION {
            return Err(format!(
                "description has {length} characters: 1 to {MAX_DESCRIPTION} say what the skill does and when to use it"
            ));
        }
        let body = body.trim();
        if body.is_empty() {
            return Err("it has no instructions below its header".into());
        }
        Ok(Self { name: given, description, body: body.to_owned(), folder, origin })
    }
}

fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text.split('-').all(|part| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        })
}

/// Skills sorted by name. Names are unique.
#[derive(Debug, Clone, Default)]
pub struct Skills(Vec<Skill>);

impl Skills {
    /// The first skill of a name wins.
    pub fn new(skills: impl IntoIterator<Item = Skill>) -> Self {
        let mut all: Vec<Skill> = skills.into_iter().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|next, first| next.name == first.name);
        Self(all)
    }

    pub fn find(&self, name: &str) -> Option<&Skill> {
        self.0.iter().find(|skill| skill.name == name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Skill> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, text: &str) -> Result<Skill, String> {
        Skill::parse(name, PathBuf::from("/skills").join(name), SkillOrigin::User, text)
    }

    #[test]
    fn skill_parses_header_and_instructions() {
        let text = "---\nname: pdf-2\ndescription: >\n  Fills forms.\n  Use it for PDF files.\nlicense: MIT\nallowed-tools: Bash(git:*) Read\nmetadata:\n  version: \"1.0\"\nmodel: x\n---\n\n# Forms\n\nDo it.\n";
        let expected = Skill {
            name: "pdf-2".into(),
            description: "Fills forms. Use it for PDF files.".into(),
            body: "# Forms\n\nDo it.".into(),
            folder: "/skills/pdf-2".into(),
            origin: SkillOrigin::User,
        };
        assert_eq!(parse("pdf-2", text), Ok(expected));
    }

    #[test]
    fn invalid_skills_are_reported_with_the_valid_form() {
        let with = |name: &str, more: &str| format!("---\nname: {name}\n{more}\n---\nDo it.");
        for (text, message) in [
            ("Do it.".to_owned(), "SKILL.md begins with a header"),
            ("---\nname: a\n".to_owned(), "no closing --- line"),
            ("---\n---\nDo it.".to_owned(), "name is missing: SKILL.md begins with a header"),
            (with("a", "description: [x"), "which has name and description)"),
            (with("A", "description: D"), "\"A\" is no name: lower-case letters"),
            (with("a--b", "description: D"), "is no name"),
            (with("-a", "description: D"), "is no name"),
            (with(&"a".repeat(65), "description: D"), "at most 64 characters"),
            (with("b", "description: D"), "\"b\" is not the name of its folder, \"a\""),
            (with("a", "license: MIT"), "description has 0 characters: 1 to 1024"),
            (with("a", "description: \" \""), "description has 0 characters"),
            (with("a", &format!("description: {}", "é".repeat(1025))), "description has 1025 characters"),
            ("---\nname: a\ndescription: D\n---\n \n".to_owned(), "it has no instructions below its header"),
        ] {
            let error = parse("a", &text).unwrap_err();
            assert!(error.contains(message) && !error.contains('\n'), "{text}: {error}");
        }
        assert!(parse("a", &with("a", &format!("description: {}", "é".repeat(1024)))).is_ok());
    }

    #[test]
    fn first_skill_of_a_name_takes_precedence() {
        let skill = |name: &str, body: &str| {
            parse(name, &format!("---\nname: {name}\ndescription: D\n---\n{body}")).unwrap()
        };
        let skills = Skills::new([skill("b", "1"), skill("a", "2"), skill("b", "3")]);
        let all: Vec<_> = skills.iter().map(|skill| (skill.name.as_str(), skill.body.as_str())).collect();
        assert_eq!(all, [("a", "2"), ("b", "1")]);
        assert!(skills.find("b").is_some() && skills.find("c").is_none());
    }
}
