//! Making a job: what is taken, what is refused, and what comes of the simplest one.

use protocol::{EventData, JobState};
use tests::World;

#[tokio::test]
async fn a_prompt_is_all_a_job_needs() {
    let world = World::builder().processes().build().await;
    let ada = world.user("ada");
    let id = ada.create_job("say hello").await;
    let (streamed, state, last) = ada.stream(id, None).await.rest().await;
    assert_eq!(state, JobState::Completed);

    let job = ada.job(id).await;
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Completed, None, 1));
    assert_eq!(job.result.as_ref().and_then(|result| result.text.as_deref()), Some("You said: say hello"));
    assert_eq!(job.usage.llm_calls, 1);
    assert_eq!(ada.jobs().await, std::slice::from_ref(&job));
    assert_eq!(ada.events(id).await, streamed);
    assert_eq!(streamed.last().map(|event| event.seq), Some(last));
    let told =
        EventData::Result { outcome: "completed".to_owned(), text: "You said: say hello".to_owned(), partial: None };
    assert_eq!(streamed[streamed.len() - 2].data, told);
    world.finish().await;
}
