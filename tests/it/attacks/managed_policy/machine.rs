//! A machine with a policy: a mount namespace, and a home and a project in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set in the namespace.
const INSIDE: &str = "MODEGATE_TEST_POLICY_NAMESPACE";

const FOLDER: &str = "/etc/modegate";

pub(super) const FILE: &str = "/etc/modegate/policy.yaml";

/// Makes a root folder whose owner is root in this namespace, with the folders of the machine. Its `/etc` has links to
/// the files of the machine's.
const NEW_ROOT: &str = r#"
set -e
mount -t tmpfs tmpfs "$PWD"
cd "$PWD"
chmod 755 .
for entry in /*; do
    case "$entry" in /etc) continue ;; esac
    if [ -L "$entry" ]; then cp -P "$entry" ".$entry"
    elif [ -d "$entry" ]; then mkdir ".$entry"; mount --rbind "$entry" ".$entry"
    fi
done
mkdir etc modegate_machine_etc modegate_old_root
mount --rbind /etc modegate_machine_etc
pivot_root . modegate_old_root
cd /
ln -s /modegate_machine_etc/* etc
rm -f etc/modegate
umount -l modegate_old_root
exec "$@"
"#;

/// Runs the body in a namespace, in a process of its own. `test` is the name of the calling test.
pub(super) fn in_namespace(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut namespace = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        namespace.arg("--map-root-user");
    }
    let ended = namespace
        .args(["--mount", "sh", "-c", NEW_ROOT, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("attacks::managed_policy::{test}")])
        .env(INSIDE, "1")
        .current_dir(folder.path())
        .output()
        .expect("this test needs unshare, of the package util-linux");
    let (output, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && output.contains("1 passed"), "{output}{errors}");
}

/// A user's home and project. Dropping it removes the policy.
pub(super) struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["home/.config/modegate", "work"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let machine = Self { dir };
        machine.script("write.jsonl", &[&[("write_file", r#"{"path": "out.txt", "content": "x"}"#)]]);
        machine
    }

    /// Makes the machine's home that of the account, so that its store is the usual one.
    pub(super) fn set_account_home(&self) {
        let accounts = Path::new("/etc/passwd");
        // In this namespace, the path is a link or the file of an earlier machine.
        fs::remove_file(accounts).unwrap();
        fs::write(accounts, format!("root:x:0:0::{}:/bin/sh\n", self.path("home").display())).unwrap();
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// Writes a file below the folder of the machine, and its folders.
    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes a script with these calls in each reply, and an answer at the end. The first reply is for all sessions
    /// without a script of their own.
    pub(super) fn script(&self, name: &str, replies: &[&[(&str, &str)]]) {
        let mut lines = String::new();
        for (reply, calls) in replies.iter().enumerate() {
            for (call, (tool, arguments)) in calls.iter().enumerate() {
                lines += &format!(
                    "{{\"tool_call\": {{\"id\": \"c{reply}_{call}\", \"name\": \"{tool}\", \"arguments\": {arguments}}}}}\n"
                );
            }
            lines += "{\"stop\": \"done\"}\n";
        }
        lines += "{\"text\": \"Done.\"}\n{\"stop\": \"done\"}\n";
        self.write(name, &lines);
    }

    /// Makes a git repository, whose configuration has this remote.
    pub(super) fn repository(&self, folder: &str, remote: &str) {
        std::fs::create_dir_all(self.path(folder).join(".git/objects")).unwrap();
        self.write(&format!("{folder}/.git/HEAD"), "ref: refs/heads/main\n");
        let config = format!("[remote \"origin\"]\n\turl = {remote}\n");
        self.write(&format!("{folder}/.git/config"), &config);
    }

    pub(super) fn modes_file(&self, text: &str) {
        self.write("home/.config/modegate/modes.yaml", text);
    }

    /// Places a policy as an administrator does.
    pub(super) fn set_policy(&self, text: &str) {
        remove_policy();
        if !text.is_empty() {
            fs::create_dir(FOLDER).unwrap();
            fs::set_permissions(FOLDER, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(FILE, text.replace("WORK", &self.work().to_string_lossy())).unwrap();
            fs::set_permissions(FILE, fs::Permissions::from_mode(0o644)).unwrap();
        }
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command.args(arguments).current_dir(self.work()).env("HOME", self.path("home")).stdin(Stdio::null());
        for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "MODEGATE_MODEL"] {
            command.env_remove(name);
        }
        command
    }

    /// Returns the output and the messages.
    pub(super) fn run(&self, arguments: &[&str]) -> String {
        output_of(&mut self.command(arguments))
    }

    /// As [`Self::run`], with variables.
    pub(super) fn run_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        for (name, value) in variables {
            command.env(name, value.replace("DIR", &self.dir.path().to_string_lossy()));
        }
        output_of(&mut command)
    }

    /// A headless run in which the model writes a file, with further options.
    pub(super) fn write_with(&self, options: &[&str]) -> String {
        self.play("write.jsonl", options)
    }

    /// A headless run of a script, with further options.
    pub(super) fn play(&self, script: &str, options: &[&str]) -> String {
        let model = format!("scripted:{}", self.path(script).display());
        let mut arguments = vec!["--model", &model];
        if !options.contains(&"-p") && !options.contains(&"--from-plan") {
            arguments.extend(["-p", "write it"]);
        }
        self.run(&[&arguments, options].concat())
    }

    pub(super) fn has_written(&self) -> bool {
        self.work().join("out.txt").exists()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        remove_policy();
    }
}

pub(super) fn remove_policy() {
    let folder = Path::new(FOLDER);
    if folder.is_symlink() || folder.is_file() {
        fs::remove_file(folder).unwrap();
    } else if folder.exists() {
        fs::remove_dir_all(folder).unwrap();
    }
}

fn output_of(command: &mut Command) -> String {
    let out = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}
