//! `gantry job show`: one job, with its children.

use protocol::{Job, JobId, JobSummary, Page};
use serde_json::Value;

use super::super::{
    client::{Client, zones},
    exit::CliError,
    output::{Format, Output, Paint, escape_control_chars, local_time, one_line, render, truncate, wrapped},
};

use base::Zone;

const MAX_TITLE_CHARS: usize = 60;
/// Columns before the values.
const NAME_COLUMNS: usize = 16;

pub(super) async fn show(client: &Client, id: JobId, output: &mut Output) -> Result<(), CliError> {
    let job: Job = client.get(&format!("/api/jobs/{id}"), &[]).await?;
    let children = if output.format == Format::Text && job.limits.max_children > 0 {
        // One page: a job has fewer children than a page has items.
        client.get("/api/jobs", &[("parent", id.to_string())]).await?
    } else {
        Page::<JobSummary> { items: Vec::new(), next_cursor: None }
    };
    let (zone, width) = (zones::shown(client, output).await, output.width);
    output.either(&job, |paint| describe(paint, &job, &children.items, (zone, width)))
}

pub(super) fn describe(
    paint: Paint,
    job: &Job,
    children: &[JobSummary],
    (zone, width): (Zone, Option<usize>),
) -> String {
    let time = |at| local_time(at, zone);
    let mut rows =
        vec![("id", job.id.to_string()), ("title", one_line(&job.title)), ("state", render::state(paint, job.state))];
    let is_cancelling = job.cancel_requested_at.filter(|_| job.finished_at.is_none());
    rows.push(("reason", job.reason.map(|reason| reason.to_string()).unwrap_or_default()));
    rows.push(("message", job.message.as_deref().map(one_line).unwrap_or_default()));
    rows.push(("cancelling", is_cancelling.map(|at| format!("since {}", time(at))).unwrap_or_default()));
    let optional = [
        ("effort", job.effort.map(|effort| effort.to_string())),
        ("tools", job.tools.as_ref().map(|tools| one_line(&tools.join(" ")))),
        ("plan", job.plan.then(|| "yes".to_owned())),
        ("review", job.review.then(|| "yes".to_owned())),
        ("started", job.started_at.map(time)),
        ("finished", job.finished_at.map(time)),
        ("container", job.container.as_ref().map(|container| one_line(&container.name))),
        ("parent", job.parent_id.map(|id| id.to_string())),
        ("restarted from", job.restarted_from.map(|id| id.to_string())),
    ];
    rows.extend([
        ("user", one_line(&job.user_id)),
        ("model", one_line(&job.model)),
        ("source", job.source.to_string()),
    ]);
    rows.extend([
        ("priority", job.priority.to_string()),
        ("limits", limits(job)),
        ("attempt", job.attempt.to_string()),
        ("created", time(job.created_at)),
    ]);
    rows.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let child = |child: &JobSummary| {
        let title = truncate(&one_line(&child.title), MAX_TITLE_CHARS);
        ("child", format!("{} {} {title}", child.id, render::state(paint, child.state)))
    };
    // In the order in which they were created.
    rows.extend(children.iter().rev().map(child));
    rows.push(("labels", job.labels.iter().map(|(k, v)| one_line(&format!("{k}={v}"))).collect::<Vec<_>>().join(" ")));
    rows.push(("usage", render::usage(job)));
    let mut lines: Vec<String> = rows
        .into_iter()
        .filter(|(_, v)| !v.is_empty())
        .map(|(name, value)| format!("{name:<15} {}", wrapped(&value, NAME_COLUMNS, width)))
        .collect();
    if let Some(result) = job.result.as_ref().and_then(|result| result.text.as_ref()) {
        lines.push(format!("\n{}", escape_control_chars(result.trim_end())));
    }
    lines.extend(render::partial(paint, job, "", width).map(|text| format!("\n{text}")));
    lines.join("\n")
}

/// The limits that are in effect, by their names in `--limit`.
fn limits(job: &Job) -> String {
    let Ok(Value::Object(limits)) = serde_json::to_value(job.limits) else { return String::new() };
    let set = limits.iter().filter(|(_, value)| value.as_f64() != Some(0.0));
    set.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
