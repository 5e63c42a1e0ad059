//! The files of the dashboard: the shell and what it loads, embedded unchanged.
//!
//! Owns their paths, which name the version of all of them, and the policy of the shell. Never serves anything: `http` does.

use std::borrow::Cow;

use base::digest::sha256_hex_of_parts;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rust_embed::RustEmbed;
use sha2::{Digest as _, Sha256};

const SHELL: &str = "index.html";
/// Where the shell names the version of the files.
const VERSION_MARK: &str = "@HASH@";
/// Digits of the version.
const VERSION_DIGITS: usize = 16;
/// The only inline script of the shell.
const IMPORT_MAP: &str = "<script type=\"importmap\">";

#[derive(RustEmbed)]
#[folder = "."]
#[include = "index.html"]
#[include = "app.css"]
#[include = "icons.svg"]
#[include = "app/*.js"]
#[include = "app/**/*.js"]
#[include = "vendor/*.js"]
#[include = "vendor/LICENSES"]
struct Files;

/// One file that the shell loads.
pub struct File {
    /// Its path below `/assets/<version>/`.
    pub path: String,
    pub content_type: &'static str,
    pub content: Cow<'static, [u8]>,
}

/// The dashboard, ready to be served.
pub struct Dashboard {
    /// The page, the same for every URL.
    pub shell: String,
    /// The `Content-Security-Policy` of the shell.
    pub policy: String,
    /// The first part of the files' paths: it changes when any of them does.
    pub version: String,
    pub files: Vec<File>,
}

impl Dashboard {
    /// Loads the files.
    pub fn load() -> Self {
        let read = |path: &str| Files::get(path).map(|file| file.data).unwrap_or_default();
        let mut files: Vec<File> = Files::iter()
            .map(|path| File { content_type: content_type(&path), content: read(&path), path: path.into_owned() })
            .collect();
        files.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        let parts: Vec<&[u8]> = files.iter().flat_map(|file| [file.path.as_bytes(), b"\0", &file.content]).collect();
        let mut version = sha256_hex_of_parts(&parts);
        version.truncate(VERSION_DIGITS);
        files.retain(|file| file.path != SHELL);
        let shell = String::from_utf8_lossy(&read(SHELL)).replace(VERSION_MARK, &version);
        let policy = policy(&shell);
        Self { shell, policy, version, files }
    }
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

/// Only the server's own files, and the import map by its digest. Nothing makes a script from a text.
fn policy(shell: &str) -> String {
    let map = shell.split_once(IMPORT_MAP).and_then(|(_, after)| after.split_once("</script>"));
    let map = map.map_or("", |(map, _)| map);
    let digest = BASE64_STANDARD.encode(Sha256::digest(map));
    format!(
        "default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; \
         connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_names_only_files_that_there_are() {
        let dashboard = Dashboard::load();
        let prefix = format!("/assets/{}/", dashboard.version);
        let named: Vec<&str> =
            dashboard.shell.split(&prefix).skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert!(!named.is_empty() && !dashboard.shell.contains(VERSION_MARK));
        assert_eq!(dashboard.shell.matches(IMPORT_MAP).count(), 1);
        for path in named.iter().filter(|path| !path.ends_with('/')) {
            assert!(dashboard.files.iter().any(|file| file.path == *path), "{path}");
        }
    }

    /// Each file is loaded by another one, or by the shell.
    #[test]
    fn no_file_is_left_over() {
        let dashboard = Dashboard::load();
        let texts: Vec<String> =
            dashboard.files.iter().map(|file| String::from_utf8_lossy(&file.content).into_owned()).collect();
        for file in dashboard.files.iter().filter(|file| file.path != "vendor/LICENSES") {
            let name = file.path.rsplit('/').next().unwrap();
            let is_named = texts.iter().chain([&dashboard.shell]).any(|text| text.contains(name));
            assert!(is_named, "{} is not used", file.path);
        }
    }
}
