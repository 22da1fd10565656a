//! Where ucake and the kernel differ, and why it may stay so.

/// A difference that is stated; a test fails where it is no longer seen.
pub struct Difference {
    /// In which group.
    pub group: &'static str,
    /// Which cases: a name in which `*` stands for anything.
    pub cases: &'static str,
    /// Why.
    pub reason: &'static str,
}

impl Difference {
    /// Whether it is about this case.
    pub fn covers(&self, group: &str, case: &str) -> bool {
        self.group == group && matches(self.cases, case)
    }
}

/// All of them.
pub const DIFFERENCES: &[Difference] = &[];

fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(head) else { return false };
    (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(tail, &rest[at..]))
}

#[test]
fn a_star_stands_for_anything() {
    assert!(matches("a/*/c", "a/b/c") && matches("*", "") && matches("a*", "a"));
    assert!(!matches("a/*/c", "a/b/d") && !matches("a", "ab"));
}
