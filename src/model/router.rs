//! Sends each request to the model or provider that it names, behind one [`Model`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt, stream};

use super::catalog::ModelCatalog;
use super::remote::{self, Endpoint};
use super::{Failure, Model, ModelError, ModelId, ModelRequest, Reply};
use crate::http::Http;

pub struct Router {
    http: Arc<Http>,
    embedded: HashMap<String, Arc<dyn Model>>,
    /// Replaced as a whole when the user changes providers.
    remote: Mutex<Arc<Remote>>,
}

pub struct Remote {
    pub endpoints: HashMap<&'static str, Arc<Endpoint>>,
    pub catalog: Arc<ModelCatalog>,
}

impl Router {
    pub fn new(embedded: HashMap<String, Arc<dyn Model>>, remote: Remote) -> Self {
        Self { http: Arc::default(), embedded, remote: Mutex::new(Arc::new(remote)) }
    }

    pub fn set_remote(&self, remote: Remote) {
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(remote);
    }
}

impl Model for Router {
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
                let facts = remote.catalog.facts(&request.model);
                return remote::reply(Arc::clone(&self.http), Arc::clone(endpoint), facts, &request);
            }
            (_, Err(error)) => ModelError { failure: Failure::Key, text: error.to_string() },
            (None, Ok(_)) => {
                ModelError::new(format!("no provider is set up for the model {}", request.model))
            }
        };
        stream::once(async { Err(problem) }).boxed()
    }
}
