//! Which folders commands may read and write: what a machine usually has, and what the session adds.
//!
//! A read-only command sees the system, its toolchains, git's settings and the session's folders, and neither a home
//! folder as a whole nor the root of the file system. What is listed here is what is there; nothing is created.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Programs, libraries and what they read of the machine.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/snap",
    "/nix/store",
    "/nix/var/nix/profiles",
    "/gnu/store",
    "/run/current-system",
    "/home/linuxbrew/.linuxbrew",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/version",
    "/proc/filesystems",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
];

/// Settings of the machine that programs read. Never all of `/etc`: for root, it has the machine's secrets.
const SETTINGS: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "environment",
    "fonts",
    "gitattributes",
    "gitconfig",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "inputrc",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "machine-id",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "openldap",
    "os-release",
    "passwd",
    "perl",
    "pki/tls/certs",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "R",
    "redhat-release",
    "resolv.conf",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "static",
    "terminfo",
    "timezone",
    "xdg",
];

/// Toolchains and git's settings in a home folder. Of cargo's folder the parts without its credentials.
const IN_HOME: &[&str] = &[
    ".gitconfig",
    ".config/git",
    ".gitignore",
    ".gitignore_global",
    ".cargo/bin",
    ".cargo/registry",
    ".cargo/git",
    ".cargo/config",
    ".cargo/config.toml",
    ".cargo/env",
    ".rustup",
    ".pyenv",
    ".rbenv",
    ".rvm",
    ".nvm",
    ".volta",
    ".local/share/fnm",
    ".asdf",
    ".local/share/mise",
    ".sdkman",
    ".goenv",
    "go/bin",
    "go/pkg",
    ".deno/bin",
    ".bun/bin",
    ".local/bin",
    ".local/lib",
    ".local/share/uv",
    ".ghcup/bin",
    ".ghcup/ghc",
    ".juliaup",
    ".dotnet",
    ".elan",
    ".nix-profile",
    "miniconda3",
    "anaconda3",
    ".ripgreprc",
];

/// Where builds keep what they have fetched or made, in a home folder.
const CACHES: &[&str] = &[
    ".cache",
    ".cargo/registry",
    ".cargo/git",
    ".cargo/.package-cache",
    ".cargo/.package-cache-mutate",
    ".cargo/.global-cache",
    ".npm",
    ".pnpm-store",
    ".local/share/pnpm/store",
    ".yarn/cache",
    ".bun/install/cache",
    "go/pkg",
    ".gradle/caches",
    ".gradle/daemon",
    ".gradle/wrapper/dists",
    ".m2/repository",
    ".nuget/packages",
    ".cabal/packages",
    ".cabal/store",
    ".ccache",
    ".pub-cache/hosted",
];

/// Where every command of a workspace may write besides the session's folders.
const SCRATCH: &[&str] = &[
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// Variables that name a toolchain's folder.
pub const TOOLCHAINS: &[&str] = &[
    "RUSTUP_HOME",
    "PYENV_ROOT",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "NVM_DIR",
    "VOLTA_HOME",
    "GOROOT",
    "JAVA_HOME",
    "SDKMAN_DIR",
    "ASDF_DIR",
    "ASDF_DATA_DIR",
];

/// Whose machine this is, as the environment and the user's settings say.
#[derive(Debug, Clone, Default)]
pub struct User {
    /// The home folder.
    pub home: Option<PathBuf>,
    /// Where programs are looked for.
    pub path: Vec<PathBuf>,
    /// Where toolchains are: the values of [`TOOLCHAINS`].
    pub toolchains: Vec<PathBuf>,
    /// cargo's folder, where it is not in the home folder.
    pub cargo: Option<PathBuf>,
    /// The folder for temporary files.
    pub temporary: PathBuf,
    /// What the user lets commands read besides.
    pub read: Vec<PathBuf>,
    /// What the user lets commands write besides.
    pub write: Vec<PathBuf>,
}

/// What a read-only command may read, for sessions in these folders. None where a session's folder is too wide: the root of
/// the file system, the home folder, or a folder around it.
pub fn readable(user: &User, roots: &[PathBuf]) -> Option<Vec<PathBuf>> {
    if roots.iter().any(|root| is_too_wide(user, root)) {
        return None;
    }
    let mut places: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    places.extend(SETTINGS.iter().map(|name| Path::new("/etc").join(name)));
    if let Some(home) = &user.home {
        places.extend(IN_HOME.iter().map(|name| home.join(name)));
    }
    if let Some(cargo) = &user.cargo {
        let parts = IN_HOME.iter().filter_map(|name| name.strip_prefix(".cargo/"));
        places.extend(parts.map(|part| cargo.join(part)));
    }
    let named = user.path.iter().chain(&user.toolchains).filter(|place| !is_too_wide(user, place));
    places.extend(named.cloned());
    places.extend(user.read.iter().cloned());
    for root in roots {
        places.push(root.clone());
        places.extend(git_folders(root).into_iter().filter(|place| !is_too_wide(user, place)));
    }
    Some(existing(places))
}

/// What a command of a workspace may write, for sessions in these folders.
pub fn writable(user: &User, roots: &[PathBuf]) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = SCRATCH.iter().map(PathBuf::from).collect();
    places.push(user.temporary.clone());
    if let Some(home) = &user.home {
        places.extend(CACHES.iter().map(|name| home.join(name)));
    }
    if let Some(cargo) = &user.cargo {
        let parts = CACHES.iter().filter_map(|name| name.strip_prefix(".cargo/"));
        places.extend(parts.map(|part| cargo.join(part)));
    }
    places.extend(user.write.iter().cloned());
    for root in roots {
        places.push(root.clone());
        // A commit in a worktree writes to the repository that it belongs to.
        places.extend(git_folders(root).into_iter().filter(|place| !is_too_wide(user, place)));
    }
    existing(places)
}

/// Whether a place has the whole home folder or the whole file system in it.
fn is_too_wide(user: &User, place: &Path) -> bool {
    let Ok(place) = std::fs::canonicalize(place) else { return true };
    let home = user.home.as_ref().and_then(|home| std::fs::canonicalize(home).ok());
    place.parent().is_none() || home.is_some_and(|home| home.starts_with(&place))
}

fn existing(places: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut kept = Vec::new();
    for place in places {
        // What is no text could not be passed on; there is hardly any such place.
        if place.is_absolute() && place.to_str().is_some() && place.exists() && !kept.contains(&place) {
            kept.push(place);
        }
    }
    kept
}

/// Where the repository keeps what `git log` reads, if that is outside of its folder: a repository around it, or the one
/// that a worktree or a submodule belongs to.
fn git_folders(root: &Path) -> Vec<PathBuf> {
    let Some(git) = root.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists()) else {
        return Vec::new();
    };
    let folder = match std::fs::read_to_string(&git) {
        Ok(text) => text.trim().strip_prefix("gitdir: ").map(|at| git.with_file_name("").join(at)),
        Err(_) => Some(git),
    };
    let Some(folder) = folder.filter(|folder| is_git_folder(folder)) else { return Vec::new() };
    let common = std::fs::read_to_string(folder.join("commondir")).ok().map(|at| folder.join(at.trim()));
    let common = common.filter(|folder| is_git_folder(folder));
    let objects = common.as_ref().unwrap_or(&folder).join("objects");
    let borrowed = std::fs::read_to_string(objects.join("info/alternates")).unwrap_or_default();
    let borrowed = borrowed.lines().map(|at| objects.join(at));
    let borrowed =
        borrowed.filter(|at| at.file_name() == Some(OsStr::new("objects")) && at.join("pack").is_dir());
    let all = std::iter::once(folder).chain(common).chain(borrowed);
    all.filter_map(|place| std::fs::canonicalize(place).ok())
        .filter(|place| !place.starts_with(root))
        .collect()
}

/// What a file in a repository names is believed only if it looks like what git makes.
fn is_git_folder(folder: &Path) -> bool {
    folder.join("HEAD").is_file()
        && (folder.join("commondir").is_file()
            || (folder.join("objects").is_dir() && folder.join("refs").is_dir()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git_folder(at: &Path) {
        std::fs::create_dir_all(at.join("objects/pack")).unwrap();
        std::fs::create_dir_all(at.join("refs")).unwrap();
        std::fs::write(at.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    #[test]
    fn neither_a_home_nor_the_root_is_readable_as_a_whole() {
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
        let places = readable(&user, std::slice::from_ref(&work)).unwrap();
        for place in &places {
            assert!(!home.starts_with(place), "{}", place.display());
            assert!(!place.join("credentials.toml").exists(), "{}", place.display());
        }
        assert!(places.contains(&work) && places.contains(&home.join("bin")));
        for wide in [&home, Path::new("/"), home.parent().unwrap()] {
            assert_eq!(readable(&user, &[wide.to_owned()]), None, "{}", wide.display());
        }
    }

    #[test]
    fn a_worktree_reads_its_repository_and_a_file_that_lies_reads_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (main, tree, secret) = (dir.join("main/.git"), dir.join("tree"), dir.join(".ssh"));
        git_folder(&main);
        std::fs::create_dir_all(main.join("worktrees/tree")).unwrap();
        std::fs::write(main.join("worktrees/tree/HEAD"), "ref: refs/heads/b\n").unwrap();
        std::fs::write(main.join("worktrees/tree/commondir"), "../..\n").unwrap();
        std::fs::create_dir_all(&tree).unwrap();
        std::fs::create_dir_all(&secret).unwrap();
        std::fs::write(tree.join(".git"), format!("gitdir: {}\n", main.join("worktrees/tree").display()))
            .unwrap();
        assert_eq!(git_folders(&tree), [main.join("worktrees/tree"), main.clone()]);
        std::fs::write(tree.join(".git"), format!("gitdir: {}\n", secret.display())).unwrap();
        assert_eq!(git_folders(&tree), Vec::<PathBuf>::new());
        std::fs::create_dir_all(dir.join("main/sub")).unwrap();
        assert_eq!(git_folders(&dir.join("main/sub")), [main]);
    }
}
