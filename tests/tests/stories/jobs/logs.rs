//! Container logs are readable only by the job's owner.

use orchestrator::auth::Role;
use protocol::ErrorCode;
use tests::World;

#[tokio::test]
async fn container_logs_are_readable_only_by_the_owner() {
    let world = World::builder().processes().build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    ada.wait_for_end(id).await;
    world.engine().until_empty().await;
    let path = format!("/api/jobs/{id}/logs");
    let logs = ada.get(&path).await.expect(200);
    assert_eq!(logs.header("content-type"), Some("text/plain; charset=utf-8"));
    let text = logs.body.as_str().unwrap();
    assert!(text.starts_with("==> attempt 1\n") && text.contains(" INFO "), "{text}");
    world.someone("root", Role::Admin).get(&path).await.expect(200);
    world.user("bob").get(&path).await.problem(ErrorCode::NotFound);
    ada.get(&format!("/api/jobs/{}/logs", protocol::JobId::nil())).await.problem(ErrorCode::NotFound);
    world.finish().await;
}
