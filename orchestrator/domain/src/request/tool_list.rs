//! The entries of lists of tools: names, all tools of an MCP server, and additions to the built-in tools. Pure.
//!
//! Owns the grammar of an entry. Never knows which tools exist.

use std::collections::BTreeSet;

/// Separates server and tool in the names of MCP tools.
const MCP_SEPARATOR: &str = "__";
/// In place of a tool's name, after the separator: all tools of the server.
const ALL: &str = "*";
/// Before each entry of a list that adds to the built-in tools.
const ADDITION: char = '+';

/// What a valid list of tools means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSelection<'a> {
    /// Whether the built-in tools belong to it, which are all that are not of MCP servers.
    pub has_built_in: bool,
    /// Names of tools.
    pub names: BTreeSet<&'a str>,
    /// MCP servers all of whose tools belong to it.
    pub servers: BTreeSet<&'a str>,
}

impl<'a> ToolSelection<'a> {
    /// Reads a valid list.
    pub fn of(list: &'a [String]) -> Self {
        let entries = || list.iter().map(|entry| entry_name(entry));
        Self {
            has_built_in: is_addition(list),
            names: entries().filter(|name| server_of_all(name).is_none()).collect(),
            servers: entries().filter_map(server_of_all).collect(),
        }
    }

    /// Whether the tool of this name belongs to it.
    pub fn includes(&self, tool: &str) -> bool {
        let is_included = match server_of(tool) {
            Some(server) => self.servers.contains(server),
            None => self.has_built_in,
        };
        is_included || self.names.contains(tool)
    }
}

/// The entry that stands for all tools of a server.
pub fn all_tools_of(server: &str) -> String {
    format!("{server}{MCP_SEPARATOR}{ALL}")
}

/// The server of an entry that stands for all of its tools.
pub fn server_of_all(entry: &str) -> Option<&str> {
    entry
        .split_once(MCP_SEPARATOR)
        .filter(|(server, tool)| !server.is_empty() && *tool == ALL)
        .map(|(server, _)| server)
}

/// An entry without the mark of an addition.
pub fn entry_name(entry: &str) -> &str {
    entry.strip_prefix(ADDITION).unwrap_or(entry)
}

/// The MCP server in the name of a tool.
pub(super) fn server_of(tool: &str) -> Option<&str> {
    tool.split_once(MCP_SEPARATOR).map(|(server, _)| server)
}

/// Whether the list adds to the built-in tools.
pub(super) fn is_addition(list: &[String]) -> bool {
    !list.is_empty() && list.iter().all(|entry| entry.starts_with(ADDITION))
}

/// Whether some entries are additions and others are not.
pub(super) fn is_mixed(list: &[String]) -> bool {
    !is_addition(list) && list.iter().any(|entry| entry.starts_with(ADDITION))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::names(&["echo", "srv__one"], &["echo", "srv__one"])]
    #[case::all_of_a_server(&["srv__*"], &["srv__one", "srv__two"])]
    #[case::additions(&["+srv__one"], &["echo", "shell", "srv__one"])]
    #[case::addition_of_a_server(&["+srv__*", "+other__one"], &["echo", "shell", "srv__one", "srv__two", "other__one"])]
    #[case::addition_of_a_built_in_tool(&["+echo"], &["echo", "shell"])]
    #[case::nothing(&[], &[])]
    fn a_list_selects_tools(#[case] list: &[&str], #[case] expected: &[&str]) {
        let list: Vec<String> = list.iter().map(|entry| (*entry).to_owned()).collect();
        let mut selected = vec!["echo", "shell", "srv__one", "srv__two", "other__one"];
        let selection = ToolSelection::of(&list);
        selected.retain(|tool| selection.includes(tool));
        assert_eq!(selected, expected);
        assert!(!is_mixed(&list));
    }

    #[rstest]
    #[case("srv__*", Some("srv"))]
    #[case("srv__a*", None)]
    #[case("srv__", None)]
    #[case("__*", None)]
    #[case("a__b__*", None)]
    #[case("*", None)]
    fn only_a_server_with_an_asterisk_is_all_of_its_tools(#[case] entry: &str, #[case] server: Option<&str>) {
        assert_eq!(server_of_all(entry), server);
    }
}
