//! Whether a text announces an action that it then does not take. Pure.

use std::sync::LazyLock;

use regex::Regex;

static ANNOUNCES: LazyLock<Regex> = LazyLock::new(|| {
    let who = r"(?:let me|let's|i'll|i will|i'm going to|i am going to|i need to|i should|now to)";
    let how = r"(?:\s+(?:now|first|then|next|also|just|quickly|try to|start by|begin by|go ahead and|proceed to))*";
    let what = r"(?:search|searching|look|looking|check|checking|read|reading|write|writing|run|running|execute|executing|create|creating|list|listing|fetch|fetching|find|finding|open|opening|inspect|inspecting|explore|exploring|examine|examining|call|calling|use|using|add|edit|update|fix|install|build|test|apply|make|download|query|investigate|verify|modify|delete|remove|start|implement)";
    Regex::new(&format!(r"\b{who},?{how}\s+{what}\b")).expect("a fixed pattern")
});

static OFFERS: LazyLock<Regex> = LazyLock::new(|| {
    let words = r"\b(?:if you|would you|do you want|shall i|should i|let me know|when you|once you|unless you|next time|in the future)\b";
    Regex::new(words).expect("a fixed pattern")
});

/// Whether the end of the text says what is done next. Offers and questions to a person are not announcements, and
/// neither is what stands earlier: it may have been done since.
pub(crate) fn announces_action(text: &str) -> bool {
    let lower = text.replace('\u{2019}', "'").to_lowercase();
    let Some(last) = lower.rsplit("\n\n").find(|paragraph| !paragraph.trim().is_empty()) else { return false };
    if last.contains("```") {
        return false;
    }
    last.split_inclusive(['.', '!', '?', '\n']).any(|sentence| {
        !sentence.trim_end().ends_with('?') && ANNOUNCES.is_match(sentence) && !OFFERS.is_match(sentence)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::announces_action;

    #[rstest]
    #[case("Let me read the file first.", true)]
    #[case("I'll run the tests now:", true)]
    #[case("I\u{2019}ll now check the logs", true)]
    #[case("Good question.\n\nI am going to first search the code.", true)]
    #[case("I need to list the directory.", true)]
    #[case("Done: the file is written.", false)]
    #[case("Let me know if you need more.", false)]
    #[case("If you like, I'll run the tests.", false)]
    #[case("Should I, or let me check it?", false)]
    #[case("I'll run the tests.\n\nAll 12 pass.", false)]
    #[case("I will not run this.", false)]
    #[case("", false)]
    fn tells_announcements_from_answers(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(announces_action(text), expected);
    }
}
