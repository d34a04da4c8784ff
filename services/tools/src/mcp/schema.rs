//! Whether the input schema of somebody else's tool can be worked with. Decides and touches
//! nothing.

use chassis::schema::{self, Validator};
use serde_json::Value;

/// Checks a schema and makes what checks inputs. Says what is wrong with it, if anything is.
pub fn compile(schema: &Value) -> Result<Validator, String> {
    if schema["type"] != "object" {
        return Err("its schema is not of an object".into());
    }
    schema::compile(schema).map_err(|problem| format!("its schema {problem}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_objects_can_be_inputs() {
        let problem = |schema| compile(&schema).map_or_else(|problem| problem, |_| "ok".into());
        assert_eq!(problem(json!({ "type": "object" })), "ok");
        assert_eq!(problem(json!({ "type": "array" })), "its schema is not of an object");
        let circle = json!({ "type": "object", "$ref": "#" });
        assert_eq!(problem(circle), "its schema refers to itself");
    }
}
