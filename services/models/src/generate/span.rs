//! A request as a trace shows it, in OpenTelemetry's words for generative AI.

use opentelemetry::{Array, StringValue, Value};
use tracing::{Span, field::Empty, info_span, record_all};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{
    catalogue::{Kind, Model},
    facts::Correlation,
    provider::{Failure, FinishReason, Request},
    usage::Usage,
};

pub fn chat(model: &Model, correlation: &Correlation, request: &Request) -> Span {
    info_span!(
        "chat",
        otel.name = format!("chat {}", model.model),
        otel.kind = "client",
        otel.status_code = Empty,
        "error.type" = Empty,
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = provider(model),
        gen_ai.conversation.id = correlation.session_id,
        gen_ai.request.model = model.model,
        gen_ai.request.max_tokens = request.max_output_tokens,
        gen_ai.request.temperature = request.temperature,
        gen_ai.request.stream = true,
        gen_ai.response.model = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        gen_ai.usage.cache_read.input_tokens = Empty,
        gen_ai.usage.cache_creation.input_tokens = Empty,
        turn.id = correlation.turn_id,
        step.id = correlation.step_id,
    )
}

/// The convention has names of its own for those whom everybody knows; whoever only speaks
/// like them has the name that the catalogue gives.
fn provider(model: &Model) -> &str {
    match model.kind {
        Kind::OpenaiResponses => "openai",
        Kind::Anthropic => "anthropic",
        Kind::Gemini => "gcp.gemini",
        Kind::Scripted | Kind::OpenaiChat => &model.provider,
    }
}

pub fn finished(span: &Span, model: &Model, finish_reason: FinishReason, usage: &Usage) {
    // The convention counts cached tokens as input; ours counts each token once.
    let input = [usage.input, usage.cache_read, usage.cache_write];
    record_all!(
        span,
        gen_ai.response.model = model.model,
        gen_ai.usage.input_tokens = input.map(i64::from).iter().sum::<i64>(),
        gen_ai.usage.output_tokens = usage.output,
        gen_ai.usage.cache_read.input_tokens = usage.cache_read,
        gen_ai.usage.cache_creation.input_tokens = usage.cache_write,
    );
    // A list, which is a value that spans have and `tracing` has not.
    let reasons = vec![StringValue::from(finish_reason.as_str())];
    span.set_attribute("gen_ai.response.finish_reasons", Value::Array(Array::String(reasons)));
}

pub fn failed(span: &Span, failure: &Failure) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", failure.kind());
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::{catalogue::Catalogue, prompt::Prompt};

    #[test]
    fn a_request_is_told_in_the_words_of_the_convention() {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let catalogue = Catalogue::built_in().unwrap();
            let model = catalogue.everybody().find("scripted/demo").unwrap();
            let request = |temperature| Request {
                max_output_tokens: 100,
                temperature,
                ..Request::about(Prompt::default())
            };
            let correlation =
                Correlation { session_id: "ses_1".to_owned(), ..Correlation::default() };
            let usage = Usage { input: 1, output: 2, cache_read: 3, ..Usage::default() };
            let (warm, cold) = (request(Some(0.5)), request(None));
            finished(&chat(model, &correlation, &warm), model, FinishReason::Stop, &usage);
            failed(&chat(model, &correlation, &cold), &Failure::Cut);
        });

        let mut lines = String::new();
        for span in exporter.get_finished_spans().unwrap() {
            lines += &format!("{} {:?} {:?}\n", span.name, span.span_kind, span.status);
            let told = ["gen_ai.", "error."];
            let attributes = span.attributes.iter().filter(|attribute| {
                told.iter().any(|prefix| attribute.key.as_str().starts_with(prefix))
            });
            for attribute in attributes {
                lines += &format!("  {} = {}\n", attribute.key, attribute.value);
            }
        }
        expect![[r#"
            chat demo Client Unset
              gen_ai.operation.name = chat
              gen_ai.provider.name = scripted
              gen_ai.conversation.id = ses_1
              gen_ai.request.model = demo
              gen_ai.request.max_tokens = 100
              gen_ai.request.temperature = 0.5
              gen_ai.request.stream = true
              gen_ai.response.model = demo
              gen_ai.usage.input_tokens = 4
              gen_ai.usage.output_tokens = 2
              gen_ai.usage.cache_read.input_tokens = 3
              gen_ai.usage.cache_creation.input_tokens = 0
              gen_ai.response.finish_reasons = ["stop"]
            chat demo Client Error { description: "" }
              gen_ai.operation.name = chat
              gen_ai.provider.name = scripted
              gen_ai.conversation.id = ses_1
              gen_ai.request.model = demo
              gen_ai.request.max_tokens = 100
              gen_ai.request.stream = true
              error.type = cut
        "#]]
        .assert_eq(&lines);
    }
}
