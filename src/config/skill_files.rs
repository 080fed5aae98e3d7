//! Loads the skills of the user and of a project: folders with a `SKILL.md`.
//!
//! Security: a project's links stay within the project, and a skill's links within its folder, so that a
//! repository cannot expose other files.

use std::path::Path;

use super::project::Project;
use crate::bounded_file;
use crate::platform::files::real_path;
use crate::skill::{FILE, Skill, SkillOrigin, Skills};

const OWN: &str = "skills";

/// Shared with other agents.
const IN_HOME: [&str; 2] = [".agents/skills", ".claude/skills"];

const IN_PROJECT: [&str; 3] = [".modegate/skills", ".agents/skills", ".claude/skills"];

const MAX_SKILLS: usize = 200;

const MAX_FILE: u64 = 64 * 1024;

/// For equal names, the user's skill precedes a project's. Security: models choose skills on their own, so a
/// cloned repository must not replace the user's instructions. The nearest folder of a project counts first.
pub(super) fn load(own: Option<&Path>, home: Option<&Path>, project: Project<'_>) -> (Skills, Vec<String>) {
    let mut found_skills = FoundSkills::default();
    let of_user = own.map(|own| own.join(OWN)).into_iter();
    for folder in of_user.chain(home.into_iter().flat_map(|home| IN_HOME.map(|name| home.join(name)))) {
        found_skills.load_folder(&folder, None);
    }
    for folder in project.folders().flat_map(|folder| IN_PROJECT.map(|name| folder.join(name))) {
        found_skills.load_folder(&folder, Some(project.root()));
    }
    if found_skills.left_out > 0 {
        found_skills
            .problems
            .push(format!("{} skills more than {MAX_SKILLS} are left out", found_skills.left_out));
    }
    (Skills::new(found_skills.skills), found_skills.problems)
}

#[derive(Default)]
struct FoundSkills {
    skills: Vec<Skill>,
    problems: Vec<String>,
    left_out: usize,
}

impl FoundSkills {
    /// Links in a project's folder must stay within `project`.
    fn load_folder(&mut self, folder: &Path, project: Option<&Path>) {
        let entries = match names(folder, project) {
            Ok(entries) => entries,
            Err(reason) => return self.problems.push(format!("{}: {reason}", folder.display())),
        };
        for name in entries {
            let place = folder.join(&name);
            if place.join(FILE).symlink_metadata().is_err() {
                continue;
            }
            if self.skills.len() == MAX_SKILLS {
                self.left_out += 1;
                continue;
            }
            match read(&place, &name, project) {
                Ok(skill) => self.add(skill, &place),
                Err(reason) => self.problems.push(format!("{}: {reason}", place.join(FILE).display())),
            }
        }
    }

    fn add(&mut self, skill: Skill, place: &Path) {
        let Some(known) = self.skills.iter().find(|known| known.name == skill.name) else {
            return self.skills.push(skill);
        };
        let is_same = known.body == skill.body && known.description == skill.description;
        if known.origin == SkillOrigin::User && skill.origin == SkillOrigin::Project && !is_same {
            self.problems.push(format!(
                "{}: your own skill of this name takes precedence, {}",
                place.display(),
                known.folder.display()
            ));
        }
    }
}

fn names(folder: &Path, project: Option<&Path>) -> Result<Vec<String>, String> {
    if folder.symlink_metadata().is_err() {
        return Ok(Vec::new());
    }
    let real = real_path(folder).map_err(|error| error.to_string())?;
    if project.is_some_and(|root| !real.starts_with(root)) {
        return Err("it leads out of the project".into());
    }
    let entries = std::fs::read_dir(real).map_err(|error| error.to_string())?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn read(place: &Path, name: &str, project: Option<&Path>) -> Result<Skill, String> {
    let folder = real_path(place).map_err(|error| error.to_string())?;
    if project.is_some_and(|root| !folder.starts_with(root)) {
        return Err("its folder leads out of the project".into());
    }
    // Security: a skill's whole folder is readable without a permission request, so it must not contain the
    // list itself.
    if place.parent().is_some_and(|around| real_path(around).is_ok_and(|it| it.starts_with(&folder))) {
        return Err("its folder contains the list of skills".into());
    }
    let file = real_path(folder.join(FILE)).map_err(|error| error.to_string())?;
    if !file.starts_with(&folder) {
        return Err("it leads out of its folder".into());
    }
    let text = bounded_file::read_text(&file, MAX_FILE).map_err(|error| format!("it {error}"))?;
    let origin = if project.is_some() { SkillOrigin::Project } else { SkillOrigin::User };
    Skill::parse(name, folder, origin, &text)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Both paths are canonical.
    struct Place {
        _dir: tempfile::TempDir,
        home: PathBuf,
        project: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = real_path(dir.path()).unwrap();
            let (home, project) = (root.join("home"), root.join("project"));
            std::fs::create_dir_all(project.join(".git")).unwrap();
            std::fs::create_dir_all(project.join("inner")).unwrap();
            Self { _dir: dir, home, project }
        }

        fn load(&self) -> (Vec<(String, String, SkillOrigin)>, Vec<String>) {
            let own = self.home.join(".config/modegate");
            let (skills, problems) =
                load(Some(&own), Some(&self.home), Project::of(&self.project.join("inner")));
            let skills = skills.iter().map(|it| (it.name.clone(), it.body.clone(), it.origin)).collect();
            (skills, problems)
        }
    }

    fn write(folder: &Path, name: &str, body: &str) {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("---\nname: {name}\ndescription: D\n---\n{body}");
        std::fs::write(folder.join(FILE), text).unwrap();
    }

    fn all(expected: &[(&str, &str, SkillOrigin)]) -> Vec<(String, String, SkillOrigin)> {
        let owned = |(name, body, origin): &(&str, &str, SkillOrigin)| {
            ((*name).to_owned(), (*body).to_owned(), *origin)
        };
        expected.iter().map(owned).collect()
    }

    #[test]
    fn user_skills_precede_the_nearest_project_skills() {
        let place = Place::new();
        let (home, project) = (&place.home, &place.project);
        for (folder, names) in [
            (home.join(".config/modegate/skills"), &["a"][..]),
            (home.join(".agents/skills"), &["a", "b"]),
            (home.join(".claude/skills"), &["b", "c"]),
            (project.join("inner/.claude/skills"), &["c", "d"]),
            (project.join(".modegate/skills"), &["d", "e"]),
            (project.parent().unwrap().join(".agents/skills"), &["outside"]),
        ] {
            let below = folder.strip_prefix(home.parent().unwrap()).unwrap();
            let below = below.to_string_lossy().replace('\\', "/");
            for name in names {
                write(&folder, name, &below);
            }
        }
        // Entries that are not skills are ignored silently.
        std::fs::create_dir_all(home.join(".agents/skills/.git")).unwrap();
        std::fs::write(home.join(".agents/skills/README.md"), "x").unwrap();
        let (skills, problems) = place.load();
        let expected = [
            ("a", "home/.config/modegate/skills", SkillOrigin::User),
            ("b", "home/.agents/skills", SkillOrigin::User),
            ("c", "home/.claude/skills", SkillOrigin::User),
            ("d", "project/inner/.claude/skills", SkillOrigin::Project),
            ("e", "project/.modegate/skills", SkillOrigin::Project),
        ];
        assert_eq!(skills, all(&expected));
        let text = format!(
            "{}: your own skill of this name takes precedence, {}",
            project.join("inner/.claude/skills/c").display(),
            home.join(".claude/skills/c").display()
        );
        let plain = |text: &str| text.replace('\\', "/");
        assert_eq!(problems.iter().map(|it| plain(it)).collect::<Vec<_>>(), [plain(&text)]);
    }

    #[test]
    fn home_as_project_lists_each_skill_once() {
        let place = Place::new();
        write(&place.home.join(".claude/skills"), "a", "mine");
        let (skills, problems) = load(None, Some(&place.home), Project::of(&place.home));
        let skills: Vec<_> = skills.iter().map(|it| it.origin).collect();
        assert_eq!((skills, problems), (vec![SkillOrigin::User], Vec::new()));
    }

    #[cfg(unix)]
    #[test]
    fn skill_links_out_of_their_folder_are_rejected() {
        use std::os::unix::fs::symlink;
        let place = Place::new();
        let (home, project) = (&place.home, &place.project);
        let elsewhere = home.parent().unwrap().join("elsewhere");
        for name in ["mine", "theirs", "part"] {
            write(&elsewhere, name, name);
        }
        write(project.parent().unwrap(), "project", "all of it");
        write(&project.join("tools"), "inside", "inside");
        let (own, theirs) = (home.join(".agents/skills"), project.join(".agents/skills"));
        for folder in [&own, &theirs, &theirs.join("part"), &project.join(".modegate"), &own.join("pipe")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        symlink(elsewhere.join("mine"), own.join("mine")).unwrap();
        symlink("/dev/zero", own.join("pipe").join(FILE)).unwrap();
        symlink("../../tools/inside", theirs.join("inside")).unwrap();
        symlink("../..", theirs.join("project")).unwrap();
        symlink(elsewhere.join("theirs"), theirs.join("theirs")).unwrap();
        symlink(elsewhere.join("part").join(FILE), theirs.join("part").join(FILE)).unwrap();
        symlink(&elsewhere, project.join(".modegate/skills")).unwrap();
        let (skills, problems) = place.load();
        assert_eq!(
            skills,
            all(&[("inside", "inside", SkillOrigin::Project), ("mine", "mine", SkillOrigin::User)])
        );
        let text = |path: PathBuf, reason: &str| format!("{}: {reason}", path.display());
        assert_eq!(
            problems,
            [
                text(own.join("pipe").join(FILE), "it leads out of its folder"),
                text(project.join(".modegate/skills"), "it leads out of the project"),
                text(theirs.join("part").join(FILE), "it leads out of its folder"),
                text(theirs.join("project").join(FILE), "its folder contains the list of skills"),
                text(theirs.join("theirs").join(FILE), "its folder leads out of the project"),
            ]
        );
    }

    #[test]
    fn unusable_skills_are_reported_and_the_rest_load() {
        let place = Place::new();
        let own = place.home.join(".claude/skills");
        write(&own, "fine", "fine");
        write(&own, "large", &"x".repeat(64 * 1024));
        std::fs::create_dir_all(own.join("folder").join(FILE)).unwrap();
        std::fs::create_dir_all(own.join("binary")).unwrap();
        std::fs::write(own.join("binary").join(FILE), [0xff, 0xfe]).unwrap();
        let (skills, problems) = place.load();
        assert_eq!(skills, all(&[("fine", "fine", SkillOrigin::User)]));
        for text in [
            "binary/SKILL.md: it is not UTF-8 text",
            "folder/SKILL.md: it is a folder, not a regular file",
            "large/SKILL.md: it is larger than 64 KiB",
        ] {
            let is_reported = |problem: &String| problem.replace('\\', "/").contains(text);
            assert!(problems.iter().any(is_reported), "{text}: {problems:?}");
        }
        for number in 0..=MAX_SKILLS {
            write(&place.project.join(".claude/skills"), &format!("s-{number:03}"), "x");
        }
        let (skills, problems) = place.load();
        assert_eq!(skills.len(), MAX_SKILLS);
        assert_eq!(problems.last().unwrap(), "2 skills more than 200 are left out");
    }
}
