//! Seatbelt profiles of macOS, as values: a [`Confinement`] becomes a [`Profile`], which is written in the profile
//! language and can be evaluated. Pure. Written, never run on macOS.
//!
//! Everything is denied that no rule allows, so also hard links (`file-link`), with which a command could write
//! another file through its own folder, and all services of the system but a few.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use super::Confinement;

pub mod trial;

/// Programs, libraries and settings of the system that every command may read.
const SYSTEM: &[&str] = &[
    "/System",
    "/usr",
    "/bin",
    "/sbin",
    "/Library/Apple",
    "/Library/Developer",
    "/Library/Frameworks",
    "/opt/homebrew",
    "/opt/local",
    "/private/etc",
    "/private/var/db/dyld",
    "/private/var/db/timezone",
    "/private/var/select",
    "/dev/fd",
];

/// The system's devices that every command may read.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

const NULL: &str = "/dev/null";

/// Socket of the service that finds the addresses of names.
const NAME_SERVICE: &str = "/private/var/run/mDNSResponder";

/// Looks up users and groups.
const USERS: &str = "com.apple.system.opendirectoryd.libinfo";

/// Services for programs with a network: users, addresses, certificates, the log.
const NETWORK_SERVICES: &[&str] = &[
    "com.apple.system.opendirectoryd.membership",
    "com.apple.SystemConfiguration.configd",
    "com.apple.dnssd.service",
    "com.apple.trustd",
    "com.apple.trustd.agent",
    "com.apple.logd",
    "com.apple.system.notification_center",
];

/// Services with the keys of external agents, which keep their logins there.
const KEYCHAIN: &[&str] = &["com.apple.SecurityServer", "com.apple.securityd.xpc"];

/// Rules that allow. Everything else is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile(Vec<SeatbeltRule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct SeatbeltRule {
    /// A `*` at the end stands for any rest.
    operations: Vec<&'static str>,
    /// Any of them. Empty: every object.
    filters: Vec<Filter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    File(PathBuf),
    /// A folder, and everything below.
    Below(PathBuf),
    Service(&'static str),
    SameSandbox,
    RemoteAddress,
    LocalAddress,
}

/// The object of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object<'a> {
    /// An absolute path without symbolic links.
    Path(&'a Path),
    Service(&'a str),
    Process {
        in_same_sandbox: bool,
    },
    /// An address of another socket, or an own one.
    Address {
        is_remote: bool,
    },
    None,
}

impl Profile {
    /// Returns the profile of a confinement, or `None` if nothing is confined. `own_folder` is a folder for the
    /// command alone.
    ///
    /// # Errors
    /// Returns the end of a sentence about the confinement, if it takes the broker.
    pub fn of(confinement: &Confinement, own_folder: Option<&Path>) -> Result<Option<Self>, &'static str> {
        const BROKER: &str = "needs the broker, which needs Linux";
        let own = || own_folder.map(Path::to_owned);
        let mut profile = match confinement {
            Confinement::Off => return Ok(None),
            Confinement::Brokered { .. } | Confinement::ReadOnly { denied: Some(_), .. } => {
                return Err(BROKER);
            }
            Confinement::ReadOnly { read, build, denied: None } => {
                let own_folders = own().into_iter().chain(build.clone());
                let read = SYSTEM.iter().map(PathBuf::from).chain(read.iter().cloned()).chain(own_folders);
                let mut profile = Self::common();
                profile.allow(&["file-read*", "file-map-executable", "process-exec*"], below(read));
                profile
            }
            Confinement::Workspace { .. } => Self::with_network(&[], &["network*"], vec![]),
            Confinement::Agent { .. } => {
                let mut profile =
                    Self::with_network(KEYCHAIN, &["network-outbound"], vec![Filter::RemoteAddress]);
                profile.allow(&["network-bind", "network-inbound"], vec![Filter::LocalAddress]);
                profile
            }
        };
        let write = match confinement {
            Confinement::Workspace { write } | Confinement::Agent { write } => write.as_slice(),
            Confinement::ReadOnly { build, .. } => build.as_slice(),
            _ => &[],
        };
        let write = below(write.iter().cloned().chain(own()));
        if !write.is_empty() {
            profile.allow(&["file-write*"], write);
        }
        Ok(Some(profile))
    }

    /// Rules of every profile: processes of its own, names of files and users, and devices without content.
    fn common() -> Self {
        let mut profile = Self(Vec::new());
        profile.allow(&["process-fork", "sysctl-read"], vec![]);
        profile.allow(&["signal", "process-info*"], vec![Filter::SameSandbox]);
        // As on Linux, anyone may know whether a file exists.
        profile.allow(&["file-read-metadata", "file-test-existence"], vec![]);
        let files = ["/"].iter().chain(&DEVICES).map(|path| Filter::File(path.into()));
        profile.allow(&["file-read*"], files.collect());
        profile.allow(&["file-write-data", "file-ioctl"], vec![Filter::File(NULL.into())]);
        profile.allow(&["mach-lookup"], vec![Filter::Service(USERS)]);
        profile
    }

    /// Rules of profiles that limit writes alone.
    fn with_network(
        services: &'static [&'static str],
        operations: &[&'static str],
        addresses: Vec<Filter>,
    ) -> Self {
        let mut profile = Self::common();
        profile.allow(
            &["file-read*", "file-map-executable", "process-exec*", "ipc-posix-sem", "ipc-posix-shm*"],
            vec![],
        );
        let services = NETWORK_SERVICES.iter().chain(services).map(|name| Filter::Service(name));
        profile.allow(&["mach-lookup"], services.collect());
        profile.allow(&["system-socket"], vec![]);
        profile.allow(operations, addresses);
        profile.allow(&["network-outbound"], vec![Filter::File(NAME_SERVICE.into())]);
        profile
    }

    fn allow(&mut self, operations: &[&'static str], filters: Vec<Filter>) {
        self.0.push(SeatbeltRule { operations: operations.to_vec(), filters });
    }

    /// Returns true if a command may carry out the operation on the object.
    pub fn allows(&self, operation: &str, object: Object<'_>) -> bool {
        self.0.iter().any(|rule| rule.matches(operation, object))
    }

    /// For `sandbox-exec -p`. The error is a path that the profile language cannot express.
    pub fn to_text(&self) -> Result<String, PathBuf> {
        let mut paths = self.0.iter().flat_map(|rule| &rule.filters).filter_map(Filter::path);
        let is_quotable = |path: &&Path| path.to_str().is_some_and(|path| !path.contains(char::is_control));
        match paths.find(|path| !is_quotable(path)) {
            Some(path) => Err(path.to_owned()),
            None => Ok(self.to_string()),
        }
    }
}

fn below(paths: impl Iterator<Item = PathBuf>) -> Vec<Filter> {
    paths.map(Filter::Below).collect()
}

impl SeatbeltRule {
    fn matches(&self, operation: &str, object: Object<'_>) -> bool {
        let covers = |rule: &&'static str| match rule.strip_suffix('*') {
            Some(start) => operation.starts_with(start),
            None => operation == *rule,
        };
        self.operations.iter().any(covers)
            && (self.filters.is_empty() || self.filters.iter().any(|filter| filter.matches(object)))
    }
}

impl Filter {
    fn matches(&self, object: Object<'_>) -> bool {
        match (self, object) {
            (Self::File(file), Object::Path(path)) => file == path,
            (Self::Below(folder), Object::Path(path)) => path.starts_with(folder),
            (Self::Service(service), Object::Service(name)) => *service == name,
            (Self::SameSandbox, Object::Process { in_same_sandbox }) => in_same_sandbox,
            (Self::RemoteAddress, Object::Address { is_remote }) => is_remote,
            (Self::LocalAddress, Object::Address { is_remote }) => !is_remote,
            _ => false,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) | Self::Below(path) => Some(path),
            _ => None,
        }
    }
}

impl Display for Profile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "(version 1)\n(deny default)")?;
        for rule in &self.0 {
            write!(f, "(allow {}", rule.operations.join(" "))?;
            for filter in &rule.filters {
                write!(f, "\n  {filter}")?;
            }
            writeln!(f, ")")?;
        }
        Ok(())
    }
}

impl Display for Filter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "(literal {})", Quoted(path)),
            Self::Below(path) => write!(f, "(subpath {})", Quoted(path)),
            Self::Service(name) => write!(f, "(global-name \"{name}\")"),
            Self::SameSandbox => write!(f, "(target same-sandbox)"),
            Self::RemoteAddress => write!(f, "(remote ip)"),
            Self::LocalAddress => write!(f, "(local ip)"),
        }
    }
}

struct Quoted<'a>(&'a Path);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
        write!(f, "\"{text}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::denied_reads::DeniedReads;

    fn profile(confinement: &Confinement, own_folder: Option<&str>) -> Profile {
        Profile::of(confinement, own_folder.map(Path::new)).unwrap().unwrap()
    }

    fn read_only() -> Confinement {
        Confinement::ReadOnly { read: vec!["/Users/me/work".into()], build: None, denied: None }
    }

    fn check(name: &str, profile: &Profile) {
        let text = profile.to_text().unwrap();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/seatbelt").join(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(&file).unwrap().replace('\r', ""), "{name}");
    }

    #[test]
    fn profiles_of_three_sessions_are_as_recorded() {
        check("read_only.sb", &profile(&read_only(), Some("/private/tmp/modegate-1")));
        let write = vec!["/Users/me/work".into(), "/private/tmp".into()];
        check("workspace.sb", &profile(&Confinement::Workspace { write }, None));
        let write = vec!["/Users/me/.agent".into()];
        check("agent.sb", &profile(&Confinement::Agent { write }, Some("/private/tmp/modegate-2")));
    }

    #[test]
    fn read_only_commands_change_nothing() {
        let profile = profile(&read_only(), Some("/private/tmp/own"));
        let path = |path| Object::Path(Path::new(path));
        let denied = [
            ("file-write-data", path("/Users/me/work/a")),
            ("file-write-create", path("/Users/me/work/new")),
            ("file-write-unlink", path("/Users/me/work/a")),
            ("file-write-mode", path("/Users/me/work/a")),
            ("file-write-data", path("/private/tmp/other")),
            ("file-write-data", path("/private/tmp/own2")),
            ("file-write-data", path("/dev/disk0")),
            ("file-link", path("/Users/me/work/a")),
            ("file-link", path("/private/tmp/own/a")),
            ("file-clone", path("/private/tmp/own/a")),
            ("file-read-data", path("/Users/me/.ssh/id_ed25519")),
            ("process-exec", path("/Users/me/other/program")),
            ("network-outbound", Object::Address { is_remote: true }),
            ("network-outbound", path("/private/var/run/docker.sock")),
            ("network-bind", Object::Address { is_remote: false }),
            ("system-socket", Object::None),
            ("mach-lookup", Object::Service("com.apple.launchd")),
            ("mach-lookup", Object::Service("com.apple.coreservices.launchservicesd")),
            ("mach-register", Object::Service("x")),
            ("signal", Object::Process { in_same_sandbox: false }),
            ("mach-priv-task-port", Object::Process { in_same_sandbox: false }),
            ("appleevent-send", Object::None),
            ("job-creation", Object::None),
            ("lsopen", Object::None),
            ("forbidden-exec-sugid", Object::None),
            ("iokit-open", Object::None),
            ("nvram-set", Object::None),
        ];
        for (operation, object) in denied {
            assert!(!profile.allows(operation, object), "{operation} {object:?}");
        }
        let allowed = [
            ("file-read-data", path("/Users/me/work/a")),
            ("file-read-metadata", path("/Users/me/.ssh/id_ed25519")),
            ("file-write-create", path("/private/tmp/own/a")),
            ("file-write-data", path("/dev/null")),
            ("process-exec", path("/usr/bin/git")),
            ("file-map-executable", path("/usr/lib/libSystem.dylib")),
            ("process-fork", Object::None),
            ("signal", Object::Process { in_same_sandbox: true }),
            ("mach-lookup", Object::Service(USERS)),
        ];
        for (operation, object) in allowed {
            assert!(profile.allows(operation, object), "{operation} {object:?}");
        }
    }

    #[test]
    fn agents_reach_the_internet_and_no_local_programs() {
        let agent = profile(&Confinement::Agent { write: vec!["/Users/me/.agent".into()] }, None);
        let path = |path| Object::Path(Path::new(path));
        assert!(agent.allows("network-outbound", Object::Address { is_remote: true }));
        assert!(agent.allows("network-outbound", path(NAME_SERVICE)));
        assert!(!agent.allows("network-outbound", path("/private/var/run/docker.sock")));
        assert!(agent.allows("file-write-data", path("/Users/me/.agent/log")));
        assert!(!agent.allows("file-write-data", path("/Users/me/work/a")));
        let workspace = profile(&Confinement::Workspace { write: vec!["/Users/me/work".into()] }, None);
        assert!(workspace.allows("file-write-data", path("/Users/me/work/a")));
        assert!(!workspace.allows("file-write-data", path("/Users/me/.zshrc")));
        assert!(workspace.allows("network-outbound", path("/private/var/run/docker.sock")));
    }

    #[test]
    fn unenforceable_confinements_have_no_profile() {
        let denied = Some(DeniedReads { patterns: vec!["**/.env".into()], folders: vec![] });
        assert!(Profile::of(&Confinement::ReadOnly { read: vec![], build: None, denied }, None).is_err());
        assert_eq!(Profile::of(&Confinement::Off, None), Ok(None));
    }

    #[test]
    fn paths_cannot_leave_their_quotes() {
        let write = vec![r#"/a/")(allow default)(x "\"#.into()];
        let text = profile(&Confinement::Workspace { write }, None).to_text().unwrap();
        assert!(text.contains(r#"(subpath "/a/\")(allow default)(x \"\\")"#), "{text}");
        let write = vec!["/a\nb".into()];
        assert!(profile(&Confinement::Workspace { write }, None).to_text().is_err());
    }
}
