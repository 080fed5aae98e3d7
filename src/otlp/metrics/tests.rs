use super::*;
use crate::span_record::{SpanLink, TracedUsage};

fn record(work: TracedWork, milliseconds: i64) -> SpanRecord {
    SpanRecord {
        link: SpanLink::of_turn("s", 1, None),
        parent: None,
        turn: 1,
        began: 0,
        ended: Some(milliseconds * 1000),
        error: None,
        work,
        contents: None,
    }
}

fn request_of(input: u64) -> TracedWork {
    TracedWork::ModelRequest {
        model: "anthropic/m".into(),
        first_output: Some(15_000),
        finish: None,
        usage: TracedUsage { input, ..TracedUsage::default() },
    }
}

fn sent(metrics: &mut Metrics) -> Vec<Metric> {
    let request = metrics.request(&Resource::default(), 5, 7);
    request
        .map(|mut request| request.resource_metrics.remove(0).scope_metrics.remove(0).metrics)
        .unwrap_or_default()
}

fn histogram<'a>(metrics: &'a [Metric], name: &str) -> &'a HistogramDataPoint {
    let found = metrics.iter().find(|metric| metric.name == name).and_then(|metric| metric.data.as_ref());
    match found {
        Some(Data::Histogram(histogram)) => &histogram.data_points[0],
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn durations_and_tokens_are_added_up() {
    let mut metrics = Metrics::default();
    metrics.add(&record(request_of(100), 30));
    assert_eq!(histogram(&sent(&mut metrics), "gen_ai.client.operation.duration").count, 1);
    assert!(sent(&mut metrics).is_empty(), "nothing is sent twice");
    metrics.add(&record(request_of(5000), 90));
    let all = sent(&mut metrics);
    let duration = histogram(&all, "gen_ai.client.operation.duration");
    assert_eq!((duration.count, duration.sum), (2, Some(0.12)));
    assert_eq!(duration.bucket_counts[..5], [0, 0, 1, 0, 1], "0.03 s and 0.09 s");
    assert_eq!(duration.bucket_counts.len(), duration.explicit_bounds.len() + 1);
    assert_eq!((duration.start_time_unix_nano, duration.time_unix_nano), (5_000, 7_000));
    assert_eq!(histogram(&all, "gen_ai.client.token.usage").sum, Some(5100.0));
    assert_eq!(histogram(&all, "gen_ai.client.operation.time_to_first_chunk").sum, Some(0.03));
}

#[test]
fn denied_calls_count_by_rule_and_do_not_count_as_durations() {
    let call = |denied: Option<&str>| TracedWork::ToolCall {
        call: "c".into(),
        tool: "shell".into(),
        mode: "plan".into(),
        server: None,
        denied: denied.map(str::to_owned),
        exit_code: None,
        is_external: false,
    };
    let mut metrics = Metrics::default();
    for denied in [Some("access"), Some("access"), Some("tools"), None] {
        metrics.add(&record(call(denied), 10));
    }
    let all = sent(&mut metrics);
    let denials = all.iter().find(|metric| metric.name == "modegate.denials").unwrap();
    let Some(Data::Sum(sum)) = &denials.data else { panic!("{denials:?}") };
    let counts: Vec<_> = sum.data_points.iter().map(|point| point.value).collect();
    assert_eq!(counts, [Some(Number::AsInt(2)), Some(Number::AsInt(1))]);
    assert_eq!(histogram(&all, "modegate.tool.duration").count, 1);
}

#[test]
fn number_of_series_is_bounded() {
    let mut metrics = Metrics::default();
    for number in 0..MAX_SERIES + 50 {
        let work = TracedWork::ModeChange { from: None, to: number.to_string(), source: "load".into() };
        metrics.add(&record(work, 0));
    }
    assert_eq!(metrics.series.len(), MAX_SERIES);
}
