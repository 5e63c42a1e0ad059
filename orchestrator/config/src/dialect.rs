//! What a provider takes of a request: properties in which the servers of one wire format differ.
//!
//! A property that is not set is left to the weaker source: the operator's setting comes before what refusals taught,
//! that before the preset, that before the default, which is the first value of each type. Never decides which applies.

use protocol::Effort;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use toml::{Table, Value};

use super::{
    setting::{Kind, SettingSpec},
    setting_value::{RawValue, SettingValue},
};

/// The field that limits the output of a chat completion. Reasoning models of OpenAI refuse the older one, some compatible
/// servers do not know the newer one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLimit {
    #[default]
    MaxTokens,
    MaxCompletionTokens,
}

impl OutputLimit {
    /// The name in a request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// Whether a field is in the request where it is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    #[default]
    Send,
    Omit,
}

/// In which order messages may stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageOrder {
    /// Any.
    #[default]
    Free,
    /// No user message follows a result or another user message: its text is joined to them.
    TextInResults,
    /// User and assistant messages take turns as well.
    Alternating,
}

/// Where the instructions stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemMessages {
    /// Where the conversation has them.
    #[default]
    InPlace,
    /// In one message, the first.
    OneFirst,
    /// In the first user message.
    InUserMessage,
}

/// The text of a message that has calls only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmptyContent {
    #[default]
    Null,
    Text,
}

/// Which ids of tool calls are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallIds {
    /// Any.
    #[default]
    AsReceived,
    /// 1 to 64 characters of `a-z A-Z 0-9 _ -`.
    Max64,
    /// The same, up to 40.
    Max40,
    /// Nine letters and digits.
    Nine,
}

/// Which JSON Schemas of parameters are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchemaSubset {
    /// All.
    #[default]
    Full,
    /// Those of an object, without a union at the top.
    NoTopUnion,
    /// One type for each value, and what it consists of.
    Plain,
}

/// How plain reasoning goes back with the calls that it led to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningBack {
    /// In the field in which it came; nothing where none came.
    #[default]
    AsReceived,
    /// Not at all.
    Never,
    /// As it came, and an empty one where none came.
    Always,
    /// Before the text, between `<think>` marks.
    ThinkText,
}

/// Whether what a provider signed or encrypted goes back to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpaqueBack {
    /// To the provider and model that made it.
    #[default]
    ToMaker,
    /// Not at all.
    Never,
    /// To its maker; calls without one get the signature that Google documents for calls of other models.
    Placeholder,
}

/// The words that a model has for how much it thinks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffortWords {
    /// None: nothing is sent.
    #[default]
    Omit,
    LowMediumHigh,
    /// `medium` is sent as `high`.
    LowHigh,
    /// `none` is sent always: the model takes tools only so.
    None,
}

impl EffortWords {
    /// What is sent where this effort is asked for, if something is.
    pub fn word(self, effort: Option<Effort>) -> Option<&'static str> {
        match (self, effort) {
            (Self::Omit, _) => None,
            (Self::None, _) => Some("none"),
            (Self::LowHigh, Some(Effort::Medium)) => Some(Effort::High.as_str()),
            (Self::LowMediumHigh | Self::LowHigh, effort) => effort.map(Effort::as_str),
        }
    }
}

/// The format of a provider of the kind `openai`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenAiWire {
    #[default]
    Chat,
    Responses,
}

macro_rules! dialect {
    ($( $(#[$about:meta])* $name:ident: $kind:ty, )*) => {
        /// Properties of a provider's requests for one model; those that are set.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
        pub struct Dialect {
            $( $(#[$about])* #[serde(skip_serializing_if = "Option::is_none")] pub $name: Option<$kind>, )*
        }

        impl Dialect {
            fn read(mut table: Table) -> Result<Self, String> {
                let dialect = Self { $( $name: property(&mut table, stringify!($name))?, )* };
                match table.keys().next() {
                    Some(key) => Err(format!(".{key}: unknown key; must be {}", [$( stringify!($name) ),*].join(", "))),
                    None => Ok(dialect),
                }
            }

            /// With the properties of another one where this one has none.
            #[must_use]
            pub fn or(self, weaker: &Self) -> Self {
                Self { $( $name: self.$name.or_else(|| weaker.$name.clone()), )* }
            }

            /// Whether a property is set in both.
            pub fn overlaps(&self, other: &Self) -> bool {
                $( (self.$name.is_some() && other.$name.is_some()) || )* false
            }
        }
    };
}

dialect! {
    /// The format, for providers of the kind `openai`.
    wire: OpenAiWire,
    /// The name of the output limit.
    output_limit: OutputLimit,
    /// The highest output limit in tokens that is taken.
    max_output_tokens: u64,
    temperature: Field,
    effort: EffortWords,
    /// The request for usage in a stream.
    stream_options: Field,
    /// Also whether a call can be forced.
    tool_choice: Field,
    parallel_tool_calls: Field,
    order: MessageOrder,
    system: SystemMessages,
    empty_content: EmptyContent,
    call_ids: CallIds,
    reasoning_back: ReasoningBack,
    opaque_back: OpaqueBack,
    schema: SchemaSubset,
    /// Names of tools that are not offered, because their definitions are refused.
    left_out_tools: Vec<String>,
    /// One call in a message, each followed by its result.
    one_call_per_message: bool,
}

impl SettingValue for Dialect {
    const KIND: Kind = Kind::Table;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        match raw {
            RawValue::Text(_) => Err("can only be set in the configuration file".to_owned()),
            RawValue::Toml(Value::Table(table)) => Self::read(table.clone()),
            RawValue::Toml(_) => Err("must be a table".to_owned()),
        }
    }

    fn shown(raw: &RawValue) -> String {
        raw.toml()
    }

    fn unset() -> Option<Self> {
        Some(Self::default())
    }
}

/// Takes a property out of a table.
fn property<T: DeserializeOwned>(table: &mut Table, name: &str) -> Result<Option<T>, String> {
    let Some(value) = table.remove(name) else { return Ok(None) };
    // The only number is a limit, of which none is 0.
    let value = Some(value).filter(|value| *value != Value::Integer(0)).and_then(|value| value.try_into().ok());
    value.map(Some).ok_or_else(|| format!(".{name}: must be {}", expected::<T>()))
}

/// The values of a property, which the error about an empty text lists for an enum.
fn expected<T: DeserializeOwned>() -> String {
    let error = Value::String(String::new()).try_into::<T>().err();
    let message = error.as_ref().map(toml::de::Error::message).unwrap_or_default();
    match message.rsplit_once("expected ").map(|(_, expected)| expected.trim()) {
        Some("u64") => "an integer of at least 1".to_owned(),
        Some("a sequence") => "a list of strings".to_owned(),
        Some("a boolean") => "true or false".to_owned(),
        values => values.unwrap_or_default().replace('`', ""),
    }
}
