//! What is generated and kept is what would be generated now; `UCAKE_UPDATE_DOCS=1` writes it anew.

// The definition of the command line belongs to the command, not to the library.
#[expect(dead_code, reason = "only the definition itself is of use here")]
#[path = "../src/args.rs"]
mod args;

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use ucake_cli::manual;

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

/// Compares a kept file with what is generated, or writes it anew.
fn assert_kept(name: &str, kept: &str, generated: &str) {
    if std::env::var_os("UCAKE_UPDATE_DOCS").is_some_and(|value| value == "1") {
        std::fs::write(docs(name), generated).expect("docs is ours");
        return;
    }
    assert!(
        kept == generated,
        "docs/{name} is out of date; UCAKE_UPDATE_DOCS=1 cargo test -p ucake-cli --test manual writes it anew"
    );
}

#[test]
fn the_manual_page_is_up_to_date() {
    let kept = std::fs::read_to_string(docs("ucake.8")).unwrap_or_default();
    let verbs = manual::Section { title: "Verbs of tc", text: ucake_cli::tc::HELP };
    let page = manual::page(&args::Args::command(), &[verbs]);
    assert_kept("ucake.8", &kept, &page);
}

#[test]
fn the_list_of_words_is_up_to_date() {
    let kept = std::fs::read_to_string(docs("CLI.md")).expect("docs/CLI.md is kept");
    let (before, rest) = kept.split_once("<!-- From cli/src/words/table.rs").expect("a mark");
    let (mark, rest) = rest.split_once('\n').expect("a line");
    let (_, after) = rest.split_once("<!-- End of what is generated. -->").expect("a mark");
    let generated = format!(
        "{before}<!-- From cli/src/words/table.rs{mark}\n{}<!-- End of what is generated. -->{after}",
        manual::word_list()
    );
    assert_kept("CLI.md", &kept, &generated);
}
