//! Tries providers for `modegate doctor --online` and `modegate setup`: the only checks that use the network.

use std::collections::HashMap;

use super::connections::Connections;
use super::doctor_checks::{CheckState, Finding};
use super::environment::Environment;
use super::providers::ProviderLimits;
use super::user_file::{self, Setup};
use super::{Config, Flags, managed_file, providers};
use crate::model::attempt::attempt;
use crate::model::router::Router;
use crate::model::{Failure, ModelError, ModelId};

/// One attempt at the server of a model.
pub struct Trial {
    /// Address without its path.
    pub host: String,
    /// The proxy, and the trusted certificates.
    pub route: String,
    pub outcome: Result<(), ModelError>,
}

/// `None` for a model without a server.
async fn try_model(router: &Router, model: &ModelId) -> Option<Trial> {
    let (host, route) = router.route(model)?;
    Some(Trial { host, route, outcome: attempt(router, model.clone()).await })
}

/// Tries the model of new sessions, and the small model.
pub async fn findings(flags: &Flags, environment: &Environment) -> Vec<Finding> {
    // The other checks report settings that cannot be read.
    let Ok(config) = Config::without_store(flags, environment.clone()) else { return Vec::new() };
    let catalog = &config.remote.catalog;
    let model = catalog.default_model().clone();
    let small_model = catalog.small_model().filter(|small| **small != model).cloned();
    let router = config.connections.apply(Router::new(HashMap::new(), config.remote));
    let mut findings = Vec::new();
    for (what, model) in [("provider", Some(model)), ("small model, online", small_model)] {
        let Some(model) = model else { continue };
        let Some(Trial { host, route, outcome }) = try_model(&router, &model).await else {
            let state = CheckState::Note(format!("{model} needs no network, so nothing was tried"));
            findings.push(Finding { what, state });
            continue;
        };
        let state = match outcome {
            Ok(()) => CheckState::Fine(format!("{model}: {host} answered (HTTP 200)")),
            Err(error) => CheckState::wrong(format!("{model}: {}", error.text), advice(&error.failure)),
        };
        findings.push(Finding { what, state });
        findings.push(Finding { what: "network", state: CheckState::Note(route) });
    }
    findings
}

fn advice(failure: &Failure) -> &'static str {
    match failure {
        Failure::Key => "set the variable, or run `modegate setup`",
        _ => {
            "check the model, the address and the network; the page on providers in Modegate's documentation helps"
        }
    }
}

/// Tries settings that are not stored yet. Variables of the environment do not replace the key or the address.
pub async fn try_setup(environment: &Environment, setup: &Setup) -> anyhow::Result<Option<Trial>> {
    let environment = environment.without_providers();
    let mut file = user_file::read(environment.config_folder.as_deref())?;
    let connections = Connections::new(&file.network.take().unwrap_or_default(), &environment)?;
    file.set_provider(setup);
    let model = ModelId::new(setup.model.as_str());
    let limits = ProviderLimits::of(&managed_file::limits_everywhere());
    let remote = providers::find(&environment, &file, Some(&model), &limits)?;
    Ok(try_model(&connections.apply(Router::new(HashMap::new(), remote)), &model).await)
}
