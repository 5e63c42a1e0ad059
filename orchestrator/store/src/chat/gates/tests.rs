//! Tests of gates on a real database, with threads that wait.

use std::collections::BTreeSet;

use agent::ApprovalRequest;
use chrono::TimeDelta;
use protocol::{ActorRole, CallId, GateScope, InstanceEventKind, PermissionState, ResolveGate};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use domain::{
    gate::{GateRefused, GateResolver},
    job::sample,
};

use crate::{AuditEntry, AuditFilter, InstanceEventFilter, NotificationFilter, RetentionLimits, Topic};

async fn fresh() -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

fn request(tool: &str, can_be_remembered: bool) -> ApprovalRequest {
    ApprovalRequest {
        call_id: CallId::from("c1"),
        tool: tool.to_owned(),
        arguments: json!({"url": "https://example.com", "token": "secret"}),
        redacted_input: json!({"url": "https://example.com", "token": "[redacted]"}),
        reasoning: "to look it up".to_owned(),
        can_be_remembered,
    }
}

/// A thread of ada's that waits, with its gate.
async fn waiting(store: &Store, request: ApprovalRequest) -> Gate {
    let thread = ThreadId::generate();
    store
        .write(transaction!(|tx| {
            sqlx::query(
                "INSERT INTO chat_threads (id, user_id, state, created_at, updated_at) \
                 VALUES ($1, 'ada', 'awaiting_approval', $2, $2)",
            )
            .bind(thread)
            .bind(sample::now())
            .execute(&mut tx.db)
            .await?;
            open(tx, thread, &request, sample::now()).await
        }))
        .await
        .unwrap()
}

fn answer_of(user: &str, decision: GateDecision) -> GateAnswer {
    let entry = AuditEntry {
        at: sample::now() + TimeDelta::hours(1),
        user: user.to_owned(),
        role: ActorRole::User,
        action: "gate.resolve".to_owned(),
        job: None,
        request_id: None,
        jti: None,
        source: None,
    };
    let by = GateResolver { user: user.to_owned(), is_admin: false };
    GateAnswer { by, decision: ResolveGate { decision, reason: None, scope: None, parameters_digest: None }, entry }
}

async fn thread_state(store: &Store, gate: &Gate) -> String {
    sqlx::query_scalar("SELECT state FROM chat_threads WHERE id = $1")
        .bind(gate.thread_id)
        .fetch_one(&store.read)
        .await
        .unwrap()
}

async fn parked_answer(store: &Store, gate: &Gate, parked: ApprovalRequest) -> Result<ApprovalAnswer, StoreError> {
    let thread = gate.thread_id;
    store.write(transaction!(|tx| super::answer(tx, thread, &parked).await)).await
}

async fn kinds(store: &Store) -> Vec<InstanceEventKind> {
    let page = store.instance_events(&InstanceEventFilter::default(), 0, 100).await.unwrap();
    page.items.iter().map(|event| event.kind).collect()
}

async fn actions(store: &Store) -> Vec<(String, String)> {
    let rows = store.audit(&AuditFilter { limit: 100, ..AuditFilter::default() }).await.unwrap();
    rows.into_iter().filter_map(|(_, row)| row).map(|row| (row.user, row.action)).collect()
}

#[tokio::test]
async fn a_gate_shows_what_would_run_and_keeps_no_secret() {
    let (_directory, store) = fresh().await;
    let gate = waiting(&store, request("http", true)).await;
    assert_eq!(gate.parameters_digest, parameters_digest(&request("http", true).arguments));
    assert_eq!(gate.expires_at - gate.created_at, TimeDelta::hours(24));
    assert_eq!(store.gate(gate.id).await.unwrap(), Some(gate.clone()));
    assert_eq!(kinds(&store).await, [InstanceEventKind::GateRequired, InstanceEventKind::Notification]);
    let filter = NotificationFilter { user: "ada".to_owned(), limit: 10, ..NotificationFilter::default() };
    let notifications = store.notifications(&filter).await.unwrap();
    let notification = notifications[0].1.as_ref().unwrap();
    assert_eq!(notification.kind, NotificationKind::GateRequired);
    assert!(notification.text.contains(&gate.id.to_string()));
    let events = store.instance_events(&InstanceEventFilter::default(), 0, 10).await.unwrap().items;
    let stored = format!("{gate:?} {} {notifications:?}", serde_json::to_string(&events).unwrap());
    assert!(stored.contains("[redacted]") && !stored.contains("secret"), "{stored}");
    assert!(parked_answer(&store, &gate, request("http", true)).await.is_err(), "it is pending");
    store.close().await;
}

#[tokio::test]
async fn of_ten_simultaneous_answers_one_takes_effect() {
    let (_directory, store) = fresh().await;
    let gate = waiting(&store, request("http", true)).await;
    let mut subscription = store.event_notifier().subscribe(Topic::User("ada".to_owned()));
    let mut answers = JoinSet::new();
    for n in 0..10 {
        let (store, id) = (store.clone(), gate.id);
        let decision = if n % 2 == 0 { GateDecision::Approve } else { GateDecision::Deny };
        answers
            .spawn(async move { store.resolve_gate(GateTarget::Gate(id), answer_of("ada", decision)).await.unwrap() });
    }
    let (mut resolved, mut refused) = (vec![], 0);
    while let Some(outcome) = answers.join_next().await {
        match outcome.unwrap() {
            GateOutcome::Resolved(resolution) => resolved.push(resolution.gate),
            outcome => {
                assert_eq!(outcome, GateOutcome::Refused(GateRefused::Resolved));
                refused += 1;
            }
        }
    }
    assert_eq!((resolved.len(), refused), (1, 9));
    assert_eq!(store.gate(gate.id).await.unwrap(), Some(resolved.remove(0)));
    subscription.changed().await;
    // The engine is woken as well.
    store.event_notifier().chats.notified().await;
    assert_eq!(thread_state(&store, &gate).await, "processing");
    assert_eq!(actions(&store).await.len(), 1);
    let events = [InstanceEventKind::GateResolved, InstanceEventKind::ThreadState];
    assert_eq!(kinds(&store).await[2..], events);
    store.close().await;
}

#[tokio::test]
async fn a_request_is_read_once_its_gate_is_resolved_or_has_expired() {
    let (_directory, store) = fresh().await;
    let filter =
        NotificationFilter { user: "ada".to_owned(), unread: true, limit: 10, ..NotificationFilter::default() };
    let unread = async || store.notifications(&filter).await.unwrap().len();
    let gates = [waiting(&store, request("http", true)).await, waiting(&store, request("http", true)).await];
    assert_eq!(unread().await, 2);
    let answer = answer_of("ada", GateDecision::Approve);
    store.resolve_gate(GateTarget::Gate(gates[0].id), answer).await.unwrap();
    assert_eq!(unread().await, 1);
    store.expire_gates(gates[1].expires_at).await.unwrap();
    assert_eq!(unread().await, 0);
    store.close().await;
}

#[tokio::test]
async fn the_parked_run_continues_with_the_answer() {
    let (_directory, store) = fresh().await;
    let (approved, denied) =
        (waiting(&store, request("http", true)).await, waiting(&store, request("http", true)).await);
    store.resolve_gate(GateTarget::Thread(approved.thread_id), answer_of("ada", GateDecision::Approve)).await.unwrap();
    let mut no = answer_of("ada", GateDecision::Deny);
    no.decision.reason = Some("not today".to_owned());
    store.resolve_gate(GateTarget::Gate(denied.id), no).await.unwrap();
    let parked = request("http", true);
    assert_eq!(parked_answer(&store, &approved, parked.clone()).await.unwrap(), ApprovalAnswer::Approved);
    let reason = Some("not today".to_owned());
    assert_eq!(parked_answer(&store, &denied, parked.clone()).await.unwrap(), ApprovalAnswer::Denied { reason });
    // An answer is about one call.
    let mut others = vec![parked.clone(), ApprovalRequest { tool: "message".to_owned(), ..parked }];
    others[0].arguments["url"] = json!("https://elsewhere.example.com");
    for other in others {
        let reason = Some(NOT_APPROVED.to_owned());
        assert_eq!(parked_answer(&store, &approved, other).await.unwrap(), ApprovalAnswer::Denied { reason });
    }
    let expected = [("ada", "gate.deny"), ("ada", "gate.approve")];
    assert_eq!(actions(&store).await, expected.map(|(user, action)| (user.to_owned(), action.to_owned())));
    store.close().await;
}

#[tokio::test]
async fn a_gate_without_an_answer_expires_after_a_day() {
    let (_directory, store) = fresh().await;
    let gate = waiting(&store, request("http", true)).await;
    let end = sample::now() + TimeDelta::hours(24);
    assert_eq!(store.expire_gates(end - TimeDelta::seconds(1)).await.unwrap(), 0);
    assert_eq!(thread_state(&store, &gate).await, "awaiting_approval");
    // Its time is over, whether it was looked at or not.
    let mut late = answer_of("ada", GateDecision::Approve);
    late.entry.at = end;
    for expired in [1, 0] {
        let refused = store.resolve_gate(GateTarget::Gate(gate.id), late.clone()).await.unwrap();
        assert_eq!(refused, GateOutcome::Refused(GateRefused::Expired));
        assert_eq!(store.expire_gates(end).await.unwrap(), expired);
    }
    assert_eq!(thread_state(&store, &gate).await, "processing");
    let answer = parked_answer(&store, &gate, request("http", true)).await.unwrap();
    assert_eq!(answer, ApprovalAnswer::Expired);
    let stored = store.gate(gate.id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.resolved_at, stored.resolved_by), (GateState::Expired, Some(end), None));
    store.close().await;
}

#[tokio::test]
async fn always_is_remembered_for_the_thread_or_the_user() {
    let (_directory, store) = fresh().await;
    let answer = async |gate: &Gate, scope| {
        let mut always = answer_of("ada", GateDecision::Always);
        always.decision.scope = scope;
        match store.resolve_gate(GateTarget::Gate(gate.id), always).await.unwrap() {
            GateOutcome::Resolved(resolution) => (resolution.gate.state, resolution.remembered),
            refused => panic!("{refused:?}"),
        }
    };
    let permission = async |tool: &str| store.tool_policy_of("ada").await.unwrap().permissions.get(tool).copied();
    let in_thread = waiting(&store, request("http", true)).await;
    assert_eq!(answer(&in_thread, None).await, (GateState::Approved, true));
    let remembered: String = sqlx::query_scalar("SELECT remembered FROM chat_threads WHERE id = $1")
        .bind(in_thread.thread_id)
        .fetch_one(&store.read)
        .await
        .unwrap();
    assert_eq!(serde_json::from_str::<BTreeSet<String>>(&remembered).unwrap(), BTreeSet::from(["http".to_owned()]));
    assert_eq!(permission("http").await, None);
    let for_user = waiting(&store, request("message", true)).await;
    assert_eq!(answer(&for_user, Some(GateScope::User)).await, (GateState::Approved, true));
    assert_eq!(permission("message").await, Some(PermissionState::AlwaysAllow));
    // A call that is asked about every time, and a permission that the user has set meanwhile.
    let never = waiting(&store, request("routine_delete", false)).await;
    assert_eq!(answer(&never, Some(GateScope::User)).await, (GateState::Approved, false));
    assert_eq!(permission("routine_delete").await, None);
    let entry = answer_of("ada", GateDecision::Approve).entry;
    store.set_tool_permission(("ada", "http"), PermissionState::AskEachTime, entry).await.unwrap();
    let changed = waiting(&store, request("http", true)).await;
    assert_eq!(answer(&changed, Some(GateScope::User)).await, (GateState::Approved, false));
    assert_eq!(permission("http").await, Some(PermissionState::AskEachTime));
    store.close().await;
}

#[tokio::test]
async fn the_end_of_a_turn_denies_its_gate() {
    let (_directory, store) = fresh().await;
    let gate = waiting(&store, request("http", true)).await;
    let thread = gate.thread_id;
    for _ in 0..2 {
        store
            .write(move |tx| {
                Box::pin(async move { resolve::deny_pending(tx, thread, "the turn was stopped", sample::now()).await })
            })
            .await
            .unwrap();
    }
    let stored = store.gate(gate.id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.reason.as_deref()), (GateState::Denied, Some("the turn was stopped")));
    assert_eq!(thread_state(&store, &gate).await, "awaiting_approval", "the caller's to set");
    assert_eq!(kinds(&store).await[2..], [InstanceEventKind::GateResolved]);
    store.close().await;
}

#[tokio::test]
async fn a_gate_whose_thread_does_not_wait_is_left_as_it_is() {
    let (_directory, store) = fresh().await;
    let gate = waiting(&store, request("http", true)).await;
    store.execute("UPDATE chat_threads SET state = 'idle'").await.unwrap();
    let failed = store.resolve_gate(GateTarget::Gate(gate.id), answer_of("ada", GateDecision::Approve)).await;
    assert!(matches!(failed, Err(StoreError::Inconsistent { table: "chat_threads", .. })), "{failed:?}");
    assert_eq!(store.gate(gate.id).await.unwrap(), Some(gate.clone()));
    assert_eq!((kinds(&store).await.len(), actions(&store).await.len()), (2, 0));
    // Nor does it stop the expiry of others, nor does one that cannot be read.
    let unreadable = waiting(&store, request("http", true)).await;
    store
        .execute(
            "UPDATE gates SET parameters = '{' WHERE thread_id <> (SELECT id FROM chat_threads WHERE state = 'idle')",
        )
        .await
        .unwrap();
    let good = waiting(&store, request("http", true)).await;
    assert_eq!(store.expire_gates(good.expires_at).await.unwrap(), 1);
    assert_eq!(store.gate(good.id).await.unwrap().map(|gate| gate.state), Some(GateState::Expired));
    assert_eq!(store.expire_gates(good.expires_at).await.unwrap(), 0);
    let listed = store.gates(&GateFilter { limit: 10, ..GateFilter::default() }).await.unwrap();
    let shown: Vec<_> = listed.iter().map(|(id, gate)| (*id, gate.is_some())).collect();
    assert_eq!(shown, [(good.id, true), (unreadable.id, false), (gate.id, true)]);
    store.close().await;
}

#[tokio::test]
async fn resolved_gates_are_kept_as_long_as_other_records() {
    let (directory, store) = fresh().await;
    let mut gates = vec![];
    for _ in 0..3 {
        gates.push(waiting(&store, request("http", true)).await);
    }
    for gate in &gates[1..] {
        let denied = store.resolve_gate(GateTarget::Gate(gate.id), answer_of("ada", GateDecision::Deny)).await.unwrap();
        assert!(matches!(denied, GateOutcome::Resolved(_)));
    }
    // The turn of the second has read its answer, that of the third has not.
    let idle = sqlx::query("UPDATE chat_threads SET state = 'idle' WHERE id = $1").bind(gates[1].thread_id);
    idle.execute(&mut crate::tests::raw(&directory).await).await.unwrap();
    let limits = RetentionLimits { days: 1, audit_days: 1, max_mb: 0 };
    let resolved_at = answer_of("ada", GateDecision::Deny).entry.at;
    assert_eq!(store.trim(&limits, resolved_at + TimeDelta::days(1)).await.rows_of("gates"), 0);
    let later = resolved_at + TimeDelta::days(1) + TimeDelta::seconds(1);
    assert_eq!(store.trim(&limits, later).await.rows_of("gates"), 1);
    let kept = store.gates(&GateFilter { limit: 10, ..GateFilter::default() }).await.unwrap();
    assert_eq!(kept.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [gates[2].id, gates[0].id]);
    store.close().await;
}

#[tokio::test]
async fn gates_are_listed_by_user_and_state() {
    let (_directory, store) = fresh().await;
    let (first, second) = (waiting(&store, request("http", true)).await, waiting(&store, request("http", true)).await);
    store.resolve_gate(GateTarget::Gate(first.id), answer_of("ada", GateDecision::Deny)).await.unwrap();
    let list = async |user: &str, states: &[GateState]| {
        let filter =
            GateFilter { user: Some(user.to_owned()), states: states.to_vec(), limit: 10, ..GateFilter::default() };
        store.gates(&filter).await.unwrap().into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(list("ada", &[GateState::Pending]).await, [second.id]);
    assert_eq!(list("ada", &[GateState::Denied, GateState::Expired]).await, [first.id]);
    assert_eq!(list("ada", &[]).await, [second.id, first.id]);
    assert_eq!(list("bob", &[]).await, []);
    let refused = store.resolve_gate(GateTarget::Gate(second.id), answer_of("bob", GateDecision::Deny)).await.unwrap();
    assert_eq!(refused, GateOutcome::Refused(GateRefused::NotOwner));
    let missing = store.resolve_gate(GateTarget::Gate(GateId::nil()), answer_of("ada", GateDecision::Deny)).await;
    assert_eq!(missing.unwrap(), GateOutcome::NotFound);
    store.close().await;
}

#[tokio::test]
async fn a_parked_run_reads_the_answer_of_its_own_gate() {
    let (directory, store) = fresh().await;
    let gate = waiting(&store, request("http", true)).await;
    // Of an earlier turn, by a process whose clock was ahead: the same call, and the larger id.
    let earlier = "INSERT INTO gates (id, thread_id, user_id, kind, state, tool, parameters, parameters_digest, reasoning, \
                   can_be_remembered, created_at, expires_at, resolved_at, decision) \
                   SELECT x'ffffffffffff7fffbfffffffffffffff', thread_id, user_id, kind, 'approved', tool, parameters, \
                   parameters_digest, reasoning, can_be_remembered, created_at, expires_at, created_at, 'approve' FROM gates";
    sqlx::query(earlier).execute(&mut crate::tests::raw(&directory).await).await.unwrap();
    let answer = answer_of("ada", GateDecision::Deny);
    let resolved = store.resolve_gate(GateTarget::Thread(gate.thread_id), answer).await.unwrap();
    assert!(matches!(&resolved, GateOutcome::Resolved(done) if done.gate.id == gate.id), "{resolved:?}");
    let read = parked_answer(&store, &gate, request("http", true)).await.unwrap();
    assert_eq!(read, ApprovalAnswer::Denied { reason: None });
    store.close().await;
}
