//! `gantry job list --watch`: polls the list and prints changes.
//!
//! On a terminal the table is redrawn when it has changed. Otherwise each changed job is printed as one line, or with
//! `--json` as one object.

use std::{collections::HashMap, time::Duration};

use protocol::{JobId, JobState, JobSummary, Page};

use super::{
    CliError, Client, Exit, Format, Output,
    list::{JOBS, PATH},
    render,
};
use base::clock::Clock;

use crate::{
    client::zones,
    output::{TableArgs, View, table},
};

/// Poll interval: short enough for a person and cheap for a server with many watchers.
const EVERY: Duration = Duration::from_secs(2);
/// Clears the terminal and moves the cursor to its top.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Watches until it is interrupted or the server refuses.
pub(super) async fn watch(
    client: &Client,
    query: &[(&str, String)],
    args: &TableArgs,
    output: &mut Output,
) -> Result<Exit, CliError> {
    poll(client, query, (args, EVERY), output).await
}

async fn poll(
    client: &Client,
    query: &[(&str, String)],
    (args, every): (&TableArgs, Duration),
    output: &mut Output,
) -> Result<Exit, CliError> {
    let mut seen: HashMap<JobId, JobSummary> = HashMap::new();
    let (mut lost, mut is_first) = (false, true);
    loop {
        match client.get::<Page<JobSummary>>(PATH, query).await {
            Ok(page) => {
                lost = false;
                if is_first {
                    zones::shown(client, output).await;
                }
                let view = View::new(output, args, Clock::system().now(), client.user());
                if is_first && page.items.is_empty() && !output.is_live {
                    output.note("no matching jobs; waiting for changes");
                }
                show(&page, &seen, &view, output)?;
                is_first = false;
                // Jobs that left the page are forgotten: they may return changed.
                seen = page.items.into_iter().map(|job| (job.id, job)).collect();
            }
            // Only a connection that has worked before is retried: an invalid address is reported at once.
            Err(error @ CliError::Unreachable { .. }) if !is_first => {
                if !lost {
                    output.note(&format!("{error}; retrying"));
                }
                lost = true;
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Interrupted),
        }
    }
}

fn show(
    page: &Page<JobSummary>,
    seen: &HashMap<JobId, JobSummary>,
    view: &View,
    output: &mut Output,
) -> Result<(), CliError> {
    // Oldest first, so that the latest change is printed last.
    let changed: Vec<&JobSummary> = page.items.iter().rev().filter(|job| seen.get(&job.id) != Some(*job)).collect();
    if output.format == Format::Json {
        return changed.into_iter().try_for_each(|job| output.json(job));
    }
    if output.is_live {
        // Ages change with every poll.
        let text = format!("{CLEAR}{}", table(JOBS.columns, &page.items, view));
        return output.line(&text);
    }
    let state_of = |job: &JobSummary| (job.state, job.reason);
    for job in changed {
        if seen.get(&job.id).map(state_of) != Some(state_of(job)) {
            let line = line(job, output);
            output.line(&line)?;
        }
    }
    Ok(())
}

fn line(job: &JobSummary, output: &Output) -> String {
    let state: JobState = job.state;
    let reason = job.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{} {}{reason}", job.id, render::state(output.paint, state))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::{
        Json, Router,
        extract::{RawQuery, State},
        http::StatusCode,
        response::{IntoResponse, Response},
        routing::get,
    };
    use clap::Parser;
    use serde_json::{Value, json};
    use tokio::task::JoinSet;

    use super::*;
    use base::Environment;

    use crate::job::{
        JobCommand,
        list::{ListArgs, list},
        tests::job,
    };

    type Asked = Arc<Mutex<(std::vec::IntoIter<Value>, Vec<String>)>>;

    /// Responds with one page after the other, then 404.
    async fn answer(State(asked): State<Asked>, RawQuery(query): RawQuery) -> Response {
        let mut asked = asked.lock().unwrap();
        asked.1.push(query.unwrap_or_default());
        let problem = json!({"type": "t", "title": "Not found", "status": 404, "detail": "gone", "code": "not_found",
            "request_id": "r1"});
        match asked.0.next() {
            Some(page) => Json(page).into_response(),
            None => (StatusCode::NOT_FOUND, Json(problem)).into_response(),
        }
    }

    async fn server(pages: Vec<Value>) -> (Environment, Asked, JoinSet<()>) {
        let asked: Asked = Arc::new(Mutex::new((pages.into_iter(), vec![])));
        let router = Router::new().route("/api/jobs", get(answer)).with_state(asked.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        (Environment::from_pairs([("GANTRY_URL", url.as_str()), ("GANTRY_TOKEN", "good")]), asked, tasks)
    }

    fn page(jobs: &[(u32, &str)]) -> Value {
        let one = |(number, state): &(u32, &str)| {
            let mut job = job(state, None);
            job["id"] = json!(format!("01890000-0000-7000-8000-{number:012}"));
            job
        };
        json!({"items": jobs.iter().map(one).collect::<Vec<_>>(), "next_cursor": null})
    }

    async fn watched(format: Format, live: bool) -> String {
        let pages = vec![
            page(&[(2, "pending"), (1, "in_progress")]),
            page(&[(2, "pending"), (1, "in_progress")]),
            page(&[(2, "pending"), (1, "completed")]),
        ];
        let (environment, _, _tasks) = server(pages).await;
        let client = Client::from_environment(&environment).unwrap();
        let (mut output, printed) = Output::captured(format);
        output.is_live = live;
        let error =
            poll(&client, &[], (&TableArgs::default(), Duration::from_millis(1)), &mut output).await.unwrap_err();
        assert_eq!(error.exit(), Exit::NotFound);
        String::from_utf8(printed.lock().unwrap().clone()).unwrap()
    }

    #[tokio::test]
    async fn each_change_is_printed_once() {
        let json = watched(Format::Json, false).await;
        let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let states: Vec<_> = lines.iter().map(|job| job["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["in_progress", "pending", "completed"]);
        let text = watched(Format::Text, false).await;
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.ends_with("000000000001 completed\n"), "{text}");
        let drawn = watched(Format::Text, true).await;
        assert_eq!(drawn.matches(CLEAR).count(), 3, "{drawn:?}");
    }

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: JobCommand,
    }

    #[tokio::test]
    async fn every_filter_is_sent() {
        let (environment, asked, _tasks) = server(vec![page(&[])]).await;
        let arguments =
            ["gantry-job", "list", "--state", "failed,stuck", "--label", "team:a", "--label", "k:v", "--q", "x y"];
        let JobCommand::List(args) = Line::parse_from(arguments).command else { panic!("a list") };
        let args: ListArgs = args;
        let client = Client::from_environment(&environment).unwrap();
        let (mut output, _) = Output::captured(Format::Text);
        list(&client, args, &mut output).await.unwrap();
        let asked = asked.lock().unwrap();
        assert_eq!(asked.1, ["state=failed%2Cstuck&label=team%3Aa&label=k%3Av&q=x+y&limit=50"]);
    }
}
