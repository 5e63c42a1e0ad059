//! Budgets: the worst-case cost of a model call, and the warning of an agent whose budget runs low. Pure.
//!
//! A call draws on the budgets of its job, of the job's ancestors, and of its user's day. Before the call, its worst
//! case is reserved in all of them; afterwards the actual cost is settled. Tokens are input and output together; money
//! is in micro-dollars. A limit of 0 means no limit.

use protocol::{JobReason, Limits};

/// The used share of a budget at which the agent is warned.
const WARN_PERCENT: u64 = 80;

/// A budget as it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetState {
    pub scope: Scope,
    /// Maximum number of tokens; 0 is no limit.
    pub max_tokens: u64,
    /// Maximum cost in micro-dollars; 0 is no limit.
    pub max_micro_usd: u64,
    /// Used and reserved tokens.
    pub tokens: u64,
    /// Used and reserved micro-dollars.
    pub micro_usd: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Job,
    /// An ancestor of the job.
    Parent,
    Day,
}

/// The daily budget of each user; 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DayLimits {
    /// Input and output together.
    pub max_tokens: u64,
    pub max_micro_usd: u64,
}

impl DayLimits {
    /// The highest cost in dollars, if there is a limit.
    #[expect(clippy::cast_precision_loss, reason = "9 billion dollars fit")]
    pub fn max_dollars(&self) -> Option<f64> {
        (self.max_micro_usd > 0).then(|| self.max_micro_usd as f64 / 1_000_000.0)
    }

    /// Whether there is no limit.
    pub const fn is_none(&self) -> bool {
        self.max_tokens == 0 && self.max_micro_usd == 0
    }

    /// The exhausted limit, if one is.
    pub fn exhausted(&self, tokens: u64, micro_usd: u64) -> Option<ExhaustedBudget> {
        let exhausted = |is_cost_limit, limit| ExhaustedBudget { scope: Scope::Day, is_cost_limit, limit };
        if self.max_tokens > 0 && tokens >= self.max_tokens {
            return Some(exhausted(false, self.max_tokens));
        }
        (self.max_micro_usd > 0 && micro_usd >= self.max_micro_usd).then(|| exhausted(true, self.max_micro_usd))
    }
}

/// The estimated size of a call, with its prices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEstimate {
    pub prompt_tokens: u64,
    /// Maximum tokens of the answer, by the operator's and the caller's settings.
    pub max_output_tokens: u64,
    /// Micro-dollars per million tokens in and out; `None` when the model's price is unknown, so that only tokens
    /// count.
    pub prices: Option<(u64, u64)>,
    /// Micro-dollars per million tokens in at the provider that is asked first. An aborted call is charged its prompt
    /// at it.
    pub prompt_price: Option<u64>,
}

impl CallEstimate {
    /// The cost of the prompt in micro-dollars; `None` when the price is unknown.
    pub fn prompt_cost(&self) -> Option<u64> {
        self.prompt_price.map(|price| cost(self.prompt_tokens, price))
    }
}

/// The reservation of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Tokens, reserved in every budget.
    pub tokens: u64,
    /// Micro-dollars, reserved in every budget.
    pub micro_usd: u64,
    /// Maximum tokens of the answer: the requested number, or the remaining budget if that is less.
    pub max_output_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExhaustedBudget {
    pub scope: Scope,
    /// Whether the cost limit is exhausted rather than the token limit.
    pub is_cost_limit: bool,
    /// The limit, in tokens or micro-dollars.
    pub limit: u64,
}

impl ExhaustedBudget {
    /// The reason of a job that fails because of it.
    pub const fn reason(&self) -> JobReason {
        if self.is_cost_limit { JobReason::CostBudget } else { JobReason::TokenBudget }
    }

    /// The message for the agent and the user.
    pub fn message(&self) -> String {
        let limit = if self.is_cost_limit { dollars(self.limit) } else { format!("{} tokens", self.limit) };
        let name = if self.is_cost_limit { "max_cost_usd" } else { "max_tokens" };
        match self.scope {
            Scope::Job => format!(
                "limits.{name} = {limit} has no room for another model call; create a job with a higher limit, if the operator's limits allow it"
            ),
            Scope::Parent => {
                format!(
                    "a parent job's limits.{name} = {limit} has no room for another model call; give the parent more"
                )
            }
            Scope::Day => {
                format!(
                    "the user's budget of {limit} a day has no room for another model call; wait for the next day (UTC)"
                )
            }
        }
    }
}

/// The reservation that exceeds no budget, provided that the prompt's estimate is right.
pub fn reserve(estimate: &CallEstimate, budgets: &[BudgetState]) -> Result<Reservation, ExhaustedBudget> {
    let mut output = estimate.max_output_tokens.max(1);
    for budget in budgets {
        let exhausted = |is_cost_limit, limit| ExhaustedBudget { scope: budget.scope, is_cost_limit, limit };
        if budget.max_tokens > 0 {
            let left = budget.max_tokens.saturating_sub(budget.tokens).saturating_sub(estimate.prompt_tokens);
            if left == 0 {
                return Err(exhausted(false, budget.max_tokens));
            }
            output = output.min(left);
        }
        if let (Some((input_price, output_price)), true) = (estimate.prices, budget.max_micro_usd > 0) {
            let left = budget.max_micro_usd.saturating_sub(budget.micro_usd);
            let left = left.saturating_sub(cost(estimate.prompt_tokens, input_price));
            if left == 0 && input_price + output_price > 0 {
                return Err(exhausted(true, budget.max_micro_usd));
            }
            if let Some(affordable) = left.saturating_mul(1_000_000).checked_div(output_price) {
                if affordable == 0 {
                    return Err(exhausted(true, budget.max_micro_usd));
                }
                output = output.min(affordable);
            }
        }
    }
    let (input_price, output_price) = estimate.prices.unwrap_or_default();
    Ok(Reservation {
        tokens: estimate.prompt_tokens.saturating_add(output),
        micro_usd: cost(estimate.prompt_tokens, input_price).saturating_add(cost(output, output_price)),
        max_output_tokens: output,
    })
}

/// Micro-dollars, rounded up.
fn cost(tokens: u64, price: u64) -> u64 {
    u64::try_from((u128::from(tokens) * u128::from(price)).div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The consumption of a job, including its children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consumption {
    pub tokens: u64,
    /// Micro-dollars spent.
    pub micro_usd: u64,
    /// Model calls answered.
    pub iterations: u64,
    pub tool_calls: u64,
    /// Seconds since the first start.
    pub seconds: u64,
}

/// The limits that are used up to `WARN_PERCENT`, as bits, and the warning about those that are not in `warned`.
pub fn running_low(limits: &Limits, progress: &Consumption, warned: u8) -> (u8, Option<String>) {
    let micro_usd = micro_dollars(limits.max_cost_usd);
    let budgets = [
        ("max_tokens", limits.max_tokens, progress.tokens),
        ("max_cost_usd", micro_usd, progress.micro_usd),
        ("max_iterations", u64::from(limits.max_iterations), progress.iterations),
        ("max_tool_calls", u64::from(limits.max_tool_calls), progress.tool_calls),
        ("timeout_seconds", limits.timeout_seconds, progress.seconds),
    ];
    let mut low = warned;
    let mut items = vec![];
    for (bit, (name, limit, used)) in budgets.into_iter().enumerate() {
        let is_low = limit > 0 && used.saturating_mul(100) >= limit.saturating_mul(WARN_PERCENT);
        if is_low && warned & (1 << bit) == 0 {
            low |= 1 << bit;
            items.push(match name {
                "max_cost_usd" => format!("{} of {} ({name})", dollars(used), dollars(limit)),
                _ => format!("{used} of {limit} ({name})"),
            });
        }
    }
    let warning = (!items.is_empty()).then(|| {
        format!(
            "At least {WARN_PERCENT} % of this job's budget is used: {}. Finish soon and skip what is not essential.",
            items.join(", ")
        )
    });
    (low, warning)
}

/// A limit in dollars as micro-dollars.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be at most a million dollars")]
pub fn micro_dollars(dollars: f64) -> u64 {
    (dollars * 1_000_000.0).round() as u64
}

fn dollars(micro_usd: u64) -> String {
    format!("${}.{:06}", micro_usd / 1_000_000, micro_usd % 1_000_000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn budget(max_tokens: u64, tokens: u64, max_micro_usd: u64, micro_usd: u64) -> BudgetState {
        BudgetState { scope: Scope::Job, max_tokens, max_micro_usd, tokens, micro_usd }
    }

    /// 100 tokens in, at most 1 000 out; a token in is a micro-dollar, one out is five.
    const ESTIMATE: CallEstimate = CallEstimate {
        prompt_tokens: 100,
        max_output_tokens: 1_000,
        prices: Some((1_000_000, 5_000_000)),
        prompt_price: Some(1_000_000),
    };

    #[rstest]
    #[case::no_limit(vec![budget(0, 9_999, 0, 9_999)], Ok((1_100, 5_100, 1_000)))]
    #[case::room(vec![budget(5_000, 0, 0, 0)], Ok((1_100, 5_100, 1_000)))]
    #[case::clamped(vec![budget(5_000, 4_500, 0, 0)], Ok((500, 2_100, 400)))]
    #[case::the_last_token(vec![budget(5_000, 4_899, 0, 0)], Ok((101, 105, 1)))]
    #[case::spent(vec![budget(5_000, 4_900, 0, 0)], Err((Scope::Job, false)))]
    #[case::over(vec![budget(5_000, 6_000, 0, 0)], Err((Scope::Job, false)))]
    #[case::money_clamps(vec![budget(0, 0, 1_000, 400)], Ok((200, 600, 100)))]
    #[case::money_spent(vec![budget(0, 0, 1_000, 897)], Err((Scope::Job, true)))]
    #[case::the_tighter_counts(
        vec![budget(5_000, 0, 0, 0), BudgetState { scope: Scope::Parent, ..budget(300, 0, 0, 0) }],
        Ok((300, 1_100, 200))
    )]
    #[case::the_day_is_spent(
        vec![budget(5_000, 0, 0, 0), BudgetState { scope: Scope::Day, ..budget(300, 300, 0, 0) }],
        Err((Scope::Day, false))
    )]
    fn reservations(#[case] budgets: Vec<BudgetState>, #[case] expected: Result<(u64, u64, u64), (Scope, bool)>) {
        let reserved = reserve(&ESTIMATE, &budgets)
            .map(|one| (one.tokens, one.micro_usd, one.max_output_tokens))
            .map_err(|budget| (budget.scope, budget.is_cost_limit));
        assert_eq!(reserved, expected);
    }

    #[test]
    fn a_model_without_a_price_is_limited_by_tokens_only() {
        let unknown = CallEstimate { prices: None, ..ESTIMATE };
        let reserved = reserve(&unknown, &[budget(500, 0, 1, 1)]).unwrap();
        assert_eq!(reserved, Reservation { tokens: 500, micro_usd: 0, max_output_tokens: 400 });
        let free = CallEstimate { prices: Some((0, 0)), ..ESTIMATE };
        assert_eq!(reserve(&free, &[budget(0, 0, 1, 1)]).map(|one| one.micro_usd), Ok(0));
    }

    proptest! {
        #[test]
        fn a_reservation_never_exceeds_a_budget(
            prompt_tokens in 0..10_000u64, max_output_tokens in 0..10_000u64,
            input in 0..50_000_000u64, output in 0..50_000_000u64,
            max_tokens in 1..20_000u64, tokens in 0..20_000u64,
            max_micro_usd in 1..1_000_000u64, micro_usd in 0..1_000_000u64,
        ) {
            let estimate = CallEstimate { prompt_tokens, max_output_tokens, prices: Some((input, output)), prompt_price: Some(input) };
            if let Ok(reserved) = reserve(&estimate, &[budget(max_tokens, tokens, max_micro_usd, micro_usd)]) {
                prop_assert!(tokens + reserved.tokens <= max_tokens);
                // Rounding up may cost one micro-dollar on each side.
                prop_assert!(micro_usd.min(max_micro_usd) + reserved.micro_usd <= max_micro_usd + 2 || input + output == 0);
                prop_assert!(reserved.max_output_tokens <= max_output_tokens.max(1));
            }
        }
    }

    #[rstest]
    #[case::fine(79, 0, 0, None)]
    #[case::low(80, 0, 0b100, Some("80 of 100 (max_iterations)"))]
    #[case::warned_before(90, 0b100, 0b100, None)]
    fn an_agent_is_warned_once(
        #[case] iterations: u64,
        #[case] warned: u8,
        #[case] low: u8,
        #[case] text: Option<&str>,
    ) {
        let limits = Limits { max_iterations: 100, ..Limits::default() };
        let (bits, warning) = running_low(&limits, &Consumption { iterations, ..Consumption::default() }, warned);
        assert_eq!((bits, warning.is_some()), (low, text.is_some()));
        assert!(warning.unwrap_or_default().contains(text.unwrap_or_default()));
    }

    #[test]
    fn costs_are_shown_in_dollars() {
        let limits = Limits { max_cost_usd: 2.5, ..Limits::default() };
        let (_, warning) = running_low(&limits, &Consumption { micro_usd: 2_000_001, ..Consumption::default() }, 0);
        assert!(warning.unwrap().contains("$2.000001 of $2.500000 (max_cost_usd)"));
    }
}
