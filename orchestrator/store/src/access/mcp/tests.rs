//! Tests of the definitions of MCP servers' tools on a real database.

use DefinitionStatus::{Approved, TooMany, Withheld};

use super::*;

async fn fresh() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

fn definition(tool: &str, digest: &str) -> SeenDefinition {
    SeenDefinition { tool: tool.to_owned(), digest: digest.to_owned(), definition: format!("\"{digest}\"") }
}

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000 + seconds, 0).unwrap()
}

async fn see(store: &Store, seen: &[(&str, &str)], seconds: i64) -> Vec<DefinitionStatus> {
    let seen = seen.iter().map(|(tool, digest)| definition(tool, digest)).collect();
    store.see_mcp_definitions("srv", seen, at(seconds)).await.unwrap()
}

async fn approve(store: &Store, tool: &str, digest: &str, seconds: i64) -> DefinitionApproval {
    let entry = AuditEntry { user: "root".to_owned(), ..AuditEntry::by_operator("mcp.approve", at(seconds)) };
    store.approve_mcp_definition(("srv", tool), digest, entry).await.unwrap()
}

#[tokio::test]
async fn a_first_definition_is_approved_and_a_change_waits_for_an_admin() {
    let (_directory, store) = fresh().await;
    assert_eq!(see(&store, &[("a", "1"), ("b", "1")], 0).await, [Approved, Approved]);
    assert_eq!(see(&store, &[("a", "2"), ("b", "1"), ("c", "1")], 1).await, [Withheld, Approved, Approved]);
    assert_eq!(see(&store, &[("a", "2")], 2).await, [Withheld], "it stays withheld");
    assert_eq!(see(&store, &[("a", "1")], 3).await, [Approved], "the approved one can still be used");
    // Only the last change is kept.
    assert_eq!(see(&store, &[("a", "3")], 4).await, [Withheld]);
    assert_eq!(approve(&store, "a", "2", 5).await, DefinitionApproval::NotFound);
    assert_eq!(approve(&store, "a", "3", 5).await, DefinitionApproval::Approved);
    assert_eq!(see(&store, &[("a", "3")], 6).await, [Approved]);
    let stored = store.mcp_definitions().await.unwrap();
    let of_a: Vec<_> = stored.iter().filter(|row| row.tool == "a").collect();
    assert_eq!(of_a.len(), 2);
    assert_eq!(
        (of_a[0].digest.as_str(), of_a[0].approved_at, of_a[0].approved_by.as_deref()),
        ("1", Some(at(0)), None)
    );
    assert_eq!((of_a[1].digest.as_str(), of_a[1].approved_by.as_deref()), ("3", Some("root")));
    assert_eq!((of_a[1].first_seen_at, of_a[1].approved_at), (at(4), Some(at(5))));
    store.close().await;
}

#[tokio::test]
async fn another_server_has_its_own_tools() {
    let (_directory, store) = fresh().await;
    assert_eq!(see(&store, &[("a", "1")], 0).await, [Approved]);
    let other = store.see_mcp_definitions("other", vec![definition("a", "2")], at(1)).await.unwrap();
    assert_eq!(other, [Approved]);
    assert_eq!(see(&store, &[("a", "2")], 2).await, [Withheld]);
    store.close().await;
}

#[tokio::test]
async fn a_server_cannot_fill_the_table() {
    let (_directory, store) = fresh().await;
    let names: Vec<String> = (0..=MAX_TOOLS).map(|n| format!("t{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let statuses = see(&store, &many, 0).await;
    assert_eq!(statuses.iter().filter(|status| **status == Approved).count(), MAX_TOOLS);
    assert_eq!(statuses.last(), Some(&TooMany));
    for n in 0_i64..20 {
        let digest = format!("d{n}");
        assert_eq!(see(&store, &[("t0", &digest)], n + 1).await, [Withheld]);
        assert_eq!(approve(&store, "t0", &digest, n + 1).await, DefinitionApproval::Approved);
    }
    let stored = store.mcp_definitions().await.unwrap();
    let kept: Vec<_> = stored.iter().filter(|row| row.tool == "t0").map(|row| row.digest.as_str()).collect();
    assert_eq!(kept, ["d12", "d13", "d14", "d15", "d16", "d17", "d18", "d19"]);
    assert_eq!(see(&store, &[("t0", "1")], 30).await, [Withheld], "an approval that was replaced long ago");
    store.close().await;
}
