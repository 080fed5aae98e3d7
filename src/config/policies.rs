//! Loads modes and rules of the user and of a project.
//!
//! Files are read when a session starts, never during a turn. An unusable file restricts sessions to the most
//! restrictive mode until it is fixed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};

use super::environment::Environment;
use super::project::Project;
use super::user_file::create_private;
use super::{managed_file, skill_files, user_commands};
use crate::bounded_file::{self, ReadError};
use crate::ids;
use crate::managed_policy::ManagedLimits;
use crate::mode::ToolList;
use crate::policy::additions::additions;
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
    /// True if no files are read but the organisation's policy, for deterministic runs.
    is_fixed: bool,
    /// Folders beside those of a session in which commands or agents may write.
    write: Vec<PathBuf>,
}

#[derive(Debug, Clone, Default)]
pub struct Loaded {
    pub layers: Layers,
    pub problems: Vec<Diagnostic>,
    /// Already applied to the layers.
    pub managed: Arc<ManagedLimits>,
}

/// A project's file that counts as the user's own, as long as it has this content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedFile {
    pub hash: String,
    pub path: PathBuf,
}

/// A file of a project, with the content for a question about trust.
pub struct TrustRequest {
    pub file: TrustedFile,
    /// A line for each part of the file that counts only with trust.
    pub additions: Vec<String>,
    pub is_trusted: bool,
}

impl Policies {
    pub fn new(environment: &Environment, tool_list: Option<ToolList>, is_fixed: bool) -> Self {
        let (folder, home) = (environment.config_folder.clone(), environment.user.home.clone());
        Self { folder, home, tool_list, is_fixed, write: Vec::new() }
    }

    /// Sessions may also write in these folders, which the organisation's policy may name.
    #[must_use]
    pub fn with_write_folders(self, write: Vec<PathBuf>) -> Self {
        Self { write, ..self }
    }

    pub fn load(&self, cwd: &Path) -> Loaded {
        self.load_in(&[cwd.to_owned()], Project::of(cwd))
    }

    /// `folders` are those of a session, and `project` is that of its working directory.
    pub fn load_in(&self, folders: &[PathBuf], project: Project<'_>) -> Loaded {
        let managed = managed_file::limits_in(&[folders, &self.write].concat());
        let (layers, managed) = (managed.base_layers(), Arc::new(managed));
        let mut loaded = Loaded { layers, problems: Vec::new(), managed: Arc::clone(&managed) };
        if !self.is_fixed {
            self.add_own(&mut loaded);
            for path in files_of(project) {
                let text = bounded_file::read_text_below(project.root(), &path, MAX_FILE);
                loaded.add(&path, text, LayerOwner::Project, |text| {
                    managed.user_may.trust_projects && self.is_trusted(text)
                });
            }
        }
        managed.apply(&mut loaded.layers);
        if let Some(list) = self.tool_list {
            loaded.layers.modes.set_default_tool_list(list);
        }
        loaded
    }

    pub fn commands(&self, project: Project<'_>) -> (Vec<UserCommand>, Vec<String>) {
        if self.is_fixed {
            (Vec::new(), Vec::new())
        } else {
            user_commands::load(self.folder.as_deref(), project)
        }
    }

    pub fn skills(&self, project: Project<'_>) -> (Skills, Vec<String>) {
        if self.is_fixed {
            (Skills::default(), Vec::new())
        } else {
            skill_files::load(self.folder.as_deref(), self.home.as_deref(), project)
        }
    }

    pub fn project_notice(&self, project: Project<'_>) -> Option<String> {
        let problems = if self.is_fixed { Vec::new() } else { project.problems() };
        (!problems.is_empty()).then(|| format!("Files that are not used:\n{}", problems.join("\n")))
    }

    fn is_trusted(&self, text: &str) -> bool {
        let trusted = self.folder.as_ref().and_then(|folder| read_trusted(folder).ok());
        let hash = ids::hash(text);
        trusted.is_some_and(|trusted| trusted.lines().any(|line| line.split(' ').next() == Some(&hash)))
    }

    pub fn own(&self) -> Loaded {
        let mut loaded = Loaded::default();
        self.add_own(&mut loaded);
        loaded
    }

    fn add_own(&self, loaded: &mut Loaded) {
        for path in self.own_files() {
            let text = bounded_file::read_own_text(&path, MAX_FILE);
            loaded.add(&path, text, LayerOwner::User, |_| true);
        }
    }

    fn own_files(&self) -> impl Iterator<Item = PathBuf> {
        self.folder.iter().flat_map(|folder| [MODES, PERMISSIONS].map(|name| folder.join(name)))
    }

    /// Reads a file that the user may trust.
    pub fn trust_request(&self, path: &Path) -> anyhow::Result<TrustRequest> {
        let text = match bounded_file::read_text(path, MAX_FILE) {
            Ok(text) => text,
            Err(error) => bail!("{} {error}", path.display()),
        };
        let Loaded { mut layers, problems, .. } = self.own();
        let name = path.display().to_string();
        let additions = additions(&layers, &name, &text);
        let added = layers.add(&name, &text, LayerOwner::User).and(additions);
        // The file may use a mode that is defined in an unusable file.
        let additions = added.map_err(|error| problems.into_iter().next().unwrap_or(error))?;
        let file = TrustedFile { hash: ids::hash(&text), path: path.to_owned() };
        let is_trusted = self.trusted()?.iter().any(|known| known.hash == file.hash);
        Ok(TrustRequest { file, additions, is_trusted })
    }

    /// Trusts a file by its content, not its path.
    pub fn trust(&self, file: TrustedFile) -> anyhow::Result<()> {
        let mut trusted = self.trusted()?;
        if trusted.iter().all(|known| known.hash != file.hash) {
            trusted.push(file);
            self.write_trusted(&trusted)?;
        }
        Ok(())
    }

    /// The trusted files, each with the path that it had then.
    pub fn trusted(&self) -> anyhow::Result<Vec<TrustedFile>> {
        let folder = self.trust_folder()?;
        match read_trusted(folder) {
            Ok(text) => Ok(text.lines().filter_map(TrustedFile::parse).collect()),
            Err(error) if error.is_missing() => Ok(Vec::new()),
            // An error, so that no entry is overwritten.
            Err(error) => bail!("{} {error}", folder.join(TRUSTED).display()),
        }
    }

    /// Ends the trust in all contents that a file had, and in its present one. Returns the entries that ended.
    pub fn revoke_trust(&self, path: &Path) -> anyhow::Result<Vec<TrustedFile>> {
        let present = bounded_file::read_text(path, MAX_FILE).ok().map(|text| ids::hash(&text));
        let is_meant = |file: &TrustedFile| file.path == path || Some(&file.hash) == present.as_ref();
        let (revoked, kept): (Vec<_>, Vec<_>) = self.trusted()?.into_iter().partition(is_meant);
        if !revoked.is_empty() {
            self.write_trusted(&kept)?;
        }
        Ok(revoked)
    }

    fn write_trusted(&self, files: &[TrustedFile]) -> anyhow::Result<()> {
        let folder = self.trust_folder()?;
        let lines = files.iter().map(|file| format!("{} {}\n", file.hash, file.path.display()));
        Ok(create_private(folder, &folder.join(TRUSTED), &lines.collect::<String>())?)
    }

    fn trust_folder(&self) -> anyhow::Result<&Path> {
        self.folder.as_deref().context("there is no home directory to remember that in")
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
    files_of(Project::of(cwd))
}

fn files_of(project: Project<'_>) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = project.folders().map(|folder| folder.join(PROJECT)).collect();
    files.retain(|path| path.symlink_metadata().is_ok());
    files.reverse();
    files
}

impl TrustedFile {
    fn parse(line: &str) -> Option<Self> {
        let (hash, path) = line.split_once(' ')?;
        Some(Self { hash: hash.to_owned(), path: path.into() })
    }

    /// Returns what became of the file. Its content counts, wherever it lies.
    pub fn state(&self) -> &'static str {
        match bounded_file::read_text(&self.path, MAX_FILE) {
            Ok(text) if ids::hash(&text) == self.hash => "trusted",
            Ok(_) => "changed since, so it is not trusted",
            Err(_) => "not there any more",
        }
    }
}

fn read_trusted(folder: &Path) -> Result<String, ReadError> {
    bounded_file::read_own_text(&folder.join(TRUSTED), MAX_TRUSTED)
}
