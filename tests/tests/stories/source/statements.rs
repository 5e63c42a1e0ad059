//! The statements in the source of the store.

use tests::{World, check_source};

#[tokio::test]
async fn every_statement_reads_a_bounded_number_of_rows() {
    let world = World::new().await;
    let explained = check_source(&mut world.database().await).await;
    assert!(explained > 330, "{explained} statements");
    world.finish().await;
}
