//! The user's settings: `config.yaml`, which takes precedence, and `setup.yaml`, written by `modegate setup`.
//!
//! A file that contains a key must be readable by its owner only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::evidence_key::EvidenceSettings;
use crate::bounded_file;
use crate::budget::prices::{ModelPrice, Prices};
use crate::budget::{BudgetSettings, Budgets};
use crate::hooks::{self, HookDefinition};
use crate::http::fetch_client::{AllowedHost, FetchClient};
use crate::ids::DayZone;
use crate::mode::ToolList;
use crate::model::Effort;
use crate::model::catalog::{Described, PROVIDERS};
use crate::model::provider_error::redact;
use crate::otlp::telemetry_settings::TelemetrySettings;
use crate::platform::files::others_rights;
use crate::process::shell::Sandbox;
use crate::store::Sync;
use crate::store::retention::Retention;
use crate::yaml_error;

pub const CONFIG: &str = "config.yaml";

pub const SETUP: &str = "setup.yaml";

const MAX_FILE: u64 = 1024 * 1024;

// `docs/reference/config.md` is made from the comments of the fields; a default is the last sentence.
/// Settings of a user.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserFile {
    /// Model of new sessions, as PROVIDER/NAME, or a provider for its default model. Default: that of the first
    /// usable provider, or else offline.
    pub model: Option<String>,
    /// File that has `model`.
    #[serde(skip)]
    pub model_file: Option<PathBuf>,
    /// Model of sub-agents that change nothing, such as `explore`, unless their agent or the mode names one.
    /// Default: that of the session.
    pub small_model: Option<String>,
    /// Reasoning effort; a model takes the nearest that it supports. Default: default.
    pub reasoning_effort: Option<Effort>,
    /// Tools listed in a model request, unless a mode sets its own `tool_list`. Default: hide.
    pub tool_list: Option<ToolList>,
    /// Sandbox of the commands that models run.
    #[serde(default)]
    pub shell: Option<ShellSettings>,
    /// Addresses that the tool `fetch` may reach.
    #[serde(default)]
    pub fetch: Option<FetchSettings>,
    /// How model providers and MCP servers are reached. Read at the start of Modegate.
    #[serde(default)]
    pub network: Option<NetworkSettings>,
    /// Session store.
    #[serde(default)]
    pub store: Option<StoreSettings>,
    /// Signatures of audit logs.
    #[serde(default)]
    pub evidence: Option<EvidenceSettings>,
    /// Export of traces, metrics and the audit log. Read at the start of Modegate.
    #[serde(default)]
    pub telemetry: Option<TelemetrySettings>,
    /// The panel of `modegate run`.
    #[serde(default)]
    pub run: Option<RunSettings>,
    /// A prompt sent while a turn runs joins the turn at its next model request, instead of waiting for its end.
    /// Default: true.
    pub steering: Option<bool>,
    /// Headless runs fail unless the checks in the modes file pass, as with `--require-checks`. Default: false.
    pub require_checks: Option<bool>,
    /// Budgets of a turn, a session and a day, in tokens, cost and time.
    #[serde(default)]
    pub budgets: Option<BudgetSettings>,
    /// Prices of models, by PROVIDER/NAME or NAME, which replace the list prices that Modegate knows.
    #[serde(default)]
    pub prices: BTreeMap<String, ModelPrice>,
    /// Programs that may refuse calls, or get events.
    #[serde(default)]
    pub hooks: Vec<HookDefinition>,
    /// Milliseconds in which no person reads a plan: a faster acceptance does not count. With 0 each one counts.
    /// Default: 500.
    pub fast_answer_ms: Option<u64>,
    /// Model providers, by id: anthropic, openai-responses, openai, gemini, ollama.
    #[serde(default)]
    pub providers: BTreeMap<String, ProviderSettings>,
}

#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkSettings {
    /// File with certificates in PEM that are trusted beside the system's, such as those of a company's proxy.
    /// Default: none.
    pub ca_file: Option<PathBuf>,
    /// Seconds that a run without an editor waits in all, for one reply, for a provider that is busy (HTTP 429, 503,
    /// 529). Default: 600.
    pub busy_wait_s: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// Key that opens the panel: `ctrl-` and a letter or one of \\ ] ^ _, or `none`. `--key` and `--no-key` take
    /// precedence. Default: ctrl-].
    pub key: Option<String>,
    /// Effect of a question: open the panel, or ring the bell. `--questions` takes precedence. Default: panel.
    pub questions: Option<QuestionNotice>,
    /// The title of the window shows the mode. `--no-title` takes precedence. Default: true.
    pub title: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuestionNotice {
    Panel,
    Bell,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreSettings {
    /// A commit survives the end of the process with `normal`, and a power failure with `full`. Default: normal.
    #[serde(default)]
    pub sync: Sync,
    /// What happens to calls that may change something while the store cannot be written, such as on a full disk.
    /// Default: refuse in headless runs and `modegate run`, else allow.
    pub unrecorded_changes: Option<UnrecordedChanges>,
    /// Sessions that were not used for this number of days are deleted, while Modegate is idle and after headless
    /// runs. Default: none are.
    pub max_age_days: Option<u32>,
    /// The longest unused sessions are deleted, while Modegate is idle and after headless runs, as long as the
    /// store has more data, in MB. Default: no limit.
    pub max_size_mb: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnrecordedChanges {
    Allow,
    Refuse,
}

impl StoreSettings {
    pub fn retention(&self) -> Retention {
        const DAY_MS: i64 = 24 * 60 * 60 * 1000;
        Retention {
            max_age_ms: self.max_age_days.map(|days| i64::from(days) * DAY_MS),
            max_bytes: self.max_size_mb.map(|size| u64::from(size) * 1_000_000),
            keeps_unexported: false,
        }
    }
}

#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchSettings {
    /// Reachable servers outside the public network: HOST (the usual ports), HOST:PORT or HOST:*. Default: none.
    #[serde(default)]
    pub allow_private: Vec<String>,
    /// URL of the proxy for public servers. Default: none; proxy variables of the environment are ignored.
    #[serde(default)]
    pub proxy: Option<String>,
}

impl std::fmt::Debug for FetchSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Security: the URL of a proxy may contain a password.
        f.debug_struct("FetchSettings").field("allow_private", &self.allow_private).finish_non_exhaustive()
    }
}

impl FetchSettings {
    pub fn to_fetch_client(&self) -> anyhow::Result<FetchClient> {
        let hosts = self.allow_private.iter().map(|text| AllowedHost::parse(text)).collect::<Result<_, _>>();
        let hosts = hosts.map_err(anyhow::Error::msg).context("fetch: allow_private")?;
        if let Some(proxy) = &self.proxy
            && !proxy.starts_with("http://")
            && !proxy.starts_with("https://")
        {
            bail!("fetch: proxy does not start with http:// or https://");
        }
        Ok(FetchClient::new(hosts, self.proxy.clone()))
    }
}

#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShellSettings {
    /// Limits where `shell` writes, where the kernel can; with `off` it writes where you
    /// can. Default: workspace.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// Obsolete: accepted without effect.
    pub terminal: Option<ObsoleteTerminal>,
    /// More paths that read-only commands may read. Default: none.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// More paths that other commands may write. Default: none.
    #[serde(default)]
    pub write: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ObsoleteTerminal {
    Own,
    Client,
}

impl ShellSettings {
    pub fn obsolete(&self) -> Option<&'static str> {
        self.terminal.map(|_| {
            "shell.terminal in config.yaml is obsolete and has no effect, because commands no longer run in the client's \
             terminal; remove the key"
        })
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderSettings {
    /// Key for `base_url`, or else for the provider's own address, where a key in the environment takes precedence. A
    /// file with a key must be readable by you alone (0600). Default: none.
    #[schemars(with = "Option<String>")]
    pub api_key: Option<SecretString>,
    /// Shell command that prints the key, run when the key is first needed; excludes `api_key`. Default: none.
    pub key_command: Option<String>,
    /// URL of the server; the provider's environment variable takes precedence. Default: the provider's own.
    pub base_url: Option<String>,
    /// File that has `base_url`.
    #[serde(skip)]
    pub base_url_file: Option<PathBuf>,
    /// Header that carries the key, such as `api-key` for Azure. Default: that of the provider.
    pub key_header: Option<String>,
    /// Models to offer first, as names or objects. Default: those that Modegate knows.
    #[serde(default)]
    pub models: Vec<ModelSettings>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a model is its name, or {name, context, images}")]
pub enum ModelSettings {
    Name(String),
    Full(Described),
}

impl ModelSettings {
    pub fn describe(&self) -> Described {
        match self {
            Self::Name(name) => Described { name: name.clone(), context: None, images: None },
            Self::Full(described) => described.clone(),
        }
    }
}

pub fn modified_times(folder: Option<&Path>) -> [Option<SystemTime>; 2] {
    [CONFIG, SETUP].map(|name| std::fs::metadata(folder?.join(name)).ok()?.modified().ok())
}

pub fn read(folder: Option<&Path>) -> anyhow::Result<UserFile> {
    let Some(folder) = folder else { return Ok(UserFile::default()) };
    let user_settings = read_one(&folder.join(CONFIG))?;
    let made = read_one(&folder.join(SETUP))?;
    Ok(merge(user_settings, made))
}

fn merge(own: UserFile, made: UserFile) -> UserFile {
    let mut providers = made.providers;
    for (id, settings) in own.providers {
        let made_settings = providers.remove(&id).unwrap_or_default();
        let has_key = settings.api_key.is_some() || settings.key_command.is_some();
        // Security: a key given for one address is not sent to another.
        let is_same_place = settings.base_url.is_none() || settings.base_url == made_settings.base_url;
        let (api_key, key_command, base_url) = match (has_key, is_same_place) {
            (true, _) => (settings.api_key, settings.key_command, settings.base_url),
            (false, true) => (made_settings.api_key, made_settings.key_command, made_settings.base_url),
            (false, false) => (None, None, settings.base_url),
        };
        let models = if settings.models.is_empty() { made_settings.models } else { settings.models };
        let key_header = settings.key_header.or(made_settings.key_header);
        let base_url_file = settings.base_url_file.or(made_settings.base_url_file);
        let merged = ProviderSettings { api_key, key_command, base_url, base_url_file, key_header, models };
        providers.insert(id, merged);
    }
    UserFile {
        network: own.network.or(made.network),
        store: own.store.or(made.store),
        model: own.model.or(made.model),
        model_file: own.model_file.or(made.model_file),
        small_model: own.small_model.or(made.small_model),
        reasoning_effort: own.reasoning_effort.or(made.reasoning_effort),
        tool_list: own.tool_list.or(made.tool_list),
        shell: own.shell.or(made.shell),
        fetch: own.fetch.or(made.fetch),
        evidence: own.evidence.or(made.evidence),
        telemetry: own.telemetry.or(made.telemetry),
        run: own.run.or(made.run),
        steering: own.steering.or(made.steering),
        require_checks: own.require_checks.or(made.require_checks),
        budgets: own.budgets.or(made.budgets),
        prices: if own.prices.is_empty() { made.prices } else { own.prices },
        hooks: if own.hooks.is_empty() { made.hooks } else { own.hooks },
        fast_answer_ms: own.fast_answer_ms.or(made.fast_answer_ms),
        providers,
    }
}

fn read_one(path: &Path) -> anyhow::Result<UserFile> {
    let text = match bounded_file::read_own_text(path, MAX_FILE) {
        Ok(text) => text,
        Err(error) if error.is_missing() => return Ok(UserFile::default()),
        Err(error) => bail!("{} {error}", path.display()),
    };
    if text.trim().is_empty() {
        return Ok(UserFile::default());
    }
    // Security: the parser's snippet may contain a key.
    let options = serde_saphyr::options! { with_snippet: false };
    let mut file: UserFile = serde_saphyr::from_str_with_options(&text, options).map_err(|error| {
        anyhow::anyhow!(
            "{}: {}",
            path.display(),
            redact(&yaml_error::describe_with_place(&error, &text), None)
        )
    })?;
    let valid = PROVIDERS.map(|provider| provider.id);
    if let Some(unknown) = file.providers.keys().find(|id| !valid.contains(&id.as_str())) {
        bail!("{}: unknown provider {unknown:?}: the providers are {}", path.display(), valid.join(", "));
    }
    file.to_budgets().with_context(|| path.display().to_string())?;
    let hooks = hooks::complete(&[], &file.hooks).map_err(anyhow::Error::msg);
    hooks.with_context(|| path.display().to_string())?;
    for (id, settings) in &file.providers {
        if settings.api_key.is_some() && settings.key_command.is_some() {
            bail!("{}: {id} has both api_key and key_command: keep one", path.display());
        }
        if settings.api_key.as_ref().is_some_and(|key| key.expose_secret().trim().is_empty()) {
            bail!("{}: {id}: api_key is empty", path.display());
        }
        if settings.models.iter().any(|model| model.describe().context.is_some_and(|context| context < 1000))
        {
            bail!("{}: {id}: a model's context is its size in tokens, 1000 or more", path.display());
        }
        check_url(id, settings.base_url.as_deref()).with_context(|| path.display().to_string())?;
    }
    let has_headers = file.telemetry.as_ref().is_some_and(|telemetry| telemetry.headers.is_some());
    if has_headers || file.providers.values().any(|settings| settings.api_key.is_some()) {
        check_private(path)?;
    }
    file.model_file = file.model.is_some().then(|| path.to_owned());
    for settings in file.providers.values_mut().filter(|settings| settings.base_url.is_some()) {
        settings.base_url_file = Some(path.to_owned());
    }
    Ok(file)
}

/// Ollama's address may be a host without a scheme.
fn check_url(provider: &str, url: Option<&str>) -> anyhow::Result<()> {
    match url {
        Some(url) if provider != "ollama" && !url.starts_with("http://") && !url.starts_with("https://") => {
            bail!("{provider}: base_url {url:?} does not start with http:// or https://")
        }
        _ => Ok(()),
    }
}

pub(super) fn check_private(path: &Path) -> anyhow::Result<()> {
    if let Some(mode) = others_rights(path)? {
        bail!(
            "{} contains a key and is readable by others (mode {mode:o}): run chmod 600 on it",
            path.display()
        );
    }
    Ok(())
}

impl UserFile {
    /// Returns an error that names the key whose value is no amount.
    pub fn to_budgets(&self) -> anyhow::Result<Budgets> {
        let limits = self.budgets.clone().unwrap_or_default().limits().map_err(anyhow::Error::msg)?;
        let prices = Prices::new(self.prices.clone()).map_err(anyhow::Error::msg)?;
        Ok(Budgets { limits, prices, day_zone: DayZone::Local })
    }

    /// Replaces the key and the address of the provider, and the model.
    pub fn set_provider(&mut self, setup: &Setup) {
        let settings = self.providers.entry(setup.provider.to_owned()).or_default();
        settings.api_key.clone_from(&setup.key);
        settings.key_command.clone_from(&setup.key_command);
        settings.base_url.clone_from(&setup.base_url);
        self.model = Some(setup.model.clone());
    }
}

#[derive(Debug)]
pub struct Setup {
    pub provider: &'static str,
    pub key: Option<SecretString>,
    pub key_command: Option<String>,
    pub base_url: Option<String>,
    pub model: String,
}

pub fn write(folder: &Path, setup: &Setup) -> anyhow::Result<PathBuf> {
    let path = folder.join(SETUP);
    check_url(setup.provider, setup.base_url.as_deref())?;
    let mut file =
        read_one(&path).context("the settings of an earlier setup; remove the file to begin anew")?;
    file.set_provider(setup);
    create_private(folder, &path, &to_yaml(&file)?).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Removes what `modegate setup` stored of a provider. Returns false if that is nothing.
pub fn remove(folder: &Path, provider: &str) -> anyhow::Result<bool> {
    let path = folder.join(SETUP);
    let mut file = read_one(&path)?;
    if file.providers.remove(provider).is_none() {
        return Ok(false);
    }
    let is_of_provider = |model: &String| model.split('/').next() == Some(provider);
    file.model = file.model.filter(|model| !is_of_provider(model));
    create_private(folder, &path, &to_yaml(&file)?).with_context(|| format!("writing {}", path.display()))?;
    Ok(true)
}

fn to_yaml(file: &UserFile) -> anyhow::Result<String> {
    let mut providers = serde_json::Map::new();
    for (id, settings) in &file.providers {
        let mut members = serde_json::Map::new();
        let key = settings.api_key.as_ref().map(|key| key.expose_secret().to_owned());
        let pairs = [
            ("api_key", key),
            ("key_command", settings.key_command.clone()),
            ("base_url", settings.base_url.clone()),
            ("key_header", settings.key_header.clone()),
        ];
        members.extend(pairs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))));
        let names: Vec<_> = settings.models.iter().map(|model| model.describe().name).collect();
        if !names.is_empty() {
            members.insert("models".into(), names.into());
        }
        providers.insert(id.clone(), members.into());
    }
    let mut all = serde_json::Map::new();
    all.extend(file.model.clone().map(|model| ("model".to_owned(), model.into())));
    all.insert("providers".into(), providers.into());
    Ok(format!(
        "# Written by `modegate setup`. Your own settings belong into {CONFIG}.\n{}",
        serde_saphyr::to_string(&all)?
    ))
}

/// Writes atomically, readable by the owner only.
pub fn create_private(folder: &Path, path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::create_dir_all(folder)?;
    let draft = path.with_extension(format!("{}.draft", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let written = options
        .open(&draft)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    let moved = written.and_then(|()| std::fs::rename(&draft, path));
    if moved.is_err() {
        // Security: the draft may contain a key.
        let _ = std::fs::remove_file(&draft);
    }
    moved
}

#[cfg(test)]
mod tests;
