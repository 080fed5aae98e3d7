//! The server of a provider: its address, key and wire format, and facts learnt about its models.

use std::borrow::Cow;
use std::time::Duration;

use secrecy::SecretString;

use super::key::Key;
use super::learnt::{Learnt, listed_context};
use super::provider_error::refused_part;
use super::wire::Wire;
use crate::http::{Http, HttpError};

const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest list of models that is read.
const MAX_MODEL_LIST: usize = 4 * 1024 * 1024;

pub struct Endpoint {
    /// Without a trailing slash.
    pub base_url: String,
    /// Address without its path, for messages.
    pub host: String,
    /// A hint for a server that cannot be reached: the origin of its address, and the program that must run there.
    pub unreachable_hint: Option<String>,
    /// Says why the address cannot be used. Reported with a request, so that other providers stay usable.
    pub fault: Option<String>,
    /// `None` if no key is needed.
    pub key: Option<Key>,
    /// Header of the key, if the server wants another one than the provider.
    pub key_header: Option<String>,
    pub key_variable: &'static str,
    pub wire: Box<dyn Wire>,
    pub is_official: bool,
    pub learnt: Learnt,
}

impl Endpoint {
    /// The message for a request that got no answer.
    pub(super) fn describe(&self, error: &HttpError) -> String {
        match (error, &self.unreachable_hint) {
            (HttpError::Unreachable(_), Some(hint)) => format!("{}: {error}; {hint}", self.host),
            _ => format!("{}: {error}", self.host),
        }
    }

    /// Headers with the key.
    pub(super) fn headers(
        &self,
        key: Option<&SecretString>,
        without: &[&'static str],
    ) -> Vec<(Cow<'static, str>, SecretString)> {
        let own_header =
            self.key_header.as_ref().zip(key).map(|(name, key)| (Cow::Owned(name.clone()), key.clone()));
        let others = self.wire.headers(key.filter(|_| own_header.is_none()), without);
        others.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).chain(own_header).collect()
    }

    pub(super) fn leave_out(&self, name: &str, error: &str, without: &[&'static str]) -> bool {
        let part = refused_part(error, self.wire.optional(), without);
        if let Some(part) = part {
            self.learnt.leave_out(name, part);
        }
        part.is_some()
    }

    /// Asks the server's list of models for the context, once for all callers. `None` if the list does not say.
    pub(super) async fn look_up_context(&self, http: &Http, name: &str) -> Option<u64> {
        let url = self.wire.models_url(&self.base_url).filter(|_| !self.is_official)?;
        let listed = self.learnt.listed(name);
        *listed.get_or_init(|| self.listed_context(http, url, name)).await
    }

    async fn listed_context(&self, http: &Http, url: String, name: &str) -> Option<u64> {
        let key = match &self.key {
            Some(key) => Some(key.get().await.ok()?.clone()),
            None => None,
        };
        let headers = self.headers(key.as_ref(), &[]);
        let look_up = async { http.get(url, headers).await.ok()?.whole_text(MAX_MODEL_LIST).await };
        let body = tokio::time::timeout(LOOK_UP_TIMEOUT, look_up).await.ok()??;
        let context = listed_context(&body, name);
        tracing::debug!(host = self.host, model = name, context, "the server's list of models was read");
        context
    }
}
