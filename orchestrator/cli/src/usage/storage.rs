//! `gantry storage`: how much a user stores, by kind.

use clap::Args;
use protocol::UserStorage;

use crate::{client::Client, exit::CliError, output::Output};

#[derive(Debug, Args)]
pub struct StorageArgs {
    /// What this user stores (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

pub(crate) async fn run(args: StorageArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let query: Vec<_> = args.user.map(|user| ("user", user)).into_iter().collect();
    let storage: UserStorage = client.get("/api/storage", &query).await?;
    output.either(&storage, |_| text(&storage))
}

fn text(storage: &UserStorage) -> String {
    let mut lines: Vec<String> = storage.kinds.iter().map(|one| format!("{:<12} {}", one.kind, one.bytes)).collect();
    let max = storage.max_bytes.map(|max| format!(" of {max}")).unwrap_or_default();
    lines.push(format!("{:<12} {}{max} bytes", "total", storage.bytes));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use protocol::{StorageKind, StoredBytes};

    use super::*;

    #[test]
    fn each_kind_has_a_line_and_the_total_names_the_limit() {
        let kinds = vec![StoredBytes { kind: StorageKind::Memory, bytes: 7 }];
        let mut storage = UserStorage { bytes: 7, max_bytes: Some(10), kinds };
        assert_eq!(text(&storage), "memory       7\ntotal        7 of 10 bytes");
        storage.max_bytes = None;
        assert_eq!(text(&storage), "memory       7\ntotal        7 bytes");
    }
}
