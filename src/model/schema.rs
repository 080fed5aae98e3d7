//! JSON Schema of a tool's arguments, serialized on first use, because an idle session needs none.

use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

mod reduced;

#[derive(Debug, Clone)]
pub struct Schema(Arc<Forms>);

#[derive(Debug)]
struct Forms {
    whole: Written,
    reduced: OnceLock<Box<RawValue>>,
}

#[derive(Debug)]
enum Written {
    Built(Box<RawValue>),
    Lazy(LazyLock<Box<RawValue>>),
}

impl Schema {
    /// Creates a schema on first use; see [`written`].
    pub fn lazy(make: fn() -> Box<RawValue>) -> Self {
        Self::of(Written::Lazy(LazyLock::new(make)))
    }

    fn of(whole: Written) -> Self {
        Self(Arc::new(Forms { whole, reduced: OnceLock::new() }))
    }

    pub fn as_json(&self) -> &RawValue {
        match &self.0.whole {
            Written::Built(json) => json,
            Written::Lazy(json) => json,
        }
    }

    /// The schema with the keywords of Gemini only, made on first use.
    pub fn reduced(&self) -> &RawValue {
        self.0.reduced.get_or_init(|| written(&reduced::reduce(&self.to_value())))
    }

    pub fn to_value(&self) -> Value {
        serde_json::from_str(self.as_json().get()).expect("it was written from a value")
    }
}

impl From<&Value> for Schema {
    fn from(schema: &Value) -> Self {
        Self::of(Written::Built(written(schema)))
    }
}

pub fn written(schema: &Value) -> Box<RawValue> {
    to_raw_value(schema).expect("a value has string keys and no failing parts")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[test]
    fn schema_is_built_once_on_first_use() {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let schema = Schema::lazy(|| {
            MADE.fetch_add(1, Ordering::Relaxed);
            written(&json!({ "type": "object", "a": 1.0 }))
        });
        let other = schema.clone();
        assert_eq!(MADE.load(Ordering::Relaxed), 0);
        assert_eq!(other.as_json().get(), r#"{"type":"object","a":1.0}"#);
        assert_eq!(schema.to_value(), json!({ "type": "object", "a": 1.0 }));
        assert_eq!(MADE.load(Ordering::Relaxed), 1);
    }
}
