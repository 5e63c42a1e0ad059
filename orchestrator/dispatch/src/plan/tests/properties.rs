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

/// Makes some jobs children of earlier ones, at most three deep, with their users.
fn link(jobs: &mut [JobRecord], is_child: &[bool]) {
    for index in 1..jobs.len() {
        if is_child.get(index) == Some(&true) {
            let parent = jobs[(index - 1) / 2].clone();
            let brief = jobs[index].brief_mut();
            (brief.parent_id, brief.depth) = (Some(parent.id), parent.brief.depth + 1);
            brief.user_id.clone_from(&parent.brief.user_id);
        }
    }
}

fn is_below(jobs: &[JobRecord], job: &JobRecord, above: JobId) -> bool {
    let parent = |id: JobId| jobs.iter().find(|one| one.id == id).and_then(|one| one.brief.parent_id);
    std::iter::successors(job.brief.parent_id, |id| parent(*id)).any(|id| id == above)
}

/// The slots that jobs take: those that they have, less those that waiting jobs lend. From the deepest waiting job up,
/// each lends to one job below it that has no lent slot yet.
fn taken(jobs: &[JobRecord], with_slot: &[JobId], waiting: &HashSet<JobId>, user: Option<&str>) -> usize {
    let of_user = |job: &&JobRecord| user.is_none_or(|user| job.brief.user_id == user);
    let mut holders: Vec<&JobRecord> = jobs.iter().filter(of_user).filter(|job| with_slot.contains(&job.id)).collect();
    let taken = holders.len();
    let mut lenders: Vec<&JobRecord> = jobs.iter().filter(of_user).filter(|job| waiting.contains(&job.id)).collect();
    lenders.sort_by_key(|job| std::cmp::Reverse(job.brief.depth));
    let lent = lenders.iter().filter(|lender| {
        let borrower = holders.iter().position(|job| is_below(jobs, job, lender.id));
        borrower.map(|index| holders.swap_remove(index)).is_some()
    });
    taken - lent.count()
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
        is_child in prop::collection::vec(any::<bool>(), 12),
        waiting in prop::collection::vec(0..12usize, 0..6),
        max_parallel in 0..6usize,
        max_per_user in 0..4usize,
    ) {
        let mut jobs = jobs;
        link(&mut jobs, &is_child);
        let mut names = HashSet::new();
        let containers = with.iter()
            .filter_map(|(index, attempt, status)| jobs.get(*index).map(|job| container_of(job, *attempt, *status)))
            .filter(|container| names.insert(container.name.clone()))
            .collect();
        let mut scene = Scene::of(jobs, containers);
        scene.busy = busy.iter().filter_map(|index| scene.jobs.get(*index)).map(|job| Subject::Job(job.id)).collect();
        scene.orphaned = orphaned.iter().filter_map(|index| scene.jobs.get(*index)).map(|job| job.id).collect();
        scene.waiting_for_children = waiting.iter().filter_map(|index| scene.jobs.get(*index))
            .filter(|job| job.state() != JobState::Pending).map(|job| job.id).collect();
        (scene.max_parallel, scene.max_per_user) = (max_parallel, max_per_user);
        let actions = scene.actions();
        let subjects: HashSet<Subject> = actions.iter().map(Action::subject).collect();
        prop_assert_eq!(subjects.len(), actions.len());
        prop_assert!(subjects.is_disjoint(&scene.busy));
        let held: Vec<JobId> = scene.jobs.iter()
            .filter(|job| job.state() != JobState::Pending || scene.busy.contains(&Subject::Job(job.id)))
            .map(|job| job.id).collect();
        let starts = actions.iter().filter_map(|action| match action {
            Action::Start { job } => Some(*job),
            _ => None,
        });
        let after: Vec<JobId> = held.iter().copied().chain(starts).collect();
        for (user, max) in [(None, max_parallel), (Some("a"), max_per_user), (Some("b"), max_per_user)] {
            let taken = |held: &[JobId]| taken(&scene.jobs, held, &scene.waiting_for_children, user);
            prop_assert!(taken(&after) <= taken(&held).max(max), "{user:?}");
        }
        for action in &actions {
            if let Action::Start { job } = action {
                let job = scene.jobs.iter().find(|one| one.id == *job).unwrap();
                prop_assert!(!job.is_stopping() && job.state() == JobState::Pending);
                prop_assert!(!scene.orphaned.contains(&job.id));
            }
        }
    }
}
