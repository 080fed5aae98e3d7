//! UNIX sockets that an external agent may connect to in modes that allow changes: known ones by name, others by path.
//! Pure.

use std::path::{Path, PathBuf};

/// A socket by name. Each function returns the usual places, as the variables of the agent's environment say.
const KNOWN: [(&str, SocketPlaces); 4] =
    [("ssh-agent", of_ssh), ("gpg", of_gpg), ("docker", of_docker), ("wayland", of_wayland)];

type SocketPlaces = fn(&SocketVariables<'_>) -> Vec<PathBuf>;

/// Reads a variable of the environment.
struct SocketVariables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl SocketVariables<'_> {
    fn folder(&self, name: &str) -> Option<PathBuf> {
        (self.0)(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    fn home(&self, below: &str) -> Option<PathBuf> {
        self.folder("HOME").map(|home| home.join(below))
    }

    fn runtime(&self, below: &str) -> Option<PathBuf> {
        self.folder("XDG_RUNTIME_DIR").map(|folder| folder.join(below))
    }
}

/// Returns an error for a text that is neither a known name nor a path.
pub fn check(text: &str) -> Result<(), String> {
    let is_known = KNOWN.iter().any(|(name, _)| *name == text);
    if is_known || is_path(Path::new(text)) {
        return Ok(());
    }
    let names = KNOWN.map(|(name, _)| name).join(", ");
    Err(format!("it has to be one of {names}, or a path that is absolute or begins with ~/"))
}

fn is_path(path: &Path) -> bool {
    path.is_absolute() || path.starts_with("~")
}

/// The paths of a socket. Some may not exist.
pub fn paths(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let variables = SocketVariables(variable);
    match KNOWN.iter().find(|(name, _)| *name == text) {
        Some((_, places)) => places(&variables),
        None => match Path::new(text).strip_prefix("~") {
            Ok(below) => variables.folder("HOME").map(|home| home.join(below)).into_iter().collect(),
            Err(_) => vec![text.into()],
        },
    }
}

/// The name for a socket, for messages, and what it is if that is not obvious.
pub fn described(path: &Path, variable: &dyn Fn(&str) -> Option<String>) -> (String, &'static str) {
    let variables = SocketVariables(variable);
    let is_of = |places: SocketPlaces| {
        places(&variables).iter().any(|place| place == path || place.file_name() == path.file_name())
    };
    let name = KNOWN.iter().find(|(_, places)| is_of(*places)).map(|(name, _)| *name);
    match name {
        Some("docker") => ("docker".into(), " Who reaches Docker is root on this machine."),
        Some(name) => (name.into(), ""),
        None => (path.display().to_string(), ""),
    }
}

fn of_ssh(variables: &SocketVariables<'_>) -> Vec<PathBuf> {
    variables.folder("SSH_AUTH_SOCK").into_iter().collect()
}

fn of_gpg(variables: &SocketVariables<'_>) -> Vec<PathBuf> {
    let folders =
        [variables.folder("GNUPGHOME"), variables.runtime("gnupg"), variables.home(".gnupg")].into_iter();
    folders.flatten().flat_map(|folder| ["S.gpg-agent", "S.keyboxd"].map(|name| folder.join(name))).collect()
}

fn of_docker(variables: &SocketVariables<'_>) -> Vec<PathBuf> {
    let named = (variables.0)("DOCKER_HOST").and_then(|host| Some(host.strip_prefix("unix://")?.into()));
    let usual = [
        Some("/var/run/docker.sock".into()),
        variables.runtime("docker.sock"),
        variables.home(".docker/run/docker.sock"),
    ];
    named.into_iter().chain(usual.into_iter().flatten()).collect()
}

fn of_wayland(variables: &SocketVariables<'_>) -> Vec<PathBuf> {
    let name = (variables.0)("WAYLAND_DISPLAY").unwrap_or_else(|| "wayland-0".into());
    variables.runtime(&name).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        let value = match name {
            "HOME" => "/home/me",
            "XDG_RUNTIME_DIR" => "/run/user/1",
            "SSH_AUTH_SOCK" => "/tmp/ssh-1/agent.2",
            "DOCKER_HOST" => "unix:///run/other.sock",
            _ => return None,
        };
        Some(value.into())
    }

    #[test]
    fn sockets_are_known_by_name_or_named_by_path() {
        for (text, expected) in [
            ("ssh-agent", "/tmp/ssh-1/agent.2"),
            (
                "gpg",
                "/run/user/1/gnupg/S.gpg-agent /run/user/1/gnupg/S.keyboxd /home/me/.gnupg/S.gpg-agent \
                 /home/me/.gnupg/S.keyboxd",
            ),
            (
                "docker",
                "/run/other.sock /var/run/docker.sock /run/user/1/docker.sock /home/me/.docker/run/docker.sock",
            ),
            ("wayland", "/run/user/1/wayland-0"),
            ("/a/b.sock", "/a/b.sock"),
            ("~/b.sock", "/home/me/b.sock"),
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
            let paths: Vec<String> =
                paths(text, &variable).iter().map(|path| path.display().to_string()).collect();
            assert_eq!(paths.join(" "), expected, "{text}");
        }
        for wrong in ["", "ssh", "b.sock", "./b.sock"] {
            assert!(check(wrong).unwrap_err().contains("ssh-agent, gpg, docker, wayland"), "{wrong}");
        }
        assert_eq!(paths("ssh-agent", &|_| None), Vec::<PathBuf>::new());
    }

    #[test]
    fn messages_name_sockets_as_options_do() {
        let described = |path: &str| described(Path::new(path), &variable);
        assert_eq!(described("/tmp/ssh-1/agent.2"), ("ssh-agent".into(), ""));
        assert_eq!(described("/a/b.sock"), ("/a/b.sock".into(), ""));
        // Often a link: `/var/run` is `/run`.
        let (name, what) = described("/run/docker.sock");
        assert_eq!(name, "docker");
        assert!(what.contains("root"));
    }
}
