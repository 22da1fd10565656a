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
pub const DIFFERENCES: &[Difference] = &[
    keys("*/vlan*", IN_BAND),
    keys("*/qinq-*-vlan", IN_BAND),
    keys("*/qinq-port", IN_BAND),
    keys("*/3-tags-port", IN_BAND),
    keys("*/arp-vlan", IN_BAND),
    keys(
        "flows/llc-lengths",
        "a received 802.3 frame has one protocol number whatever its length; one sent through a packet socket is taken by its length field",
    ),
    Difference {
        group: "beside",
        cases: "*/inner-tag*",
        reason: "behind a tag beside the frame the kernel takes a second one, in the frame, for the IP header: flow and DSCP come from its bytes; ucake looks behind both, as the kernel does where both are in the frame",
    },
    Difference {
        group: "changes",
        cases: "memlimit 1mb > memlimit 0",
        reason: "tc does not send memlimit 0; to ucake it means: back to automatic",
    },
    Difference {
        group: "changes",
        cases: "default > autorate-ingress",
        reason: "the estimate is made of the times between frames, which are not known to the microsecond",
    },
    Difference {
        group: "changes",
        cases: "diffserv8 > *",
        reason: "the kernel discards what is queued in tins that are given up; ucake moves it to Best Effort",
    },
];

const IN_BAND: &str = "through a packet socket a VLAN tag stays in the frame, and the kernel's flow dissector then looks for it behind the place it is at; a forwarded frame has its tag beside it";

const fn keys(cases: &'static str, reason: &'static str) -> Difference {
    Difference { group: "keys", cases, reason }
}

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
