//! Users by turns, and events that are not compared with all routines at once.

use base::clock::ManualClock;
use futures_util::FutureExt as _;
use protocol::{CreateRoutine, RoutineSession, RoutineTrigger};
use store::{AuditEntry, NewRoutine, RoutineDefinition, RoutineStored, RunFilter};

use super::*;

struct Setup {
    _directory: tempfile::TempDir,
    store: Store,
    matchers: Arc<RoutineMatchers>,
    handler: Arc<EventHandler>,
    time: ManualClock,
}

impl Setup {
    async fn new(matchers: impl FnOnce(Clock) -> RoutineMatchers) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let time = ManualClock::at("2026-11-23T12:00:00Z".parse().unwrap());
        let clock = Clock::Manual(time.clone());
        let matchers = Arc::new(matchers(clock.clone()));
        let handler = EventHandler {
            store: store.clone(),
            matchers: Arc::clone(&matchers),
            waker: RoutineWaker::default(),
            clock,
        };
        Self { _directory: directory, store, matchers, handler: Arc::new(handler), time }
    }

    /// Creates routines that every message fires.
    async fn create(&self, user: &str, count: usize) {
        for number in 0..count {
            let trigger = RoutineTrigger::Event { channel: None, pattern: ".".to_owned() };
            let request = json!({
                "name": format!("routine {number}"), "trigger": trigger,
                "guardrails": {"cooldown_seconds": 0, "max_concurrent": 100},
                "action": {"type": "full_job", "title": "t", "description": "d", "limits": {}, "egress": {}},
            });
            let definition = RoutineDefinition {
                request: serde_json::from_value::<CreateRoutine>(request).unwrap(),
                session: RoutineSession::Isolated,
                persist_payload: false,
                next_fire_at: None,
                secrets: Vec::new(),
            };
            let entry = AuditEntry::by_agent("routine.create", user, None, self.handler.clock.now());
            let new = NewRoutine { id: RoutineId::generate(), definition, max_of_user: 100, key: None };
            let stored = self.store.create_routine(new, &entry, || {}).await;
            assert!(matches!(stored.unwrap(), RoutineStored::Done(_)));
        }
    }

    async fn runs(&self, user: &str) -> usize {
        let filter = RunFilter { user: Some(user.to_owned()), limit: 100, ..RunFilter::default() };
        self.store.runs(&filter).await.unwrap().0.len()
    }

    /// Waits until this many events of a user wait.
    async fn until_waiting(&self, user: &str, count: usize) {
        let wait = async {
            loop {
                let waiting = self.store.pending_events("", USERS_PER_PAGE, EVENTS_PER_USER).await.unwrap();
                if waiting.iter().filter(|(_, of)| of == user).count() == count {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), wait).await.expect("the events are handled");
    }

    /// Works on pending events until a future ends.
    async fn work_until(&self, observed: impl Future<Output = ()>) {
        let drain = CancellationToken::new();
        let stop = drain.clone();
        tokio::join!(Arc::clone(&self.handler).run(drain), async {
            observed.await;
            stop.cancel();
        });
    }
}

fn message(user: &str) -> InboundEvent {
    InboundEvent {
        user: user.to_owned(),
        name: EventName::Message { channel: None },
        payload: json!({"content": "hello"}),
        id: "m1".to_owned(),
        depth: 0,
    }
}

/// The number of runs that a posted event has fired.
fn runs_of(answer: store::EventAnswer) -> usize {
    match answer {
        store::EventAnswer::Fired(receipt) => receipt.run_ids.len(),
        store::EventAnswer::Known(known) => panic!("it has no key: {known:?}"),
    }
}

async fn emit(setup: &Setup, user: &str) {
    let InboundEvent { user, name, payload, .. } = message(user);
    let event = store::NewRoutineEvent { user, name, payload, cause: None };
    assert!(setup.store.emit_routine_event(event, setup.handler.clock.now()).await.unwrap());
}

#[tokio::test]
async fn a_user_whose_conditions_are_slow_delays_no_other() {
    let setup = Setup::new(RoutineMatchers::new).await;
    let insert = "INSERT INTO routine_events (id, user_id, kind, source, event_type, payload, depth, created_at) \
                  SELECT randomblob(16), u.column1, 'system', 's', 't', '{}', 0, '1970-01-01T00:00:00+00:00' \
                  FROM (VALUES ('bob'), ('carol'), ('dan'), ('eve'), ('frank')) AS u, \
                  (VALUES (0), (1), (2), (3), (4), (5))";
    setup.store.execute(insert).await.unwrap();
    setup.create("ada", 1).await;
    emit(&setup, "ada").await;
    let slow = setup.matchers.hold("ada").await;
    let observe = async {
        for user in ["bob", "carol", "dan", "eve", "frank"] {
            setup.until_waiting(user, 0).await;
        }
        setup.until_waiting("ada", 1).await;
        drop(slow);
        setup.until_waiting("ada", 0).await;
    };
    setup.work_until(observe).await;
    assert_eq!(setup.runs("ada").await, 1);
    setup.store.close().await;
}

#[tokio::test]
async fn the_time_for_which_an_event_waits_for_its_turn_does_not_count() {
    let setup = Setup::new(RoutineMatchers::new).await;
    setup.create("eve", 2).await;
    emit(&setup, "eve").await;
    let mut held = Vec::new();
    for user in ["ada", "bob", "carol", "dan"] {
        held.push(setup.matchers.hold(user).await);
    }
    assert!(setup.matchers.hold("eve").now_or_never().is_none(), "all turns are taken");
    let (posted, fired) = (setup.handler.fire(message("eve"), None), async {
        setup.until_waiting("eve", 1).await;
        setup.time.advance(Duration::from_mins(1));
        drop(held);
        setup.until_waiting("eve", 0).await;
    });
    let (posted, ()) = tokio::join!(posted, setup.work_until(fired));
    assert_eq!(runs_of(posted.unwrap()), 2);
    assert_eq!(setup.runs("eve").await, 4);
    setup.store.close().await;
}

#[tokio::test]
async fn a_posted_event_whose_time_is_up_fires_nothing() {
    let setup = Setup::new(RoutineMatchers::without_time).await;
    setup.create("ada", 1).await;
    assert_eq!(setup.handler.fire(message("ada"), None).await.map(runs_of).unwrap(), 1);
    setup.create("bob", 2).await;
    assert!(matches!(setup.handler.fire(message("bob"), None).await, Err(EventError::TimeUp)));
    assert_eq!(setup.runs("bob").await, 0);
    setup.store.close().await;
}

#[tokio::test]
async fn a_posted_event_that_waits_too_long_for_its_turn_fires_nothing() {
    let setup = Setup::new(RoutineMatchers::impatient).await;
    setup.create("ada", 1).await;
    let held = setup.matchers.hold("ada").await;
    let busy = setup.handler.fire(message("ada"), None).await;
    assert!(matches!(busy, Err(EventError::Match(MatchError::Busy))), "{busy:?}");
    drop(held);
    assert_eq!(setup.handler.fire(message("ada"), None).await.map(runs_of).unwrap(), 1);
    setup.store.close().await;
}

/// Each round compares one routine.
#[rstest::rstest]
#[case::enough_rounds(3, 3)]
#[case::too_few_rounds(20, MAX_ROUNDS as usize)]
#[tokio::test]
async fn an_event_that_waits_is_compared_in_rounds(#[case] routines: usize, #[case] fired: usize) {
    let setup = Setup::new(RoutineMatchers::without_time).await;
    setup.create("ada", routines).await;
    emit(&setup, "ada").await;
    setup.work_until(setup.until_waiting("ada", 0)).await;
    assert_eq!(setup.runs("ada").await, fired);
    setup.store.close().await;
}
