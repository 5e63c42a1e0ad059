//! The requests that are timed: every GET of the API's document that reads the database and ends, with its filters and
//! a page in the middle.

use chrono::{Days, NaiveDate};
use serde_json::Value;

use super::Caller;
use crate::Failure;

/// Pages that are turned to the middle of a list.
const PAGES_TO_MIDDLE: usize = 20;

/// Who may make a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    Everyone,
    /// A search or filter of one's own objects: for an admin it is a search over all users.
    Users,
    Admins,
}

/// Requests, with names of what they are filled with in braces; `{middle}` is the cursor of a page in the middle.
const REQUESTS: &[(For, &str)] = &[
    (For::Everyone, "/api/jobs"),
    (For::Everyone, "/api/jobs?limit=200"),
    (For::Everyone, "/api/jobs?cursor={middle}"),
    (For::Everyone, "/api/jobs?state=completed"),
    (For::Everyone, "/api/jobs?state=failed,cancelled"),
    (For::Everyone, "/api/jobs?state=failed&cursor={middle}"),
    (For::Everyone, "/api/jobs?state=pending"),
    (For::Everyone, "/api/jobs?state=in_progress"),
    (For::Everyone, "/api/jobs?state=stuck"),
    (For::Everyone, "/api/jobs?parent={job}"),
    (For::Everyone, "/api/jobs?routine_id={routine}"),
    (For::Everyone, "/api/jobs?run_id={run}"),
    (For::Everyone, "/api/jobs?since={day}"),
    (For::Everyone, "/api/jobs?until={day}"),
    (For::Everyone, "/api/jobs?state=failed&since={day}"),
    (For::Users, "/api/jobs?reason=oom_killed"),
    (For::Users, "/api/jobs?reason=oom_killed&cursor={middle}"),
    (For::Users, "/api/jobs?source=chat"),
    (For::Users, "/api/jobs?source=tool"),
    (For::Users, "/api/jobs?model=large"),
    (For::Users, "/api/jobs?source=chat&state=failed&model=small"),
    (For::Users, "/api/jobs?model=none&state=failed"),
    (For::Everyone, "/api/jobs?id={job_start}"),
    (For::Users, "/api/jobs?id={job_end}"),
    (For::Users, "/api/jobs?label=team:t7"),
    (For::Users, "/api/jobs?label=team:none"),
    (For::Users, "/api/jobs?q=module%20123"),
    (For::Users, "/api/jobs?q=nowhere"),
    (For::Admins, "/api/jobs?user=user001"),
    (For::Admins, "/api/jobs?user=user001&state=failed"),
    (For::Admins, "/api/jobs?user=user001&reason=wall_clock"),
    (For::Admins, "/api/jobs?reason=wall_clock"),
    (For::Everyone, "/api/jobs/histogram"),
    (For::Everyone, "/api/jobs/histogram?since={week}&until={week_end}"),
    (For::Everyone, "/api/jobs/histogram?since={week}&until={week_end}&state=failed"),
    (For::Everyone, "/api/jobs/summary"),
    (For::Everyone, "/api/jobs/{job}"),
    (For::Everyone, "/api/jobs/{job}/events"),
    (For::Admins, "/api/jobs/{long_job}/events?limit=200"),
    (For::Admins, "/api/jobs/{long_job}/events?after=1000&limit=200"),
    (For::Admins, "/api/jobs/{long_job}/events?kind=tool_result"),
    (For::Everyone, "/api/jobs/{job}/events?before=9223372036854775807&max_text=400&limit=200"),
    (For::Everyone, "/api/jobs/{job}/events?failed=true"),
    (For::Everyone, "/api/jobs/{job}/events?call_id=none"),
    (For::Everyone, "/api/jobs/{job}/events/{seq}"),
    (For::Everyone, "/api/jobs/{job}/prompts"),
    (For::Everyone, "/api/jobs/{job}/actions"),
    (For::Everyone, "/api/jobs/{job}/llm-calls"),
    (For::Everyone, "/api/jobs/{job}/egress"),
    (For::Users, "/api/jobs/{job}/llm-calls/{call}/request"),
    (For::Everyone, "/api/routines"),
    (For::Everyone, "/api/routines?limit=200"),
    (For::Everyone, "/api/routines?cursor={middle}"),
    (For::Everyone, "/api/routines?enabled=true"),
    (For::Everyone, "/api/routines?enabled=false"),
    (For::Everyone, "/api/routines?status=failing"),
    (For::Everyone, "/api/routines?status=running"),
    (For::Everyone, "/api/routines?trigger=webhook"),
    (For::Everyone, "/api/routines?action=full_job"),
    (For::Everyone, "/api/routines?name={routine_name}"),
    (For::Everyone, "/api/routines?id={routine_start}"),
    (For::Users, "/api/routines?id={routine_end}"),
    (For::Users, "/api/routines?q=nowhere"),
    (For::Admins, "/api/routines?user=user002"),
    (For::Everyone, "/api/routines/summary"),
    (For::Everyone, "/api/routines/upcoming"),
    (For::Everyone, "/api/routines/upcoming?limit=200"),
    (For::Everyone, "/api/routines/{routine}"),
    (For::Everyone, "/api/routines/{routine}/upcoming"),
    (For::Everyone, "/api/routines/{routine}/runs"),
    (For::Everyone, "/api/routines/{routine}/runs?status=failed"),
    (For::Everyone, "/api/routines/{routine}/deliveries"),
    (For::Admins, "/api/routines/{busy_routine}/runs?limit=200"),
    (For::Admins, "/api/routines/{busy_routine}/runs?cursor={middle}"),
    (For::Admins, "/api/routines/{busy_routine}/runs?status=missed"),
    (For::Everyone, "/api/runs"),
    (For::Everyone, "/api/runs?limit=200"),
    (For::Everyone, "/api/runs?cursor={middle}"),
    (For::Everyone, "/api/runs?status=queued"),
    (For::Everyone, "/api/runs?status=running"),
    (For::Everyone, "/api/runs?status=failed"),
    (For::Everyone, "/api/runs?status=skipped,missed"),
    (For::Everyone, "/api/runs?trigger=every"),
    (For::Everyone, "/api/runs?trigger=webhook"),
    (For::Everyone, "/api/runs?reason=llm_error"),
    (For::Everyone, "/api/runs?reason=cooldown&status=skipped"),
    (For::Everyone, "/api/runs?routine_id={routine}"),
    (For::Everyone, "/api/runs?since={day}"),
    (For::Everyone, "/api/runs?until={day}"),
    (For::Everyone, "/api/runs?id={run_start}"),
    (For::Users, "/api/runs?id={run_end}"),
    (For::Admins, "/api/runs?user=user002"),
    (For::Everyone, "/api/runs/histogram"),
    (For::Everyone, "/api/runs/histogram?since={week}&until={week_end}"),
    (For::Everyone, "/api/runs/histogram?routine_id={routine}"),
    (For::Everyone, "/api/runs/{run}"),
    (For::Everyone, "/api/runs/{run}/actions"),
    (For::Everyone, "/api/runs/{run}/llm-calls"),
    (For::Everyone, "/api/runs/{run}/messages"),
    (For::Everyone, "/api/notifications"),
    (For::Everyone, "/api/notifications?cursor={middle}"),
    (For::Everyone, "/api/notifications?unread=true"),
    (For::Everyone, "/api/notifications?id={notification_start}"),
    (For::Everyone, "/api/events?limit=200"),
    (For::Everyone, "/api/events?after=1000&limit=200"),
    (For::Everyone, "/api/events?kind=run"),
    (For::Everyone, "/api/events?job={job}&limit=200"),
    (For::Everyone, "/api/chat/threads"),
    (For::Everyone, "/api/chat/threads?limit=200"),
    (For::Everyone, "/api/chat/threads?cursor={middle}"),
    (For::Everyone, "/api/chat/threads?id={thread_start}"),
    (For::Everyone, "/api/chat/threads?id={thread_end}"),
    (For::Everyone, "/api/chat/threads/{thread}"),
    (For::Everyone, "/api/chat/threads/{thread}/actions"),
    (For::Everyone, "/api/chat/threads/{thread}/llm-calls"),
    (For::Everyone, "/api/gates"),
    (For::Everyone, "/api/gates?state=approved,denied"),
    (For::Everyone, "/api/gates?state=pending"),
    (For::Everyone, "/api/gates?state=approved&cursor={middle}"),
    (For::Everyone, "/api/gates?id={gate_start}"),
    (For::Users, "/api/gates?id={gate_end}"),
    (For::Everyone, "/api/gates/{gate}"),
    (For::Everyone, "/api/tools"),
    (For::Everyone, "/api/secrets"),
    (For::Everyone, "/api/settings"),
    (For::Everyone, "/api/options"),
    (For::Everyone, "/api/sessions"),
    (For::Everyone, "/api/whoami"),
    (For::Users, "/api/memory?path=notes/01.md"),
    (For::Users, "/api/memory/search?q=parser"),
    (For::Users, "/api/memory/tree"),
    (For::Users, "/api/memory/versions?path=notes/01.md"),
    (For::Everyone, "/api/storage"),
    (For::Everyone, "/api/usage?by=day"),
    (For::Everyone, "/api/usage?by=job"),
    (For::Everyone, "/api/usage?by=job&cursor={middle}"),
    (For::Everyone, "/api/usage?by=job&sort=cost"),
    (For::Users, "/api/usage?by=job&sort=cost&cursor={middle}"),
    (For::Users, "/api/usage?by=model"),
    (For::Users, "/api/usage?by=day,model&since={week_date}"),
    (For::Users, "/api/usage?by=routine"),
    (For::Users, "/api/usage?by=routine,model&sort=cost"),
    (For::Users, "/api/usage?by=label:team"),
    (For::Users, "/api/usage?by=user"),
    (For::Admins, "/api/usage?by=day&user=user001"),
    (For::Admins, "/api/usage?by=routine&user=user001"),
    (For::Admins, "/api/usage?by=label:team&user=user001"),
    (For::Admins, "/api/audit"),
    (For::Admins, "/api/audit?limit=200"),
    (For::Admins, "/api/audit?cursor={middle}"),
    (For::Admins, "/api/audit?user=user009"),
    (For::Admins, "/api/audit?action=job.cancel"),
    (For::Admins, "/api/audit?action=chat.delete"),
    (For::Admins, "/api/audit?user=user001&action=secret.delete"),
    (For::Admins, "/api/audit?job={job}"),
    (For::Admins, "/api/audit?since={day}"),
    (For::Admins, "/api/audit?until=2020-01-01T00:00:00Z"),
    (For::Admins, "/api/audit?since={day}&action=job.cancel"),
    (For::Admins, "/api/admin/tool-policy"),
    (For::Admins, "/api/admin/mcp"),
    (For::Admins, "/metrics"),
    (For::Everyone, "/api/status"),
    (For::Everyone, "/readyz"),
    (For::Everyone, "/healthz"),
];

/// Paths of the document that are not timed: streams, what reads workspaces, which the generated jobs do not have, and
/// what only a browser's session may read.
const NOT_TIMED: [&str; 7] = [
    "/api/chat/events",
    "/api/jobs/{id}/archive",
    "/api/jobs/{id}/changes",
    "/api/jobs/{id}/files",
    "/api/jobs/{id}/files/{path}",
    "/api/jobs/{id}/logs",
    "/api/session",
];

/// The paths of the API's document that no request is for. Each parameter has one segment.
pub(super) async fn missing(caller: &Caller) -> Result<Vec<String>, Failure> {
    let document = caller.json("/api/openapi.json").await?;
    let paths = document["paths"].as_object().ok_or("the document has no paths")?;
    let reads = paths.iter().filter(|(_, methods)| methods.get("get").is_some()).map(|(path, _)| path);
    Ok(reads.filter(|path| !NOT_TIMED.contains(&path.as_str()) && !is_timed(path)).cloned().collect())
}

fn is_timed(path: &str) -> bool {
    REQUESTS.iter().any(|(_, request)| {
        let request = request.split('?').next().unwrap_or_default();
        let (mut asked, mut documented) = (request.split('/'), path.split('/'));
        loop {
            match (asked.next(), documented.next()) {
                (None, None) => return true,
                (Some(a), Some(b)) if a == b || (a.starts_with('{') && b.starts_with('{')) => {}
                _ => return false,
            }
        }
    })
}

/// The requests of a caller, each with its path. Those about an object that the caller has none of are left out.
pub(super) async fn of(caller: &Caller) -> Result<Vec<(&'static str, String)>, Failure> {
    let (is_admin, known) = (caller.name == "admin", Known::of(caller).await?);
    let mut requests = Vec::new();
    for (whom, request) in REQUESTS {
        if *whom == (if is_admin { For::Users } else { For::Admins }) {
            continue;
        }
        let Some(path) = known.fill(request) else { continue };
        let path = match path.split_once("cursor={middle}") {
            None => path,
            Some((list, _)) => match middle(caller, list).await? {
                Some(cursor) => format!("{list}cursor={cursor}"),
                // A list of one page.
                None => continue,
            },
        };
        requests.push((*request, path));
    }
    Ok(requests)
}

/// The cursor of a page in the middle of a list, or at least some pages on.
async fn middle(caller: &Caller, list: &str) -> Result<Option<String>, Failure> {
    let mut cursors: Vec<String> = Vec::new();
    while cursors.len() < PAGES_TO_MIDDLE {
        let position = cursors.last().map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = caller.json(&format!("{list}limit=200{position}")).await?;
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursors.push(next.to_owned());
    }
    Ok(cursors.get(cursors.len() / 2).cloned())
}

/// What the names in requests stand for.
struct Known(Vec<(String, String)>);

impl Known {
    /// The caller's newest objects, and those with most rows.
    async fn of(caller: &Caller) -> Result<Self, Failure> {
        let mut known = vec![("{seq}".to_owned(), "1".to_owned())];
        for (name, list) in [
            ("job", "/api/jobs?state=completed&limit=1"),
            ("routine", "/api/routines?limit=1"),
            ("run", "/api/runs?limit=1"),
            ("notification", "/api/notifications?limit=1"),
            ("thread", "/api/chat/threads?limit=1"),
            ("gate", "/api/gates?state=approved,denied&limit=1"),
        ] {
            let page = caller.json(list).await?;
            let Some(id) = page["items"][0]["id"].as_str() else { continue };
            known.push((format!("{{{name}}}"), id.to_owned()));
            known.push((format!("{{{name}_start}}"), id[..13].to_owned()));
            known.push((format!("{{{name}_end}}"), id[28..].to_owned()));
            if let Value::String(value) = &page["items"][0]["name"] {
                known.push((format!("{{{name}_name}}"), value.replace(' ', "%20")));
            }
            if let Some(day) = page["items"][0]["created_at"].as_str().and_then(|at| at.get(..10)) {
                known.push(("{day}".to_owned(), format!("{day}T00:00:00Z")));
                // Histograms have at most 8 days, and the newest job of a user may be older than today.
                let day = day.parse::<NaiveDate>()?;
                let week = day - Days::new(6);
                known.push(("{week_end}".to_owned(), format!("{}T00:00:00Z", day + Days::new(1))));
                known.push(("{week}".to_owned(), format!("{week}T00:00:00Z")));
                known.push(("{week_date}".to_owned(), week.to_string()));
            }
        }
        if let Some((_, job)) = known.iter().find(|(name, _)| name == "{job}") {
            let calls = caller.json(&format!("/api/jobs/{job}/llm-calls?limit=1")).await?;
            if let Some(call) = calls["items"][0]["call_id"].as_str() {
                known.push(("{call}".to_owned(), call.to_owned()));
            }
        }
        Ok(Self(known))
    }

    fn fill(&self, request: &str) -> Option<String> {
        let path = self.0.iter().fold(request.to_owned(), |path, (name, value)| path.replace(name, value));
        (!path.replace("{middle}", "").contains('{')).then_some(path)
    }
}
