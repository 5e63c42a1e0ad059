//! `gantry job egress`: which hosts a job may reach, and what it asked for.
//!
//! Names of hosts are escaped before they are printed.

use protocol::{EgressCounter, EgressDecision, JobEgress, JobId};

use crate::{
    client::Client,
    exit::CliError,
    output::{Output, Paint, one_line},
};

const BYTES_PER_KB: u64 = 1_000;
const BYTES_PER_MB: u64 = 1_000_000;

pub(super) async fn egress(client: &Client, id: JobId, output: &mut Output) -> Result<(), CliError> {
    let egress: JobEgress = client.get(&format!("/api/jobs/{id}/egress"), &[]).await?;
    output.either(&egress, |paint| text(paint, &egress))?;
    if !egress.is_complete {
        output.note("gantry: incomplete: the last 10 seconds of a job that has not completed may be missing, and destinations beyond 1,000");
    }
    Ok(())
}

fn text(paint: Paint, egress: &JobEgress) -> String {
    let allowed: Vec<String> = egress.allowed.iter().map(|entry| one_line(entry)).collect();
    let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
    let mut lines = vec![format!("allowed hosts: {allowed}")];
    lines.extend(egress.counters.iter().map(|counter| line(paint, counter)));
    lines.join("\n")
}

fn line(paint: Paint, counter: &EgressCounter) -> String {
    let EgressCounter { host, port, decision, rule, count, bytes_up, bytes_down, .. } = counter;
    let (host, rule) = (one_line(host), one_line(rule));
    if *decision == EgressDecision::Denied {
        return format!("{} {host}:{port}  {count}×  by {rule}", paint.red("denied "));
    }
    let (up, down) = (size(*bytes_up), size(*bytes_down));
    format!("{} {host}:{port}  {count}×  ↑ {up}  ↓ {down}  by {rule}", paint.green(decision.as_str()))
}

fn size(bytes: u64) -> String {
    match bytes {
        0..BYTES_PER_KB => format!("{bytes} B"),
        BYTES_PER_KB..BYTES_PER_MB => format!("{} kB", bytes / BYTES_PER_KB),
        _ => format!("{} MB", bytes / BYTES_PER_MB),
    }
}

#[cfg(test)]
mod tests {
    use protocol::EgressPhase;

    use super::*;

    fn counter(host: &str, decision: EgressDecision, rule: &str) -> EgressCounter {
        let (host, rule) = (host.to_owned(), rule.to_owned());
        let phase = EgressPhase::Agent;
        EgressCounter { phase, host, port: 443, decision, rule, count: 12, bytes_up: 900, bytes_down: 3_400_000 }
    }

    #[test]
    fn refusals_and_bytes_are_shown_by_host() {
        let egress = JobEgress {
            phase: EgressPhase::Agent,
            allowed: vec!["a.example".to_owned()],
            counters: vec![
                counter("b.example\u{1b}[2J", EgressDecision::Denied, "egress.allow"),
                counter("a.example", EgressDecision::Allowed, "a.example:443"),
            ],
            is_complete: true,
        };
        let shown = text(Paint::Plain, &egress);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "allowed hosts: a.example");
        assert!(lines[1].starts_with("denied  b.example") && !lines[1].contains('\u{1b}'), "{shown}");
        assert_eq!(lines[2], "allowed a.example:443  12×  ↑ 900 B  ↓ 3 MB  by a.example:443");
        let nothing = JobEgress { allowed: vec![], counters: vec![], ..egress };
        assert_eq!(text(Paint::Plain, &nothing), "allowed hosts: none");
    }
}
