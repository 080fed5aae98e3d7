//! Adds up the metrics of this process from span records. Values are cumulative, as collectors expect by default.
//! Metrics are best effort: values that a process has not sent are lost with it. Pure.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::conventions::{self as names, MetricName};
use super::encode::{attribute, nanoseconds, scope, seconds, text};
use super::spans::model_parts;
use crate::span_record::{SpanRecord, TracedWork};

/// Maximum number of combinations of attributes. Further ones are not counted.
const MAX_SERIES: usize = 2_000;

type Labels = Vec<(&'static str, String)>;

#[derive(Debug, Default)]
pub(super) struct Metrics {
    series: BTreeMap<(&'static str, Labels), Series>,
    /// True if a value has changed since the last request.
    has_news: bool,
}

#[derive(Debug, Default)]
struct Series {
    count: u64,
    sum: f64,
    buckets: Vec<u64>,
}

impl Metrics {
    pub(super) fn add(&mut self, record: &SpanRecord) {
        let took = seconds(record.began, record.ended.unwrap_or(record.began));
        let error = record.error.iter().map(|error| (names::ERROR, error.clone()));
        match &record.work {
            TracedWork::Turn { model, .. } => {
                let labels = of_model("invoke_agent", model).into_iter().chain(error).collect();
                self.count(&names::DURATION, labels, took);
            }
            TracedWork::ModelRequest { model, first_output, usage, .. } => {
                let labels = of_model("chat", model);
                for (kind, tokens) in [("input", usage.input), ("output", usage.output)] {
                    if tokens > 0 {
                        let labels = labels.iter().cloned().chain([(names::TOKEN_TYPE, kind.to_owned())]);
                        self.count(&names::TOKEN_USAGE, labels.collect(), decimal(tokens));
                    }
                }
                if let Some(first) = first_output {
                    self.count(&names::FIRST_CHUNK, labels.clone(), seconds(record.began, *first));
                }
                self.count(&names::DURATION, labels.into_iter().chain(error).collect(), took);
            }
            TracedWork::ToolCall { tool, mode, denied: Some(rule), .. } => {
                let labels = vec![
                    (names::TOOL, tool.clone()),
                    (names::MODE, mode.clone()),
                    (names::DENIAL_RULE, rule.clone()),
                ];
                self.count(&names::DENIALS, labels, 1.0);
            }
            TracedWork::ToolCall { tool, .. } => {
                let labels = [(names::TOOL, tool.clone())].into_iter().chain(error).collect();
                self.count(&names::TOOL_DURATION, labels, took);
            }
            TracedWork::Permission { tool, mode, outcome, .. } => {
                let labels = vec![
                    (names::TOOL, tool.clone()),
                    (names::MODE, mode.clone()),
                    (names::PERMISSION, outcome.clone()),
                ];
                self.count(&names::PERMISSION_WAIT, labels, took);
            }
            TracedWork::ModeChange { from, to, source } => {
                let from = from.clone().unwrap_or_default();
                let labels = vec![
                    (names::MODE_FROM, from),
                    (names::MODE, to.clone()),
                    (names::MODE_SOURCE, source.clone()),
                ];
                self.count(&names::MODE_CHANGES, labels, 1.0);
            }
        }
    }

    fn count(&mut self, metric: &MetricName, labels: Labels, value: f64) {
        let key = (metric.name, labels);
        if self.series.len() >= MAX_SERIES && !self.series.contains_key(&key) {
            return;
        }
        let series = self.series.entry(key).or_default();
        series.count += 1;
        series.sum += value;
        if !metric.bounds.is_empty() {
            series.buckets.resize(metric.bounds.len() + 1, 0);
            series.buckets[metric.bounds.iter().take_while(|bound| **bound < value).count()] += 1;
        }
        self.has_news = true;
    }

    /// Returns the values since `began`, or `None` if none has changed since the last call.
    pub(super) fn request(
        &mut self,
        resource: &Resource,
        began: i64,
        now: i64,
    ) -> Option<ExportMetricsServiceRequest> {
        if !std::mem::take(&mut self.has_news) {
            return None;
        }
        let times = (nanoseconds(began), nanoseconds(now));
        let metrics = names::METRICS.iter().filter_map(|metric| self.metric(metric, times)).collect();
        let scope_metrics =
            ScopeMetrics { scope: Some(scope()), metrics, schema_url: names::SCHEMA_URL.into() };
        Some(ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(resource.clone()),
                scope_metrics: vec![scope_metrics],
                schema_url: names::SCHEMA_URL.into(),
            }],
        })
    }

    fn metric(&self, metric: &MetricName, (start, now): (u64, u64)) -> Option<Metric> {
        let all = self.series.iter().filter(|((name, _), _)| *name == metric.name);
        let points: Vec<_> = all.map(|((_, labels), series)| (attributes(labels), series)).collect();
        if points.is_empty() {
            return None;
        }
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let data = if metric.bounds.is_empty() {
            let data_points = points.into_iter().map(|(attributes, series)| NumberDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: now,
                value: Some(Number::AsInt(series.count.cast_signed())),
                ..NumberDataPoint::default()
            });
            let data_points = data_points.collect();
            Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
        } else {
            let data_points = points.into_iter().map(|(attributes, series)| HistogramDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: now,
                count: series.count,
                sum: Some(series.sum),
                bucket_counts: series.buckets.clone(),
                explicit_bounds: metric.bounds.to_vec(),
                ..HistogramDataPoint::default()
            });
            Data::Histogram(Histogram { data_points: data_points.collect(), aggregation_temporality })
        };
        Some(Metric {
            name: metric.name.into(),
            description: metric.meaning.into(),
            unit: metric.unit.into(),
            data: Some(data),
            ..Metric::default()
        })
    }
}

fn of_model(operation: &str, model: &str) -> Labels {
    let (provider, model) = model_parts(model);
    vec![
        (names::OPERATION, operation.to_owned()),
        (names::PROVIDER, provider.to_owned()),
        (names::MODEL, model.to_owned()),
    ]
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| attribute(*name, text(&**value))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "no request has 2^53 tokens")]
fn decimal(tokens: u64) -> f64 {
    tokens as f64
}

#[cfg(test)]
mod tests;
