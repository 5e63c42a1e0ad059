//! Jobs counted by the hour in which they were created, and by state.

use protocol::JobState;

use crate::{
    Store, StoreError,
    sqlite::hour_counts::{HourFilter, HourWalk, StatesOfHours},
};

impl Store {
    /// The numbers of jobs in these states; in all states if none is given.
    pub async fn job_histogram(&self, filter: &HourFilter, states: &[JobState]) -> Result<StatesOfHours, StoreError> {
        self.counted_by_hour(&[walk(filter, states)]).await
    }
}

fn walk<'a>(filter: &'a HourFilter, states: &[JobState]) -> HourWalk<'a> {
    HourWalk {
        table: "jobs",
        state: "state",
        states: states.iter().map(|state| state.as_str()).collect(),
        index: if filter.user.is_some() { "jobs_by_user_hour" } else { "jobs_by_hour" },
        routine: None,
        filter,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use domain::job::sample;

    use super::*;
    use crate::tests::{fresh, raw};

    #[tokio::test]
    async fn jobs_are_counted_by_hour_and_state_from_an_index() {
        let (directory, store) = fresh().await;
        let mut raw = raw(&directory).await;
        for (user, state, at) in [
            ("ada", "failed", "2026-11-29T13:59:59.999999+00:00"),
            ("ada", "failed", "2026-11-29T14:00:00+00:00"),
            ("ada", "completed", "2026-11-29T14:59:59.999+00:00"),
            ("ada", "failed", "2026-11-29T14:30:00.5+00:00"),
            ("eve", "failed", "2026-11-29T14:30:00+00:00"),
            ("ada", "pending", "2026-11-29T16:00:00+00:00"),
            ("ada", "pending", "2026-11-29T17:00:00+00:00"),
        ] {
            let job = sample::job(JobState::Pending);
            let id = job.id;
            store.create_job(job, None, None).await.unwrap();
            let change = sqlx::query("UPDATE jobs SET user_id = $2, state = $3, created_at = $4 WHERE id = $1");
            change.bind(id).bind(user).bind(state).bind(at).execute(&mut raw).await.unwrap();
        }
        let filter = |user: Option<&str>| HourFilter {
            user: user.map(str::to_owned),
            since: "2026-11-29T14:00:00Z".parse().unwrap(),
            until: "2026-11-29T17:00:00Z".parse().unwrap(),
        };
        let counted = async |user, states: &[JobState]| store.job_histogram(&filter(user), states).await.unwrap();
        let hours = |hours: &[(&str, &[(&str, u64)])]| -> StatesOfHours {
            let states =
                |states: &[(&str, u64)]| states.iter().map(|(state, jobs)| ((*state).to_owned(), *jobs)).collect();
            let hours =
                hours.iter().map(|(hour, of)| (format!("2026-11-29T{hour}:00:00Z").parse().unwrap(), states(of)));
            hours.collect::<BTreeMap<_, BTreeMap<_, _>>>()
        };
        let all = [("14", &[("completed", 1), ("failed", 2)][..]), ("16", &[("pending", 1)])];
        assert_eq!(counted(Some("ada"), &[]).await, hours(&all));
        assert_eq!(counted(Some("ada"), &[JobState::Failed]).await, hours(&[("14", &[("failed", 2)])]));
        assert_eq!(counted(None, &[JobState::Failed]).await, hours(&[("14", &[("failed", 3)])]));
        for user in [None, Some("ada")] {
            for states in [&[][..], &[JobState::Failed, JobState::Stuck]] {
                let steps = walk(&filter(user), states).plan(&store).await;
                // In the order of the hours. A row itself is not read: all columns are in the index.
                let is_index = |step: &String| {
                    step.starts_with("SEARCH jobs USING INDEX jobs_by_") || step.contains("(subquery-1)")
                };
                assert!(steps.iter().all(is_index), "{steps:#?}");
            }
        }
        store.close().await;
    }
}
