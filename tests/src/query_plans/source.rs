//! The texts in the source of the store. Never decides which of them are statements.

use std::{fs, path::Path};

use proc_macro2::{TokenStream, TokenTree};

/// The string literals of the crate `store`, without those of its tests.
pub(super) fn literals() -> Vec<String> {
    let mut found = vec![];
    in_directory(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../orchestrator/store/src")), &mut found);
    found
}

fn in_directory(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory of sources").flatten() {
        let path = entry.path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            in_directory(&path, found);
        } else {
            let text = fs::read_to_string(&path).expect("a source");
            in_tokens(text.parse().expect("tokens of Rust"), found);
        }
    }
}

fn in_tokens(tokens: TokenStream, found: &mut Vec<String>) {
    let mut is_tests = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) if !is_tests => in_tokens(group.stream(), found),
            TokenTree::Literal(literal) => {
                found.extend(syn::parse_str::<syn::LitStr>(&literal.to_string()).ok().map(|text| text.value()));
            }
            TokenTree::Ident(name) => is_tests = name == "tests",
            TokenTree::Group(_) | TokenTree::Punct(_) => is_tests = false,
        }
    }
}
