//! Redaction of what agents and models exchange: messages, answers, events and reports. Pure.
//!
//! Owns which parts of each are searched. Texts are searched by all rules. Identifiers and opaque signatures are
//! changed only if a stored secret is in them: the formats of credentials occur in them by chance.

use std::collections::BTreeSet;

use protocol::{AgentEvent, CompleteReport, Completion, Message, NativeReply, ToolCall};
use serde_json::Value;

use super::leak::{Finding, LeakDetector, LeakSource};

impl LeakDetector {
    /// Redacts a text in place.
    pub fn redact_text(&self, text: &mut String) -> Vec<Finding> {
        self.collect(|redaction| redaction.text(text))
    }

    /// Redacts the messages of a conversation in place.
    pub fn redact_messages(&self, messages: &mut [Message]) -> Vec<Finding> {
        self.collect(|redaction| messages.iter_mut().for_each(|message| redaction.message(message)))
    }

    /// Redacts a model's answer in place.
    pub fn redact_completion(&self, completion: &mut Completion) -> Vec<Finding> {
        self.collect(|redaction| {
            redaction.text(&mut completion.content);
            redaction.optional(completion.reasoning.as_mut());
            completion.tool_calls.iter_mut().for_each(|call| redaction.call(call));
            redaction.native(&mut completion.native);
        })
    }

    /// Redacts an event in place. The text of a log event is redacted as if nothing came before or after it.
    pub fn redact_event(&self, event: &mut AgentEvent) -> Vec<Finding> {
        self.collect(|redaction| redaction.event(event))
    }

    /// Redacts a final report in place.
    pub fn redact_report(&self, report: &mut CompleteReport) -> Vec<Finding> {
        self.collect(|redaction| {
            redaction.text(&mut report.text);
            redaction.optional(report.message.as_mut());
            if let Some(partial) = &mut report.partial {
                redaction.text(&mut partial.text);
                partial.last_actions.iter_mut().for_each(|action| redaction.text(action));
            }
        })
    }

    fn collect(&self, redact: impl FnOnce(&mut Redaction<'_>)) -> Vec<Finding> {
        let mut redaction = Redaction { detector: self, findings: BTreeSet::new() };
        redact(&mut redaction);
        redaction.findings.into_iter().collect()
    }
}

/// A pass over several texts.
struct Redaction<'d> {
    detector: &'d LeakDetector,
    findings: BTreeSet<Finding>,
}

impl Redaction<'_> {
    fn text(&mut self, text: &mut String) {
        let (redacted, findings) = self.detector.redact(text);
        if findings.is_empty() {
            return;
        }
        let redacted = redacted.into_owned();
        *text = redacted;
        self.findings.extend(findings);
    }

    fn optional(&mut self, text: Option<&mut String>) {
        if let Some(text) = text {
            self.text(text);
        }
    }

    fn identifier(&mut self, text: &mut String) {
        if !self.detector.has_secrets() {
            return;
        }
        let (redacted, findings) = self.detector.redact(text);
        if findings.iter().any(|finding| matches!(finding.source, LeakSource::StoredSecret(_))) {
            let redacted = redacted.into_owned();
            *text = redacted;
            self.findings.extend(findings);
        }
    }

    fn arguments(&mut self, arguments: &mut Value) {
        self.findings.extend(self.detector.redact_arguments(arguments));
    }

    fn call(&mut self, call: &mut ToolCall) {
        self.identifier(&mut call.id);
        self.identifier(&mut call.name);
        self.arguments(&mut call.arguments);
    }

    /// It is valid as a whole or not at all.
    fn native(&mut self, native: &mut Option<NativeReply>) {
        let Some(NativeReply { value, .. }) = native else { return };
        let found = self.detector.redact(&value.to_string()).1;
        let is_leak = |finding: &Finding| matches!(finding.source, LeakSource::StoredSecret(_));
        // What looks like a credential is one where the text of the reply has it, too.
        if found.iter().any(|finding| is_leak(finding) || self.findings.contains(finding)) {
            self.findings.extend(found);
            *native = None;
        }
    }

    fn message(&mut self, message: &mut Message) {
        match message {
            Message::System { content } | Message::User { content } => self.text(content),
            Message::Assistant { content, tool_calls, native } => {
                self.text(content);
                for call in tool_calls {
                    self.call(call);
                }
                self.native(native);
            }
            Message::Tool { tool_call_id, name, content } => {
                self.identifier(tool_call_id);
                self.identifier(name);
                self.text(content);
            }
        }
    }

    fn event(&mut self, event: &mut AgentEvent) {
        match event {
            AgentEvent::Message { content, .. } | AgentEvent::Reasoning { content } => self.text(content),
            AgentEvent::Plan { goal, steps, .. } => {
                self.text(goal);
                for step in steps {
                    self.identifier(&mut step.tool);
                    self.text(&mut step.reasoning);
                }
            }
            AgentEvent::ToolUse { call_id, tool, input, reasoning } => {
                self.identifier(&mut call_id.0);
                self.identifier(tool);
                self.arguments(input);
                self.optional(reasoning.as_mut());
            }
            AgentEvent::ToolResult { call_id, tool, output, .. } => {
                self.identifier(&mut call_id.0);
                self.identifier(tool);
                self.text(output);
            }
            AgentEvent::Status { message, .. } => self.text(message),
            AgentEvent::Log { text, call_id, .. } => {
                self.text(text);
                if let Some(call_id) = call_id {
                    self.identifier(&mut call_id.0);
                }
            }
            AgentEvent::Limit { value, .. } => self.findings.extend(self.detector.redact_json(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{CallId, FinishReason, LimitName, LogStream, MessageRole, PartialResult, PlanStep, ReportedOutcome};
    use serde_json::json;

    use super::*;
    use crate::safety::StoredSecret;

    const SECRET: &str = "hunter2-secret";

    fn detector() -> LeakDetector {
        LeakDetector::new([StoredSecret { name: "TOKEN", value: SECRET }]).unwrap()
    }

    /// The secret within other text.
    fn leak() -> String {
        format!("x {SECRET} y")
    }

    fn call() -> ToolCall {
        ToolCall { id: SECRET.to_owned(), name: leak(), arguments: json!({"a": [leak()], SECRET: 1}) }
    }

    fn native(text: &str) -> NativeReply {
        NativeReply { maker: "m".to_owned(), value: json!([{"type": "text", "text": text}]), prefix: None }
    }

    fn assert_redacted(shown: &str, findings: &[Finding]) {
        assert!(!shown.contains(SECRET) && shown.contains("[redacted]"), "{shown}");
        assert_eq!(findings.len(), 1, "{findings:?}");
    }

    #[test]
    fn every_text_of_a_message_and_of_an_answer_is_redacted() {
        for mut message in [
            Message::System { content: leak() },
            Message::User { content: leak() },
            Message::Assistant { content: leak(), tool_calls: vec![], native: None },
            Message::Assistant { content: leak(), tool_calls: vec![call()], native: Some(native(&leak())) },
            Message::Assistant { content: "[redacted]".to_owned(), tool_calls: vec![], native: Some(native(&leak())) },
            Message::Tool { tool_call_id: leak(), name: leak(), content: leak() },
        ] {
            let findings = detector().redact_messages(std::slice::from_mut(&mut message));
            assert_redacted(&format!("{message:?}"), &findings);
        }
        let mut completion = Completion {
            content: leak(),
            tool_calls: vec![call()],
            reasoning: Some(leak()),
            native: Some(native(&leak())),
            finish_reason: FinishReason::Stop,
            usage: protocol::TokenUsage::default(),
            notice: None,
            text_tool_calls: None,
        };
        let findings = detector().redact_completion(&mut completion);
        assert_redacted(&format!("{completion:?}"), &findings);
    }

    #[test]
    fn every_text_of_an_event_and_of_a_report_is_redacted() {
        let (call_id, tool) = (CallId(leak()), leak());
        let step = PlanStep { tool: leak(), reasoning: leak() };
        for mut event in [
            AgentEvent::Message { role: MessageRole::User, content: leak() },
            AgentEvent::Reasoning { content: leak() },
            AgentEvent::Plan { goal: leak(), steps: vec![step], confidence: 1.0 },
            AgentEvent::ToolUse {
                call_id: call_id.clone(),
                tool: tool.clone(),
                input: json!([leak()]),
                reasoning: Some(leak()),
            },
            AgentEvent::ToolResult { call_id, tool, success: true, output: leak(), truncated: false, duration_ms: 1 },
            AgentEvent::Status { message: leak(), iteration: 1 },
            AgentEvent::Log { stream: LogStream::Stdout, text: leak(), call_id: Some(CallId(leak())) },
            AgentEvent::Limit { limit: LimitName::MaxTokens, value: json!(leak()) },
        ] {
            let findings = detector().redact_event(&mut event);
            assert_redacted(&format!("{event:?}"), &findings);
        }
        let mut report = CompleteReport {
            outcome: ReportedOutcome::Failed,
            reason: None,
            message: Some(leak()),
            text: leak(),
            cut: false,
            partial: Some(PartialResult { text: leak(), last_actions: vec![leak()], ..PartialResult::default() }),
            iterations: 1,
        };
        let findings = detector().redact_report(&mut report);
        assert_redacted(&format!("{report:?}"), &findings);
    }

    /// A provider rejects a signature that was changed.
    #[test]
    fn an_identifier_that_looks_like_a_credential_stays() {
        let token = ["ghp_", "k7Jq2mZx9RtB4wYc8LdVk7Jq2mZx9RtB4wYc"].concat();
        let message = Message::Assistant {
            content: String::new(),
            tool_calls: vec![ToolCall {
                id: token.clone(),
                name: "echo".to_owned(),
                arguments: json!({"message": "[redacted]"}),
            }],
            native: Some(native(&token)),
        };
        let text = Message::Assistant { content: token.clone(), tool_calls: vec![], native: Some(native(&token)) };
        let mut messages = [message, text];

        detector().redact_messages(&mut messages);
        let [Message::Assistant { tool_calls, native: signed, .. }, Message::Assistant { content, native: leaked, .. }] =
            messages
        else {
            unreachable!()
        };
        assert_eq!((&tool_calls[0].id, signed), (&token, Some(native(&token))));
        assert_eq!((content.as_str(), leaked), ("[redacted]", None), "the text of a reply has it");
    }
}
