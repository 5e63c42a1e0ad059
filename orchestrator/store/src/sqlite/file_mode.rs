//! The access mode of the database files. Never opens the database.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Makes the database and the two files beside it private to their owner. SQLite gives its other files the mode of the
/// database.
pub(crate) fn restrict_to_owner(url: &str, file: &Path) {
    if [":memory:", "mode=memory", "mode=ro"].iter().any(|word| url.contains(word)) {
        return;
    }
    // An unusable path is reported when it is opened.
    let _ = OpenOptions::new().append(true).create(true).mode(0o600).open(file);
    for end in ["", "-wal", "-shm"] {
        let mut path = file.as_os_str().to_owned();
        path.push(end);
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let (path, for_others) = (Path::new(&path), metadata.permissions().mode() & 0o077);
        if for_others > 0
            && let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        {
            tracing::warn!(path = %path.display(), %error, "other users can read the database; give it mode 0600");
        }
    }
}
