//! Links in the documents: each file exists, and each anchor is a heading of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const FENCE: &str = "```";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn documents() -> BTreeMap<PathBuf, String> {
    let pages = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = pages.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    paths.extend(["README.md", "ARCHITECTURE.md", "config/README.md"].map(|name| root().join(name)));
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The lines that are not in a block of code, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with(FENCE);
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchors of the headings, as Git hosts make them. A repeated heading gets a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts = BTreeMap::<String, usize>::new();
    let headings = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#').strip_prefix(' ')?;
        line.starts_with('#').then(|| anchor(title))
    });
    headings
        .map(|anchor| {
            let count = counts.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

fn anchor(title: &str) -> String {
    let kept = title.trim().to_lowercase().replace(' ', "-");
    kept.chars().filter(|one| one.is_alphanumeric() || matches!(one, '-' | '_')).collect()
}

/// The targets of the links in a line, without those in code and those to other sites.
fn targets(line: &str) -> Vec<&str> {
    let without_code = line.split('`').step_by(2);
    let links = without_code.flat_map(|part| part.split("](").skip(1)).filter_map(|rest| rest.split_once(')'));
    links.map(|(target, _)| target).filter(|target| !target.contains("://")).collect()
}

#[test]
fn every_link_in_the_documents_resolves() {
    let documents = documents();
    assert!(documents.len() > 12, "{:?} are not all", documents.keys());
    let mut broken = vec![];
    let mut checked = 0;
    for (path, text) in &documents {
        for (number, line) in prose(text) {
            for target in targets(line) {
                checked += 1;
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let linked = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
                let resolves = linked.canonicalize().is_ok_and(|linked| {
                    anchor.is_empty() || documents.get(&linked).is_some_and(|text| anchors(text).contains(anchor))
                });
                if !resolves {
                    broken.push(format!("{}:{number}: {target}", path.display()));
                }
            }
        }
    }
    assert!(checked > 50, "{checked} links are not all");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_index() {
    let (documents, directory) = (documents(), root().join("docs"));
    let index = &documents[&directory.join("README.md")];
    let listed: BTreeSet<&str> = prose(index).flat_map(|(_, line)| targets(line)).collect();
    let pages = documents.keys().filter(|path| path.parent() == Some(&directory));
    let names = pages.map(|path| path.file_name().unwrap().to_str().unwrap()).filter(|name| *name != "README.md");
    let missing: Vec<&str> = names.filter(|name| !listed.contains(name)).collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:?}");
}

#[test]
fn links_and_anchors_are_recognised() {
    let text = "# A `b`, C\n```sh\n# no heading\n```\n## x\n## x\n[p](q.md#r) `[n](o)` [s](#t) [u](https://v)";
    assert_eq!(anchors(text), BTreeSet::from(["a-b-c", "x", "x-1"].map(str::to_owned)));
    assert_eq!(prose(text).flat_map(|(_, line)| targets(line)).collect::<Vec<_>>(), ["q.md#r", "#t"]);
}
