//! Lists of the command line: what an empty one says, and that all pages are one document.

use orchestrator::auth::Role;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{World, install::program};

/// What `gantry` as ada needs.
fn environment(world: &World) -> [(String, String); 2] {
    let url = world.user("ada").base().to_owned();
    let variables = [("GANTRY_URL", url), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    variables.map(|(name, value)| (name.to_owned(), value))
}

#[rstest]
#[case::jobs("job list", "--q none", "no jobs yet; start one with `gantry job run", "no job matches")]
#[case::unfinished_jobs("job ps", "--q none", "no job runs or waits; `gantry job list` shows", "no job matches")]
#[case::routines(
    "routine list",
    "--q none",
    "no routines yet; `gantry routine create --help` shows",
    "no routine matches"
)]
#[case::runs("runs list", "--status ok", "no runs yet; `gantry routine run NAME` starts one", "no run matches")]
#[case::notifications("notification list", "--id 01a2", "no notifications yet", "no notification matches")]
#[case::unread("notification list", "--unread", "no notifications yet", "no unread notifications")]
#[case::gates("gate list", "--state denied", "no tool call waits for your approval", "no gate matches")]
#[case::threads("chat threads", "--id 01a2", "no threads yet; `gantry chat` starts one", "no thread matches")]
#[tokio::test]
async fn an_empty_list_says_whether_there_is_nothing_or_nothing_matches(
    #[case] list: &str,
    #[case] filter: &str,
    #[case] none: &str,
    #[case] no_match: &str,
) {
    let world = World::new().await;
    let environment = environment(&world);
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (arguments, expected) in [(words(list), none), ([words(list), words(filter)].concat(), no_match)] {
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = program::run(&arguments, &environment).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
        assert!(ended.stderr.starts_with(&format!("gantry: {expected}")), "{ended:?}");
        arguments.push("--quiet");
        let quiet = program::run(&arguments, &environment).await;
        assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(0), "", ""), "{quiet:?}");
        arguments.pop();
        arguments.push("--json");
        assert_eq!(program::run(&arguments, &environment).await.json()["items"], json!([]));
    }
    world.finish().await;
}

/// More than a page of `--all` has.
const MANY: usize = 203;

#[tokio::test]
async fn all_pages_of_a_list_are_one_document() {
    let world = World::new().await;
    let ada = world.user("ada");
    for _ in 0..MANY {
        ada.create(json!({"prompt": "work", "hold": true})).await;
    }
    let environment = environment(&world);
    let listed = program::run(&["job", "list", "--all", "--json"], &environment).await.json();
    assert_eq!((listed["items"].as_array().map(Vec::len), &listed["next_cursor"]), (Some(MANY), &Value::Null));
    let page = program::run(&["job", "list", "--limit", "2", "--json"], &environment).await.json();
    assert_eq!((page["items"].as_array().map(Vec::len), page["next_cursor"].is_string()), (Some(2), true));
    for job in listed["items"].as_array().unwrap() {
        ada.cancel(job["id"].as_str().unwrap().parse().unwrap()).await.expect(202);
    }
    world.finish().await;
}
