use super::*;

fn variables(values: &[(&'static str, &str)]) -> TelemetryVariables {
    TelemetryVariables::new(values.iter().map(|(name, value)| (*name, SecretString::from(*value))))
}

fn settings(yaml: &str) -> TelemetrySettings {
    serde_saphyr::from_str(yaml).unwrap()
}

fn resolved(
    policy: &str,
    user: &str,
    values: &[(&'static str, &str)],
) -> Result<Option<TelemetryDestination>, String> {
    let of = |yaml: &str| (!yaml.is_empty()).then(|| settings(yaml));
    let (policy, user, variables) = (of(policy), of(user), variables(values));
    resolve(TelemetrySources { policy: policy.as_ref(), user: user.as_ref(), variables: &variables })
}

fn url(destination: &TelemetryDestination, signal: Signal) -> &str {
    &destination.endpoints[&signal].url
}

const HERE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://here:4318");

#[test]
fn nothing_is_sent_without_an_endpoint() {
    assert!(resolved("", "", &[]).unwrap().is_none());
    assert!(resolved("", "contents: true", &[]).unwrap().is_none());
    assert!(resolved("", "", &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap().is_none());
    assert!(resolved("", "", &[HERE]).unwrap().is_some(), "the control");
    assert!(resolved("", "", &[HERE, ("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
}

#[test]
fn addresses_of_signals_follow_the_specification() {
    let given = [HERE, ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://logs/in")];
    let destination = resolved("", "endpoint: http://file", &given).unwrap().unwrap();
    assert_eq!(url(&destination, Signal::Traces), "http://here:4318/v1/traces");
    assert_eq!(url(&destination, Signal::Logs), "http://logs/in");
    let destination = resolved("", "endpoint: http://file/\nsignals: [traces]", &[]).unwrap().unwrap();
    assert_eq!(url(&destination, Signal::Traces), "http://file/v1/traces");
    assert_eq!(destination.endpoints.len(), 1);
    let destination = resolved("", "", &[HERE, ("OTEL_METRICS_EXPORTER", "none")]).unwrap().unwrap();
    assert!(!destination.endpoints.contains_key(&Signal::Metrics));
}

#[test]
fn headers_timeouts_and_names_are_read() {
    let given = [
        HERE,
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x=1"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "only=t"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=a,service.name=other"),
        ("OTEL_SERVICE_NAME", "mine"),
    ];
    let destination = resolved("", "", &given).unwrap().unwrap();
    let logs = &destination.endpoints[&Signal::Logs];
    assert_eq!(logs.headers["api-key"].expose_secret(), "a b");
    assert_eq!(logs.timeout, Duration::from_millis(250));
    let traces = &destination.endpoints[&Signal::Traces].headers;
    assert_eq!(traces.keys().collect::<Vec<_>>(), ["only"]);
    assert_eq!((destination.service_name.as_str(), destination.resource["team"].as_str()), ("mine", "a"));
    assert!(!format!("{destination:?}").contains("a b"), "{destination:?}");
}

#[test]
fn invalid_settings_name_what_is_valid() {
    let check = |values: &[(&'static str, &str)], expected: &str| {
        let error = resolved("", "", values).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    };
    check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "here:4317")], "http:// or https://");
    check(&[HERE, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "is \"grpc\": Modegate sends http/protobuf only");
    check(&[HERE, ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/json")], "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL is");
    check(&[HERE, ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")], "not a number of milliseconds");
    check(&[HERE, ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret")], "no list of NAME=VALUE");
    check(&[HERE, ("OTEL_TRACES_EXPORTER", "zipkin")], "Modegate knows otlp and none");
}

#[test]
fn contents_are_sent_only_on_request() {
    let check = |policy: &str, user: &str, variable: &str, expected: bool| {
        let given = [HERE, ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", variable)];
        let destination = resolved(policy, user, &given).unwrap().unwrap();
        assert_eq!(destination.has_contents, expected, "{policy} {user} {variable}");
    };
    check("", "", "", false);
    check("", "contents: true", "", true);
    check("", "", "true", true);
    check("", "", "SPAN_ONLY", true);
    check("", "contents: true", "NO_CONTENT", false);
    check("contents: false", "contents: true", "true", false);
    check("contents: true", "", "false", true);
}

#[test]
fn users_do_not_change_what_the_administrator_requires() {
    let policy = "{endpoint: 'http://company', required: true, headers: {k: v}}";
    let given = [
        HERE,
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://elsewhere"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "k=forged"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_TRACES_EXPORTER", "none"),
    ];
    let user = "{endpoint: 'http://mine', signals: [], timeout_ms: 0}";
    let destination = resolved(policy, user, &given).unwrap().unwrap();
    assert!(destination.is_required && destination.endpoints.len() == 3);
    for (signal, endpoint) in &destination.endpoints {
        assert_eq!(endpoint.url, format!("http://company/v1/{}", signal.as_str()));
        assert_eq!(endpoint.headers["k"].expose_secret(), "v");
        assert_eq!(endpoint.timeout, TIMEOUT);
    }
    // The control: a collector that the administrator only suggests can be switched off.
    let suggested = "endpoint: http://company";
    assert!(resolved(suggested, "", &[("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
    assert!(resolved("required: true", "", &[]).unwrap_err().contains("no endpoint is set"));
}
