//! `gantry notification`: what Gantry and its agents have told the caller.

use clap::{Args, Subcommand};
use protocol::{Notification, NotificationId, NotificationPage, NotificationsRead, ReadNotifications};

use crate::{
    client::{Client, Nothing, PageArgs, pages, zones},
    exit::CliError,
    ids::{IdArg, short_id},
    output::{Output, TableArgs, escape_control_chars, local_time, one_line},
};

#[derive(Debug, Subcommand)]
pub enum NotificationCommand {
    /// List your notifications, newest first
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Mark notifications as read
    Read {
        /// Notification ids
        #[arg(required_unless_present = "all")]
        ids: Vec<IdArg<NotificationId>>,
        /// All that there are now
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only notifications that are not marked as read
    #[arg(long)]
    unread: bool,
    /// Only notifications whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

pub(crate) async fn run(command: NotificationCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        NotificationCommand::Ls(args) => list(client, args, output).await,
        NotificationCommand::Read { all: true, .. } => read_all(client, output).await,
        NotificationCommand::Read { ids, .. } => {
            for id in ids {
                let id = id.resolve(client).await?;
                let path = format!("/api/notifications/{id}/read");
                let read: Notification = client.post(&path, &(), None).await?;
                output.either(&read, |_| format!("{id} read"))?;
            }
            Ok(())
        }
    }
}

/// Marks the newest notification and all before it as read: one that comes meanwhile stays unread.
async fn read_all(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let newest: NotificationPage =
        client.get("/api/notifications", &[("unread", "true".to_owned()), ("limit", "1".to_owned())]).await?;
    let read: NotificationsRead = match newest.items.first() {
        Some(one) => client.post("/api/notifications/read", &ReadNotifications { up_to: one.id }, None).await?,
        None => NotificationsRead { count: 0 },
    };
    output.either(&read, |_| format!("{} read", read.count))
}

async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<(), CliError> {
    let mut query: Vec<_> = args.unread.then(|| ("unread", "true".to_owned())).into_iter().collect();
    let matches = if args.id.is_none() { "no unread notifications" } else { "no notification matches" };
    let none = Nothing { yet: "no notifications yet", matches };
    query.extend(args.id.map(|part| ("id", part)));
    let read = pages::read::<Notification>(client, ("/api/notifications", &query), &args.page, output).await?;
    let Some((notifications, cursor)) = read else { return Ok(()) };
    if notifications.is_empty() && cursor.is_none() && !args.page.table.quiet {
        none.note(!query.is_empty() || args.page.cursor.is_some(), output);
        return Ok(());
    }
    zones::shown(client, output).await;
    for one in &notifications {
        let text = if args.page.table.quiet { one.id.to_string() } else { describe(one, &args.page.table, output) };
        output.line(&text)?;
    }
    pages::note_next(cursor.as_deref(), output);
    Ok(())
}

/// Two lines or more: what identifies it, and its text.
fn describe(notification: &Notification, args: &TableArgs, output: &Output) -> String {
    let paint = output.paint;
    let id = notification.id.to_string();
    let id = if args.no_trunc { id } else { short_id(&id) };
    let title = one_line(&notification.title);
    let title = if notification.read_at.is_some() { title } else { paint.bold(&title) };
    let (sign, at) =
        (if notification.read_at.is_some() { " " } else { "●" }, local_time(notification.created_at, output.zone()));
    let text = escape_control_chars(notification.text.trim_end()).replace('\n', "\n    ");
    let kind = if args.wide { format!("  {}", notification.kind) } else { String::new() };
    format!("{id}  {sign} {at}  {title}{kind}\n    {text}")
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
            gate_id: None,
            thread_id: None,
            channel: None,
            created_at: chrono::DateTime::UNIX_EPOCH,
            read_at: None,
            deliveries: vec![],
        };
        let (output, _) = Output::captured(crate::output::Format::Text);
        let text = describe(&notification, &TableArgs::default(), &output);
        assert_eq!(text, "00000000  ● 1970-01-01 00:00:00 UTC  t␛[2J\n    first\n    second␇");
        notification.read_at = Some(chrono::DateTime::UNIX_EPOCH);
        assert!(describe(&notification, &TableArgs::default(), &output).starts_with("00000000    1970"));
    }
}
