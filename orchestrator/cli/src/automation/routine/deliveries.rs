//! `gantry routine deliveries`: the deliveries to a webhook, with their outcomes.

use clap::Args;
use protocol::WebhookDelivery;

use super::{PATH, id_of};
use crate::{
    client::{Client, List, Nothing, PageArgs},
    exit::CliError,
    output::{Column, Output, one_line},
};

#[derive(Debug, Args)]
pub struct DeliveriesArgs {
    /// Name or id of the routine
    routine: String,
    #[command(flatten)]
    page: PageArgs,
}

const DELIVERIES: List<WebhookDelivery> = List {
    columns: &[
        Column::number("age", |delivery, view| view.age(delivery.at)),
        Column::<WebhookDelivery>::text("received", |delivery, view| view.time(delivery.at)).wide(),
        Column::text("outcome", |delivery, _| delivery.verdict.to_string()),
        Column::number("status", |delivery, _| delivery.status.to_string()),
        Column::text("run", |delivery, view| delivery.run_id.map(|id| view.id(&id)).unwrap_or_default()),
        Column::flexible("id", |delivery, _| one_line(&delivery.id)),
    ],
    id: |delivery| one_line(&delivery.id),
    none: Nothing { yet: "no deliveries yet", matches: "no delivery matches" },
};

pub(super) async fn list(client: &Client, args: DeliveriesArgs, output: &mut Output) -> Result<(), CliError> {
    let id = id_of(client, &args.routine).await?;
    DELIVERIES.print(client, (&format!("{PATH}/{id}/deliveries"), &[]), &args.page, output).await
}
