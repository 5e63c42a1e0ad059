//! The baseline of `routines`: jobs of tokio-cron-scheduler in this process, which do nothing but note the time.

use chrono::{DateTime, TimeDelta, Utc};
use tokio::{sync::mpsc, time::sleep};
use tokio_cron_scheduler::{Job, JobScheduler};

use super::{super::Bench, Size};
use crate::{
    Failure, clock,
    report::{Series, Unit},
};

/// The library's default, and one with room for all.
const CHANNELS: [(usize, &str, &str); 2] = [
    (200, "tokio-cron-scheduler, 5 000 at once", "tokio-cron-scheduler: lost"),
    (20_000, "tokio-cron-scheduler, 5 000 at once, larger channel", "tokio-cron-scheduler, larger channel: lost"),
];

/// Runs the baseline.
pub(super) async fn run(bench: &mut Bench, size: Size) -> Result<(), Failure> {
    for (channel, name, lost) in CHANNELS {
        let times = fire(channel, size).await?;
        let number = u32::try_from(times.len())?;
        let mut series = Series::new(name, Unit::Ms);
        series.extend(times.into_iter().map(Ok));
        bench.report.side(series);
        bench.report.figure(lost, Unit::Count, f64::from(size.at_once.saturating_sub(number)));
    }
    Ok(())
}

/// The lateness in milliseconds of the jobs that ran.
async fn fire(channel: usize, size: Size) -> Result<Vec<f64>, Failure> {
    let mut scheduler = JobScheduler::new_with_channel_size(channel).await?;
    scheduler.init().await?;
    let (sender, mut fired) = mpsc::unbounded_channel::<DateTime<Utc>>();
    let due = clock::wall() + size.add;
    let due = due - TimeDelta::nanoseconds(i64::from(due.timestamp_subsec_nanos()));
    let schedule = due.format("%S %M %H %d %m *").to_string();
    for _ in 0..size.at_once {
        let sender = sender.clone();
        let job = Job::new(&schedule, move |_, _| {
            // The receiver lives until all have had their time.
            let _ = sender.send(clock::wall());
        })?;
        scheduler.add(job).await?;
    }
    scheduler.start().await?;
    sleep((due - clock::wall()).to_std()? + size.latest).await;
    scheduler.shutdown().await?;
    let mut times = Vec::new();
    while let Ok(at) = fired.try_recv() {
        times.push(clock::milliseconds_between(due, at));
    }
    Ok(times)
}
