//! The check of an expression when it is compiled, and the changes by which it stops itself.

use std::collections::HashMap;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};

use super::{InvalidExpression, KEPT, MAX_ADDITIONS, MAX_DEPTH, MAX_PATTERNS, WITHIN_LIMITS, WITHIN_TIME};
use crate::routine::pattern::Pattern;

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

/// The check of an expression, and its changes.
pub(super) struct Check {
    /// Names that are known here.
    scope: Vec<String>,
    additions: usize,
    /// The patterns of `matches`, by their texts.
    pub(super) patterns: HashMap<String, Pattern>,
}

impl Check {
    pub(super) fn new(names: &[&str]) -> Self {
        let scope = names.iter().map(|name| (*name).to_owned()).collect();
        Self { scope, additions: 0, patterns: HashMap::new() }
    }

    /// Checks an expression and changes it.
    pub(super) fn expression(&mut self, node: &mut IdedExpr, depth: usize) -> Result<(), InvalidExpression> {
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
pub(super) fn check_brackets(source: &str) -> Result<(), InvalidExpression> {
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

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").chars().take(200).collect()
}
