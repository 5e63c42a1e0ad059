//! Tests of the order of stored and live events on a real database.

use axum::response::sse::Event as Sse;
use chat::{LiveEvent, LiveEvents};
use chrono::DateTime;
use domain::chat::ThreadRef;
use protocol::{ChatStatus, ThreadId};
use store::{AuditEntry, Delivery, InstanceEventFilter, Sent, SentMessage, Store, StoredInstanceEvent, Topic};

use super::*;

async fn stream(store: &Store, live: &LiveEvents) -> InstanceEvents {
    let filter = InstanceEventFilter { user: Some("ada".to_owned()), ..InstanceEventFilter::default() };
    let subscription = store.event_notifier().subscribe(Topic::User("ada".to_owned()));
    let stored = InstanceReader::open(store.clone(), filter, None, message).await.unwrap();
    InstanceEvents::new(subscription, stored).with_chat(Some(LiveChat::new(live.subscribe("ada"), None)))
}

fn message(event: &StoredInstanceEvent) -> Sse {
    Sse::default().id(event.cursor.to_string()).data(event.kind.as_str())
}

async fn store(directory: &tempfile::TempDir) -> Store {
    Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap()
}

/// Stores a message, and returns the cursor of its event.
async fn write(store: &Store) -> i64 {
    let message = SentMessage {
        user: "ada".to_owned(),
        thread: ThreadRef::main(),
        content: "hello".to_owned(),
        delivery: Delivery::Show,
        key: None,
        audit: AuditEntry::by_operator("chat.send", DateTime::UNIX_EPOCH),
    };
    assert!(matches!(store.send_chat_message(message).await.unwrap(), Sent::Stored(_)));
    store.last_cursor().await.unwrap()
}

fn status(live: &LiveEvents, text: &str) {
    let message = text.to_owned();
    live.send("ada", || LiveEvent::Status(ChatStatus { thread_id: ThreadId::nil(), message }));
}

/// All that there is to read now.
async fn read_all(events: &mut InstanceEvents) -> (String, Next) {
    let mut text = String::new();
    loop {
        let Batch { messages, next } = events.read().await.unwrap();
        text.extend(messages.iter().map(|message| format!("{message:?}")));
        if next != Next::Read {
            return (text, next);
        }
    }
}

#[tokio::test]
async fn pieces_are_between_the_stored_events_that_they_came_between() {
    let directory = tempfile::tempdir().unwrap();
    let (store, live) = (store(&directory).await, LiveEvents::default());
    let mut events = stream(&store, &live).await;
    read_all(&mut events).await;
    status(&live, "before");
    let first = write(&store).await;
    live.send("ada", || LiveEvent::Stored { thread_id: ThreadId::nil(), cursor: first });
    status(&live, "between");
    let second = write(&store).await;
    live.send("ada", || LiveEvent::Stored { thread_id: ThreadId::nil(), cursor: second });
    status(&live, "after");
    events.changed().await;
    let (text, next) = read_all(&mut events).await;
    let places = ["before", &format!("id: {first}"), "between", &format!("id: {second}"), "after"]
        .map(|part| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}")));
    assert!(places.is_sorted(), "{places:?} {text}");
    assert_eq!(next, Next::Wait);
}

/// A job that has ended meanwhile must not be shown at work again.
#[tokio::test]
async fn the_present_of_jobs_is_before_what_was_stored_after_it_was_read() {
    let directory = tempfile::tempdir().unwrap();
    let (store, live) = (store(&directory).await, LiveEvents::default());
    let with_chat = stream(&store, &live).await;
    let without = stream(&store, &live).await.with_chat(None);
    for mut events in [with_chat, without] {
        read_all(&mut events).await;
        let first = write(&store).await;
        events.changed().await;
        events.held = Some((first, vec![Sse::default().data("at work")]));
        let second = write(&store).await;
        let (text, next) = read_all(&mut events).await;
        let places = [&format!("id: {first}"), "at work", &format!("id: {second}")]
            .map(|part| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}")));
        assert!(places.is_sorted(), "{places:?} {text}");
        assert_eq!(next, Next::Wait);
    }
}

#[tokio::test]
async fn the_stream_of_a_reader_that_is_too_slow_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (store, live) = (store(&directory).await, LiveEvents::default());
    let mut events = stream(&store, &live).await;
    for n in 0..10_000 {
        status(&live, &n.to_string());
    }
    assert_eq!(read_all(&mut events).await.1, Next::End);
}
