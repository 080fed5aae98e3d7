//! Determines the usable providers and the selected model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::Context;
use secrecy::SecretString;

use super::environment::Environment;
use super::user_file::{self, ProviderSettings, UserFile};
use super::{commands, managed_file};
use crate::http::network::{UserNetwork, server_of};
use crate::managed_policy::{BY_POLICY, ManagedLimits};
use crate::model::ModelId;
use crate::model::allowed::AllowedModels;
use crate::model::catalog::{ModelCatalog, NoModel, PROVIDERS, Provider, Reachable, provider, provider_of};
use crate::model::endpoint::Endpoint;
use crate::model::key::Key;
use crate::model::learnt::Learnt;
use crate::model::router::{Remote, Router};
use crate::model::wire::Wire;
use crate::model::wire::anthropic::Anthropic;
use crate::model::wire::chat::Chat;
use crate::model::wire::gemini::Gemini;
use crate::model::wire::ollama::Ollama;
use crate::model::wire::responses::Responses;
use crate::process::AllowedHosts;

pub struct Providers {
    environment: Environment,
    /// The command line's model, which overrides files that are read again.
    asked: Option<ModelId>,
    router: Arc<Router>,
    last: Mutex<ReadProviders>,
}

/// The settings that were read last.
struct ReadProviders {
    stamps: [Option<SystemTime>; 2],
    limits: ProviderLimits,
    catalog: Arc<ModelCatalog>,
}

/// Models and servers that the organisation's policy allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderLimits {
    models: AllowedModels,
    /// `None` allows all hosts.
    hosts: Option<AllowedHosts>,
}

impl ProviderLimits {
    pub fn of(limits: &ManagedLimits) -> Self {
        Self { models: limits.models.clone(), hosts: limits.hosts.clone() }
    }

    /// Says which server on the way to an address is not allowed: the server itself, or its proxy.
    fn refusal(&self, base_url: &str, network: &UserNetwork) -> Option<String> {
        let hosts = self.hosts.as_ref()?;
        let proxy = network.proxy_for(base_url).map(|proxy| proxy.url.as_str());
        let (host, _) = std::iter::once(base_url)
            .chain(proxy)
            .map(|url| server_of(url).unwrap_or_default())
            .find(|(host, port)| !hosts.allow_server(host, *port))?;
        Some(format!("the server {host} of a model is not reached, {BY_POLICY}"))
    }
}

impl Providers {
    pub fn new(
        environment: Environment,
        requested: Option<ModelId>,
        router: Arc<Router>,
        models: Arc<ModelCatalog>,
    ) -> Self {
        let stamps = user_file::modified_times(environment.config_folder.as_deref());
        let limits = ProviderLimits::of(&managed_file::limits_everywhere());
        let last = ReadProviders { stamps, limits, catalog: models };
        Self { environment, asked: requested, router, last: Mutex::new(last) }
    }

    pub fn catalog(&self) -> Result<Arc<ModelCatalog>, String> {
        let folder = self.environment.config_folder.as_deref();
        let stamps = user_file::modified_times(folder);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = ProviderLimits::of(&managed_file::limits_everywhere());
        if last.stamps != stamps || last.limits != limits {
            let read = user_file::read(folder)
                .and_then(|file| find(&self.environment, &file, self.asked.as_ref(), &limits));
            let remote = read.map_err(|error| format!("{error:#}"))?;
            *last = ReadProviders { stamps, limits, catalog: Arc::clone(&remote.catalog) };
            self.router.set_remote(remote);
        }
        Ok(Arc::clone(&last.catalog))
    }
}

pub fn find(
    environment: &Environment,
    file: &UserFile,
    requested: Option<&ModelId>,
    limits: &ProviderLimits,
) -> anyhow::Result<Remote> {
    let mut endpoints = HashMap::new();
    let mut reachable = Vec::new();
    let mut refused = Vec::new();
    let network = environment.connections(None);
    for provider in PROVIDERS {
        let settings = file.providers.get(provider.id);
        let mut endpoint = endpoint(provider, environment, settings);
        if let Some(reason) = limits.refusal(&endpoint.base_url, &network) {
            endpoint.fault = Some(reason.clone());
            refused.push((provider.id, reason));
        }
        let has_url = environment.url(provider.url_variable).is_some()
            || settings.is_some_and(|settings| settings.base_url.is_some());
        let is_configured =
            endpoint.key.is_some() || !endpoint.is_official || (has_url && !provider.needs_key);
        let described = settings
            .into_iter()
            .flat_map(|settings| &settings.models)
            .map(user_file::ModelSettings::describe);
        if is_configured || settings.is_some() {
            reachable.push(Reachable {
                provider,
                has_key: is_configured || !provider.needs_key,
                described: described.collect(),
            });
        }
        endpoints.insert(provider.id, Arc::new(endpoint));
    }
    let mut models = ModelCatalog::new(reachable).limited(limits.models.clone(), refused);
    let requested_name =
        requested.map(ModelId::as_str).or(environment.model.as_deref()).or(file.model.as_deref());
    let model_source = match (requested, &environment.model) {
        (Some(_), _) => None,
        (None, Some(_)) => Some("MODEGATE_MODEL".to_owned()),
        (None, None) => file.model_file.as_ref().map(|path| format!("model in {}", path.display())),
    };
    let effort = file.reasoning_effort.unwrap_or_default();
    let model = match requested_name {
        None => models.default_model().clone(),
        Some(name) => model_named(name, file, &models).map_err(|error| match &model_source {
            Some(source) => anyhow::Error::new(error).context(source.clone()),
            None => error.into(),
        })?,
    };
    let small = environment.small_model.as_deref().or(file.small_model.as_deref());
    let small = small.map(|name| model_named(name, file, &models)).transpose().context("small_model")?;
    let effort = models.facts(&model).nearest(effort).unwrap_or_default();
    models = models.with_default(model, effort, requested_name.is_some()).with_small(small);
    Ok(Remote { endpoints, catalog: Arc::new(models) })
}

/// The name of a provider means its default model.
fn model_named(name: &str, file: &UserFile, models: &ModelCatalog) -> Result<ModelId, NoModel> {
    let id = model_id(name, file, models)?;
    match models.check_key(id.clone()) {
        Err(error @ (NoModel::NotAllowed { .. } | NoModel::Refused(_))) => Err(error),
        // A missing key is reported at the start of a session, where an editor can offer setup.
        Ok(_) | Err(_) => Ok(id),
    }
}

fn model_id(name: &str, file: &UserFile, models: &ModelCatalog) -> Result<ModelId, NoModel> {
    if provider_of(name).is_some() {
        return Ok(ModelId::new(name));
    }
    let Some(provider) = provider(name) else { return models.resolve(name) };
    let described = file.providers.get(name).and_then(|settings| settings.models.first());
    let default_model = provider.models.first().copied().unwrap_or_default();
    let model = described.map_or(default_model.to_owned(), |model| model.describe().name);
    Ok(ModelId::new(format!("{name}/{model}")))
}

/// The key is `None` if it belongs to another address.
fn endpoint(provider: Provider, environment: &Environment, settings: Option<&ProviderSettings>) -> Endpoint {
    let from_file = settings.and_then(|settings| settings.base_url.as_deref());
    let from_environment = environment.url(provider.url_variable);
    let url = from_environment.or(from_file);
    let base_url = match (provider.id, url) {
        ("ollama", Some(host)) => ollama_url(host),
        (_, Some(url)) => {
            // Some users include the version.
            let url = url.trim_end_matches('/');
            let version = match provider.id {
                "anthropic" => "/v1",
                "gemini" => "/v1beta",
                _ => "",
            };
            url.strip_suffix(version).unwrap_or(url).to_owned()
        }
        (_, None) => provider.base_url.to_owned(),
    };
    let rest = base_url.split_once("://").map_or(base_url.as_str(), |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or(rest).rsplit('@').next().unwrap_or(rest).to_owned();
    let scheme = base_url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    let source = url.map(|_| match (from_environment, settings.and_then(|it| it.base_url_file.as_ref())) {
        (Some(_), _) => provider.url_variable.to_owned(),
        (None, Some(path)) => format!("base_url of {} in {}", provider.id, path.display()),
        (None, None) => format!("base_url of {} in the settings", provider.id),
    });
    let fault = (!matches!(scheme.as_deref(), Some("http" | "https"))).then(|| {
        let source = source.as_deref().unwrap_or("the address");
        format!("{source} is {host:?}: begin it with http:// or https://")
    });
    let key = key(provider, environment, settings, from_environment.is_some());
    let wire: Box<dyn Wire> = match provider.id {
        "anthropic" => Box::new(Anthropic),
        "openai" => Box::new(Chat),
        "openai-responses" => Box::new(Responses),
        "gemini" => Box::new(Gemini),
        _ => Box::new(Ollama),
    };
    let is_official = base_url == provider.base_url;
    Endpoint {
        base_url,
        unreachable_hint: unreachable_hint(provider, source.as_deref(), &host),
        host,
        fault,
        key,
        // A header of the settings is for the address of the settings.
        key_header: settings.filter(|_| from_environment.is_none()).and_then(|it| it.key_header.clone()),
        key_variable: provider.key_variables[0],
        wire,
        is_official,
        learnt: Learnt::default(),
    }
}

fn unreachable_hint(provider: Provider, source: Option<&str>, host: &str) -> Option<String> {
    let address = source.map(|source| format!("the address comes from {source}"));
    let is_own_server = provider.id == "ollama" && host != "ollama.com";
    let start = is_own_server.then(|| "Ollama must be running there (`ollama serve`)".to_owned());
    let hints: Vec<String> = address.into_iter().chain(start).collect();
    (!hints.is_empty()).then(|| hints.join("; "))
}

/// Security: a key is sent only to the address it was given for. A key goes with the address from the same
/// source (environment or file), or with the provider's own address if no other is set.
fn key(
    provider: Provider,
    environment: &Environment,
    settings: Option<&ProviderSettings>,
    url_from_environment: bool,
) -> Option<Key> {
    let has_file_url = settings.is_some_and(|settings| settings.base_url.is_some());
    // Two formats share one key: with an address for one of them, the key belongs to that server.
    let other = match provider.id {
        "openai-responses" => Some("OPENAI_BASE_URL"),
        "openai" => Some("OPENAI_RESPONSES_BASE_URL"),
        _ => None,
    };
    let is_elsewhere = other.is_some_and(|other| environment.url(other).is_some())
        && environment.url(provider.url_variable).is_none();
    let from_environment = environment.key(provider.key_variables).cloned().map(Key::given);
    let from_file = settings.and_then(|settings| match (&settings.api_key, &settings.key_command) {
        (Some(key), _) => Some(Key::given(SecretString::clone(key))),
        (None, Some(command)) => Some(Key::from_command(command.clone(), commands::processes(environment))),
        (None, None) => None,
    });
    if url_from_environment {
        return from_environment;
    }
    if has_file_url {
        return from_file;
    }
    from_environment.filter(|_| !is_elsewhere).or(from_file)
}

fn ollama_url(host: &str) -> String {
    let host = host.trim().trim_end_matches('/');
    if host == "ollama.com" {
        return "https://ollama.com".into();
    }
    let (scheme, rest) = host.split_once("://").unwrap_or(("http", host));
    let (address, path) =
        rest.split_once('/').map_or((rest, String::new()), |(address, path)| (address, format!("/{path}")));
    let address = if address.contains(':') && !address.starts_with('[') && address.matches(':').count() > 1 {
        format!("[{address}]")
    } else {
        address.to_owned()
    };
    let (name, port) = match address.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => (name.to_owned(), Some(port.to_owned())),
        _ => (address.clone(), None),
    };
    let port = match (port, host.contains("://"), scheme) {
        (Some(port), ..) => format!(":{port}"),
        (None, false, _) => ":11434".into(),
        (None, true, _) => String::new(),
    };
    // Replaces a listening address by one to connect to.
    let name = match name.as_str() {
        "" | "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        name => name,
    };
    format!("{scheme}://{name}{port}{path}")
}

pub fn load(environment: &Environment, requested: Option<&ModelId>) -> anyhow::Result<(UserFile, Remote)> {
    let file = user_file::read(environment.config_folder.as_deref()).context("the settings")?;
    let limits = ProviderLimits::of(&managed_file::limits_everywhere());
    let remote = find(environment, &file, requested, &limits)?;
    Ok((file, remote))
}

#[cfg(test)]
mod tests;
