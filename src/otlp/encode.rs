//! Values and envelopes of OTLP. Pure.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::conventions as names;
use super::telemetry_settings::TelemetryDestination;

/// The operating system's name in the conventions.
const OS: &str = if cfg!(target_os = "macos") {
    "darwin"
} else if cfg!(windows) {
    "windows"
} else {
    "linux"
};

pub(super) fn text(value: impl Into<String>) -> AnyValue {
    AnyValue { value: Some(Any::StringValue(value.into())) }
}

pub(super) fn texts(values: Vec<String>) -> AnyValue {
    AnyValue { value: Some(Any::ArrayValue(ArrayValue { values: values.into_iter().map(text).collect() })) }
}

pub(super) fn flag(value: bool) -> AnyValue {
    AnyValue { value: Some(Any::BoolValue(value)) }
}

pub(super) fn number(value: u64) -> AnyValue {
    AnyValue { value: Some(Any::IntValue(value.cast_signed())) }
}

pub(super) fn signed(value: i64) -> AnyValue {
    AnyValue { value: Some(Any::IntValue(value)) }
}

pub(super) fn decimal(value: f64) -> AnyValue {
    AnyValue { value: Some(Any::DoubleValue(value)) }
}

pub(super) fn attribute(key: impl Into<String>, value: AnyValue) -> KeyValue {
    KeyValue { key: key.into(), value: Some(value), key_strindex: 0 }
}

/// Nanoseconds of a time in microseconds. A time before 1970 counts as 1970.
pub(super) fn nanoseconds(microseconds: i64) -> u64 {
    u64::try_from(microseconds).unwrap_or_default().saturating_mul(1000)
}

/// Seconds between two times in microseconds.
#[expect(clippy::cast_precision_loss, reason = "a duration far below the precision's limit")]
pub(super) fn seconds(from: i64, to: i64) -> f64 {
    to.saturating_sub(from).max(0) as f64 / 1e6
}

pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "modegate".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    }
}

/// `instance` identifies the process.
pub(super) fn resource(destination: &TelemetryDestination, instance: &str) -> Resource {
    let mut attributes = vec![
        attribute(names::SERVICE_NAME, text(&*destination.service_name)),
        attribute(names::SERVICE_VERSION, text(env!("CARGO_PKG_VERSION"))),
        attribute(names::SERVICE_INSTANCE, text(instance)),
        attribute(names::OS, text(OS)),
    ];
    let own: Vec<String> = attributes.iter().map(|attribute| attribute.key.clone()).collect();
    let given = destination.resource.iter().filter(|(name, _)| !own.contains(name));
    attributes.extend(given.map(|(name, value)| attribute(&**name, text(&**value))));
    Resource { attributes, ..Resource::default() }
}
