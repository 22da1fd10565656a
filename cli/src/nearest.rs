//! What was meant by a word that is not known.
//!
//! Problem: whoever mistypes a word is to be told the right one, and no word at all where none was meant.
//! Law: letters to insert, remove, replace or swap with their neighbour; one, and one more for every four letters,
//! are let pass.
//! Left out: which words are known.

/// Of the words that are `known`, all of them ASCII, the first of those nearest to `word`, if it is near enough to be
/// meant.
///
/// ```
/// use ucake_cli::nearest::nearest;
/// assert_eq!(nearest("bestefort", ["flows", "besteffort"]), Some("besteffort"));
/// assert_eq!(nearest("what", ["flows", "besteffort"]), None);
/// ```
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let len = lower.chars().count();
    let most = 1 + len / 4;
    // More letters too many or too few than are let pass need no closer look, which takes time with its length.
    let near = known.into_iter().filter(|known| known.len().abs_diff(len) <= most);
    let (distance, meant) = near
        .map(|known| (strsim::osa_distance(&lower, known), known))
        .min_by_key(|&(distance, _)| distance)?;
    (distance <= most).then_some(meant)
}
