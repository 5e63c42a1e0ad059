//! What holds of every plan.

use proptest::prelude::*;

use super::*;

prop_compose! {
    fn any_job()(user in "[ab]", state in 0..3usize, attempt in 0..3u32, cancel: bool, priority in -2..2i32) -> JobRecord {
        let state = [JobState::Pending, JobState::InProgress, JobState::Stuck][state];
        let attempt = if state == JobState::Pending { attempt } else { attempt + 1 };
        let mut job = job(&user, state, attempt);
        job.brief_mut().priority = priority;
        if cancel && job.is_running() { stopping(job) } else { job }
    }
}

fn any_status() -> impl Strategy<Value = ContainerStatus> {
    prop_oneof![
        Just(ContainerStatus::Created),
        Just(RUNNING),
        Just(ContainerStatus::Unknown),
        (0..200i64, any::<bool>()).prop_map(|(code, oom)| exit(code, oom)),
    ]
}

proptest! {
    #[test]
    fn a_plan_respects_the_slots_and_has_one_action_per_subject(
        jobs in prop::collection::vec(any_job(), 0..12),
        with in prop::collection::vec((0..12usize, 0..4u32, any_status()), 0..12),
        busy in prop::collection::vec(0..12usize, 0..4),
        orphaned in prop::collection::vec(0..12usize, 0..4),
        max_parallel in 0..6usize,
        max_per_user in 0..4usize,
    ) {
        let mut names = HashSet::new();
        let containers = with.iter()
            .filter_map(|(index, attempt, status)| jobs.get(*index).map(|job| container_of(job, *attempt, *status)))
            .filter(|container| names.insert(container.name.clone()))
            .collect();
        let mut scene = Scene::of(jobs, containers);
        scene.busy = busy.iter().filter_map(|index| scene.jobs.get(*index)).map(|job| Subject::Job(job.id)).collect();
        scene.orphaned = orphaned.iter().filter_map(|index| scene.jobs.get(*index)).map(|job| job.id).collect();
        (scene.max_parallel, scene.max_per_user) = (max_parallel, max_per_user);
        let actions = scene.actions();
        let subjects: HashSet<Subject> = actions.iter().map(Action::subject).collect();
        prop_assert_eq!(subjects.len(), actions.len());
        prop_assert!(subjects.is_disjoint(&scene.busy));
        let holding = scene.jobs.iter()
            .filter(|job| job.state() != JobState::Pending || scene.busy.contains(&Subject::Job(job.id))).count();
        let starts = actions.iter().filter(|action| matches!(action, Action::Start { .. })).count();
        prop_assert!(starts == 0 || holding + starts <= max_parallel);
        for action in &actions {
            if let Action::Start { job } = action {
                let job = scene.jobs.iter().find(|one| one.id == *job).unwrap();
                prop_assert!(!job.is_stopping() && job.state() == JobState::Pending);
                prop_assert!(!scene.orphaned.contains(&job.id));
            }
        }
    }
}
