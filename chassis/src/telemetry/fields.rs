//! What a span says of itself in the logs.

use std::fmt;

use tracing::span::Record;
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FormatFields, FormattedFields,
        format::{JsonFields, Writer},
    },
};

/// JSON, as `JsonFields` writes it. That one reads all it wrote before whenever something is
/// added, which is several times in every call; this one goes on at the end.
#[derive(Debug, Default)]
pub struct GrowingFields(JsonFields);

impl<'writer> FormatFields<'writer> for GrowingFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        self.0.format_fields(writer, fields)
    }

    fn add_fields(
        &self,
        current: &'writer mut FormattedFields<Self>,
        fields: &Record<'_>,
    ) -> fmt::Result {
        let mut more = FormattedFields::<JsonFields>::new(String::new());
        self.0.format_fields(more.as_writer(), fields)?;
        let text = &mut current.fields;
        match (text.len() > 2 && text.ends_with('}'), more.fields.strip_prefix('{')) {
            // Of a field that is there twice the last one counts, as for whoever reads JSON.
            (true, Some(rest)) if rest.len() > 1 => {
                text.pop();
                text.push(',');
                text.push_str(rest);
            }
            (true, _) => {}
            (false, _) => *text = more.fields,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use serde_json::{Value, json};
    use tracing::{field::Empty, info, info_span, record_all};
    use tracing_subscriber::{fmt, layer::SubscriberExt as _};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The span of a line that was logged in it.
    fn logged(in_span: impl FnOnce()) -> Value {
        let log = Log::default();
        let writer = log.clone();
        let layer = fmt::layer()
            .json()
            .fmt_fields(GrowingFields::default())
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), in_span);
        let line = log.0.lock().unwrap();
        serde_json::from_slice::<Value>(&line).unwrap()["span"].clone()
    }

    #[test]
    fn what_is_recorded_later_joins_what_was_there() {
        let span = logged(|| {
            let span = info_span!("call", a = 1, b = Empty, c = Empty);
            span.record("b", "\"}");
            record_all!(span, a = 2, c = true);
            span.in_scope(|| info!("here"));
        });
        assert_eq!(span, json!({ "name": "call", "a": 2, "b": "\"}", "c": true }));
    }

    #[test]
    fn a_span_may_begin_with_nothing() {
        let span = logged(|| {
            let span = info_span!("call", a = Empty);
            span.record("a", 1);
            span.in_scope(|| info!("here"));
        });
        assert_eq!(span, json!({ "name": "call", "a": 1 }));
    }
}
