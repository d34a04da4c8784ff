//! W3C trace context: what joins the spans of several processes to one trace.

use std::collections::HashMap;

use opentelemetry::{
    propagation::TextMapPropagator as _,
    trace::{SpanContext, TraceContextExt as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

pub const HEADER: &str = "traceparent";

/// The current span, as others can name it to continue its trace.
pub fn traceparent() -> Option<String> {
    let span = span_context()?;
    Some(format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags()))
}

/// The trace that the current span belongs to.
pub fn trace_id() -> Option<String> {
    Some(span_context()?.trace_id().to_string())
}

fn span_context() -> Option<SpanContext> {
    let context = Span::current().context();
    let span = context.span().span_context().clone();
    span.is_valid().then_some(span)
}

/// Makes `span` a child of the span that `traceparent` names, which may have ended
/// long ago in another process. Must come before the span is first entered.
pub fn set_parent(span: &Span, traceparent: &str) {
    let carrier = HashMap::from([(HEADER.to_owned(), traceparent.to_owned())]);
    let parent = TraceContextPropagator::new().extract(&carrier);
    if let Err(error) = span.set_parent(parent) {
        tracing::debug!(%error, "trace not continued");
    }
}

/// Version, trace, span, flags; later versions may add more.
pub fn is_traceparent(text: &str) -> bool {
    let fields: Vec<&str> = text.split('-').collect();
    let hex = |field: &str, length| {
        field.len() == length && field.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let [version, trace, span, flags, rest @ ..] = fields.as_slice() else { return false };
    hex(version, 2)
        && *version != "ff"
        && (rest.is_empty() || *version != "00")
        && hex(trace, 32)
        && !trace.bytes().all(|b| b == b'0')
        && hex(span, 16)
        && !span.bytes().all(|b| b == b'0')
        && hex(flags, 2)
}

#[test]
fn a_traceparent_names_a_trace_and_a_span() {
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    assert!(is_traceparent(&format!("00-{trace}-{span}-01")));
    assert!(is_traceparent(&format!("01-{trace}-{span}-01-more")));
    for wrong in [
        String::new(),
        format!("00-{trace}-{span}"),
        format!("00-{trace}-{span}-01-more"),
        format!("ff-{trace}-{span}-01"),
        format!("00-{}-{span}-01", "0".repeat(32)),
        format!("00-{trace}-{}-01", "0".repeat(16)),
        format!("00-{}-{span}-01", trace.to_uppercase()),
    ] {
        assert!(!is_traceparent(&wrong), "{wrong}");
    }
}
