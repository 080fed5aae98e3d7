//! Chooses the protocol version of a connection at `initialize`, where version 2 is offered. Pure.

use serde::Deserialize;
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

/// Returns the version whose table answers an `initialize` request. A connection keeps its version, except that
/// the client may ask for a higher one before its first other request.
pub(super) fn choose(params: Option<&RawValue>, progress: ConnectionProgress) -> Result<Version, AgentError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct RequestedVersion {
        protocol_version: u16,
    }
    let requested = params.and_then(|params| serde_json::from_str::<RequestedVersion>(params.get()).ok());
    let ConnectionProgress { version: current, has_other_requests } = progress;
    let refuse = |why: &str| Err(AgentError::InvalidRequest(why.into()));
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
        let version = |number: u32| format!(r#"{{"protocolVersion":{number}}}"#);
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
