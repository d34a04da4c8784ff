use std::{fs, path::Path};

/// `docs/performance.md` is what one run of the bench printed; nothing else is a number that somebody
/// measured.
#[test]
fn the_readme_shows_what_the_published_run_says_of_every_bar() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |path| fs::read_to_string(root.join(path)).unwrap();
    let readme = read("README.md");
    let section = readme.split("\n## ").find(|section| section.starts_with("Performance")).unwrap();
    let run = read("docs/performance.md");
    let (shown, measured) = (rows(section), rows(&run));
    let with_a_bar = measured.iter().filter(|row| !row[2].is_empty());
    assert!(with_a_bar.clone().count() > 20, "{measured:?}");
    let missing: Vec<_> = with_a_bar.filter(|row| !shown.contains(row)).collect();
    let made_up: Vec<_> = shown.iter().filter(|row| !measured.contains(row)).collect();
    assert!(missing.is_empty() && made_up.is_empty(), "missing: {missing:?}, made up: {made_up:?}");
}

/// The rows of all tables, without the lines below their heads.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    lines.map(|line| line.split('|').map(str::trim).collect()).collect()
}
