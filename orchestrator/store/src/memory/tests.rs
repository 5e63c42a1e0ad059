//! Tests of documents, versions and searches on a real database.

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use protocol::{ActorRole, JobId, UserId};
use rstest::rstest;
use tempfile::TempDir;

use super::*;
use domain::memory::MemoryQuery;

use crate::sqlite::writer::tests::{occupied, run};

async fn fresh() -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

fn path(text: &str) -> MemoryPath {
    MemoryPath::parse(text).unwrap()
}

fn entry(user: &str) -> AuditEntry {
    AuditEntry {
        at: "2026-11-22T12:00:00Z".parse().unwrap(),
        user: user.to_owned(),
        role: ActorRole::User,
        action: "memory.write".to_owned(),
        job: None,
        request_id: None,
        jti: None,
        source: None,
    }
}

fn write(user: &str, at: &str, text: MemoryText) -> MemoryWrite {
    let author = MemoryAuthor::User(UserId(user.to_owned()));
    MemoryWrite { user: user.to_owned(), path: path(at), text, author, expected: None, audit: entry(user) }
}

async fn put(store: &Store, user: &str, at: &str, content: &str) -> MemoryWriteOutcome {
    store.write_memory(write(user, at, MemoryText::Replace(content.to_owned()))).await.unwrap()
}

fn deletion(user: &str, at: &str) -> MemoryDeletion {
    MemoryDeletion { user: user.to_owned(), path: path(at), expected: None, audit: entry(user) }
}

/// The paths that a search finds, best first.
async fn found(store: &Store, user: &str, query: &str) -> Vec<String> {
    let matches = store.search_memory(user, MemoryQuery::parse(query).unwrap(), 10).await.unwrap();
    assert!(matches.is_sorted_by(|a, b| a.score >= b.score) && matches.iter().all(|one| one.score > 0.0));
    matches.into_iter().map(|one| one.path).collect()
}

async fn totals(store: &Store, user: &str) -> (i64, i64) {
    let sums = sqlx::query_as(
        "SELECT documents, bytes FROM memory_users JOIN user_bytes USING (user_id) WHERE user_id = $1 AND kind = 'memory'",
    )
    .bind(user);
    sums.fetch_one(&store.read).await.unwrap()
}

async fn counted(store: &Store) -> (i64, i64) {
    let counts =
        "SELECT (SELECT COUNT(*) FROM memory_documents), (SELECT COALESCE(SUM(bytes), 0) FROM memory_versions)";
    sqlx::query_as(counts).fetch_one(&store.read).await.unwrap()
}

#[tokio::test]
async fn the_last_versions_are_kept_and_counted() {
    let (_directory, store) = fresh().await;
    for n in 1..=52 {
        let MemoryWriteOutcome::Stored { entry, is_new } = put(&store, "ada", "a.md", &"x".repeat(n)).await else {
            panic!("not stored")
        };
        assert_eq!((entry.version, entry.bytes, is_new), (n as u64, n as u64, n == 1));
    }
    let versions = store.memory_versions("ada", &path("a.md")).await.unwrap().unwrap();
    let numbers: Vec<u64> = versions.iter().map(|version| version.version).collect();
    assert_eq!(numbers, (3..=52).rev().collect::<Vec<_>>());
    assert_eq!(versions[49].by, MemoryAuthor::User(UserId("ada".to_owned())));
    for (version, bytes) in
        [(None, Some(52)), (Some(52), Some(52)), (Some(3), Some(3)), (Some(2), None), (Some(53), None)]
    {
        let document = store.memory_document("ada", &path("a.md"), version).await.unwrap();
        assert_eq!(document.map(|document| document.content.len()), bytes, "{version:?}");
    }
    put(&store, "ada", "b.md", "yy").await;
    assert_eq!(totals(&store, "ada").await, (2, (3..=52).sum::<i64>() + 2));
    assert_eq!(totals(&store, "ada").await, counted(&store).await);
    assert_eq!(store.delete_memory(deletion("ada", "a.md")).await.unwrap(), MemoryDeleteOutcome::Deleted);
    assert_eq!(store.delete_memory(deletion("ada", "a.md")).await.unwrap(), MemoryDeleteOutcome::Missing);
    assert_eq!(totals(&store, "ada").await, (1, 2));
    assert_eq!(totals(&store, "ada").await, counted(&store).await);
    assert_eq!(store.memory_versions("ada", &path("a.md")).await.unwrap(), None);
    assert_eq!(store.memory_document("ada", &path("a.md"), Some(52)).await.unwrap(), None);
    store.close().await;
}

#[tokio::test]
async fn only_the_expected_version_is_replaced() {
    let (_directory, store) = fresh().await;
    let expected = |version: &str| Some(ExpectedVersion::parse(version).unwrap());
    let change = |version: &str| MemoryWrite {
        expected: expected(version),
        ..write("ada", "a.md", MemoryText::Append("more".to_owned()))
    };
    let missing = store.write_memory(change("*")).await.unwrap();
    assert_eq!(missing, MemoryWriteOutcome::VersionMismatch { current: None });
    put(&store, "ada", "a.md", "one").await;
    put(&store, "ada", "a.md", "two").await;
    let stale = store.write_memory(change("\"1\"")).await.unwrap();
    assert_eq!(stale, MemoryWriteOutcome::VersionMismatch { current: Some(2) });
    let stale =
        store.delete_memory(MemoryDeletion { expected: expected("1"), ..deletion("ada", "a.md") }).await.unwrap();
    assert_eq!(stale, MemoryDeleteOutcome::VersionMismatch { current: 2 });
    assert!(matches!(store.write_memory(change("\"2\"")).await.unwrap(), MemoryWriteOutcome::Stored { .. }));
    let document = store.memory_document("ada", &path("a.md"), None).await.unwrap().unwrap();
    assert_eq!((document.version, document.content.as_str()), (3, "two\nmore"));
    let entries: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM audit").fetch_one(&store.read).await.unwrap();
    assert_eq!(entries, 3, "a change that was not made has no entry");
    store.close().await;
}

#[tokio::test]
async fn a_write_over_a_limit_changes_nothing() {
    let (_directory, store) = fresh().await;
    put(&store, "ada", "a.md", "one").await;
    let large = MAX_MEMORY_DOCUMENT_BYTES;
    assert!(matches!(put(&store, "ada", "l.md", &"x".repeat(large)).await, MemoryWriteOutcome::Stored { .. }));
    let refused = put(&store, "ada", "l.md", &"x".repeat(large + 1)).await;
    assert_eq!(refused, MemoryWriteOutcome::TooLarge { bytes: large + 1 });
    let append = write("ada", "l.md", MemoryText::Append(String::new()));
    assert_eq!(store.write_memory(append).await.unwrap(), MemoryWriteOutcome::TooLarge { bytes: large + 1 });
    store.execute("UPDATE memory_users SET documents = 20000").await.unwrap();
    assert_eq!(put(&store, "ada", "b.md", "x").await, MemoryWriteOutcome::TooManyDocuments);
    assert!(matches!(put(&store, "ada", "a.md", "two").await, MemoryWriteOutcome::Stored { .. }));
    assert!(matches!(put(&store, "bob", "b.md", "x").await, MemoryWriteOutcome::Stored { .. }));
    store.close().await;
}

#[tokio::test]
async fn a_users_documents_are_no_other_users() {
    let (_directory, store) = fresh().await;
    put(&store, "ada", "notes/a.md", "the deploy key is in the safe").await;
    put(&store, "bob", "notes/a.md", "nothing to see").await;
    assert_eq!(found(&store, "bob", "deploy").await, Vec::<String>::new());
    assert_eq!(found(&store, "cleo", "deploy").await, Vec::<String>::new());
    assert_eq!(found(&store, "ada", "deploy").await, ["notes/a.md"]);
    let content = |user: &'static str| {
        let store = store.clone();
        async move { store.memory_document(user, &path("notes/a.md"), None).await.unwrap().map(|one| one.content) }
    };
    assert_eq!(content("bob").await.as_deref(), Some("nothing to see"));
    assert_eq!(content("cleo").await, None);
    assert_eq!(store.memory_tree("cleo", None, "", 10).await.unwrap(), []);
    store.delete_memory(deletion("bob", "notes/a.md")).await.unwrap();
    assert!(content("ada").await.is_some());
    store.close().await;
}

#[tokio::test]
async fn a_directory_has_the_documents_below_it() {
    let (_directory, store) = fresh().await;
    for at in ["a", "a/b", "a/c/d", "a-b/c", "a0", "b"] {
        put(&store, "ada", at, "x").await;
    }
    for (directory, after, expected) in [
        ("", "", "a a-b/c a/b a/c/d a0 b"),
        ("", "a/b", "a/c/d a0 b"),
        ("a", "", "a a/b a/c/d"),
        ("a/c", "", "a/c/d"),
        ("none", "", ""),
    ] {
        let directory = MemoryPath::parse_directory(directory).unwrap();
        let entries = store.memory_tree("ada", directory.as_ref(), after, 10).await.unwrap();
        assert_eq!(entries.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>().join(" "), expected);
    }
    store.close().await;
}

#[tokio::test]
async fn a_large_directory_is_shown_by_its_directories() {
    let (_directory, store) = fresh().await;
    for at in ["a", "a/b", "a/c/d", "a/c/e", "ä/f", "ä/g/h"] {
        put(&store, "ada", at, "x").await;
    }
    put(&store, "bob", "a/bob", "x").await;
    for (directory, expected) in [
        ("", &[("a", 1), ("a/", 3), ("ä/", 2)][..]),
        ("a", &[("a/b", 1), ("a/c/", 2)]),
        ("ä", &[("ä/f", 1), ("ä/g/", 1)]),
    ] {
        let directory = MemoryPath::parse_directory(directory).unwrap();
        let listed = store.memory_directory("ada", directory.as_ref(), 10).await.unwrap();
        let listed: Vec<(&str, u64)> = listed.iter().map(|(path, documents)| (path.as_str(), *documents)).collect();
        assert_eq!(listed, expected);
    }
    store.close().await;
}

#[rstest]
#[case::all_words("deploy friday", "deploy.md")]
#[case::some_words_when_no_document_has_all("friday zebra", "deploy.md")]
#[case::stem("deploying", "deploy.md")]
#[case::accent("cafe", "cafe.txt")]
#[case::path("ideas", "ideas/languages.md")]
#[case::suffix("c++", "ideas/languages.md")]
#[case::suffix_of_none("f#", "")]
#[case::quote("a\"b", "quote.md")]
#[case::minus("-x", "quote.md")]
#[case::operators("NOT (x) OR*", "quote.md")]
#[case::column("content:friday", "deploy.md")]
#[case::two_characters("学习", "机器.md")]
#[case::inner_characters("器学", "机器.md")]
#[case::one_character("习", "机器.md")]
#[case::first_character("东", "机器.md")]
#[case::no_such_characters("学机", "")]
#[case::mixed_scripts("GPT模", "机器.md")]
#[case::korean("학교", "학교.md")]
#[case::none("zebra", "")]
#[case::no_words("?!", "")]
#[tokio::test]
async fn words_are_found(#[case] query: &str, #[case] expected: &str) {
    let (_directory, store) = fresh().await;
    for (at, content) in [
        ("deploy.md", "We deploy on Friday, content or not."),
        ("cafe.txt", "Café near the office"),
        ("ideas/languages.md", "C++ and C# are older than Rust"),
        ("vitamin.md", "vitamin c"),
        ("quote.md", "a\"b and -x, not or"),
        ("机器.md", "东京的机器学习计划用GPT模型"),
        ("학교.md", "학교에서 만나요"),
    ] {
        put(&store, "ada", at, content).await;
    }
    assert_eq!(found(&store, "ada", query).await.join(" "), expected);
    store.close().await;
}

#[tokio::test]
async fn the_best_match_is_first() {
    let (_directory, store) = fresh().await;
    put(&store, "ada", "a.md", "rust once, and many other words about something else").await;
    put(&store, "ada", "b.md", "rust, rust and more rust").await;
    put(&store, "ada", "rust.md", "the language").await;
    put(&store, "ada", "c.md", "nothing").await;
    assert_eq!(found(&store, "ada", "rust").await, ["rust.md", "b.md", "a.md"]);
    let limited = store.search_memory("ada", MemoryQuery::parse("rust").unwrap(), 1).await.unwrap();
    assert_eq!(limited.len(), 1);
    // Most documents have `rust`, so it does not count beside a rarer word.
    assert_eq!(found(&store, "ada", "rust zebra language").await, ["rust.md"]);
    store.close().await;
}

#[tokio::test]
async fn the_index_follows_the_current_version() {
    let (_directory, store) = fresh().await;
    put(&store, "ada", "a.md", "first").await;
    put(&store, "ada", "a.md", "second").await;
    assert_eq!(found(&store, "ada", "first").await, Vec::<String>::new());
    assert_eq!(found(&store, "ada", "second").await, ["a.md"]);
    let author = MemoryAuthor::Agent(JobId::generate().into());
    let append = MemoryWrite { author: author.clone(), ..write("ada", "a.md", MemoryText::Append("third".to_owned())) };
    store.write_memory(append).await.unwrap();
    assert_eq!(found(&store, "ada", "second third").await, ["a.md"]);
    assert_eq!(store.memory_versions("ada", &path("a.md")).await.unwrap().unwrap()[0].by, author);
    // Large documents take another way to their terms and snippets.
    put(&store, "ada", "l.md", &format!("{} needle", "hay ".repeat(50_000))).await;
    let large = store.search_memory("ada", MemoryQuery::parse("needle").unwrap(), 10).await.unwrap();
    assert!(large[0].snippet.contains("needle"), "{large:?}");
    for at in ["a.md", "l.md"] {
        store.delete_memory(deletion("ada", at)).await.unwrap();
    }
    assert_eq!(found(&store, "ada", "second needle").await, Vec::<String>::new());
    store.close().await;
}

/// Runs `test` for many values on one store with documents.
fn for_any<T: Strategy>(values: T, test: &impl AsyncFn(&Store, T::Value) -> Result<(), TestCaseError>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_directory, store) = runtime.block_on(fresh());
    let config = Config { failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new(config).run(&values, |value| runtime.block_on(test(&store, value)));
    runtime.block_on(store.close());
    tested.unwrap();
}

#[test]
fn no_query_is_an_error() {
    for_any("\\PC{1,60}|[a+\"*^():{}, 東京.NEARORANDOT-]{1,40}", &async |store: &Store, text: String| {
        put(store, "ada", "a.md", "a 東京 near or not and b").await;
        if let Ok(query) = MemoryQuery::parse(&text) {
            let found = store.search_memory("ada", query, 10).await;
            prop_assert!(found.is_ok(), "{text:?}: {found:?}");
        }
        Ok(())
    });
}

#[test]
fn every_substring_of_chinese_text_is_found() {
    for_any(("[東京都大阪a .]{1,30}", any::<(usize, usize)>()), &async |store: &Store,
                                                                             (text, (start, length)): (
        String,
        (usize, usize),
    )| {
        put(store, "ada", "a.md", &text).await;
        let runs: Vec<&str> = text.split(['a', ' ', '.']).filter(|run| !run.is_empty()).collect();
        if runs.is_empty() {
            return Ok(());
        }
        let run: Vec<char> = runs[start % runs.len()].chars().collect();
        let start = start % run.len();
        let part: String = run[start..=start + length % (run.len() - start)].iter().collect();
        let query = MemoryQuery::parse(&part).unwrap().all(IndexOwner(1)).unwrap();
        let found: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM memory_index WHERE memory_index MATCH $1")
            .bind(&query)
            .fetch_one(&store.read)
            .await
            .unwrap();
        prop_assert_eq!(found, 1, "{} in {}", part, text);
        Ok(())
    });
}

#[tokio::test]
async fn a_text_for_a_document_that_is_deleted_meanwhile_begins_it_again() {
    let (directory, store) = fresh().await;
    put(&store, "ada", "a.md", "old words").await;
    let (mut lock, first) = occupied(&store, &directory).await;
    let (first_store, second_store) = (store.clone(), store.clone());
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let deleted = first_store.delete_memory(deletion("ada", "a.md")).await;
        assert_eq!(deleted.unwrap(), MemoryDeleteOutcome::Deleted);
    });
    while store.writer.waiting() < 1 {
        tokio::task::yield_now().await;
    }
    let added = write("ada", "a.md", MemoryText::Append("new words".to_owned()));
    tasks.spawn(async move { drop(second_store.write_memory(added).await.unwrap()) });
    while store.writer.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    run(&mut lock, "COMMIT").await;
    first.await.unwrap();
    tasks.join_all().await;
    let document = store.memory_document("ada", &path("a.md"), None).await.unwrap().unwrap();
    assert_eq!((document.content.as_str(), document.version), ("new words", 1));
    assert_eq!(
        (found(&store, "ada", "old").await, found(&store, "ada", "new").await),
        (vec![], vec!["a.md".to_owned()])
    );
    store.close().await;
}
