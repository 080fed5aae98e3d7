//! Chooses the protocol version of a connection at `initialize`, where version 2 is offered. Pure.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::error::AgentError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// Progress of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ConnectionProgress {
    /// `None` before the first success of `initialize`.
    pub(super) version: Option<Version>,
    /// True after the first request that is not `initialize`.
    pub(super) has_other_requests: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestedVersion {
    protocol_version: u16,
    info: Option<IgnoredAny>,
    capabilities: Option<IgnoredAny>,
    client_info: Option<IgnoredAny>,
    client_capabilities: Option<IgnoredAny>,
}

impl RequestedVersion {
    /// True for members that version 2 does not have, and for a version that no client of version 2 requests without
    /// its name.
    fn has_form_of_version_1(&self) -> bool {
        let Self { protocol_version, info, capabilities, client_info, client_capabilities } = self;
        let is_named = client_info.is_some() || client_capabilities.is_some();
        info.is_none() && capabilities.is_none() && (is_named || *protocol_version > 2)
    }
}

/// Returns the version whose table answers an `initialize` request. A connection keeps its version, except that
/// the client may ask for a higher one before its first other request.
pub(super) fn choose(params: Option<&RawValue>, progress: ConnectionProgress) -> Result<Version, AgentError> {
    let requested = params.and_then(|params| serde_json::from_str::<RequestedVersion>(params.get()).ok());
    let ConnectionProgress { version: current, has_other_requests } = progress;
    let refuse = |why: &str| Err(AgentError::InvalidRequest(why.into()));
    if current != Some(Version::Two)
        && requested.as_ref().is_some_and(RequestedVersion::has_form_of_version_1)
    {
        return Ok(Version::One);
    }
    match (requested.map(|requested| requested.protocol_version), current) {
        // Its table reports the invalid parameters.
        (None, current) => Ok(current.unwrap_or(Version::One)),
        (Some(0), _) => Err(AgentError::UnsupportedVersion { requested: 0 }),
        (Some(1), Some(Version::Two)) => refuse("the connection has protocol version 2 and keeps it"),
        (Some(1), _) => Ok(Version::One),
        (Some(_), Some(Version::Two)) if has_other_requests => {
            refuse("initialize can be repeated only before the first other request")
        }
        (Some(_), Some(Version::One)) if has_other_requests => Ok(Version::One),
        (Some(_), _) => Ok(Version::Two),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_depends_on_the_request_and_on_earlier_ones() {
        use Version::{One, Two};
        let check = |params: &str, version, has_other_requests, expected: Result<Version, i32>| {
            let params =
                serde_json::value::to_raw_value(&serde_json::from_str::<serde_json::Value>(params).unwrap());
            let progress = ConnectionProgress { version, has_other_requests };
            let chosen = choose(params.ok().as_deref(), progress).map_err(|error| error.code());
            assert_eq!(chosen, expected, "{progress:?}");
        };
        let version = |number: u32| format!(r#"{{"protocolVersion":{number},"info":{{}}}}"#);
        // Clients of version 1 that request another one get 1.
        for number in [0, 2, 7] {
            let params = format!(r#"{{"protocolVersion":{number},"clientCapabilities":{{}}}}"#);
            check(&params, None, false, Ok(One));
        }
        check(r#"{"protocolVersion":7}"#, None, false, Ok(One));
        check(r#"{"protocolVersion":2}"#, None, false, Ok(Two));
        check(&version(0), None, false, Err(-32022));
        check(&version(1), None, false, Ok(One));
        check(&version(2), None, false, Ok(Two));
        check(&version(3), None, false, Ok(Two));
        check("{}", None, false, Ok(One));
        check(r#"{"protocolVersion":"2"}"#, None, false, Ok(One));
        check(&version(70_000), None, false, Ok(One));
        check(&version(2), Some(One), false, Ok(Two));
        check(&version(2), Some(One), true, Ok(One));
        check(&version(1), Some(One), true, Ok(One));
        check(&version(2), Some(Two), false, Ok(Two));
        check(&version(2), Some(Two), true, Err(-32600));
        check(&version(1), Some(Two), false, Err(-32600));
    }
}
