//! Runs, and firings that led to none, counted by the hour in which they were recorded, and by status.

use protocol::RoutineId;

use crate::{
    Store, StoreError,
    sqlite::hour_counts::{HourFilter, HourWalk, StatesOfHours},
};

impl Store {
    /// The numbers of the entries that [`Self::runs`] lists, of all routines or of one.
    pub async fn run_histogram(
        &self,
        filter: &HourFilter,
        routine: Option<RoutineId>,
    ) -> Result<StatesOfHours, StoreError> {
        self.counted_by_hour(&walks(filter, routine)).await
    }
}

fn walks(filter: &HourFilter, routine: Option<RoutineId>) -> [HourWalk<'_>; 2] {
    let walk = |table, [of_routine, of_user, of_all]: [&'static str; 3]| {
        let index = match (routine, &filter.user) {
            // A routine has a bounded number of rows.
            (Some(_), _) => of_routine,
            (None, Some(_)) => of_user,
            (None, None) => of_all,
        };
        HourWalk { table, state: "status", states: vec![], index, routine, filter }
    };
    [
        walk("routine_runs", ["routine_runs_by_routine", "routine_runs_by_user_hour", "routine_runs_by_hour"]),
        walk("firings", ["firings_by_routine", "firings_by_user_hour", "firings_by_hour"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fresh;

    #[tokio::test]
    async fn runs_are_counted_from_an_index_and_those_of_a_routine_from_its_rows() {
        let (_directory, store) = fresh().await;
        let routine = RoutineId::generate();
        for user in [None, Some("ada".to_owned())] {
            let filter = HourFilter { user, ..HourFilter::default() };
            for walk in walks(&filter, None) {
                let steps = walk.plan(&store).await;
                let by_hour = "created_hour>? AND created_hour<?)";
                let is_index = |step: &String| step.contains(by_hour) || step.contains("(subquery-1)");
                assert!(steps.iter().all(is_index), "{steps:#?}");
            }
            for walk in walks(&filter, Some(routine)) {
                let steps = walk.plan(&store).await;
                let of_routine = format!("{}_by_routine (routine_id=? AND id>? AND id<?)", walk.table);
                assert_eq!(steps.iter().filter(|step| step.contains(&of_routine)).count(), 2, "{steps:#?}");
            }
        }
        store.close().await;
    }
}
