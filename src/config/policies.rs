//! Loads modes and rules of the user and of a project.
//!
//! Files are read when a session starts, never during a turn. An unusable file restricts sessions to the most
//! restrictive mode until it is fixed.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::environment::Environment;
use super::user_file::create_private;
use super::{project, skill_files, user_commands};
use crate::bounded_file::{self, ReadError};
use crate::ids;
use crate::mode::ToolList;
use crate::policy::{Diagnostic, LayerOwner, Layers};
use crate::session::UserCommand;
use crate::skill::Skills;

pub const MODES: &str = "modes.yaml";

/// Written by `modegate permissions`.
pub const PERMISSIONS: &str = "permissions.yaml";

/// Hashes of the project files that the user trusts, one per line.
const TRUSTED: &str = "trusted";

/// Relative to a folder of the project.
pub const PROJECT: &str = ".modegate/modes.yaml";

pub const MAX_FILE: u64 = 256 * 1024;

const MAX_TRUSTED: u64 = 4 * 1024 * 1024;

#[derive(Debug, Clone)]
pub struct Policies {
    folder: Option<PathBuf>,
    home: Option<PathBuf>,
    tool_list: Option<ToolList>,
    /// True if no files are read, for deterministic runs.
    is_fixed: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Loaded {
    pub layers: Layers,
    pub problems: Vec<Diagnostic>,
}

impl Policies {
    pub fn new(environment: &Environment, tool_list: Option<ToolList>, is_fixed: bool) -> Self {
        let (folder, home) = (environment.config_folder.clone(), environment.user.home.clone());
        Self { folder, home, tool_list, is_fixed }
    }

    pub fn load(&self, cwd: &Path) -> Loaded {
        let mut loaded = if self.is_fixed { Loaded::default() } else { self.own() };
        if !self.is_fixed {
            let root = project::root(cwd);
            for path in project_files(cwd) {
                let text = bounded_file::read_text_below(root, &path, MAX_FILE);
                loaded.add(&path, text, LayerOwner::Project, |text| self.is_trusted(text));
            }
        }
        if let Some(list) = self.tool_list {
            loaded.layers.modes.set_default_tool_list(list);
        }
        loaded
    }

    pub fn commands(&self, cwd: &Path) -> (Vec<UserCommand>, Vec<String>) {
        if self.is_fixed {
            (Vec::new(), Vec::new())
        } else {
            user_commands::load(self.folder.as_deref(), cwd)
        }
    }

    pub fn skills(&self, cwd: &Path) -> (Skills, Vec<String>) {
        if self.is_fixed {
            (Skills::default(), Vec::new())
        } else {
            skill_files::load(self.folder.as_deref(), self.home.as_deref(), cwd)
        }
    }

    pub fn project_notice(&self, cwd: &Path) -> Option<String> {
        let problems = if self.is_fixed { Vec::new() } else { project::problems(cwd) };
        (!problems.is_empty()).then(|| format!("Files that are not used:\n{}", problems.join("\n")))
    }

    fn is_trusted(&self, text: &str) -> bool {
        let trusted = self.folder.as_ref().and_then(|folder| read_trusted(folder).ok());
        let hash = ids::hash(text);
        trusted.is_some_and(|trusted| trusted.lines().any(|line| line.split(' ').next() == Some(&hash)))
    }

    pub fn own(&self) -> Loaded {
        let mut loaded = Loaded::default();
        for path in self.own_files() {
            let text = bounded_file::read_own_text(&path, MAX_FILE);
            loaded.add(&path, text, LayerOwner::User, |_| true);
        }
        loaded
    }

    fn own_files(&self) -> impl Iterator<Item = PathBuf> {
        self.folder.iter().flat_map(|folder| [MODES, PERMISSIONS].map(|name| folder.join(name)))
    }

    /// Trusts a file by its current content, not its path. Returns the hash.
    pub fn trust(&self, path: &Path) -> anyhow::Result<String> {
        let text = match bounded_file::read_text(path, MAX_FILE) {
            Ok(text) => text,
            Err(error) => bail!("{} {error}", path.display()),
        };
        let Loaded { mut layers, problems } = self.own();
        let added = layers.add(&path.display().to_string(), &text, LayerOwner::User);
        // The file may use a mode that is defined in an unusable file.
        added.map_err(|error| problems.into_iter().next().unwrap_or(error))?;
        let folder = self.folder.as_ref().context("there is no home directory to remember that in")?;
        let hash = ids::hash(&text);
        let mut trusted = match read_trusted(folder) {
            Ok(trusted) => trusted,
            Err(error) if error.is_missing() => String::new(),
            // Fail rather than overwrite the existing entries.
            Err(error) => bail!("{} {error}", folder.join(TRUSTED).display()),
        };
        if !trusted.lines().any(|line| line.starts_with(&hash)) {
            trusted = format!("{trusted}{hash} {}\n", path.display());
            create_private(folder, &folder.join(TRUSTED), &trusted)?;
        }
        Ok(hash)
    }

    /// Lists the files that count here: the user's, which may be missing, then the project's.
    pub fn files(&self, cwd: &Path) -> Vec<PathBuf> {
        self.own_files().chain(project_files(cwd)).collect()
    }

    pub fn permissions_file(&self) -> anyhow::Result<PathBuf> {
        Ok(self.folder.as_ref().context("there is no home directory for your rules")?.join(PERMISSIONS))
    }
}

impl Loaded {
    /// Treats a project's file as the user's own if its content is trusted.
    fn add(
        &mut self,
        path: &Path,
        text: Result<String, ReadError>,
        owner: LayerOwner,
        is_trusted: impl Fn(&str) -> bool,
    ) {
        let name = path.display().to_string();
        let added = match text {
            Ok(text) => {
                let owner = if is_trusted(&text) { LayerOwner::User } else { owner };
                self.layers.add(&name, &text, owner)
            }
            Err(ReadError::Missing) => Ok(()),
            Err(error) => {
                Err(Diagnostic { place: name, line: 0, text: format!("it {error}"), shown: String::new() })
            }
        };
        if let Err(diagnostic) = added {
            tracing::debug!(%diagnostic, "a file of modes cannot be used");
            self.problems.push(diagnostic);
        }
    }
}

/// Returns the files from the repository's root down to the working directory.
pub fn project_files(cwd: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = project::folders(cwd).iter().map(|folder| folder.join(PROJECT)).collect();
    files.retain(|path| path.symlink_metadata().is_ok());
    files.reverse();
    files
}

fn read_trusted(folder: &Path) -> Result<String, ReadError> {
    bounded_file::read_own_text(&folder.join(TRUSTED), MAX_TRUSTED)
}
