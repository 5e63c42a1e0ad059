//! Tests of the registry of tools.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use protocol::{ToolDefinition, ToolDomain, limits::MAX_TOOL_ARGUMENT_BYTES};
use rstest::rstest;
use serde_json::{Value, json};

use super::{super::*, Plain};
use crate::{Invocation, Tool, ToolError, ToolOutput, ToolSpec};

#[rstest]
#[case::not_an_object(json!({"type": "string"}))]
#[case::no_type(json!({}))]
#[case::not_a_schema(json!({"type": "object", "properties": {"a": {"type": "strnig"}}}))]
#[case::refers_elsewhere(json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}))]
fn a_bad_schema_is_an_error_at_registration(#[case] schema: Value) {
    let refused = ToolRegistry::new().register(Box::new(Plain { schema, ..Plain::named("tool") }));
    assert!(matches!(refused, Err(RegisterError::Schema { .. })), "{refused:?}");
}

/// The engine of patterns, which is linear in the text, has no look-around.
#[rstest]
#[case::pattern(json!({"properties": {"a": {"type": "string", "pattern": "^(?!x)", "maxLength": 3}}}))]
#[case::referred_to(json!({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"pattern": "a(?<=b)", "maxLength": 3}}}))]
#[case::names(json!({"propertyNames": {"pattern": "^(?=a)"}, "properties": {"a": {"maxLength": 3}}}))]
#[case::of_names(json!({"patternProperties": {"^(?!b)": {"type": "integer"}}, "properties": {"a": {"maxLength": 3}},
    "additionalProperties": false}))]
#[case::not(json!({"properties": {"a": {"not": {"pattern": "(?<!a)b"}, "maxLength": 3}}}))]
#[case::one_of(json!({"properties": {"a": {"oneOf": [{"pattern": "^(?!x)"}, {"pattern": "^x"}], "maxLength": 3}}}))]
#[case::condition(json!({"properties": {"a": {"if": {"pattern": "(?=z)"}, "then": false, "maxLength": 3}}}))]
fn a_pattern_with_look_around_is_left_out_of_the_check(#[case] schema: Value) {
    let mut full = json!({"type": "object"});
    full.as_object_mut().unwrap().extend(schema.as_object().unwrap().clone());
    let tool = RegisteredTool::new(Box::new(Plain { schema: full.clone(), ..Plain::named("tool") })).unwrap();
    assert_eq!(tool.spec().definition.parameters, full, "the model reads all of it");
    for accepted in ["", "x", "ab"] {
        assert_eq!(tool.validate(&json!({"a": accepted})), Ok(()), "{accepted}");
    }
    assert!(tool.validate(&json!({"a": "long"})).is_err(), "the rest is checked");
}

#[rstest]
#[case(r"^\(?=x$", "(=x", "x")]
#[case("^(?:a|b)$", "b", "c")]
fn other_patterns_are_checked(#[case] pattern: &str, #[case] accepted: &str, #[case] refused: &str) {
    let schema = json!({"type": "object", "properties": {"a": {"pattern": pattern}}});
    let tool = RegisteredTool::new(Box::new(Plain { schema, ..Plain::named("tool") })).unwrap();
    assert_eq!(tool.validate(&json!({"a": accepted})), Ok(()));
    assert!(tool.validate(&json!({"a": refused})).is_err());
}

#[test]
fn names_are_sound_and_unique() {
    let mut registry = ToolRegistry::new();
    for bad in ["", "a b", "t\u{43e}ol", "a.b"] {
        assert_eq!(registry.register(Box::new(Plain::named(bad))), Err(RegisterError::Name(bad.to_owned())));
    }
    registry.register(Box::new(Plain::named("tool"))).unwrap();
    registry.register(Box::new(Plain::named("a_tool"))).unwrap();
    for taken in ["tool", "Tool", "a-tool", "A_Tool"] {
        assert_eq!(registry.register(Box::new(Plain::named(taken))), Err(RegisterError::Duplicate(taken.to_owned())));
    }
}

#[tokio::test(start_paused = true)]
async fn a_registry_is_composed_of_tools_that_are_shared() {
    let shared = Arc::new(RegisteredTool::new(Box::new(Plain::named("shared"))).unwrap());
    let mut one = ToolRegistry::new();
    one.add(Arc::clone(&shared)).unwrap();
    let mut other = one.clone();
    other.register(Box::new(Plain::named("own"))).unwrap();
    assert_eq!(other.add(shared), Err(RegisterError::Duplicate("shared".to_owned())));
    let names = |registry: &ToolRegistry| registry.iter().map(|tool| tool.name().to_owned()).collect::<Vec<_>>();
    assert_eq!((names(&one), names(&other)), (vec!["shared".to_owned()], vec!["own".to_owned(), "shared".to_owned()]));
}

/// A tool that is never called.
struct Uncalled(ToolDomain);

impl Tool for Uncalled {
    fn spec(&self) -> ToolSpec {
        let definition = ToolDefinition::new("tool", "a tool", json!({"type": "object"}), self.0);
        ToolSpec::new(definition, Duration::from_secs(1))
    }

    fn call(&self, _: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async { Ok(ToolOutput::success("")) })
    }
}

#[rstest]
#[case(ToolDomain::Orchestrator, 0, true)]
#[case(ToolDomain::Orchestrator, 1, false)]
#[case(ToolDomain::Container, 1, true)]
fn arguments_that_the_orchestrator_keeps_have_a_maximum_size(
    #[case] domain: ToolDomain,
    #[case] excess: usize,
    #[case] is_valid: bool,
) {
    let tool = RegisteredTool::new(Box::new(Uncalled(domain))).unwrap();
    let text = "x".repeat(MAX_TOOL_ARGUMENT_BYTES - json!({"a": ""}).to_string().len() + excess);
    assert_eq!(tool.validate(&json!({"a": text})).is_ok(), is_valid);
}
