//! Conditions of routines (`where`): CEL expressions over what arrived; the only user of cel.
//!
//! cel has no limit of time or memory, and an evaluation cannot be stopped from outside. So an expression is checked
//! when it is compiled, and changed so that it stops itself:
//! - It has at most [`MAX_BYTES`], a bounded depth, and only names and functions that exist here. Lists and maps in it
//!   are constants, patterns of `matches` are constants, and concatenations are few: one step of it is linear in the
//!   size of what arrived.
//! - CEL's only loops are the macros `exists`, `all`, `exists_one`, `filter` and `map`, which become comprehensions.
//!   Every round of every loop first calls a function that fails once the rounds or the time are used up, and
//!   everything that `map` keeps passes a function that counts its size.
//! - Outside of loops, too, every use of a variable first calls a function that fails once the time is used up. A use
//!   of `matches` counts as a round, and its search ends with the time.
//!
//! An evaluation computes for as long as its limit of time: callers run it on a thread that may block.

mod check;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cel::{
    Context, Env, ExecutionError, ResolveResult, Value as CelValue,
    common::ast::IdedExpr,
    extractors::This,
    objects::{Key, Map},
};
use serde_json::Value;

use self::check::{Check, check_brackets};
use super::pattern::{Pattern, TimeUp};

/// Maximum length of an expression.
pub const MAX_BYTES: usize = 4 * 1024;
/// Maximum time of an evaluation, and of the search of a pattern.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(1);
/// Maximum number of rounds of all loops and of uses of `matches` in an evaluation.
const MAX_ROUNDS: usize = 100_000;
/// Maximum size of what the loops of an evaluation keep.
const MAX_KEPT_BYTES: usize = 4 * 1024 * 1024;
/// Maximum depth of brackets and operators.
const MAX_DEPTH: usize = 48;
/// Maximum number of concatenations and additions.
const MAX_ADDITIONS: usize = 16;
/// Maximum number of different patterns of `matches`.
const MAX_PATTERNS: usize = 16;
/// Maximum length of a text that `matches` searches.
const MAX_MATCHED_BYTES: usize = 64 * 1024;

/// The parser is recursive, and a chain such as `a.b.c` or `!!a` is as deep as it is long: a stack that is enough for
/// [`MAX_BYTES`]. What it makes of one is dropped on that stack, too, unless it is at most [`MAX_DEPTH`] deep.
const PARSER_STACK_BYTES: usize = 64 * 1024 * 1024;

/// An estimate of the memory that a byte of an expression takes once it is compiled.
const BYTES_PER_SOURCE_BYTE: usize = 64;

/// Fails when the rounds or the time are used up. No expression can name it.
const WITHIN_LIMITS: &str = "@within_limits";
/// Fails when the time is used up. No expression can name it.
const WITHIN_TIME: &str = "@within_time";
/// Returns its argument, and fails when too much is kept. No expression can name it.
const KEPT: &str = "@kept";

/// The names that an expression may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// `payload`.
    Payload,
    /// `payload` and `headers`.
    PayloadAndHeaders,
}

impl Names {
    const fn all(self) -> &'static [&'static str] {
        match self {
            Self::Payload => &["payload"],
            Self::PayloadAndHeaders => &["payload", "headers"],
        }
    }
}

/// What an expression is about.
#[derive(Debug, Clone, Copy)]
pub struct Input<'i> {
    pub payload: &'i Value,
    /// The headers of the request, with names in lower case.
    pub headers: &'i BTreeMap<String, String>,
}

/// A condition that was checked.
#[derive(Debug)]
pub struct Expression {
    root: IdedExpr,
    patterns: Arc<HashMap<String, Pattern>>,
    memory_bytes: usize,
}

/// An expression that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExpression {
    #[error("must have at most {MAX_BYTES} bytes")]
    TooLong,
    /// It is nested too deeply.
    #[error("must be nested at most {MAX_DEPTH} deep")]
    TooDeep,
    #[error("is not a CEL expression: {0}")]
    Syntax(String),
    /// It uses something that does not exist here.
    #[error("{0} is not available")]
    Unavailable(String),
    /// A list or map has elements that are not constants.
    #[error("lists and maps must have constant elements")]
    NotConstant,
    /// There are too many additions.
    #[error("must have at most {MAX_ADDITIONS} additions")]
    Additions,
    /// There are too many patterns.
    #[error("must use `matches` with at most {MAX_PATTERNS} different patterns")]
    Patterns,
    /// A pattern is no constant or no regular expression, or is too large.
    #[error("the pattern of `matches` must be a constant regular expression: {0}")]
    Pattern(String),
}

/// An evaluation without a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// It needs too much time, too many rounds or too much memory.
    #[error(
        "it exceeds the limit of {} s, {MAX_ROUNDS} rounds of loops and uses of `matches`, or {MAX_KEPT_BYTES} bytes",
        TIME_LIMIT.as_secs()
    )]
    LimitExceeded,
    /// The result is not a boolean.
    #[error("its result is not a boolean")]
    NotBoolean,
    /// It fails, such as by comparing values of different types. Only the kind of the failure is told: cel's message
    /// has values of what arrived, which must not reach the log.
    #[error("{0}")]
    Failed(&'static str),
}

impl Expression {
    /// Checks an expression.
    pub fn compile(source: &str, names: Names) -> Result<Self, InvalidExpression> {
        if source.len() > MAX_BYTES {
            return Err(InvalidExpression::TooLong);
        }
        check_brackets(source)?;
        std::thread::scope(|scope| {
            let parsing = std::thread::Builder::new().stack_size(PARSER_STACK_BYTES);
            let parsed =
                parsing.spawn_scoped(scope, || Self::parse(source, names)).ok().and_then(|one| one.join().ok());
            parsed.unwrap_or_else(|| Err(InvalidExpression::Syntax("the parser failed".to_owned())))
        })
    }

    fn parse(source: &str, names: Names) -> Result<Self, InvalidExpression> {
        let parser = Env::stdlib().with_optional_support(false).parser();
        let mut root =
            parser.parse(source).map_err(|error| InvalidExpression::Syntax(syntax_error(&error.to_string())))?;
        let mut check = Check::new(names.all());
        check.expression(&mut root, 0)?;
        let of_patterns: usize = check.patterns.values().map(Pattern::memory_bytes).sum();
        let memory_bytes = source.len() * BYTES_PER_SOURCE_BYTE + of_patterns;
        Ok(Self { root, patterns: Arc::new(check.patterns), memory_bytes })
    }

    /// An estimate of its memory.
    pub(super) const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Whether the expression is true of the input. A field or an element that is absent makes it false.
    pub fn evaluate(&self, input: Input<'_>) -> Result<bool, EvaluationError> {
        self.evaluate_until(input, Instant::now() + TIME_LIMIT)
    }

    fn evaluate_until(&self, input: Input<'_>, deadline: Instant) -> Result<bool, EvaluationError> {
        let limits = Arc::new(Limits {
            deadline,
            rounds: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            exceeded: AtomicBool::new(false),
        });
        let mut context = Context::with_env(Arc::new(Env::stdlib()));
        self.add_functions(&mut context, &limits)
            .map_err(|_| EvaluationError::Failed("a function cannot be declared"))?;
        context.add_variable_from_value("payload", to_cel(input.payload));
        let headers = input.headers.iter().map(|(name, value)| (key(name), CelValue::from(value.as_str())));
        context.add_variable_from_value("headers", CelValue::Map(Map { map: Arc::new(headers.collect()) }));
        let result = CelValue::resolve(&self.root, &context);
        if limits.exceeded.load(Ordering::Relaxed) {
            return Err(EvaluationError::LimitExceeded);
        }
        match result {
            Ok(CelValue::Bool(is_true)) => Ok(is_true),
            Ok(_) => Err(EvaluationError::NotBoolean),
            Err(ExecutionError::NoSuchKey(_) | ExecutionError::IndexOutOfBounds(_)) => Ok(false),
            Err(error) => Err(EvaluationError::Failed(failure(&error))),
        }
    }

    fn add_functions(&self, context: &mut Context<'_, '_>, limits: &Arc<Limits>) -> Result<(), cel::DeclarationError> {
        let of_rounds = Arc::clone(limits);
        context.add_function(WITHIN_LIMITS, move || of_rounds.next_round())?;
        let of_time = Arc::clone(limits);
        context.add_function(WITHIN_TIME, move || of_time.check(Instant::now() < of_time.deadline))?;
        let of_kept = Arc::clone(limits);
        context.add_function(KEPT, move |value: CelValue| of_kept.keep(value))?;
        let (patterns, of_matches) = (Arc::clone(&self.patterns), Arc::clone(limits));
        context.add_function("matches", move |This(text): This<Arc<String>>, pattern: Arc<String>| {
            let failed = |message: &str| ExecutionError::function_error("matches", message);
            if text.len() > MAX_MATCHED_BYTES {
                return Err(failed("the text is too long"));
            }
            let pattern = patterns.get(pattern.as_str()).ok_or_else(|| failed("the pattern is not a constant"))?;
            of_matches.next_round()?;
            pattern.is_match(&text, of_matches.deadline).or_else(|TimeUp| of_matches.check(false))
        })
    }
}

/// The kind of a failure, without the values that it is about.
const fn failure(error: &ExecutionError) -> &'static str {
    match error {
        ExecutionError::InvalidArgumentCount { .. } | ExecutionError::MissingArgumentOrTarget => {
            "a function has too many or too few arguments"
        }
        ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::NotSupportedAsMethod { .. }
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::NoSuchOverload(_)
        | ExecutionError::UnsupportedBinaryOperator(..) => {
            "a function or an operator does not take values of these types"
        }
        ExecutionError::ValuesNotComparable(..) => "values of these types cannot be compared",
        ExecutionError::UnsupportedKeyType(_) | ExecutionError::UnsupportedIndex(..) => "a value cannot be an index",
        ExecutionError::UndeclaredReference(_) => "a name is not known",
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "it divides by zero",
        ExecutionError::Overflow(..) => "a number is too large",
        ExecutionError::FunctionError { .. } => "a function fails",
        _ => "it cannot be computed",
    }
}

/// What an evaluation has used.
struct Limits {
    deadline: Instant,
    rounds: AtomicUsize,
    kept: AtomicUsize,
    exceeded: AtomicBool,
}

impl Limits {
    fn next_round(&self) -> Result<bool, ExecutionError> {
        let rounds = self.rounds.fetch_add(1, Ordering::Relaxed);
        self.check(rounds < MAX_ROUNDS && Instant::now() < self.deadline)
    }

    fn keep(&self, value: CelValue) -> ResolveResult {
        let size = size_of(&value);
        let kept = self.kept.fetch_add(size, Ordering::Relaxed) + size;
        self.check(kept <= MAX_KEPT_BYTES).map(|_| value)
    }

    fn check(&self, is_within: bool) -> Result<bool, ExecutionError> {
        if is_within && !self.exceeded.load(Ordering::Relaxed) {
            return Ok(true);
        }
        self.exceeded.store(true, Ordering::Relaxed);
        Err(ExecutionError::InternalError("a limit is exceeded".to_owned()))
    }
}

fn to_cel(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(value) => CelValue::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => CelValue::Int(integer),
            None => CelValue::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => CelValue::from(text.as_str()),
        Value::Array(items) => CelValue::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (key(name), to_cel(value)));
            CelValue::Map(Map { map: Arc::new(fields.collect()) })
        }
    }
}

fn key(name: &str) -> Key {
    Key::from(name)
}

/// An estimate of the memory of a value.
fn size_of(value: &CelValue) -> usize {
    const BASE: usize = 64;
    match value {
        CelValue::String(text) => BASE + text.len(),
        CelValue::Bytes(bytes) => BASE + bytes.len(),
        CelValue::List(items) => items.iter().map(size_of).sum::<usize>() + BASE,
        CelValue::Map(map) => map.map.values().map(|value| BASE + size_of(value)).sum::<usize>() + BASE,
        _ => BASE,
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// The first error of a parser, as `1:17: what it is`.
fn syntax_error(text: &str) -> String {
    first_line(text.trim_start_matches("ERROR: <input>:"))
}

#[cfg(test)]
mod tests;
