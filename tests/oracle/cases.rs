//! What is asked of both: configurations, and the frames that go through them.
//!
//! A case is one instance. Its answer is read either while its frames stand in the queue or after the
//! last has left, see [`Phase`]; which numbers are compared is the group's choice.

mod acks;
mod changes;
mod classes;
mod derived;
mod flows;
mod gso;
mod memory;
mod order;
mod sizes;

use ucake::packet::VnetHeader;

/// Cases of one kind.
#[allow(dead_code, reason = "the feeder does not compare")]
pub struct Group {
    /// Its name, and that of the file its recorded answers are in.
    pub name: &'static str,
    /// What is compared, in a line.
    pub about: &'static str,
    /// Which numbers of an [`Answer`](crate::answer::Answer) are compared.
    pub fields: &'static [&'static str],
    /// When they are read.
    pub phase: Phase,
    /// Whether the frames that leave are compared too.
    pub egress: bool,
    /// How.
    pub rule: Rule,
    /// The cases.
    pub cases: Vec<Case>,
}

/// When the numbers are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Right after the last frame went in; the rate is such that no second frame has left.
    Queued,
    /// When everything has left, so many milliseconds later at most.
    Empty(u64),
}

/// What counts as equal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every number of every case.
    Exact,
    /// The means over the cases of one name (up to its last `/`), since hash keys decide each.
    Means,
}

/// One instance.
pub struct Case {
    /// Unique in its group.
    pub name: String,
    /// The words after `cake`.
    pub words: String,
    /// MTU of the device.
    pub mtu: u32,
    /// What happens to it.
    pub steps: Vec<Step>,
}

/// One thing that happens.
pub enum Step {
    /// A frame goes in.
    Send(Input),
    /// The configuration is changed by these words.
    Change(String),
}

/// A frame with what comes along.
#[derive(Clone)]
pub struct Input {
    pub bytes: Vec<u8>,
    /// Set for superpackets.
    pub vnet: Option<VnetHeader>,
    pub mark: u32,
    pub priority: u32,
    /// A VLAN tag beside the frame, not in it: protocol and control.
    pub tag: Option<(u16, u16)>,
}

impl Input {
    /// A frame and nothing else.
    pub fn plain(bytes: Vec<u8>) -> Self {
        Self { bytes, vnet: None, mark: 0, priority: 0, tag: None }
    }
}

impl Case {
    pub fn new(name: impl Into<String>, words: impl Into<String>) -> Self {
        Self { name: name.into(), words: words.into(), mtu: 1500, steps: Vec::new() }
    }

    pub fn frame(self, bytes: Vec<u8>) -> Self {
        self.input(Input::plain(bytes))
    }

    pub fn frames(self, frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        frames.into_iter().fold(self, Self::frame)
    }

    pub fn input(mut self, input: Input) -> Self {
        self.steps.push(Step::Send(input));
        self
    }

    pub fn change(mut self, words: &str) -> Self {
        self.steps.push(Step::Change(words.to_owned()));
        self
    }

    pub fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.steps.iter().filter_map(|step| match step {
            Step::Send(input) => Some(input),
            Step::Change(_) => None,
        })
    }

    /// A number that changes when the case does: recorded answers belong to what was asked.
    pub fn digest(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut eat = |bytes: &[u8]| {
            for byte in bytes.iter().chain(&[0xff]) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        eat(self.words.as_bytes());
        eat(&self.mtu.to_be_bytes());
        for step in &self.steps {
            match step {
                Step::Change(words) => eat(words.as_bytes()),
                Step::Send(input) => {
                    eat(&input.bytes);
                    eat(&input.vnet.map_or([0; VnetHeader::LEN], |vnet| vnet.encode()));
                    eat(&input.mark.to_be_bytes());
                    eat(&input.priority.to_be_bytes());
                    if let Some((protocol, control)) = input.tag {
                        eat(&[protocol.to_be_bytes(), control.to_be_bytes()].concat());
                    }
                }
            }
        }
        format!("{hash:016x}")
    }
}

/// The handle that every instance has; a packet priority can name it.
pub const HANDLE: u16 = 0x8001;

/// Everything.
pub fn all() -> Vec<Group> {
    vec![
        derived::group(),
        classes::dscp(),
        classes::overrides(),
        classes::wash(),
        sizes::sizes(),
        sizes::offsets(),
        flows::keys(),
        flows::beside(),
        flows::modes(),
        flows::ways(),
        memory::truesize(),
        memory::overflow(),
        gso::group(),
        acks::group(),
        order::group(),
        changes::group(),
    ]
}
