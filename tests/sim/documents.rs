//! What the documents say of tests is true.

use std::collections::HashMap;

const ALGORITHM: &str = include_str!("../../docs/ALGORITHM.md");

/// Tests that the page names: file and function.
fn named() -> Vec<(&'static str, &'static str)> {
    ALGORITHM.split('`').filter_map(|code| code.split_once(".rs::")).collect()
}

#[test]
fn every_test_that_the_page_on_the_algorithm_names_exists() {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut sources = HashMap::new();
    for (file, test) in named() {
        let source = sources.entry(file).or_insert_with(|| {
            std::fs::read_to_string(format!("{root}/{file}.rs")).unwrap_or_default()
        });
        let before = source.split_once(&format!("fn {test}(")).map(|(before, _)| before);
        let before = before.unwrap_or_else(|| panic!("{file}.rs has no {test}"));
        let attributes = before.rsplit('}').next().unwrap_or_default();
        assert!(attributes.contains("#[test]"), "{file}.rs: {test} is no test");
    }
    assert!(named().len() > 100);
}

#[test]
fn every_trap_has_a_row_with_a_test_or_a_reason() {
    let traps =
        [('C', 15), ('D', 9), ('H', 14), ('A', 15), ('S', 15), ('O', 8), ('F', 11), ('M', 11)];
    let traps = traps.into_iter().chain([('R', 3)]);
    for trap in traps.flat_map(|(letter, count)| (1..=count).map(move |i| format!("{letter}{i}"))) {
        let row = ALGORITHM.lines().find(|line| line.starts_with(&format!("| {trap} ")));
        let row = row.unwrap_or_else(|| panic!("there is no row for {trap}"));
        assert!(row.contains(".rs::") || row.contains("not applicable"), "{row}");
    }
}
