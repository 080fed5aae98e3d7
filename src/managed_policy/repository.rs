//! Remotes of git repositories, and patterns of a policy for them. Pure.

use crate::mode::Globs;

/// A remote as HOST/PATH, where `*` matches any text.
#[derive(Debug, Clone)]
pub struct RepositoryPattern(Globs);

impl RepositoryPattern {
    /// The error is the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let has_path = text.split_once('/').is_some_and(|(host, path)| !host.is_empty() && !path.is_empty());
        if text.contains("://") || text.contains('@') || !(has_path || text == "*") {
            return Err("a repository is HOST/PATH, such as github.com/acme/*".into());
        }
        // A single asterisk reaches into folders, too: the entry narrows, so it rather matches too much.
        let pattern = text.to_lowercase().replace("**", "*").replace('*', "**");
        let alternatives = vec![pattern.clone(), format!("{pattern}/**")];
        Globs::new(alternatives).map(Self).map_err(|error| error.to_string())
    }

    /// `remote` is one that [`remotes`] returns.
    pub fn matches(&self, remote: &str) -> bool {
        self.0.matches(remote)
    }
}

/// The addresses in a git configuration as HOST/PATH, in lower case. Addresses on this machine are left out.
pub fn remotes(config: &str) -> Vec<String> {
    let lines = config.lines().filter_map(|line| line.trim().split_once('='));
    let urls =
        lines.filter(|(key, _)| ["url", "pushurl"].contains(&key.trim().to_ascii_lowercase().as_str()));
    urls.filter_map(|(_, url)| host_and_path(url.trim().trim_matches('"'))).collect()
}

fn host_and_path(url: &str) -> Option<String> {
    let (host, path) = match url.split_once("://") {
        Some((_, rest)) => rest.split_once('/')?,
        // git@host:path
        None => url.split_once(':').filter(|(host, _)| !host.contains('/'))?,
    };
    let host = host.rsplit('@').next().unwrap_or(host);
    let host = host.split_once(':').map_or(host, |(host, _)| host);
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    (!host.is_empty()).then(|| format!("{host}/{path}").to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_are_hosts_and_paths() {
        for (url, expected) in [
            ("https://github.com/Acme/App.git", Some("github.com/acme/app")),
            ("https://token@GitHub.com:443/acme/app/", Some("github.com/acme/app")),
            ("ssh://git@git.corp:2222/team/app.git", Some("git.corp/team/app")),
            ("git@github.com:acme/app.git", Some("github.com/acme/app")),
            ("\"github.com:acme/app\"", Some("github.com/acme/app")),
            ("/srv/git/app.git", None),
            ("../app", None),
        ] {
            let config =
                format!("[core]\n\tbare = false\n[remote \"origin\"]\n\turl = {url}\n\tfetch = +x:y\n");
            assert_eq!(remotes(&config).first().map(String::as_str), expected, "{url}");
        }
        let two = "[remote \"a\"]\nurl=https://a.example/x\n  PushURL = https://b.example/y\n";
        assert_eq!(remotes(two), ["a.example/x", "b.example/y"]);
    }

    #[test]
    fn patterns_match_remotes_and_what_lies_below() {
        for (pattern, remote, expected) in [
            ("github.com/acme/*", "github.com/acme/app", true),
            ("GitHub.com/Acme/App", "github.com/acme/app", true),
            ("github.com/acme", "github.com/acme/app", true),
            ("github.com/acme/*", "github.com/acme/group/app", true),
            ("github.com/acme/*", "github.com/other/app", false),
            ("github.com/acme", "github.com/acme2/app", false),
            ("*/prod-*", "git.corp/team/prod-db", true),
            ("*", "git.corp/x", true),
        ] {
            let pattern = RepositoryPattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(remote), expected, "{pattern:?} {remote}");
        }
        for invalid in ["", "acme", "https://github.com/acme", "git@github.com/acme", "/acme", "github.com/"]
        {
            assert!(RepositoryPattern::parse(invalid).is_err(), "{invalid}");
        }
    }
}
