//! Which server a command talks to, and with which token.
//!
//! Owns the options and their precedence: options, then environment variables, then the context. A context's token is
//! sent to the context's server only.

use clap::{Arg, ArgMatches, Command};
use secrecy::SecretString;

use super::contexts::{Contexts, parse_name};
use crate::exit::CliError;
use base::Environment;

pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8080";
const HEADING: &str = "Server";
/// The ids of the options that select a server.
pub const OPTIONS: [&str; 3] = [URL, TOKEN_FILE, CONTEXT];
const URL: &str = "server-url";
const TOKEN_FILE: &str = "server-token-file";
const CONTEXT: &str = "server-context";

/// A server and the token for it.
pub struct Connection {
    pub url: String,
    /// Where the URL is from, for messages.
    pub source: String,
    /// The token, if there is one.
    pub token: Option<SecretString>,
}

impl Connection {
    /// The connection that the environment and the contexts select.
    pub fn from_environment(environment: &Environment) -> Result<Self, CliError> {
        let set_url = environment.get("GANTRY_URL");
        let set_token = token(environment)?;
        let named = environment.get("GANTRY_CONTEXT");
        if named.is_none()
            && let (Some(url), Some(token)) = (set_url, &set_token)
        {
            // The contexts are not needed, so a file that cannot be read does not matter.
            return Ok(Self { url: url.to_owned(), source: "GANTRY_URL".to_owned(), token: Some(token.clone()) });
        }
        let contexts = Contexts::load(environment)?;
        let context = contexts.get(named)?;
        let name = named.or(contexts.current()).unwrap_or_default();
        let (url, source) = match (set_url, context) {
            (Some(url), _) => (url.to_owned(), "GANTRY_URL".to_owned()),
            (None, Some(context)) => (context.url.clone(), format!("context {name}")),
            (None, None) => (DEFAULT_URL.to_owned(), "default".to_owned()),
        };
        let of_context = context.filter(|context| is_same_server(&context.url, &url));
        let token = set_token.or_else(|| of_context.map(super::contexts::Context::token));
        Ok(Self { url, source, token })
    }
}

fn is_same_server(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

fn token(environment: &Environment) -> Result<Option<SecretString>, CliError> {
    if let Some(token) = environment.get("GANTRY_TOKEN") {
        return Ok(Some(SecretString::from(token.trim())));
    }
    let Some(file) = environment.get("GANTRY_TOKEN_FILE") else { return Ok(None) };
    read_token(file).map(Some)
}

pub(crate) fn read_token(file: &str) -> Result<SecretString, CliError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CliError::Usage(format!("token file {file}: cannot read the file: {error}")))?;
    Ok(SecretString::from(text.trim()))
}

/// Adds the options to a command and its subcommands.
pub fn with_options(command: Command) -> Command {
    command.args(options().map(|option| option.global(true)))
}

/// Adds the same options to the program, so that they can precede the command. Not every command uses them.
pub fn with_options_before_command(command: Command) -> Command {
    command.args(options())
}

fn options() -> [Arg; 3] {
    let option = |id: &'static str, long: &'static str, value: &'static str, help: &'static str| {
        Arg::new(id).long(long).value_name(value).help(help).help_heading(HEADING)
    };
    [
        option(URL, "url", "URL", "URL of the server [GANTRY_URL]"),
        option(TOKEN_FILE, "token-file", "FILE", "File that contains the access token [GANTRY_TOKEN_FILE]"),
        option(CONTEXT, "context", "NAME", "Use the server and token of this context [GANTRY_CONTEXT]")
            .value_parser(parse_name),
    ]
}

/// Whether one of the options is given.
pub fn has_values(matches: &ArgMatches) -> bool {
    OPTIONS.iter().any(|id| matches.try_get_one::<String>(id).ok().flatten().is_some())
}

/// The environment in which the options of a command take precedence.
pub fn with_values(mut environment: Environment, matches: &ArgMatches) -> Environment {
    let value = |id: &str| matches.try_get_one::<String>(id).ok().flatten();
    if let Some(context) = value(CONTEXT) {
        for name in ["GANTRY_URL", "GANTRY_TOKEN", "GANTRY_TOKEN_FILE"] {
            environment = environment.without(name);
        }
        environment = environment.with("GANTRY_CONTEXT", context);
    }
    if let Some(url) = value(URL) {
        environment = environment.with("GANTRY_URL", url);
    }
    if let Some(file) = value(TOKEN_FILE) {
        environment = environment.without("GANTRY_TOKEN").with("GANTRY_TOKEN_FILE", file);
    }
    environment
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use secrecy::ExposeSecret;

    use super::*;
    use crate::client::contexts::Context;

    /// The URL and token that the arguments and variables select, with the contexts `a` (current) and `b`.
    fn selected(arguments: &[&str], variables: &[(&str, &str)]) -> (String, Option<String>) {
        let directory = tempfile::tempdir().unwrap();
        let mut environment = Environment::from_pairs(variables.iter().copied());
        environment = environment.with("HOME", directory.path().to_str().unwrap());
        let mut contexts = Contexts::default();
        for name in ["b", "a"] {
            contexts.insert(name, Context::new(format!("http://{name}"), format!("token of {name}")));
        }
        contexts.save(&environment).unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "from a file\n").unwrap();
        let arguments = arguments.iter().map(|argument| argument.replace("FILE", file.to_str().unwrap()));
        let matches =
            with_options(Command::new("list")).get_matches_from(["list".to_owned()].into_iter().chain(arguments));
        let connection = Connection::from_environment(&with_values(environment, &matches)).unwrap();
        (connection.url, connection.token.map(|token| token.expose_secret().to_owned()))
    }

    #[rstest]
    #[case(&[], &[], "http://a", Some("token of a"))]
    #[case(&["--context", "b"], &[], "http://b", Some("token of b"))]
    #[case(&["--context", "b"], &[("GANTRY_URL", "http://e"), ("GANTRY_TOKEN", "e")], "http://b", Some("token of b"))]
    #[case(&[], &[("GANTRY_CONTEXT", "b")], "http://b", Some("token of b"))]
    #[case(&[], &[("GANTRY_TOKEN", "e")], "http://a", Some("e"))]
    #[case(&["--token-file", "FILE"], &[("GANTRY_TOKEN", "e")], "http://a", Some("from a file"))]
    #[case(&["--url", "http://u"], &[("GANTRY_URL", "http://e"), ("GANTRY_TOKEN", "e")], "http://u", Some("e"))]
    #[case(&["--url", "http://a/"], &[], "http://a/", Some("token of a"))]
    #[case(&["--url", "http://u"], &[], "http://u", None)]
    #[case(&[], &[("GANTRY_URL", "http://e")], "http://e", None)]
    fn options_precede_variables_and_contexts(
        #[case] arguments: &[&str],
        #[case] variables: &[(&str, &str)],
        #[case] url: &str,
        #[case] token: Option<&str>,
    ) {
        assert_eq!(selected(arguments, variables), (url.to_owned(), token.map(str::to_owned)));
    }
}
