//! What an instance says of itself, as numbers with names, and the files that hold what the kernel said.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

/// Numbers of an instance: our name, and `tc`'s in its JSON.
pub const INSTANCE: [(&str, &str); 13] = [
    ("sent_bytes", "bytes"),
    ("sent_packets", "packets"),
    ("dropped", "drops"),
    ("backlog_bytes", "backlog"),
    ("backlog_packets", "qlen"),
    ("memory_used", "memory_used"),
    ("memory_limit", "memory_limit"),
    ("capacity", "capacity_estimate"),
    ("min_network", "min_network_size"),
    ("max_network", "max_network_size"),
    ("min_adjusted", "min_adj_size"),
    ("max_adjusted", "max_adj_size"),
    ("header_offset", "avg_hdr_offset"),
];

/// Numbers of each tin.
pub const TIN: [(&str, &str); 17] = [
    ("threshold", "threshold_rate"),
    ("target_us", "target_us"),
    ("interval_us", "interval_us"),
    ("quantum", "flow_quantum"),
    ("packets", "sent_packets"),
    ("bytes", "sent_bytes"),
    ("way_indirect", "way_indirect_hits"),
    ("way_misses", "way_misses"),
    ("way_collisions", "way_collisions"),
    ("drops", "drops"),
    ("marks", "ecn_mark"),
    ("ack_drops", "ack_drops"),
    ("backlog", "backlog_bytes"),
    ("sparse", "sparse_flows"),
    ("bulk", "bulk_flows"),
    ("unresponsive", "unresponsive_flows"),
    ("max_len", "max_pkt_len"),
];

/// What one instance answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// One number, or one for each tin in display order; without trailing zeros.
    pub numbers: BTreeMap<String, Vec<u64>>,
    /// What left: the number of a frame that went in, else its bytes.
    pub left: Option<Vec<String>>,
}

impl Answer {
    /// Notes a number, or one for each tin.
    pub fn set(&mut self, name: &str, mut values: Vec<u64>) {
        while values.last() == Some(&0) {
            values.pop();
        }
        if !values.is_empty() {
            self.numbers.insert(name.to_owned(), values);
        }
    }

    #[allow(dead_code, reason = "the comparison's")]
    /// One number, or one for each tin, as text; "0" for nothing.
    pub fn show(&self, name: &str) -> String {
        let numbers = self.numbers.get(name).map_or(&[][..], Vec::as_slice);
        let list: Vec<String> = numbers.iter().map(u64::to_string).collect();
        if list.is_empty() { "0".to_owned() } else { list.join(" ") }
    }

    /// From one object of `tc -s -j qdisc show`, what is in `fields`.
    #[allow(dead_code, reason = "the feeder's")]
    pub fn from_tc(object: &Value, fields: &[&str]) -> Self {
        let mut answer = Self::default();
        let number = |object: &Value, key: &str| object[key].as_u64().unwrap_or(0);
        for (name, key) in INSTANCE.iter().filter(|(name, _)| fields.contains(name)) {
            answer.set(name, vec![number(object, key)]);
        }
        let tins = object["tins"].as_array().map_or(&[][..], Vec::as_slice);
        for (name, key) in TIN.iter().filter(|(name, _)| fields.contains(name)) {
            answer.set(name, tins.iter().map(|tin| number(tin, key)).collect());
        }
        answer
    }

    fn to_json(&self) -> Value {
        let mut object: BTreeMap<String, Value> =
            self.numbers.iter().map(|(name, values)| (name.clone(), json!(values))).collect();
        if let Some(left) = &self.left {
            object.insert("left".to_owned(), json!(left));
        }
        json!(object)
    }

    fn from_json(value: &Value) -> Option<Self> {
        let mut answer = Self::default();
        for (name, value) in value.as_object()? {
            let list = value.as_array()?;
            if name == "left" {
                let texts = list.iter().map(|text| text.as_str().map(str::to_owned));
                answer.left = Some(texts.collect::<Option<_>>()?);
            } else {
                let numbers = list.iter().map(Value::as_u64).collect::<Option<_>>()?;
                answer.numbers.insert(name.clone(), numbers);
            }
        }
        Some(answer)
    }
}

/// Describes what left by what went in, so that a recording is small and can be read.
pub fn describe(inputs: &[&[u8]], outputs: &[Vec<u8>]) -> Vec<String> {
    let mut taken = vec![false; inputs.len()];
    let mut name = |output: &Vec<u8>| {
        let mut candidates = inputs.iter().zip(&taken).enumerate();
        let found = candidates.find(|(_, (input, taken))| !**taken && ***input == output[..]);
        if let Some((index, _)) = found {
            taken[index] = true;
            return index.to_string();
        }
        let hash = output.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let start: String =
            output.iter().skip(12).take(60).fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
        format!("{}:{hash:016x}:{start}", output.len())
    };
    outputs.iter().map(&mut name).collect()
}

/// Answers to a group of cases.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The kernel that answered, and the tc that asked.
    pub by: String,
    /// When.
    pub date: String,
    /// Digest of the case and its answer, by name.
    pub answers: BTreeMap<String, (String, Answer)>,
}

impl Recording {
    /// Reads a file of answers.
    #[allow(dead_code, reason = "the comparison's")]
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let json: Value =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let text = |key: &str| json[key].as_str().unwrap_or("?").to_owned();
        let mut recording = Self { by: text("by"), date: text("date"), ..Self::default() };
        for (name, case) in json["cases"].as_object().ok_or("no cases")? {
            let answer =
                Answer::from_json(&case["answer"]).ok_or_else(|| format!("answer of {name}"))?;
            let digest = case["digest"].as_str().unwrap_or("").to_owned();
            recording.answers.insert(name.clone(), (digest, answer));
        }
        Ok(recording)
    }

    /// The file: a line for each case.
    #[allow(dead_code, reason = "the feeder's")]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{{\n\"by\": {},\n\"date\": {},\n\"cases\": {{\n",
            json!(self.by),
            json!(self.date)
        );
        let lines: Vec<String> = self
            .answers
            .iter()
            .map(|(name, (digest, answer))| {
                format!(
                    "{}: {{\"digest\":\"{digest}\",\"answer\":{}}}",
                    json!(name),
                    answer.to_json()
                )
            })
            .collect();
        text += &lines.join(",\n");
        text + "\n}}\n"
    }
}
