//! The egress proxy on the real engine: a job reaches the hosts of its list by the proxy variables and by their names, with
//! the programs of the image, and nothing else.
//!
//! The hosts are those that this machine's package managers are set to, and must be reachable.

use std::{collections::BTreeSet, net::ToSocketAddrs as _, process::Command};

use protocol::{EgressDecision, EventData, JobId};
use serde_json::json;
use tests::User;

use crate::{engine, jobs::tool_result, stack::Stack};

/// From here on no program uses the proxy: hosts are reached by their names alone.
const WITHOUT_PROXY: &str = "unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY";
/// The status of a request, or the exit code of curl.
const STATUS: &str = "curl -sS -m 20 -o /dev/null -w '%{http_code} '";

/// The host of npm's registry, which speaks TLS.
fn tls_host() -> String {
    let output = Command::new("npm").args(["config", "get", "registry"]).output().expect("npm runs");
    host_of(&String::from_utf8(output.stdout).unwrap(), "https://").expect("npm's registry is an https URL")
}

/// The host of a package source of this machine, which speaks plain HTTP.
fn plain_host() -> String {
    let files = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let found = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    let mut sources = found.filter(|line| !line.trim_start().starts_with('#'));
    sources.find_map(|line| host_of(&line, "http://")).expect("a package source with an http URL")
}

fn host_of(text: &str, scheme: &str) -> Option<String> {
    let (_, rest) = text.split_once(scheme)?;
    Some(rest.split(['/', ' ', '\n']).next()?.to_owned())
}

/// The operator's ceiling: all public hosts, and the addresses of these hosts where they are not public.
fn ceiling(hosts: &[&str]) -> String {
    let addresses = hosts.iter().flat_map(|host| (*host, 443).to_socket_addrs().expect("the host resolves"));
    let addresses: BTreeSet<String> = addresses
        .flat_map(|address| {
            let host = if address.is_ipv6() { format!("[{}]", address.ip()) } else { address.ip().to_string() };
            [format!("{host}:443"), format!("{host}:80")]
        })
        .collect();
    let mut entries = vec!["*".to_owned(), "*:80".to_owned()];
    entries.extend(addresses);
    entries.join(",")
}

/// The decisions about a job's connections: `host:port`, the decision and its rule.
async fn decisions(user: &User, job: JobId) -> Vec<(String, EgressDecision, String)> {
    let events = user.events(job).await.into_iter();
    let decision = |data| match data {
        EventData::Egress { host, port, decision, rule, count: 1.., .. } => {
            Some((format!("{host}:{port}"), decision, rule))
        }
        _ => None,
    };
    events.filter_map(|event| decision(event.data)).collect()
}

async fn run(user: &User, script: &str, allow: &[String]) -> (JobId, String) {
    let body = json!({
        "prompt": "run: bash script.sh",
        "files": [{"path": "script.sh", "content": script}],
        "egress": {"allow": allow},
    });
    let id = user.create(body).await;
    let (_, _, output) = tool_result(user, id).await;
    (id, output)
}

#[tokio::test]
async fn a_listed_host_is_reached_by_proxy_and_by_name_with_the_programs_of_the_image() {
    let (tls, plain) = (tls_host(), plain_host());
    let stack = Stack::builder().set("GANTRY_EGRESS_CEILING", &ceiling(&[&tls, &plain])).start().await;
    let ada = stack.user("ada").await;
    let python = |url: &str| {
        format!("python3 -c \"import urllib.request as r; print(r.urlopen('{url}', timeout=20).status, end=' ')\"")
    };
    let requests =
        format!("{STATUS} https://{tls}/\n{STATUS} http://{plain}/debian/\n{}\n", python(&format!("https://{tls}/")));
    let script = format!(
        "{requests}{WITHOUT_PROXY}\n{requests}\
         git ls-remote https://{tls}/none 2>&1 | grep -o 'not found'\n\
         getent hosts {tls} | cut -d' ' -f1\n"
    );
    let (id, output) = run(&ada, &script, &[tls.clone(), format!("{plain}:80")]).await;
    let words: Vec<&str> = output.split_whitespace().collect();
    assert_eq!(words[..6], ["200"; 6], "{output}");
    assert_eq!(words[6..9], ["not", "found", "127.0.64.1"], "{output}");
    let decisions = decisions(&ada, id).await;
    assert!(decisions.iter().all(|(_, decision, _)| *decision == EgressDecision::Allowed), "{decisions:#?}");
    let egress = ada.get(&format!("/api/jobs/{id}/egress")).await.expect(200).body;
    assert_eq!(egress["is_complete"], true);
    let counters = egress["counters"].as_array().unwrap();
    let of = |host: &str| counters.iter().find(|counter| counter["host"] == host).unwrap();
    assert!(of(&tls)["bytes_down"].as_u64() > Some(10_000) && of(&tls)["count"].as_u64() >= Some(5), "{egress:#}");
    assert!(of(&plain)["bytes_down"].as_u64() > Some(100) && of(&plain)["count"] == 2, "{egress:#}");
    let token = stack.token("ada", "user").await;
    let shown = stack.gantry_as(&token, &["job", "egress", &id.to_string()]).await;
    assert!(shown.stdout.contains(&format!("allowed {tls}:443")), "{shown:?}");
    stack.finish().await;
}

#[tokio::test]
async fn everything_else_is_refused_and_each_refusal_is_an_event() {
    let (tls, plain) = (tls_host(), plain_host());
    let stack = Stack::builder().set("GANTRY_EGRESS_CEILING", &ceiling(&[&tls, &plain])).start().await;
    let ada = stack.user("ada").await;
    let address = (tls.as_str(), 443).to_socket_addrs().unwrap().next().unwrap().ip();
    // Another name for the same server, in TLS: to the listed host's tunnel.
    let wrong_name =
        format!("curl -sS -m 20 -k -o /dev/null --connect-to ::{tls}:443 https://{plain}/ 2>&1; echo \"exit $?\"");
    // One line for each request.
    let script = format!(
        "try() {{ echo \"$({STATUS} \"$@\" 2>&1 | tr '\\n' ' ')\"; }}\n\
         try https://{plain}/\n\
         try https://{address}/\n\
         try http://169.254.169.254/latest/\n\
         try -x http://127.0.0.1:3128 --noproxy '' https://localhost/\n\
         try http://{tls}/\n\
         {WITHOUT_PROXY}\n\
         try https://{plain}/\n\
         {wrong_name}\n\
         export https_proxy=http://127.0.0.1:3128\n\
         {wrong_name}\n\
         curl -sS -m 20 -x http://127.0.0.1:3128 http://{tls}/\n"
    );
    let (id, output) = run(&ada, &script, std::slice::from_ref(&tls)).await;
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].contains("403") && lines[1].contains("403") && lines[2].starts_with("403"), "{output}");
    assert!(lines[3].contains("403") && lines[4].starts_with("403"), "{output}");
    assert!(lines[5].contains("Could not resolve host"), "{output}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("exit ") && **line != "exit 0").count(), 2, "{output}");
    assert!(output.contains(&format!("{tls}:80 is not in the job's egress.allow")), "{output}");
    let decisions = decisions(&ada, id).await;
    let is_refused = |host: &str, rule: &str| {
        let wanted = (host.to_owned(), EgressDecision::Denied, rule.to_owned());
        assert!(decisions.contains(&wanted), "{wanted:?} in {decisions:#?}");
    };
    is_refused(&format!("{plain}:443"), "egress.allow");
    is_refused(&format!("{address}:443"), "egress.allow");
    is_refused("169.254.169.254:80", "egress.allow");
    is_refused("localhost:443", "egress.allow");
    is_refused(&format!("{tls}:80"), "egress.allow");
    is_refused(&format!("{tls}:443"), "tls.sni");
    stack.finish().await;
}

#[tokio::test]
async fn a_job_without_a_list_has_no_listener_and_may_use_the_ports() {
    let tls = tls_host();
    let stack = Stack::builder().set("GANTRY_EGRESS_CEILING", &ceiling(&[&tls])).start().await;
    let ada = stack.user("ada").await;
    let listeners = "python3 -c \"print(sorted(l.split()[1] for l in open('/proc/net/tcp') if l.split()[3] == '0A'))\"";
    let script = format!(
        "{listeners}\nenv | grep -ci proxy\n{STATUS} https://{tls}/ 2>&1\ngetent hosts {tls} || echo no name\n\
         python3 -c \"import socket; socket.create_server(('127.0.0.1', 3128)); print('bound')\"\n"
    );
    let (id, output) = run(&ada, &script, &[]).await;
    assert!(output.starts_with("[]\n0\n"), "{output}");
    assert!(output.contains("Could not resolve host") && output.contains("no name\nbound"), "{output}");
    assert_eq!(decisions(&ada, id).await, []);
    // With a list: the addresses are taken before the first command, and only they are.
    let script = format!(
        "{listeners}\nfor at in 127.0.0.1:3128 127.0.64.1:443; do python3 -c \"import socket, sys; a = sys.argv[1].split(':'); \
         socket.create_server((a[0], int(a[1])))\" $at 2>&1 | tail -1; done\n"
    );
    let held = json!({
        "prompt": "run: bash script.sh; until [ -e go ]; do sleep 0.05; done",
        "files": [{"path": "script.sh", "content": script}],
        "egress": {"allow": [&tls]},
    });
    let id = ada.create(held).await;
    ada.wait_for_event(id, "the tool call", crate::jobs::is_tool_use).await;
    let name = ada.job(id).await.container.unwrap().name;
    let inspected = engine::inspect(&name).await;
    assert_eq!(inspected["HostConfig"]["ExtraHosts"], json!([format!("{tls}:127.0.64.1")]));
    assert_eq!(inspected["HostConfig"]["Sysctls"]["net.ipv4.ip_unprivileged_port_start"], "0");
    crate::jobs::release(&stack, id);
    let (_, _, output) = tool_result(&ada, id).await;
    assert!(output.starts_with("['0100007F:0C38', '0140007F:01BB']\n"), "{output}");
    assert_eq!(output.matches("Address already in use").count(), 2, "{output}");
    stack.finish().await;
}

#[tokio::test]
async fn thousands_of_connections_of_one_job_leave_others_alone() {
    let tls = tls_host();
    let stack = Stack::builder()
        .set("GANTRY_EGRESS_CEILING", &ceiling(&[&tls]))
        .set("GANTRY_MAX_PARALLEL_JOBS", "2")
        .set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", "2")
        .start()
        .await;
    let ada = stack.user("ada").await;
    let flood = "import socket\n\
        opened = []\n\
        for number in range(2000):\n    \
            s = socket.socket()\n    \
            s.settimeout(0.005)\n    \
            try:\n        \
                s.connect(('127.0.0.1', 3128))\n        \
                s.send(b'CONNECT HOST:443 HTTP/1.1\\r\\n\\r\\n')\n        \
                opened.append(s)\n    \
            except OSError:\n        \
                pass\n\
        print('flooded', len(opened) > 64)\n"
        .replace("HOST", &tls);
    let flooding = ada
        .create(json!({
            "prompt": "run: python3 flood.py; until [ -e go ]; do sleep 0.05; done",
            "files": [{"path": "flood.py", "content": flood}],
            "egress": {"allow": [&tls]},
        }))
        .await;
    ada.wait_for_event(flooding, "connections", |event| matches!(event.data, EventData::Egress { .. })).await;
    let (_, output) = run(&ada, &format!("{STATUS} https://{tls}/"), std::slice::from_ref(&tls)).await;
    assert!(output.starts_with("200"), "{output}");
    crate::jobs::release(&stack, flooding);
    let (_, _, output) = tool_result(&ada, flooding).await;
    assert!(output.contains("flooded True"), "{output}");
    stack.finish().await;
}
