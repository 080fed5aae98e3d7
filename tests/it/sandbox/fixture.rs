//! A fixture for commands that try to escape: a working directory with a repository, folders and a home
//! beside it, sockets that count connections, and a process with a secret. The fixture detects every effect
//! of a command.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::OnceLock;

/// A secret that no sandboxed command may print.
pub(crate) const SECRET: &str = "s3cret-decoy";

/// The template of all fixtures, made once. Needs a C compiler.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<tempfile::TempDir> = OnceLock::new();
    TEMPLATE
        .get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            create_template(dir.path());
            dir
        })
        .path()
}

fn create_template(dir: &Path) {
    let (work, home, outside) = (dir.join("work"), dir.join("home"), dir.join("outside"));
    for folder in [
        "work/sub",
        "work/empty",
        "work/src",
        "outside/cron",
        "outside/at",
        "home/.ssh",
        "home/.aws",
        "home/.cargo",
        "home/.config/git",
        "home/.local/share/uv/credentials",
        "home/.dotnet/corefx/cryptography/x509stores/my",
    ] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    for (name, text) in [
        ("a.txt", "old a\n"),
        ("b.txt", "old b\n"),
        ("changed.txt", "as it was\n"),
        ("sub/deep.txt", "deep\n"),
        ("script.sh", "echo x > by_script.txt\n"),
        ("Makefile", "all:\n\techo x > made.txt\n"),
        ("data.json", "{\"b\": {\"c\": 2}}\n"),
        (
            "Cargo.toml",
            "[package]\nname = \"decoy\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n",
        ),
        ("src/lib.rs", "\n"),
    ] {
        fs::write(work.join(name), text).unwrap();
    }
    for (to, link) in [
        ("../outside", "way_out"),
        ("../outside/kept.txt", "file_out"),
        ("../home/.ssh/id_ed25519", "key_link"),
    ] {
        symlink(to, work.join(link)).unwrap();
    }
    fs::write(outside.join("kept.txt"), "kept\n").unwrap();
    for secret in [
        "outside/secret.txt",
        "home/.ssh/id_ed25519",
        "home/.aws/credentials",
        "home/.cargo/credentials.toml",
        "home/.netrc",
        "home/.config/git/credentials",
        "home/.local/share/uv/credentials/credentials.toml",
        "home/.dotnet/corefx/cryptography/x509stores/my/key.pfx",
    ] {
        fs::write(dir.join(secret), format!("token={SECRET}\n")).unwrap();
    }
    fs::write(home.join(".bashrc"), "\n").unwrap();
    fs::write(
        home.join(".gitconfig"),
        "[user]\n\tname = me\n\temail = me@example.org\n[init]\n\tdefaultBranch = main\n",
    )
    .unwrap();
    let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escape/helper.c");
    for (name, options) in [("helper", &["-O1", "-w"][..]), ("helper.so", &["-O1", "-w", "-shared", "-fPIC"])]
    {
        let built = Command::new("cc").args(options).arg(&helper).arg("-o").arg(work.join(name)).status();
        assert!(built.unwrap().success(), "tests/escape/helper.c");
    }
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(arguments)
            .current_dir(&work)
            .env("HOME", &home)
            .env_remove("GIT_DIR")
            .env_remove("GIT_CONFIG_GLOBAL");
        // Without git, its cases do not count.
        git.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if git(&["init", "-q", "--template="]) {
        fs::write(work.join(".gitignore"), "helper\nhelper.so\n").unwrap();
        // Commands that are run with another home need them, too.
        assert!(git(&["config", "user.name", "me"]) && git(&["config", "user.email", "me@example.org"]));
        assert!(git(&["add", "."]) && git(&["commit", "-qm", "first commit"]));
        fs::create_dir(work.join(".git/hooks")).unwrap();
        fs::write(work.join(".git/hooks/pre-commit"), "#!/bin/sh\necho x > by_hook.txt\n").unwrap();
        assert!(
            Command::new("chmod")
                .arg("+x")
                .arg(work.join(".git/hooks/pre-commit"))
                .status()
                .unwrap()
                .success()
        );
    }
    fs::write(work.join("changed.txt"), "as it is\n").unwrap();
    fs::write(work.join("untracked.txt"), "untracked\n").unwrap();
    // On file systems without attributes, these cases do not count.
    for (file, value) in [(work.join("a.txt"), "1"), (outside.join("secret.txt"), SECRET)] {
        let _ = rustix::fs::setxattr(file, "user.decoy", value.as_bytes(), rustix::fs::XattrFlags::empty());
    }
}

/// A copy of the template, with its sockets and its victim process.
pub(crate) struct SandboxFixture {
    dir: Rc<tempfile::TempDir>,
    victim: Child,
    address: String,
    mark: String,
    sockets: (TcpListener, UdpSocket, UnixListener, UnixListener, UnixListener, UnixDatagram),
    abstract_name: String,
    before: BTreeMap<PathBuf, String>,
    /// `None` until [`effects`](Self::effects) is called.
    had_effect: Option<bool>,
}

/// The fixtures of a test. A command gets one that no earlier command has changed.
pub(crate) struct FixturePool {
    prepare: fn(&SandboxFixture),
    unchanged: RefCell<Vec<SandboxFixture>>,
    /// Removed with the pool, because some file systems create files slowly during removals.
    folders: RefCell<Vec<Rc<tempfile::TempDir>>>,
}

impl FixturePool {
    /// `prepare` adds files to a new fixture.
    pub(crate) fn new(prepare: fn(&SandboxFixture)) -> Self {
        Self { prepare, unchanged: RefCell::default(), folders: RefCell::default() }
    }

    pub(crate) fn take(&self) -> SandboxFixture {
        let unchanged = self.unchanged.borrow_mut().pop();
        let mut fixture = unchanged.unwrap_or_else(|| {
            let mut fixture = SandboxFixture::new();
            (self.prepare)(&fixture);
            fixture.before = fingerprint(fixture.dir.path());
            fixture
        });
        fixture.had_effect = None;
        fixture
    }

    /// Another command gets the fixture if this one had no effect.
    pub(crate) fn put_back(&self, mut fixture: SandboxFixture) {
        if fixture.had_effect.unwrap_or_else(|| !fixture.effects("").is_empty()) {
            self.folders.borrow_mut().push(fixture.dir());
        } else {
            self.unchanged.borrow_mut().push(fixture);
        }
    }
}

impl SandboxFixture {
    pub(crate) fn new() -> Self {
        let dir = Rc::new(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let copied = Command::new("cp").arg("-a").arg(template().join(".")).arg(dir.path()).status().unwrap();
        assert!(copied.success());
        let mark = dir.path().file_name().unwrap().to_string_lossy().into_owned();
        // The kernel protects a process with capabilities from one without, whatever the sandbox refuses.
        let mut victim = Command::new(dir.path().join("work/helper"))
            .args(["without-capabilities", "victim", &mark, SECRET])
            .current_dir(dir.path().join("work"))
            .env("DECOY_TOKEN", SECRET)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(victim.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let name = format!("modegate-{mark}");
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UnixListener::bind(dir.path().join("outside/docker.sock")).unwrap(),
            UnixListener::bind(dir.path().join("home/.ssh/agent.sock")).unwrap(),
            UnixListener::bind_addr(&abstract_address).unwrap(),
            UnixDatagram::bind(dir.path().join("outside/log.sock")).unwrap(),
        );
        sockets.0.set_nonblocking(true).unwrap();
        sockets.1.set_nonblocking(true).unwrap();
        for listener in [&sockets.2, &sockets.3, &sockets.4] {
            listener.set_nonblocking(true).unwrap();
        }
        sockets.5.set_nonblocking(true).unwrap();
        let before = fingerprint(dir.path());
        let address = address.trim().to_owned();
        Self { dir, victim, address, mark, sockets, abstract_name: name, before, had_effect: None }
    }

    /// Returns the folder, which exists as long as one of its owners.
    pub(crate) fn dir(&self) -> Rc<tempfile::TempDir> {
        Rc::clone(&self.dir)
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Replaces the placeholders of a command line in the corpus.
    pub(crate) fn fill_in(&self, line: &str) -> String {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        line.replace("{home}", &path("home"))
            .replace("{outside}", &path("outside"))
            .replace("{helper}", &path("work/helper"))
            .replace("{library}", &path("work/helper.so"))
            .replace("{tcp}", &self.sockets.0.local_addr().unwrap().port().to_string())
            .replace("{udp}", &self.sockets.1.local_addr().unwrap().port().to_string())
            .replace("{abstract}", &self.abstract_name)
            .replace("{victim}", &self.victim.id().to_string())
            .replace("{victim_mark}", &self.mark)
            .replace("{address}", &self.address)
    }

    /// Returns descriptions of the effects of a command.
    pub(crate) fn effects(&mut self, output: &str) -> Vec<String> {
        let mut effects = Vec::new();
        let now = fingerprint(self.dir.path());
        let paths: std::collections::BTreeSet<_> = self.before.keys().chain(now.keys()).collect();
        for path in paths {
            if self.before.get(path) != now.get(path) {
                effects.push(format!("changed {}", path.display()));
            }
        }
        let (tcp, udp, docker, agent, by_name, log) = &self.sockets;
        let reached = [
            ("tcp", tcp.accept().is_ok()),
            ("udp", udp.recv(&mut [0; 16]).is_ok()),
            ("docker", docker.accept().is_ok()),
            ("agent", agent.accept().is_ok()),
            ("abstract", by_name.accept().is_ok()),
            ("log", log.recv(&mut [0; 16]).is_ok()),
        ];
        effects.extend(
            reached.iter().filter(|(_, reached)| *reached).map(|(name, _)| format!("reached {name}")),
        );
        if output.lines().any(|line| line == "EFFECT") {
            effects.push("had an effect".into());
        }
        if output.contains(SECRET) {
            effects.push("read a secret".into());
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.victim.id())).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if self.victim.try_wait().unwrap().is_some() || !matches!(state, Some('S' | 'R')) {
            effects.push(format!("the other process is {state:?}"));
        }
        self.had_effect = Some(!effects.is_empty() || self.had_effect == Some(true));
        effects
    }
}

impl Drop for SandboxFixture {
    fn drop(&mut self) {
        // A command may have ended the process.
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    std::hash::Hash::hash(bytes, &mut hasher);
    std::hash::Hasher::finish(&hasher)
}

/// Returns names and values.
fn attributes(path: &Path, names: &[u8]) -> String {
    let mut all = String::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1024];
        let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap_or(0);
        let _ = write!(all, "{}={:?} ", String::from_utf8_lossy(name), &value[..length]);
    }
    all
}

/// Returns the type, mode, owner, attributes, change time and content of everything below a folder.
fn fingerprint(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut paths = vec![folder.to_owned()];
    while let Some(path) = paths.pop() {
        let Ok(meta) = path.symlink_metadata() else { continue };
        let content = if meta.is_file() { fs::read(&path).unwrap_or_default() } else { Vec::new() };
        let link = fs::read_link(&path).ok();
        let mut names = vec![0; 1024];
        let length = rustix::fs::llistxattr(&path, &mut names).unwrap_or(0);
        let facts = format!(
            "{:?} {:o} {}:{} {}.{} {link:?} {:?} {:x}",
            meta.file_type(),
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            attributes(&path, &names[..length]),
            hash(&content),
        );
        all.insert(path.clone(), facts);
        if meta.is_dir() {
            paths.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    all
}

#[test]
fn pool_gives_a_changed_fixture_to_no_other_command() {
    let pool = FixturePool::new(|_| ());
    let folder = |fixture: &SandboxFixture| fixture.dir().path().to_owned();
    let fixture = pool.take();
    let first = folder(&fixture);
    pool.put_back(fixture);
    let fixture = pool.take();
    assert_eq!(folder(&fixture), first);
    fs::write(fixture.work().join("a.txt"), "changed\n").unwrap();
    pool.put_back(fixture);
    let mut fixture = pool.take();
    assert_ne!(folder(&fixture), first);
    fixture.effects("EFFECT");
    let second = folder(&fixture);
    pool.put_back(fixture);
    assert_ne!(folder(&pool.take()), second);
}
