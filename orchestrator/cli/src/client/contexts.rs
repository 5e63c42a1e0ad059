//! The contexts file: servers with their tokens, by name, and which one is used.
//!
//! Owns the file, which only its user can read. Never contacts a server.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::{exit::CliError, unix};
use base::Environment;

const DIRECTORY: &str = "gantry";
const FILE: &str = "contexts.json";
/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// A server and the token for it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Context {
    /// The URL of the server.
    pub(crate) url: String,
    token: String,
}

impl Context {
    pub(crate) const fn new(url: String, token: String) -> Self {
        Self { url, token }
    }

    /// The access token.
    pub(crate) fn token(&self) -> SecretString {
        SecretString::from(self.token.as_str())
    }
}

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Contexts {
    /// The name of the one that is used.
    current: Option<String>,
    contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// The file, in the user's configuration directory. `None` if neither `XDG_CONFIG_HOME` nor `HOME` is set.
    pub(crate) fn file(environment: &Environment) -> Option<PathBuf> {
        let set = environment.get("XDG_CONFIG_HOME").map(PathBuf::from).filter(|directory| directory.is_absolute());
        let home = || environment.get("HOME").map(|home| Path::new(home).join(".config"));
        set.or_else(home).map(|directory| directory.join(DIRECTORY).join(FILE))
    }

    /// Reads the file. There are no contexts if it does not exist.
    pub(crate) fn load(environment: &Environment) -> Result<Self, CliError> {
        let Some(file) = Self::file(environment) else { return Ok(Self::default()) };
        let invalid = |why: String| CliError::Usage(format!("{}: {why}", file.display()));
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(invalid(format!("cannot read the file: {error}"))),
        };
        if unix::is_shared(&file).map_err(|error| invalid(error.to_string()))? {
            return Err(invalid(format!(
                "other users can read the tokens in this file; run: chmod 600 {}",
                file.display()
            )));
        }
        // The text of a parser's error may repeat a token.
        serde_json::from_str(&text).map_err(|error| {
            invalid(format!("is not valid at line {}; remove the file and run `gantry login`", error.line()))
        })
    }

    /// Replaces the file, readable by its user only.
    pub(crate) fn save(&self, environment: &Environment) -> Result<PathBuf, CliError> {
        let file = Self::file(environment)
            .ok_or_else(|| CliError::Usage("set HOME or XDG_CONFIG_HOME: contexts are saved there".to_owned()))?;
        let directory = file.parent().unwrap_or(Path::new("/"));
        let failed = |error: std::io::Error| CliError::failed(&format!("cannot write {}", file.display()), error);
        unix::create_private_dir(directory).map_err(failed)?;
        let text = serde_json::to_string_pretty(self).map_err(|error| CliError::failed("cannot write JSON", error))?;
        let temporary = directory.join(format!(".{FILE}.{}", std::process::id()));
        // One that is left over belonged to a process that no longer exists.
        let _ = fs::remove_file(&temporary);
        let mut created = unix::create_private_file(&temporary).map_err(failed)?;
        created.write_all(format!("{text}\n").as_bytes()).map_err(failed)?;
        created.sync_all().map_err(failed)?;
        fs::rename(&temporary, &file).map_err(failed)?;
        Ok(file)
    }

    /// The context with this name, or the current one.
    pub(crate) fn get(&self, name: Option<&str>) -> Result<Option<&Context>, CliError> {
        let Some(name) = name.or(self.current.as_deref()) else { return Ok(None) };
        self.contexts.get(name).map(Some).ok_or_else(|| self.unknown(name))
    }

    /// The current context's name.
    pub(crate) fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    /// All contexts by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Context)> {
        self.contexts.iter()
    }

    /// Adds or replaces a context and makes it the current one.
    pub(crate) fn insert(&mut self, name: &str, context: Context) {
        self.contexts.insert(name.to_owned(), context);
        self.current = Some(name.to_owned());
    }

    /// Makes a context the current one.
    pub(crate) fn select(&mut self, name: &str) -> Result<(), CliError> {
        if !self.contexts.contains_key(name) {
            return Err(self.unknown(name));
        }
        self.current = Some(name.to_owned());
        Ok(())
    }

    /// Removes a context. Afterwards no context is current if it was.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), CliError> {
        if self.contexts.remove(name).is_none() {
            return Err(self.unknown(name));
        }
        self.current.take_if(|current| current == name);
        Ok(())
    }

    fn unknown(&self, name: &str) -> CliError {
        let names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
        let known = if names.is_empty() {
            "there are none; `gantry login` creates one".to_owned()
        } else {
            format!("there are: {}", names.join(", "))
        };
        CliError::NotFound(format!("no context {name}; {known}"))
    }
}

/// Parses a context's name: letters, digits and `._-`.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err(format!("must be 1 to {MAX_NAME_BYTES} letters, digits and ._-"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn home(directory: &Path) -> Environment {
        Environment::from_pairs([("HOME", directory.to_str().unwrap())])
    }

    #[test]
    fn contexts_are_saved_for_their_user_only() {
        let directory = tempfile::tempdir().unwrap();
        let environment = home(directory.path());
        let mut contexts = Contexts::load(&environment).unwrap();
        assert!(contexts.get(None).unwrap().is_none());
        for (name, url) in [("work", "https://w"), ("home", "http://h")] {
            contexts.insert(name, Context::new(url.to_owned(), "t".to_owned()));
        }
        let file = contexts.save(&environment).unwrap();
        assert_eq!(file, directory.path().join(".config/gantry/contexts.json"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");

        let mut contexts = Contexts::load(&environment).unwrap();
        let url = |contexts: &Contexts, name| contexts.get(name).map(|context| context.map(|one| one.url.clone()));
        assert_eq!(url(&contexts, None).unwrap().as_deref(), Some("http://h"), "the last one is current");
        contexts.select("work").unwrap();
        assert_eq!(url(&contexts, None).unwrap().as_deref(), Some("https://w"));
        let unknown = url(&contexts, Some("other")).unwrap_err().to_string();
        assert_eq!(unknown, "no context other; there are: home, work");
        contexts.remove("work").unwrap();
        assert!(url(&contexts, None).unwrap().is_none());
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_damaged_is_refused_without_showing_it() {
        let directory = tempfile::tempdir().unwrap();
        let environment = home(directory.path());
        let file = Contexts::default().save(&environment).unwrap();
        fs::write(&file, r#"{"contexts": {"a": {"url": "u", "token": secret-token}}}"#).unwrap();
        let error = Contexts::load(&environment).err().unwrap().to_string();
        assert!(error.contains("line 1") && !error.contains("secret-token"), "{error}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Contexts::load(&environment).err().unwrap().to_string().contains("chmod 600"));
    }
}
