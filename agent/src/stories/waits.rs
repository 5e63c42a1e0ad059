//! Rate limits and broken models.

use std::{sync::Arc, time::Duration};

use protocol::JobReason;

use super::world::{Turn, World, say};
use crate::{LoopOutcome, ModelError, Signals as _};

fn limited(seconds: Option<u64>) -> Turn {
    let retry_after = seconds.map(Duration::from_secs);
    Turn::Error(ModelError::RateLimited { retry_after, message: "slow down".to_owned() })
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_waited_and_the_same_call_made_again() {
    let mut world = World::new([limited(Some(7)), limited(Some(20)), say("Done.")]);
    let begun = tokio::time::Instant::now();
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned() });
    assert_eq!(begun.elapsed().as_secs(), 27);
    let asked = world.asked();
    assert!(asked[0].call_id == asked[1].call_id && asked[1].call_id == asked[2].call_id);
    assert_eq!(world.conversation.iterations(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_retry_after_the_waits_grow() {
    let mut world = World::new([limited(None), limited(None), limited(None), say("Done.")]);
    let begun = tokio::time::Instant::now();
    world.run().await;
    // 1, 2 and 4 s, each between its half and itself.
    let waited = begun.elapsed().as_secs_f64();
    assert!((3.5..=7.1).contains(&waited), "waited {waited} s");
}

#[tokio::test(start_paused = true)]
async fn ten_in_a_row_fail_and_nine_do_not() {
    let mut world = World::new((0..10).map(|_| limited(Some(1))).chain([say("Done.")]));
    assert!(matches!(world.run().await, LoopOutcome::Failed { reason: JobReason::LlmError, .. }));
    assert_eq!(world.asked().len(), 10);

    let mut world = World::new((0..9).map(|_| limited(Some(1))).chain([say("Done.")]));
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned() });
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait() {
    let mut world = World::new([limited(Some(600)), say("too late")]);
    let signals = Arc::clone(&world.signals);
    let begun = tokio::time::Instant::now();
    let (outcome, ()) = tokio::join!(world.run(), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        signals.stop().cancel();
    });
    assert_eq!((outcome, begun.elapsed().as_secs()), (LoopOutcome::Stopped, 3));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_help_fails_with_its_message() {
    let mut world = World::new([Turn::Error(ModelError::Failed { message: "no such model".to_owned() })]);
    let failed = LoopOutcome::Failed { reason: JobReason::LlmError, message: "no such model".to_owned() };
    assert_eq!(world.run().await, failed);
}

#[tokio::test(start_paused = true)]
async fn a_fenced_attempt_stops() {
    let mut world = World::new([Turn::Error(ModelError::Stopped)]);
    assert_eq!(world.run().await, LoopOutcome::Stopped);
}
