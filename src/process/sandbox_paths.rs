//! Readable and writable paths of sandboxed commands. A read-only command reads neither a whole home folder
//! nor the root of the file system. Nothing is created here.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::git_folder::Git;
use crate::platform::files::real_path;

#[rustfmt::skip]
const SYSTEM: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/snap", "/nix/store",
    "/nix/var/nix/profiles", "/gnu/store", "/run/current-system", "/home/linuxbrew/.linuxbrew", "/dev/null",
    "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/proc/loadavg", "/proc/uptime", "/proc/version", "/proc/filesystems", "/proc/sys/kernel", "/proc/sys/vm",
    "/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
];

/// Never all of `/etc`: root could read the machine's secrets there.
#[rustfmt::skip]
const SETTINGS: &[&str] = &[
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts",
    "gitattributes", "gitconfig", "group", "host.conf", "hostname", "hosts", "inputrc", "java-11-openjdk",
    "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload",
    "locale.alias", "locale.conf", "localtime", "lsb-release", "machine-id", "magic", "mime.types",
    "nsswitch.conf", "openldap", "os-release", "passwd", "perl", "pki/tls/certs", "profile", "profile.d",
    "protocols", "python3", "python3.11", "python3.12", "python3.13", "R", "redhat-release", "resolv.conf",
    "services", "shells", "ssl/certs", "ssl/openssl.cnf", "static", "terminfo", "timezone", "xdg",
];

/// Cargo's credentials are left out.
#[rustfmt::skip]
const IN_HOME: &[&str] = &[
    ".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes", ".gitignore",
    ".gitignore_global", ".cargo/bin", ".cargo/registry", ".cargo/git", ".cargo/config", ".cargo/config.toml",
    ".cargo/env", ".rustup", ".pyenv", ".rbenv", ".rvm", ".nvm", ".volta", ".local/share/fnm", ".asdf",
    ".local/share/mise", ".sdkman", ".goenv", "go/bin", "go/pkg", ".deno/bin", ".bun/bin", ".local/bin",
    ".local/lib", ".local/share/uv/python", ".local/share/uv/tools", ".ghcup/bin", ".ghcup/ghc", ".juliaup",
    ".dotnet/dotnet", ".dotnet/host", ".dotnet/shared", ".dotnet/sdk", ".dotnet/packs", ".dotnet/tools",
    ".elan", ".nix-profile", "miniconda3", "anaconda3", ".ripgreprc",
];

#[rustfmt::skip]
const CACHES: &[&str] = &[
    ".cache", ".cargo/registry", ".cargo/git", ".npm", ".pnpm-store", ".local/share/pnpm/store", ".yarn/cache",
    ".bun/install/cache", "go/pkg", ".gradle/caches", ".gradle/daemon", ".gradle/wrapper/dists",
    ".gradle/native", ".gradle/notifications", ".gradle/workers", ".gradle/.tmp",
    ".m2/repository", ".nuget/packages", ".cabal/packages", ".cabal/store", ".ccache", ".pub-cache/hosted",
];

/// Files that cargo locks beside its caches.
const CACHE_FILES: [&str; 3] =
    [".cargo/.package-cache", ".cargo/.package-cache-mutate", ".cargo/.global-cache"];

/// Variables that move caches, and where these are below the variable's folder.
#[rustfmt::skip]
pub const CACHE_VARIABLES: &[(&str, &[&str])] = &[
    ("XDG_CACHE_HOME", &[""]), ("npm_config_cache", &[""]), ("NPM_CONFIG_CACHE", &[""]),
    ("YARN_CACHE_FOLDER", &[""]), ("BUN_INSTALL_CACHE_DIR", &[""]), ("PIP_CACHE_DIR", &[""]),
    ("UV_CACHE_DIR", &[""]), ("POETRY_CACHE_DIR", &[""]), ("GOCACHE", &[""]), ("GOMODCACHE", &[""]),
    ("GOPATH", &["pkg"]),
    ("GRADLE_USER_HOME", &["caches", "daemon", "wrapper/dists", "native", "notifications", "workers", ".tmp"]),
    ("NUGET_PACKAGES", &[""]), ("CCACHE_DIR", &[""]), ("SCCACHE_DIR", &[""]), ("DENO_DIR", &[""]),
];

/// Entries beside a folder `bin` whose programs need what lies beside it: environments of Python and conda, Go, Java.
const BESIDE_BIN: [&str; 4] = ["pyvenv.cfg", "conda-meta", "pkg/tool", "lib/jvm.cfg"];

/// Links on `PATH` that are followed. Each costs a command some system calls.
const MAX_LINKS_ON_PATH: usize = 1000;

const SHARED_MEMORY: &str = "/dev/shm";

#[rustfmt::skip]
const DEVICES: &[&str] = &[
    SHARED_MEMORY, "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts",
];

#[rustfmt::skip]
pub const TOOLCHAINS: &[&str] = &[
    "RUSTUP_HOME", "PYENV_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "NVM_DIR", "VOLTA_HOME", "GOROOT",
    "JAVA_HOME", "SDKMAN_DIR", "ASDF_DIR", "ASDF_DATA_DIR",
];

#[derive(Debug, Clone, Default)]
pub struct User {
    pub home: Option<PathBuf>,
    /// In the system's list of users; `HOME` may name another.
    pub account_home: Option<PathBuf>,
    pub path: Vec<PathBuf>,
    /// The variable `PATHEXT` of Windows.
    pub program_endings: Option<String>,
    pub toolchains: Vec<PathBuf>,
    pub cargo: Option<PathBuf>,
    /// Caches that [`CACHE_VARIABLES`] name.
    pub caches: Vec<PathBuf>,
    pub temporary: PathBuf,
    /// Temporary folders that every workspace command may write.
    pub scratch: Vec<PathBuf>,
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// Modegate's own settings, store and recording. Nothing that Modegate starts changes them.
    pub own: Vec<PathBuf>,
    /// Those of [`Self::own`] that hold what sessions read and changed: the store, and the copies for undo.
    pub private: Vec<PathBuf>,
}

impl User {
    /// Paths in the home folder, and again those of cargo in its own folder.
    fn at_home(&self, names: &[&str]) -> impl Iterator<Item = PathBuf> {
        let in_home = self.home.iter().flat_map(|home| names.iter().map(|name| home.join(name)));
        let of_cargo = names.iter().filter_map(|name| name.strip_prefix(".cargo/"));
        in_home.chain(self.cargo.iter().flat_map(move |cargo| of_cargo.clone().map(|name| cargo.join(name))))
    }
}

pub struct SandboxPaths<'a> {
    user: &'a User,
    roots: &'a [PathBuf],
    real: Real,
    repositories: Vec<Git>,
}

impl<'a> SandboxPaths<'a> {
    pub fn of(user: &'a User, roots: &'a [PathBuf]) -> Self {
        let repositories = roots.iter().map(|root| Git::of(root)).collect();
        Self { user, roots, real: Real::of(user), repositories }
    }

    /// Without the roots' repositories.
    pub fn of_system(user: &'a User, roots: &'a [PathBuf]) -> Self {
        Self { user, roots, real: Real::of(user), repositories: Vec::new() }
    }

    pub fn roots(&self) -> &'a [PathBuf] {
        self.roots
    }

    /// Paths that the user's settings add. `None` if a root is that of the file system, a home
    /// folder or a parent of one.
    pub fn readable_own(&mut self) -> Option<Vec<PathBuf>> {
        let Self { user, roots, real, repositories } = self;
        if roots.iter().any(|root| real.is_too_wide(root)) {
            return None;
        }
        let mut places = user.read.clone();
        for (root, Git { folders, borrowed, .. }) in roots.iter().zip(repositories) {
            places.push(root.clone());
            places.extend(folders.iter().chain(&*borrowed).filter(|place| !real.is_too_wide(place)).cloned());
        }
        Some(real.existing(places))
    }

    /// The system, toolchains and settings.
    pub fn readable_system(&mut self, besides: &[PathBuf]) -> Vec<PathBuf> {
        let Self { user, roots, real, .. } = self;
        // The home of a service account can lie in a system folder.
        let mut places: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
        places.retain(|place| !real.is_too_wide(place));
        places.extend(SETTINGS.iter().map(|name| Path::new("/etc").join(name)));
        places.extend(user.at_home(IN_HOME));
        // Paths in a root are readable anyway, and a link there must not open other folders.
        let tools = user.path.iter().chain(&user.toolchains).chain(besides);
        let outside = tools.filter(|place| !roots.iter().any(|root| place.starts_with(root)));
        places.extend(outside.filter(|place| !real.is_too_wide(place)).cloned());
        places.extend(self.packages_on_path());
        self.real.existing(places)
    }

    /// Folders of the programs to which links in the folders on `PATH` lead, such as `lib/node_modules` beside `bin`, and
    /// toolchains whose `bin` is on `PATH` without a variable that names them.
    fn packages_on_path(&mut self) -> Vec<PathBuf> {
        // Commands could add links there, and in the roots.
        let mut writable = self.writable_system();
        writable.extend(self.roots.iter().cloned());
        let Self { user, real, .. } = self;
        let mut system: Vec<&Path> = SYSTEM.iter().map(Path::new).collect();
        system.retain(|place| !real.is_too_wide(place));
        let links = user.path.iter().filter_map(|folder| {
            let folder = real.path(folder)?;
            let is_of_system = system.iter().any(|place| folder.starts_with(place));
            let is_writable = writable.iter().any(|place| folder.starts_with(place));
            (!is_of_system && !is_writable).then(|| links_in(&folder))
        });
        let links: BTreeSet<PathBuf> = links.flatten().take(MAX_LINKS_ON_PATH).collect();
        let mut packages: BTreeSet<PathBuf> = links.iter().filter_map(|link| package_of(link)).collect();
        let toolchains = user.path.iter().filter_map(|folder| toolchain_of(&real.path(folder)?));
        packages
            .extend(toolchains.filter(|place| !writable.iter().any(|writable| place.starts_with(writable))));
        packages.into_iter().filter(|package| !real.is_too_wide(package)).collect()
    }

    /// The session's folders and repositories, and paths that the user's settings name.
    pub fn writable_own(&mut self) -> Vec<PathBuf> {
        let Self { user, roots, real, repositories } = self;
        let mut places = user.write.clone();
        for (root, Git { folders, .. }) in roots.iter().zip(repositories) {
            places.push(root.clone());
            // A commit in a linked worktree writes to the main repository.
            places.extend(folders.iter().filter(|place| !real.is_too_wide(place)).cloned());
        }
        real.existing(places)
    }

    /// The configured and the real paths of Modegate's own files.
    pub fn own_files(&mut self) -> Vec<PathBuf> {
        self.real.names_of(&self.user.own)
    }

    /// The configured and the real paths of [`User::private`].
    pub fn private_files(&mut self) -> Vec<PathBuf> {
        self.real.names_of(&self.user.private)
    }

    /// The git folders of the session's repositories that lie outside of its folders.
    pub fn git_folders(&mut self) -> Vec<PathBuf> {
        let Self { roots, real, repositories, .. } = self;
        let folders = repositories.iter().flat_map(|Git { folders, .. }| folders);
        let folders: Vec<_> = folders.filter(|folder| !real.is_too_wide(folder)).cloned().collect();
        let is_outside =
            |folder: &PathBuf| !roots.iter().any(|root| folder.starts_with(root) || root.starts_with(folder));
        real.existing(folders).into_iter().filter(is_outside).collect()
    }

    /// Folders of caches that a brokered agent may change. Of missing ones, the existing parts of their paths are real.
    /// No cache contains a root.
    pub fn agent_caches(&mut self) -> Vec<PathBuf> {
        let places = self.cache_places(CACHES);
        let missing = missing(places.clone());
        let existing = self.real.existing(places).into_iter().filter(|place| place.is_dir());
        let mut caches: Vec<_> = existing.collect();
        caches.extend(missing.iter().filter_map(|place| self.real.path_to_be(place)));
        caches.retain(|cache| !self.roots.iter().any(|root| root.starts_with(cache)));
        caches
    }

    /// Existing temporary folders and the folder of shared memory, except for those that contain a home folder.
    pub fn temporary_folders(&mut self) -> Vec<PathBuf> {
        let Self { user, real, .. } = self;
        let places = user.scratch.iter().cloned().chain([PathBuf::from(SHARED_MEMORY)]);
        let places: Vec<_> = places.filter(|place| !real.is_too_wide(place)).collect();
        real.existing(places)
    }

    /// Folders of caches that do not exist, and files. Leaves out places below the roots and `scratch`: the command
    /// can make them.
    pub fn missing_caches(&mut self, scratch: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
        // A home folder that does not exist is not made.
        if !self.user.home.as_ref().is_some_and(|home| home.is_dir()) {
            return (Vec::new(), Vec::new());
        }
        let mut folders = missing(self.cache_places(CACHES));
        let mut files = missing(self.user.at_home(&CACHE_FILES).collect());
        for places in [&mut folders, &mut files] {
            places.retain(|place| !scratch.iter().chain(self.roots).any(|folder| place.starts_with(folder)));
        }
        (folders, files)
    }

    fn cache_places(&mut self, in_home: &[&str]) -> Vec<PathBuf> {
        let Self { user, real, .. } = self;
        let named = user.caches.iter().filter(|place| !place.exists() || !real.is_too_wide(place));
        user.at_home(in_home).chain(named.cloned()).collect()
    }

    /// Devices, temporary folders and caches.
    pub fn writable_system(&mut self) -> Vec<PathBuf> {
        let mut places: Vec<PathBuf> = DEVICES.iter().map(PathBuf::from).collect();
        places.extend(self.user.scratch.iter().cloned());
        places.extend(self.cache_places(CACHES));
        places.extend(self.user.at_home(&CACHE_FILES));
        self.real.existing(places)
    }
}

fn missing(mut places: Vec<PathBuf>) -> Vec<PathBuf> {
    places.retain(|place| place.is_absolute() && !place.exists());
    places
}

fn links_in(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    links.map(|entry| entry.path()).collect()
}

/// The folder above a folder of programs that belongs to them.
fn toolchain_of(programs: &Path) -> Option<PathBuf> {
    let folder = programs.parent()?;
    BESIDE_BIN.iter().any(|name| folder.join(name).exists()).then(|| folder.to_owned())
}

/// The folder that contains the program of a link, and the files that it needs: all packages of npm, the environment
/// of Python, or else the program's own folder.
fn package_of(link: &Path) -> Option<PathBuf> {
    let program = real_path(link).ok().filter(|program| program.is_file())?;
    let folders = || program.ancestors().skip(1);
    let of_npm = folders().filter(|folder| folder.ends_with("node_modules")).last();
    let of_python = || folders().nth(1).filter(|folder| folder.join("pyvenv.cfg").is_file());
    of_npm.or_else(of_python).or_else(|| program.parent()).map(Path::to_owned)
}

/// Drops paths inside other ones: each costs every command a rule.
pub(super) fn outermost(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut retained: Vec<PathBuf> = Vec::new();
    // A folder precedes its contents.
    for path in paths.collect::<BTreeSet<_>>() {
        if !retained.last().is_some_and(|last| path.starts_with(last)) {
            retained.push(path);
        }
    }
    retained
}

/// Cache of real paths, which saves most of over a thousand file system calls.
struct Real {
    homes: Vec<PathBuf>,
    known: HashMap<OsString, Option<PathBuf>>,
}

impl Real {
    fn of(user: &User) -> Self {
        // The home of a service account can be a system folder, which commands need.
        let account =
            user.account_home.iter().filter(|home| !SYSTEM.iter().any(|place| home.starts_with(place)));
        let homes = user.home.iter().chain(account).filter_map(|home| real_path(home).ok());
        Self { homes: homes.collect(), known: HashMap::new() }
    }

    fn path(&mut self, place: &Path) -> Option<PathBuf> {
        if let Some(known) = self.known.get(place.as_os_str()) {
            return known.clone();
        }
        let real = self.ask(place);
        self.known.insert(place.into(), real.clone());
        real
    }

    fn ask(&mut self, place: &Path) -> Option<PathBuf> {
        let (Some(above), Some(name)) = (place.parent(), place.file_name()) else {
            return real_path(place).ok();
        };
        let path = self.path(above)?.join(name);
        let is_link = path.symlink_metadata().ok()?.is_symlink();
        if is_link { real_path(path).ok() } else { Some(path) }
    }

    /// True if a path contains a whole home folder or file system, or is missing.
    fn is_too_wide(&mut self, place: &Path) -> bool {
        let Some(place) = self.path(place) else { return true };
        place.parent().is_none() || self.homes.iter().any(|home| home.starts_with(&place))
    }

    /// The real path of a missing file. `None` for one with a part such as `..`.
    fn path_to_be(&mut self, place: &Path) -> Option<PathBuf> {
        match self.path(place) {
            Some(existing) => Some(existing),
            None => Some(self.path_to_be(place.parent()?)?.join(place.file_name()?)),
        }
    }

    fn names_of(&mut self, paths: &[PathBuf]) -> Vec<PathBuf> {
        let names = paths.iter().flat_map(|path| {
            let real = self.path_to_be(path);
            [path.clone(), real.unwrap_or_else(|| path.clone())]
        });
        names.collect()
    }

    /// Real paths, so that later changes of links have no effect.
    fn existing(&mut self, places: Vec<PathBuf>) -> Vec<PathBuf> {
        let (mut retained, mut seen) = (Vec::new(), HashSet::new());
        for place in places.into_iter().filter(|place| place.is_absolute()) {
            let Some(place) = self.path(&place) else { continue };
            // The request to the supervisor is JSON, so paths must be UTF-8.
            if place.to_str().is_some() && seen.insert(OsString::from(&place)) {
                retained.push(place);
            }
        }
        retained
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn readable(user: &User, roots: &[PathBuf]) -> Option<Vec<PathBuf>> {
        let mut paths = SandboxPaths::of(user, roots);
        let own = paths.readable_own()?;
        Some(own.into_iter().chain(paths.readable_system(&[])).collect())
    }

    #[test]
    fn home_and_root_are_never_readable_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap().join("home/me");
        let work = home.join("work");
        std::fs::create_dir_all(&work).unwrap();
        std::fs::create_dir_all(home.join("bin")).unwrap();
        std::fs::create_dir_all(home.join(".cargo/bin")).unwrap();
        std::fs::write(home.join(".cargo/credentials.toml"), "token").unwrap();
        let path =
            [home.join("bin"), home.clone(), "/".into(), home.parent().unwrap().to_owned(), "rel".into()];
        let user = User { home: Some(home.clone()), path: path.to_vec(), ..User::default() };
        let elsewhere = User { home: Some("/none".into()), account_home: Some(home.clone()), ..user.clone() };
        for user in [user, elsewhere] {
            let places = readable(&user, std::slice::from_ref(&work)).unwrap();
            for place in &places {
                assert!(!home.starts_with(place), "{}", place.display());
                assert!(!place.join("credentials.toml").exists(), "{}", place.display());
            }
            assert!(places.contains(&work) && places.contains(&home.join("bin")));
            for wide in [&home, Path::new("/"), home.parent().unwrap()] {
                let places = readable(&user, &[wide.to_owned()]);
                assert_eq!(places, None, "{}", wide.display());
            }
        }
        let service = User { account_home: Some("/usr/sbin".into()), ..User::default() };
        assert!(readable(&service, &[work]).unwrap().contains(&"/usr".into()));
    }

    #[test]
    fn outermost_drops_only_nested_paths() {
        let check = |paths: &[&str], expected: &[&str]| {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(outermost(paths.iter().map(PathBuf::from)), expected, "{paths:?}");
        };
        check(&["/usr/bin", "/usr", "/usr-local", "/etc/hosts"], &["/etc/hosts", "/usr", "/usr-local"]);
        check(&["/a.b", "/a/b", "/a", "/a/b/c", "/a"], &["/a", "/a.b"]);
        check(&["/a/b", "/a/c"], &["/a/b", "/a/c"]);
    }

    #[test]
    fn real_paths_equal_canonicalize() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, link) = (dir.path().join("folder/inner"), dir.path().join("link"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), "").unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        std::os::unix::fs::symlink("../link/file", dir.path().join("folder/relative")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
        let mut real = Real::of(&User::default());
        let names = [
            "folder",
            "link",
            "link/file",
            "link/..",
            "link/../inner",
            "folder/relative",
            "dangling",
            "none/x",
        ];
        for name in names.iter().chain(&names) {
            let place = dir.path().join(name);
            assert_eq!(real.path(&place), std::fs::canonicalize(&place).ok(), "{name}");
        }
        for place in ["/", "/usr/bin", "/bin", "/proc/self/cwd", "/usr/bin/bash/x"] {
            assert_eq!(real.path(Path::new(place)), std::fs::canonicalize(place).ok(), "{place}");
        }
    }

    #[test]
    fn workspace_links_on_path_make_no_target_readable() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (work, secret) = (dir.join("work"), dir.join("secret"));
        std::fs::create_dir_all(&work).unwrap();
        std::fs::create_dir_all(&secret).unwrap();
        std::os::unix::fs::symlink(&secret, work.join("bin")).unwrap();
        let user =
            User { path: vec![work.join("bin")], toolchains: vec![work.join("bin")], ..User::default() };
        assert!(!readable(&user, &[work]).unwrap().contains(&secret));
    }

    #[test]
    fn programs_that_links_on_path_lead_to_are_readable() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap().join("me");
        let write = |name: &str| {
            let file = home.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
        };
        for name in [
            "npm/lib/node_modules/tool/cli.js",
            "npm/lib/node_modules/other/index.js",
            "pipx/venvs/tool/bin/tool",
            "pipx/venvs/tool/pyvenv.cfg",
            "scripts/bin/run",
            "secret.sh",
            ".cache/hidden/run",
            "work/hidden/run",
        ] {
            write(name);
        }
        let folders = ["npm/bin", ".cache/bin", "work/bin"].map(|name| home.join(name));
        for folder in &folders {
            std::fs::create_dir_all(folder).unwrap();
        }
        let link = |name: &str, target: &str| std::os::unix::fs::symlink(target, home.join(name)).unwrap();
        link("npm/bin/tool", "../lib/node_modules/tool/cli.js");
        link("npm/bin/python-tool", "../../pipx/venvs/tool/bin/tool");
        link("npm/bin/run", "../../scripts/bin/run");
        link("npm/bin/secret", "../../secret.sh");
        link("npm/bin/missing", "../../nowhere/x");
        link(".cache/bin/hidden", "../hidden/run");
        link("work/bin/hidden", "../../scripts/other");
        let user = User { home: Some(home.clone()), path: folders.to_vec(), ..User::default() };
        let places = readable(&user, &[home.join("work")]).unwrap();
        let is_readable = |name: &str| places.iter().any(|place| home.join(name).starts_with(place));
        for (name, expected) in [
            ("npm/lib/node_modules/tool/cli.js", true),
            ("npm/lib/node_modules/other/index.js", true),
            ("pipx/venvs/tool/lib/x.py", true),
            ("pipx/venvs/other", false),
            ("scripts/bin/run", true),
            ("scripts/other", false),
            ("secret.sh", false),
            ("nowhere/x", false),
            (".cache/hidden/run", false),
        ] {
            assert_eq!(is_readable(name), expected, "{name}");
        }
    }

    #[test]
    fn toolchains_on_path_are_readable_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap().join("me");
        for name in [
            "venv/pyvenv.cfg",
            "conda/conda-meta/history",
            "go1/pkg/tool/link",
            "plain/lib/x",
            ".cache/venv/pyvenv.cfg",
            "work/pyvenv.cfg",
            "pyvenv.cfg",
        ] {
            let file = home.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
        }
        let names = ["venv/bin", "conda/bin", "go1/bin", "plain/bin", ".cache/venv/bin", "work/bin", "bin"];
        let path = names.map(|name| home.join(name));
        let root = home.join("work/project");
        for folder in path.iter().chain([&root]) {
            std::fs::create_dir_all(folder).unwrap();
        }
        let user = User { home: Some(home.clone()), path: path.to_vec(), ..User::default() };
        let places = readable(&user, &[root]).unwrap();
        let is_readable = |name: &str| places.iter().any(|place| home.join(name).starts_with(place));
        for (name, expected) in [
            ("venv/lib", true),
            ("conda/lib", true),
            ("go1/src", true),
            ("plain/lib/x", false),
            // Commands can write there, or it is the home folder.
            (".cache/venv/lib", false),
            ("other", false),
        ] {
            assert_eq!(is_readable(name), expected, "{name}");
        }
    }

    #[test]
    fn missing_caches_are_named_unless_they_can_be_written_anyway() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        std::fs::create_dir(home.join(".npm")).unwrap();
        let caches = vec![home.join("own-cache"), home.join("..")];
        let user = User { home: Some(home.clone()), caches, ..User::default() };
        let (folders, files) = SandboxPaths::of_system(&user, &[]).missing_caches(&[]);
        let has = |name: &str| folders.contains(&home.join(name));
        assert!(has(".cache") && has(".m2/repository") && has("own-cache") && !has(".npm") && !has(".."));
        assert!(files.contains(&home.join(".cargo/.package-cache")));
        let root = SandboxPaths::of_system(&user, std::slice::from_ref(&home)).missing_caches(&[]);
        let scratch = SandboxPaths::of_system(&user, &[]).missing_caches(std::slice::from_ref(&home));
        let homeless = User { home: Some(home.join("none")), ..user };
        let homeless = SandboxPaths::of_system(&homeless, &[]).missing_caches(&[]);
        assert_eq!([root, scratch, homeless], [const { (Vec::new(), Vec::new()) }; 3]);
    }
}
