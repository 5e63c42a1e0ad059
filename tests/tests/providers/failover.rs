//! Conversations that go on with another provider, in each format in both directions.

use rstest::rstest;
use tests::{World, WorldBuilder};

use crate::{
    answer, assert_learned,
    double::{Double, preset_properties},
    families::family,
    turn,
};

/// A family that answers in the format of responses.
const RESPONSES: &str = "openai, a model that reasons";

/// The world of a provider that will refuse its key, with a failover of this model and dialect.
fn failing_over(first: &Double, second: &Double, kind: &str, model: &str, dialect: &str) -> WorldBuilder {
    let url = second.base_url();
    let failover = format!(
        "[[llm.failover]]\nprovider = \"{kind}\"\nbase_url = \"{url}\"\nmodel = \"{model}\"\napi_key = \"sk-second-0123456789\"\n\
         [llm.failover.dialect]\n{dialect}"
    );
    first.world().config_file(failover)
}

/// langchain-ai/langchain#37756 and anomalyco/opencode#1525: the ids of one provider are none of another's.
#[rstest]
#[case("moonshot", "anthropic")]
#[case("moonshot", "mistral")]
#[case("openai, chat", "mistral")]
#[case("anthropic", "gemini")]
#[case("deepseek", "groq")]
#[case("gemini", "litellm")]
#[case("openai, chat", RESPONSES)]
#[case("openai, chat", "ollama")]
#[case(RESPONSES, "anthropic")]
#[case(RESPONSES, "moonshot")]
#[case(RESPONSES, "ollama")]
#[case("anthropic", RESPONSES)]
#[case("anthropic", "ollama")]
#[case("ollama", "anthropic")]
#[case("ollama", "mistral")]
#[case("ollama", RESPONSES)]
#[case("openrouter, gemini", "gemini")]
#[case("gemini", "openrouter, gemini")]
#[case("anthropic", "openrouter, gemini")]
#[case("moonshot", "openrouter, gemini")]
#[tokio::test]
async fn a_conversation_goes_on_with_another_provider(#[case] first: &str, #[case] second: &str) {
    let (first, second_family) = (Double::start(family(first)).await, family(second));
    let second = Double::start(second_family).await;
    let world = failing_over(&first, &second, second_family.kind, second_family.model, "").build().await;
    fail_over(&world, &first, &second).await;
    assert_learned(&second);
    world.finish().await;
}

/// Ids, signatures and reasoning of another provider need no refusal either where the preset says what is taken.
#[rstest]
#[case("openai, chat")]
#[case(RESPONSES)]
#[case("anthropic")]
#[case("groq")]
#[case("cerebras")]
#[case("mistral")]
#[case("deepseek")]
#[case("gemini")]
#[case("openrouter, gemini")]
#[case("xai")]
#[case("minimax")]
#[case("ollama")]
#[tokio::test]
async fn presets_are_what_is_taken_of_others(#[case] second: &str) {
    let (first, family) = (Double::start(family("moonshot")).await, family(second));
    let second = Double::start(family).await;
    let real = family.real.as_ref().unwrap();
    let world = failing_over(&first, &second, family.kind, real.model, &preset_properties(real)).build().await;
    fail_over(&world, &first, &second).await;
    assert_eq!(second.refusals(), [""; 0]);
    world.finish().await;
}

/// A conversation with calls that the first provider begins and the second one goes on with.
async fn fail_over(world: &World, first: &Double, second: &Double) {
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "use two").await), "2 results.");
    first.fail_from_now_on();
    for (content, expected) in [("use echo", "1 results."), ("odd name", "1 results."), ("hello", "Hello.")] {
        let history = turn(&ada, content).await;
        assert_eq!(answer(&history), expected, "{:#?}", second.refusals());
    }
}
