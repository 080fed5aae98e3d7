//! Where telemetry goes: the administrator's settings, the user's, and the standard variables of OpenTelemetry,
//! checked and combined. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// Timeout of a request, as the specification of OTLP has it.
const TIMEOUT: Duration = Duration::from_secs(10);

const PROTOCOL: &str = "http/protobuf";

/// Variables with secrets. No command, MCP server or agent gets them.
pub const SECRET_VARIABLES: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
];

/// The other variables that are read.
pub const VARIABLES: [&str; 19] = [
    "OTEL_SDK_DISABLED",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT",
    "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_LOGS_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
];

// `docs/reference/config.md` is made from the comments of the fields; a default is the last sentence.
/// Destination and content of telemetry.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TelemetrySettings {
    /// Address of an OTLP/HTTP collector, to which Modegate adds `/v1/traces`, `/v1/logs` and `/v1/metrics`;
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` takes precedence. Default: none, and nothing is sent.
    pub endpoint: Option<String>,
    /// Headers of each request, such as `authorization`. A file with headers must be readable by you alone (0600).
    /// Default: none.
    #[schemars(with = "Option<BTreeMap<String, String>>")]
    pub headers: Option<BTreeMap<String, SecretString>>,
    /// Signals to send; `logs` is the audit log. Default: all three.
    pub signals: Option<Vec<Signal>>,
    /// Sends prompts, answers, arguments, results and the paths and commands of the audit log. Default: false.
    pub contents: Option<bool>,
    /// Milliseconds that one request may take. Default: 10000.
    pub timeout_ms: Option<u64>,
    /// Name of the service. Default: modegate.
    pub service_name: Option<String>,
    /// Further attributes of the resource. Default: none.
    pub resource: Option<BTreeMap<String, String>>,
    /// Sessions in memory are exported, too, a run waits longer for the collector at its end, and in the administrator's
    /// file no setting of a user changes the collector or the signals. Default: false.
    pub required: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    Traces,
    Logs,
    Metrics,
}

/// The values of [`VARIABLES`] and [`SECRET_VARIABLES`] that are set and not empty.
#[derive(Debug, Clone, Default)]
pub struct TelemetryVariables(BTreeMap<&'static str, SecretString>);

/// The sources of settings, the strictest first.
#[derive(Debug, Clone, Copy)]
pub struct TelemetrySources<'a> {
    pub policy: Option<&'a TelemetrySettings>,
    pub user: Option<&'a TelemetrySettings>,
    pub variables: &'a TelemetryVariables,
}

/// A checked destination of telemetry.
#[derive(Debug, Clone)]
pub struct TelemetryDestination {
    /// At least one.
    pub endpoints: BTreeMap<Signal, SignalEndpoint>,
    pub service_name: String,
    pub resource: BTreeMap<String, String>,
    pub has_contents: bool,
    pub is_required: bool,
}

#[derive(Debug, Clone)]
pub struct SignalEndpoint {
    pub url: String,
    pub headers: BTreeMap<String, SecretString>,
    pub timeout: Duration,
}

impl SignalEndpoint {
    /// Host and port, without a user's name and password.
    pub fn host(&self) -> &str {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit_once('@').map_or(authority, |(_, host)| host)
    }
}

impl Signal {
    pub const ALL: [Self; 3] = [Self::Traces, Self::Logs, Self::Metrics];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Logs => "logs",
            Self::Metrics => "metrics",
        }
    }

    /// The name of a variable of this signal, or of all signals.
    fn variable(self, ending: &str) -> String {
        format!("OTEL_EXPORTER_OTLP_{}_{ending}", self.as_str().to_uppercase())
    }
}

impl TelemetryVariables {
    pub fn new(values: impl Iterator<Item = (&'static str, SecretString)>) -> Self {
        Self(values.filter(|(_, value)| !value.expose_secret().trim().is_empty()).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.expose_secret().trim())
    }

    /// The variable of one signal, or else that of all.
    fn of_signal(&self, signal: Signal, ending: &str) -> Option<(String, &str)> {
        let names = [signal.variable(ending), format!("OTEL_EXPORTER_OTLP_{ending}")];
        names.into_iter().find_map(|name| self.get(&name).map(|value| (name, value)))
    }

    fn is_disabled(&self) -> bool {
        self.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    fn asks_for_contents(&self) -> Option<bool> {
        let value = self.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT")?;
        Some(["true", "span_only", "span_and_event"].iter().any(|word| value.eq_ignore_ascii_case(word)))
    }

    fn resource(&self) -> Result<BTreeMap<String, String>, String> {
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        self.get(name).map_or(Ok(BTreeMap::new()), |text| pairs(name, text))
    }

    /// The headers of all variables, to keep them out of the log.
    pub fn secrets(&self) -> impl Iterator<Item = SecretString> {
        let headers = SECRET_VARIABLES.iter().filter_map(|name| Some((*name, self.get(name)?)));
        headers.flat_map(|(name, text)| {
            pairs(name, text).unwrap_or_default().into_values().map(SecretString::from)
        })
    }
}

/// Checks the settings of a file alone. A missing endpoint is no fault: a variable may name it.
pub fn check(settings: &TelemetrySettings) -> Result<(), String> {
    let alone = TelemetrySettings { required: None, ..settings.clone() };
    let variables = TelemetryVariables::default();
    resolve(TelemetrySources { policy: Some(&alone), user: None, variables: &variables }).map(drop)
}

/// Returns `None` if telemetry is off. The error says which setting is invalid.
pub fn resolve(sources: TelemetrySources<'_>) -> Result<Option<TelemetryDestination>, String> {
    let TelemetrySources { policy, user, variables } = sources;
    let is_fixed = policy.is_some_and(|policy| policy.required == Some(true));
    let policy_endpoint = policy.and_then(|policy| policy.endpoint.as_deref());
    if variables.is_disabled() && !is_fixed {
        return Ok(None);
    }
    let none = TelemetryVariables::default();
    // The administrator's collector is not replaced.
    let variables_of_place = if policy_endpoint.is_some() { &none } else { variables };
    let user_of_place = user.filter(|_| policy_endpoint.is_none());
    let mut endpoints = BTreeMap::new();
    for signal in signals(sources, is_fixed)? {
        let settings = [policy, user_of_place];
        if let Some(endpoint) = endpoint(signal, settings, variables_of_place)? {
            endpoints.insert(signal, endpoint);
        }
    }
    if endpoints.is_empty() {
        return if is_fixed {
            Err("the administrator requires telemetry, but no endpoint is set: set OTEL_EXPORTER_OTLP_ENDPOINT, or \
                 endpoint in the administrator's file"
        .into())
        } else {
            Ok(None)
        };
    }
    let mut resource = user.and_then(|user| user.resource.clone()).unwrap_or_default();
    resource.extend(variables.resource()?);
    resource.extend(policy.and_then(|policy| policy.resource.clone()).unwrap_or_default());
    let named =
        |settings: Option<&TelemetrySettings>| settings.and_then(|settings| settings.service_name.clone());
    let service_name = named(policy)
        .or_else(|| variables.get("OTEL_SERVICE_NAME").map(str::to_owned))
        .or_else(|| resource.get("service.name").cloned())
        .or_else(|| named(user));
    let asked = variables.asks_for_contents().or_else(|| user.and_then(|user| user.contents));
    Ok(Some(TelemetryDestination {
        endpoints,
        service_name: service_name.unwrap_or_else(|| "modegate".into()),
        resource,
        has_contents: policy.and_then(|policy| policy.contents).or(asked).unwrap_or(false),
        is_required: [policy, user].into_iter().flatten().any(|settings| settings.required == Some(true)),
    }))
}

fn signals(sources: TelemetrySources<'_>, is_fixed: bool) -> Result<Vec<Signal>, String> {
    let TelemetrySources { policy, user, variables } = sources;
    let chosen =
        |settings: Option<&TelemetrySettings>| settings.and_then(|settings| settings.signals.clone());
    let required = chosen(policy);
    if is_fixed {
        return Ok(required.unwrap_or_else(|| Signal::ALL.to_vec()));
    }
    let mut signals = required.or_else(|| chosen(user)).unwrap_or_else(|| Signal::ALL.to_vec());
    for signal in Signal::ALL {
        let name = format!("OTEL_{}_EXPORTER", signal.as_str().to_uppercase());
        match variables.get(&name) {
            None | Some("otlp") => {}
            Some("none") => signals.retain(|chosen| *chosen != signal),
            Some(other) => return Err(format!("{name} is {other:?}: Modegate knows otlp and none")),
        }
    }
    Ok(signals)
}

/// `settings` has the administrator's and the user's.
fn endpoint(
    signal: Signal,
    settings: [Option<&TelemetrySettings>; 2],
    variables: &TelemetryVariables,
) -> Result<Option<SignalEndpoint>, String> {
    let of_signal = signal.variable("ENDPOINT");
    let (name, url) = if let Some(url) = variables.get(&of_signal) {
        (of_signal, url.to_owned())
    } else {
        let general = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let configured = settings.iter().flatten().find_map(|settings| settings.endpoint.as_deref());
        let base = variables.get(general).map(|url| (general, url));
        let Some((name, base)) = base.or(configured.map(|url| ("telemetry: endpoint", url))) else {
            return Ok(None);
        };
        (name.to_owned(), format!("{}/v1/{}", base.trim_end_matches('/'), signal.as_str()))
    };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(format!("{name} does not start with http:// or https://"));
    }
    if let Some((name, protocol)) =
        variables.of_signal(signal, "PROTOCOL").filter(|(_, value)| *value != PROTOCOL)
    {
        return Err(format!("{name} is {protocol:?}: Modegate sends {PROTOCOL} only"));
    }
    let timeout = match variables.of_signal(signal, "TIMEOUT") {
        None => settings.iter().flatten().find_map(|settings| settings.timeout_ms),
        Some((name, text)) => {
            Some(text.parse().map_err(|_| format!("{name} is {text:?}, not a number of milliseconds"))?)
        }
    };
    let headers = match variables.of_signal(signal, "HEADERS") {
        None => settings.iter().flatten().find_map(|settings| settings.headers.clone()).unwrap_or_default(),
        Some((name, text)) => {
            pairs(&name, text)?.into_iter().map(|(name, value)| (name, value.into())).collect()
        }
    };
    Ok(Some(SignalEndpoint { url, headers, timeout: timeout.map_or(TIMEOUT, Duration::from_millis) }))
}

/// Reads `name=value,name=value`, with values in percent encoding. An error does not contain a value.
fn pairs(variable: &str, text: &str) -> Result<BTreeMap<String, String>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pairs: Option<_> = parts.map(pair).collect();
    pairs.ok_or_else(|| format!("{variable} is no list of NAME=VALUE, separated by commas"))
}

fn pair(part: &str) -> Option<(String, String)> {
    let (name, value) = part.split_once('=')?;
    let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
    Some((name.trim().to_owned(), value.into_owned()))
}

#[cfg(test)]
mod tests;
