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
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators},
    extractors::This,
    objects::{Key, Map},
};
use serde_json::Value;

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

/// Functions that an expression may call, beside operators and macros.
const FUNCTIONS: &[&str] =
    &["size", "contains", "startsWith", "endsWith", "matches", "int", "uint", "double", "string", "bool", "type"];
/// Names of types, which `type` is compared with.
const TYPES: &[&str] = &["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"];
const OPERATORS: &[&str] = &[
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::IN,
    operators::NOT_STRICTLY_FALSE,
];
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
        let scope = names.all().iter().map(|name| (*name).to_owned()).collect();
        let mut check = Check { scope, additions: 0, patterns: HashMap::new() };
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

/// The check of an expression, and its changes.
struct Check {
    /// Names that are known here.
    scope: Vec<String>,
    additions: usize,
    patterns: HashMap<String, Pattern>,
}

impl Check {
    fn expression(&mut self, node: &mut IdedExpr, depth: usize) -> Result<(), InvalidExpression> {
        if depth > MAX_DEPTH {
            return Err(InvalidExpression::TooDeep);
        }
        match &mut node.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => {
                if self.scope.iter().any(|known| known == name) {
                    // No operation on values takes long without a variable among its operands.
                    let variable = std::mem::take(node);
                    *node = conditional(call(WITHIN_TIME, vec![]), variable, literal(false));
                    Ok(())
                } else if TYPES.contains(&name.as_str()) {
                    Ok(())
                } else {
                    Err(InvalidExpression::Unavailable(name.clone()))
                }
            }
            Expr::Select(SelectExpr { operand, .. }) => self.expression(operand, depth + 1),
            Expr::Call(call) => self.call(call, depth),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, depth),
            Expr::List(list) => {
                if list.elements.iter().all(is_constant) {
                    Ok(())
                } else {
                    Err(InvalidExpression::NotConstant)
                }
            }
            Expr::Map(map) => {
                let is_constant_entry = |entry: &EntryExpr| match entry {
                    EntryExpr::MapEntry(entry) => is_constant(&entry.key) && is_constant(&entry.value),
                    EntryExpr::StructField(_) => false,
                };
                let all = map.entries.iter().all(|entry| is_constant_entry(&entry.expr));
                if all { Ok(()) } else { Err(InvalidExpression::NotConstant) }
            }
            Expr::Struct(one) => Err(InvalidExpression::Unavailable(one.type_name.clone())),
            Expr::Unspecified => Err(InvalidExpression::Syntax("it is empty".to_owned())),
        }
    }

    fn call(&mut self, call: &mut CallExpr, depth: usize) -> Result<(), InvalidExpression> {
        let name = call.func_name.as_str();
        let is_operator = call.target.is_none() && OPERATORS.contains(&name);
        if !is_operator && !FUNCTIONS.contains(&name) {
            return Err(InvalidExpression::Unavailable(name.to_owned()));
        }
        if name == operators::ADD {
            self.additions += 1;
            if self.additions > MAX_ADDITIONS {
                return Err(InvalidExpression::Additions);
            }
        }
        if name == "matches" {
            self.pattern(call)?;
        }
        if let Some(target) = &mut call.target {
            self.expression(target, depth + 1)?;
        }
        call.args.iter_mut().try_for_each(|argument| self.expression(argument, depth + 1))
    }

    /// Compiles the pattern of `matches`, which is its last argument.
    fn pattern(&mut self, call: &CallExpr) -> Result<(), InvalidExpression> {
        let Some(Expr::Literal(LiteralValue::String(pattern))) = call.args.last().map(|argument| &argument.expr) else {
            return Err(InvalidExpression::Pattern("it is not a string".to_owned()));
        };
        let pattern = pattern.inner().to_owned();
        if self.patterns.contains_key(&pattern) {
            return Ok(());
        }
        if self.patterns.len() >= MAX_PATTERNS {
            return Err(InvalidExpression::Patterns);
        }
        let compiled = Pattern::compile(&pattern);
        let compiled = compiled.map_err(|error| InvalidExpression::Pattern(last_line(&error.to_string())))?;
        self.patterns.insert(pattern, compiled);
        Ok(())
    }

    /// Checks a loop, which only macros make, and has each of its rounds checked.
    fn comprehension(&mut self, one: &mut ComprehensionExpr, depth: usize) -> Result<(), InvalidExpression> {
        self.expression(&mut one.iter_range, depth + 1)?;
        let known = self.scope.len();
        self.scope.push(one.iter_var.clone());
        let checked = self.rounds(one, depth + 1);
        self.scope.truncate(known);
        checked
    }

    fn rounds(&mut self, one: &mut ComprehensionExpr, depth: usize) -> Result<(), InvalidExpression> {
        let unknown = || InvalidExpression::Unavailable("this macro".to_owned());
        let Expr::Call(step) = &mut one.loop_step.expr else { return Err(unknown()) };
        match (step.func_name.as_str(), step.args.as_mut_slice()) {
            // `all` and `exists`: the result so far, and the condition.
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [_, condition]) => {
                self.expression(condition, depth)?;
                let go_on = std::mem::take(&mut one.loop_cond);
                one.loop_cond = conditional(within_limits(), go_on, literal(false));
            }
            // `map`.
            (operators::ADD, [_, appended]) => {
                self.appended(appended, depth)?;
                let append = std::mem::take(&mut one.loop_step);
                let unchanged = IdedExpr { id: 0, expr: Expr::Ident(one.accu_var.clone()) };
                one.loop_step = conditional(within_limits(), append, unchanged);
            }
            // `filter`, `exists_one` and `map` with a condition.
            (operators::CONDITIONAL, [condition, then, _]) => {
                self.expression(condition, depth)?;
                let Expr::Call(CallExpr { args, .. }) = &mut then.expr else { return Err(unknown()) };
                let [_, appended] = args.as_mut_slice() else { return Err(unknown()) };
                self.appended(appended, depth)?;
                let original = std::mem::take(condition);
                *condition = conditional(within_limits(), original, literal(false));
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    /// Checks what a round adds to the result: a number, or a list with one element, whose size is counted.
    fn appended(&mut self, appended: &mut IdedExpr, depth: usize) -> Result<(), InvalidExpression> {
        let Expr::List(list) = &mut appended.expr else { return Ok(()) };
        for element in &mut list.elements {
            self.expression(element, depth)?;
            *element = call(KEPT, vec![std::mem::take(element)]);
        }
        Ok(())
    }
}

fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id: 0, expr: Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }) }
}

fn within_limits() -> IdedExpr {
    call(WITHIN_LIMITS, vec![])
}

fn conditional(condition: IdedExpr, then: IdedExpr, otherwise: IdedExpr) -> IdedExpr {
    call(operators::CONDITIONAL, vec![condition, then, otherwise])
}

fn literal(value: bool) -> IdedExpr {
    IdedExpr { id: 0, expr: Expr::Literal(LiteralValue::Boolean(value.into())) }
}

fn is_constant(node: &IdedExpr) -> bool {
    match &node.expr {
        Expr::Literal(_) => true,
        Expr::Call(call) => call.func_name == operators::NEGATE && call.args.iter().all(is_constant),
        _ => false,
    }
}

/// Refuses what is nested too deeply before the parser, which is recursive, sees it. Quotes are not interpreted: a text
/// with many brackets is refused, too.
fn check_brackets(source: &str) -> Result<(), InvalidExpression> {
    let mut depth = 0_usize;
    for character in source.chars() {
        match character {
            '(' | '[' | '{' | '?' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(InvalidExpression::TooDeep);
        }
    }
    Ok(())
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

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").chars().take(200).collect()
}

#[cfg(test)]
mod tests;
