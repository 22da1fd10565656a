//! The inputs that fuzzing kept, replayed without a fuzzer.
//!
//! Each file under `tests/fuzz/corpus/TARGET` once made a target go a way that no other did, or broke
//! something. `tests/fuzz/run` finds more.

#[path = "../../tests/fuzz/src/targets/mod.rs"]
mod targets;

use std::path::Path;

fn replay(name: &str) {
    let (_, target) = targets::ALL.into_iter().find(|(known, _)| *known == name).expect(name);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(name);
    let files = std::fs::read_dir(&corpus).expect("the corpus is part of the repository");
    let mut replayed = 0;
    for file in files {
        let path = file.expect("a file of the corpus").path();
        let data = std::fs::read(&path).expect("a file of the corpus");
        // Which one it was is told only if it breaks something.
        let outcome = std::panic::catch_unwind(|| target(&data));
        assert!(outcome.is_ok(), "{} breaks {name}", path.display());
        replayed += 1;
    }
    assert!(replayed > 0, "the corpus of {name} is empty");
}

#[test]
fn the_kept_frames_are_dissected() {
    replay("dissect");
}

#[test]
fn the_kept_trains_are_split() {
    replay("split");
}

#[test]
fn the_kept_acks_are_filtered() {
    replay("ack_filter");
}

#[test]
fn the_kept_lines_are_read() {
    replay("words");
}

#[test]
fn the_kept_files_are_read() {
    replay("config");
}

#[test]
fn the_kept_operations_keep_the_books() {
    replay("ops");
}

#[test]
fn the_kept_messages_are_understood_or_refused() {
    replay("protocol");
}

#[test]
fn the_kept_captures_are_replayed() {
    replay("replay");
}

#[test]
fn no_input_at_all_is_an_input() {
    for (_, target) in targets::ALL {
        target(&[]);
    }
}
