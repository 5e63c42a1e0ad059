//! The plan of every statement that a story runs, and of those that stand in the source of the store: none may read the
//! whole of a table that grows.
//!
//! Records the statements that sqlx logs, and explains each on an empty copy of the schema, without the statistics that
//! a database may happen to have. Never changes the world's database.

mod source;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt::Debug,
    sync::{LazyLock, Mutex, PoisonError},
};

use regex::Regex;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

/// Tables with a bound that does not depend on how much was ever stored.
const BOUNDED: &[&str] = &[
    "_sqlx_migrations",
    "automation",
    "data_migrations",
    // One row for each state and reason.
    "deleted_job_counts",
    "instance",
    // One row for each user, state and reason.
    "job_counts",
    "retention_excess",
    "sqlite_schema",
    "sqlite_sequence",
    "tool_policy",
    "trimmed_events",
];

/// Parts of statements that read a whole table, each with its bound. Not among them, since they are no scans in a plan:
/// searches over all users, which walk an index until they have read enough rows (`sqlite/list_walks`); data migrations,
/// which read ranges of row ids (`sqlite/data_migrations`); and the backup, which copies pages in steps.
const ALLOWED: &[(&str, &str)] = &[
    ("AS all_of_them", "the harness compares what is reserved, once per test"),
    ("SELECT DISTINCT key_id FROM secrets", "once at the start: a row for each secret"),
    ("UPDATE jobs SET reserved_tokens = 0, reserved_micro_usd = 0", "once at the start"),
    ("UPDATE user_days SET reserved_tokens = 0, reserved_micro_usd = 0", "once at the start"),
    ("UPDATE heartbeats SET rev = rev + 1, check_at = $2", "once at the start: a row for each user"),
    ("FROM user_bytes", "the hourly sweep: a row for each user and kind"),
    ("FROM mcp_definitions ORDER BY", "for an operator: a bounded number for each tool"),
    ("FROM secrets LIMIT 1", "reads one row"),
    ("revoked_at FROM tokens ORDER BY created_at DESC, jti", "for an operator: a row for each token"),
    (
        "SELECT COUNT(*), MIN(CASE WHEN enabled THEN next_fire_at END) FROM routines WHERE TRUE",
        "for an admin: an entry of a covering index for each routine",
    ),
];

/// Texts in the source that are continued at run time, whole or up to a comma: the statements are checked by the stories
/// that run them.
const BEGINNINGS: &[&str] = &[
    "SELECT cursor, NULL AS seq, NULL AS attempt, at, kind, user_id, job_id, run_id, routine_id, thread_id, gate_id,",
    "SELECT events.cursor, events.seq, events.attempt, events.at, events.kind, jobs.user_id, events.job_id,",
    "SELECT cursor, job_id, seq, attempt, at, kind, data FROM events WHERE job_id =",
    "SELECT id FROM firings",
    "SELECT id FROM jobs",
    "SELECT id FROM routine_runs",
    "SELECT id, at, user_id, role, action, job_id, outcome, code, request_id, jti, source FROM audit WHERE 1 = 1",
    "SELECT id, state, title FROM jobs",
    "SELECT id, title, state, parent_id, created_at FROM jobs",
    "SELECT id, user_id, input_tokens AS input, output_tokens AS output,",
];

/// Partial indexes of the rows in a state that they leave: what waits, is open or not finished. Other partial indexes
/// grow with what is stored.
const BOUNDED_INDEXES: &[&str] = &[
    "chat_messages_due",
    "chat_messages_queued",
    "chat_threads_busy",
    "gates_pending_by_thread",
    "gates_to_expire",
    "heartbeats_running",
    "job_actions_open",
    "jobs_not_finished",
    "jobs_open",
    "jobs_queue",
    "llm_calls_open",
    "notification_deliveries_by_user",
    "notification_deliveries_claimed",
    "notification_deliveries_due",
    "routine_runs_live",
    "routine_runs_ready",
    "routine_runs_running",
    "routine_runs_waiting",
    "system_lines_taken",
    "system_lines_waiting",
];

static STATEMENTS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static ALIAS: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?i)\b(?:FROM|JOIN|INTO|UPDATE|,)\s+([a-z_]+)(?:\s+INDEXED\s+BY\s+\w+)?(?:\s+AS)?\s+([a-z_]\w*)";
    Regex::new(pattern).expect("a valid pattern")
});

/// Begins to record the statements of this process, unless it has its own log.
pub(crate) fn record() {
    let _ = tracing::subscriber::set_global_default(Recorder);
}

/// Fails if a statement that was recorded reads the whole of a table that grows.
pub(crate) async fn check(world: &mut SqliteConnection) {
    let statements = std::mem::take(&mut *STATEMENTS.lock().unwrap_or_else(PoisonError::into_inner));
    let mut empty = empty_copy(world).await;
    let schema = Schema::of(&mut empty).await;
    let migrations = migrations();
    let mut scans = vec![];
    for text in statements.difference(&migrations) {
        for statement in split(text) {
            let plan = match explain(&mut empty, statement).await {
                Ok(plan) => plan,
                // A statement about tables that only the world has, such as those of a migration.
                Err(sqlx::Error::Database(error)) if error.message().starts_with("no such ") => vec![],
                Err(error) => panic!("a statement cannot be explained: {error}\n{statement}"),
            };
            scans.extend(schema.unbounded(&plan, statement));
        }
    }
    assert!(scans.is_empty(), "statements that read a whole table:\n\n{}", scans.join("\n"));
}

/// Fails if a statement in the source of the store reads the whole of a table that grows. Returns how many were
/// explained. Those that are put together at run time are checked by the stories that run them.
pub async fn check_source(world: &mut SqliteConnection) -> usize {
    let mut empty = empty_copy(world).await;
    let schema = Schema::of(&mut empty).await;
    let (mut explained, mut scans) = (0, vec![]);
    for text in source::literals() {
        for statement in split(&text) {
            let is_beginning =
                |text: &&str| *text == statement || (text.ends_with(',') && statement.starts_with(*text));
            if BEGINNINGS.iter().any(is_beginning) {
                continue;
            }
            let Ok(plan) = explain(&mut empty, statement).await else { continue };
            explained += 1;
            scans.extend(schema.unbounded(&plan, statement));
        }
    }
    assert!(scans.is_empty(), "statements that read a whole table:\n\n{}", scans.join("\n"));
    explained
}

async fn empty_copy(world: &mut SqliteConnection) -> SqliteConnection {
    let mut empty = SqliteConnectOptions::new().in_memory(true).connect().await.expect("a database in memory");
    let objects: Vec<String> = sqlx::query_scalar(
        "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND name NOT IN \
         (SELECT name FROM pragma_table_list WHERE type = 'shadow') ORDER BY rowid",
    )
    .fetch_all(world)
    .await
    .expect("the schema is read");
    for object in objects {
        empty.execute(AssertSqlSafe(object)).await.expect("the schema is copied");
    }
    empty
}

async fn explain(empty: &mut SqliteConnection, statement: &str) -> Result<Vec<String>, sqlx::Error> {
    let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
    let rows: Vec<(i64, i64, i64, String)> = sqlx::query_as(explain).fetch_all(empty).await?;
    Ok(rows.into_iter().map(|(.., detail)| detail).collect())
}

/// The texts of the migrations, which read tables once.
fn migrations() -> BTreeSet<String> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../orchestrator/store/migrations/sqlite");
    let files = std::fs::read_dir(directory).expect("the migrations").flatten();
    files.map(|file| std::fs::read_to_string(file.path()).expect("a migration").trim().to_owned()).collect()
}

/// What decides whether a scan has a bound.
struct Schema {
    tables: HashSet<String>,
}

impl Schema {
    async fn of(empty: &mut SqliteConnection) -> Self {
        let names = "SELECT name FROM sqlite_schema WHERE type = 'table'";
        let partial = "SELECT i.name FROM sqlite_schema AS t, pragma_index_list(t.name) AS i WHERE t.type = 'table' AND i.partial";
        let tables: Vec<String> =
            sqlx::query_scalar(names).fetch_all(&mut *empty).await.expect("the tables are listed");
        let partial: Vec<String> = sqlx::query_scalar(partial).fetch_all(empty).await.expect("the indexes are listed");
        for index in BOUNDED_INDEXES {
            assert!(partial.iter().any(|known| known == index), "there is no partial index {index}");
        }
        Self { tables: tables.into_iter().collect() }
    }

    /// The scans of a statement and its text, unless it may read a whole table.
    fn unbounded(&self, plan: &[String], statement: &str) -> Option<String> {
        let found = self.scans(plan, statement);
        let is_allowed = found.is_empty() || ALLOWED.iter().any(|(part, _)| statement.contains(part));
        (!is_allowed).then(|| format!("{}\n{statement}\n", found.join("\n")))
    }

    /// The steps that read the whole of a table that grows. One that reads in the order of an index and stops at a limit
    /// does not.
    fn scans<'p>(&self, plan: &'p [String], statement: &str) -> Vec<&'p str> {
        let aliases: HashMap<_, _> =
            ALIAS.captures_iter(statement).map(|of| (of[2].to_owned(), of[1].to_owned())).collect();
        let is_ordered = statement.contains("LIMIT") && !plan.iter().any(|step| step.starts_with("USE TEMP B-TREE"));
        let reads_all = |step: &&str| {
            let Some(scan) = step.strip_prefix("SCAN ") else { return false };
            let (name, how) = scan.split_once(' ').unwrap_or((scan, ""));
            let table = aliases.get(name).filter(|table| self.tables.contains(*table)).map_or(name, String::as_str);
            let index = how.rsplit(' ').next().unwrap_or_default();
            let has_bound = (is_ordered && statement.contains("ORDER BY")) || BOUNDED_INDEXES.contains(&index);
            self.tables.contains(table) && !BOUNDED.contains(&table) && !how.starts_with("VIRTUAL") && !has_bound
        };
        plan.iter().map(String::as_str).filter(reads_all).collect()
    }
}

/// The statements of a text that has several, without those that SQLite does not explain. Statements of tests begin
/// with a comment.
fn split(text: &str) -> impl Iterator<Item = &str> {
    const WORDS: [&str; 6] = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "REPLACE"];
    text.split(';').map(str::trim).filter(|statement| WORDS.iter().any(|word| statement.starts_with(word)))
}

/// A subscriber that records the statements that sqlx logs.
struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &Event<'_>) {
        let mut statement = Statement::default();
        event.record(&mut statement);
        let text =
            if statement.whole.trim().is_empty() { statement.summary } else { statement.whole.trim().to_owned() };
        STATEMENTS.lock().unwrap_or_else(PoisonError::into_inner).insert(text);
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

/// The fields of an event that have the statement. Short ones are their own summary.
#[derive(Default)]
struct Statement {
    summary: String,
    whole: String,
}

impl Visit for Statement {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "summary" => value.clone_into(&mut self.summary),
            "db.statement" => value.clone_into(&mut self.whole),
            _ => {}
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn Debug) {}
}
