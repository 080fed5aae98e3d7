//! Sends each request to the model or provider that it names, behind one [`Model`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::catalog::ModelCatalog;
use super::endpoint::Endpoint;
use super::known::ModelFacts;
use super::remote::{self, Route};
use super::{Failure, Model, ModelError, ModelId, ModelRequest, Reply};
use crate::http::Http;

pub struct Router {
    http: Arc<Http>,
    embedded: HashMap<String, Arc<dyn Model>>,
    /// Replaced as a whole when the user changes providers.
    remote: Mutex<Arc<Remote>>,
    busy_limit: Option<Duration>,
}

pub struct Remote {
    pub endpoints: HashMap<&'static str, Arc<Endpoint>>,
    pub catalog: Arc<ModelCatalog>,
}

impl Router {
    pub fn new(embedded: HashMap<String, Arc<dyn Model>>, remote: Remote) -> Self {
        let remote = Mutex::new(Arc::new(remote));
        Self { http: Arc::default(), embedded, remote, busy_limit: None }
    }

    #[must_use]
    pub fn with_http(self, http: Arc<Http>) -> Self {
        Self { http, ..self }
    }

    /// Gives up on a provider that stays busy for longer.
    #[must_use]
    pub fn with_busy_limit(self, busy_limit: Option<Duration>) -> Self {
        Self { busy_limit, ..self }
    }

    /// The host of a model's server, and the way to it. `None` for a model inside this process.
    pub fn route(&self, model: &ModelId) -> Option<(String, String)> {
        let remote = Arc::clone(&self.remote.lock().unwrap_or_else(PoisonError::into_inner));
        let endpoint = remote.endpoints.get(model.parts()?.0)?;
        Some((endpoint.host.clone(), self.http.route(&endpoint.base_url)))
    }

    pub fn set_remote(&self, remote: Remote) {
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(remote);
    }
}

impl Remote {
    fn reported_context(&self, model: &ModelId) -> Option<u64> {
        let (provider, name) = model.parts()?;
        let described = self.catalog.described_context(model);
        self.endpoints.get(provider)?.learnt.context(name, described)
    }

    fn facts(&self, model: &ModelId) -> ModelFacts {
        let facts = self.catalog.facts(model);
        match self.reported_context(model) {
            Some(context) => ModelFacts { context, output: facts.output.min(context / 4), ..facts },
            None => facts,
        }
    }
}

impl Model for Router {
    fn reported_context(&self, model: &ModelId) -> Option<u64> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner).reported_context(model)
    }

    fn prepare(&self, model: &ModelId) {
        let remote = Arc::clone(&self.remote.lock().unwrap_or_else(PoisonError::into_inner));
        let provider = model.parts().map_or("", |(provider, _)| provider);
        if let Some(endpoint) = remote.endpoints.get(provider).cloned() {
            let http = Arc::clone(&self.http);
            tokio::spawn(async move { http.prepare(&endpoint.base_url).await });
        }
    }

    fn reply(&self, request: ModelRequest) -> Reply {
        if let Some(model) = self.embedded.get(request.model.as_str()) {
            return model.reply(request);
        }
        let remote = Arc::clone(&self.remote.lock().unwrap_or_else(PoisonError::into_inner));
        let provider = request.model.parts().map_or("", |(provider, _)| provider);
        let problem = match (remote.endpoints.get(provider), remote.catalog.check_key(request.model.clone()))
        {
            (Some(endpoint), Ok(_)) => {
                let facts = remote.facts(&request.model);
                let is_described = remote.catalog.described_context(&request.model).is_some();
                let (http, endpoint) = (Arc::clone(&self.http), Arc::clone(endpoint));
                let busy_limit = self.busy_limit;
                return remote::reply(Route { http, endpoint, facts, is_described, busy_limit }, &request);
            }
            (_, Err(error)) => ModelError { failure: Failure::Key, text: error.to_string() },
            (None, Ok(_)) => {
                ModelError::new(format!("no provider is set up for the model {}", request.model))
            }
        };
        stream::once(async { Err(problem) }).boxed()
    }
}
