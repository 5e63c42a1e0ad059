//! `gantry notification`: what Gantry and its agents have told the caller.

use chrono_tz::Tz;
use clap::{Args, Subcommand};
use protocol::{Notification, NotificationId, Page};

use super::{
    client::Client,
    exit::{CliError, Exit},
    ids::{IdArg, short_id},
    output::{Output, Paint},
    pages,
    table::local_time,
    text::{escape_control_chars, one_line},
};
use crate::config::Environment;

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(super) enum NotificationCommand {
    /// List your notifications, newest first
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Mark notifications as read
    Read {
        /// Notification ids
        #[arg(required = true)]
        ids: Vec<IdArg<NotificationId>>,
    },
}

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Only notifications that are not marked as read
    #[arg(long)]
    unread: bool,
    /// Only notifications whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    /// Maximum number of items
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
}

pub(super) async fn run(
    command: NotificationCommand,
    environment: &Environment,
    output: &mut Output,
) -> Result<Exit, CliError> {
    let client = Client::from_environment(environment)?;
    match command {
        NotificationCommand::Ls(args) => list(&client, args, output).await,
        NotificationCommand::Read { ids } => {
            for id in ids {
                let id = id.resolve(&client).await?;
                let path = format!("/api/notifications/{id}/read");
                let read: Notification = client.post(&path, &(), None).await?;
                output.either(&read, |_| format!("{id} read"))?;
            }
            Ok(Exit::Success)
        }
    }
}

async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut query = vec![("limit", args.limit.to_string())];
    query.extend(args.unread.then(|| ("unread", "true".to_owned())));
    let optional = [("id", args.id), ("cursor", args.cursor)];
    query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let page: Page<Notification> = client.get("/api/notifications", &query).await?;
    let zone = output.zone;
    output.either(&page, |paint| {
        page.items.iter().map(|one| describe(paint, one, zone)).collect::<Vec<_>>().join("\n")
    })?;
    pages::note_next(page.next_cursor.as_deref(), output);
    Ok(Exit::Success)
}

/// Two lines or more: what identifies it, and its text.
fn describe(paint: Paint, notification: &Notification, zone: Tz) -> String {
    let title = one_line(&notification.title);
    let title = if notification.read_at.is_some() { title } else { paint.bold(&title) };
    let (sign, at) =
        (if notification.read_at.is_some() { " " } else { "●" }, local_time(notification.created_at, zone));
    let text = escape_control_chars(notification.text.trim_end()).replace('\n', "\n    ");
    format!("{sign} {at}  {title}  {}\n    {text}", paint.dim(&short_id(&notification.id.to_string())))
}

#[cfg(test)]
mod tests {
    use protocol::NotificationKind;

    use super::*;

    #[test]
    fn text_from_agents_is_escaped_and_unread_ones_are_marked() {
        let mut notification = Notification {
            id: NotificationId::nil(),
            kind: NotificationKind::Message,
            title: "t\x1b[2J".to_owned(),
            text: "first\nsecond\x07\n".to_owned(),
            routine_id: None,
            run_id: None,
            job_id: None,
            channel: None,
            created_at: chrono::DateTime::UNIX_EPOCH,
            read_at: None,
            deliveries: vec![],
        };
        let text = describe(Paint::Plain, &notification, Tz::UTC);
        assert_eq!(text, "● 1970-01-01 00:00:00 UTC  t␛[2J  00000000\n    first\n    second␇");
        notification.read_at = Some(chrono::DateTime::UNIX_EPOCH);
        assert!(describe(Paint::Plain, &notification, Tz::UTC).starts_with("  1970"));
    }
}
