//! Runs inside the reference kernel: puts every case through `sch_cake` and writes down its answers.
//!
//! Frames are sent through a packet socket onto a device whose root qdisc is cake: a dummy, which
//! swallows what leaves, or a tap, from which it is read. Usage: `oracle-feeder OUT_DIR [GROUP…]`.

#![allow(missing_docs, reason = "a program")]

mod answer;
mod cases;
mod frames;
mod socket;
mod wire;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use answer::{Answer, Recording, describe};
use cases::{Case, Group, HANDLE, Phase, Step};
use serde_json::Value;
use socket::PacketSocket;
use ucake::io::tap::{Tap, TapOptions};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Instances at a time.
const DEVICES: usize = 100;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().ok_or("usage: oracle-feeder OUT_DIR [GROUP…]")?;
    let wanted: Vec<String> = arguments.collect();
    let by =
        format!("Linux {}, {}", output("uname", &["-r"])?.trim(), output("tc", &["-V"])?.trim());
    let date = output("date", &["-u", "+%F"])?.trim().to_owned();
    let bench = Bench::new()?;
    for group in cases::all() {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == group.name) {
            continue;
        }
        let recording =
            Recording { by: by.clone(), date: date.clone(), answers: bench.ask(&group)? };
        std::fs::write(Path::new(&out).join(format!("{}.json", group.name)), recording.to_text())?;
        println!("{}: {} cases", group.name, recording.answers.len());
    }
    Ok(())
}

/// Devices to put instances on.
struct Bench {
    taps: Vec<Tap>,
}

impl Bench {
    fn new() -> Outcome<Self> {
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")?;
        let dummies: String =
            (0..DEVICES).map(|n| format!("link add {} type dummy\n", dummy(n))).collect();
        batch("ip", &[], &dummies)?;
        let open = |n| Tap::open(&tap(n), &TapOptions::default());
        let taps = (0..DEVICES).map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { taps })
    }

    fn ask(&self, group: &Group) -> Outcome<BTreeMap<String, (String, Answer)>> {
        let mut answers = BTreeMap::new();
        for chunk in group.cases.chunks(DEVICES) {
            let device = if group.egress { tap } else { dummy };
            configure(chunk, device)?;
            for (number, case) in chunk.iter().enumerate() {
                feed(case, &device(number)).map_err(|error| format!("{}: {error}", case.name))?;
            }
            if let Phase::Empty(settle) = group.phase {
                std::thread::sleep(Duration::from_millis(settle));
            }
            let shown: Value =
                serde_json::from_str(&output("tc", &["-s", "-j", "qdisc", "show"])?)?;
            for (number, case) in chunk.iter().enumerate() {
                let name = device(number);
                let object =
                    shown.as_array().and_then(|list| list.iter().find(|q| q["dev"] == *name));
                let mut answer = Answer::from_tc(object.ok_or("no such qdisc")?, group.fields);
                if group.egress {
                    answer.left = Some(left(case, &self.taps[number])?);
                }
                answers.insert(case.name.clone(), (case.digest(), answer));
            }
            let removal: String =
                (0..chunk.len()).map(|n| format!("qdisc del dev {} root\n", device(n))).collect();
            batch("tc", &[], &removal)?;
        }
        Ok(answers)
    }
}

fn dummy(number: usize) -> String {
    format!("d{number}")
}

fn tap(number: usize) -> String {
    format!("t{number}")
}

fn configure(chunk: &[Case], device: fn(usize) -> String) -> Outcome<()> {
    let (mut links, mut qdiscs) = (String::new(), String::new());
    for (number, case) in chunk.iter().enumerate() {
        let device = device(number);
        links += &format!("link set {device} mtu {} up\n", case.mtu);
        qdiscs += &format!("qdisc add dev {device} root handle {HANDLE:x}: cake {}\n", case.words);
    }
    batch("ip", &[], &links)?;
    batch("tc", &[], &qdiscs)
}

fn feed(case: &Case, device: &str) -> Outcome<()> {
    let plain = PacketSocket::open(device, false)?;
    let with_vnet = PacketSocket::open(device, true)?;
    for step in &case.steps {
        match step {
            Step::Change(words) => {
                let line =
                    format!("qdisc change dev {device} root handle {HANDLE:x}: cake {words}");
                output("tc", &line.split_whitespace().collect::<Vec<_>>())?;
            }
            Step::Send(input) => {
                if let Some(tag) = input.tag {
                    through_vlan(device, tag)?.send(&input.bytes, None)?;
                    continue;
                }
                let socket = if input.vnet.is_some() { &with_vnet } else { &plain };
                if input.mark != 0 || input.priority != 0 {
                    socket.label(input.mark, input.priority)?;
                }
                socket.send(&input.bytes, input.vnet.as_ref())?;
            }
        }
    }
    Ok(())
}

/// A socket on a VLAN device on top of `device`; that puts a tag beside each frame.
fn through_vlan(device: &str, (protocol, control): (u16, u16)) -> Outcome<PacketSocket> {
    let (id, priority) = (control & 0x0fff, control >> 13);
    let kind = if protocol == frames::STAG { "802.1ad" } else { "802.1Q" };
    let name = format!("{device}.{protocol:x}.{id}");
    if !Path::new("/sys/class/net").join(&name).exists() {
        let lines = format!(
            "link add link {device} name {name} type vlan protocol {kind} id {id} \
             egress-qos-map 1:1 2:2 3:3 4:4 5:5 6:6 7:7\nlink set {name} up\n"
        );
        batch("ip", &[], &lines)?;
    }
    let socket = PacketSocket::open(&name, false)?;
    socket.label(0, priority.into())?;
    Ok(socket)
}

/// What came out of the tap.
fn left(case: &Case, tap: &Tap) -> Outcome<Vec<String>> {
    let mut outputs = Vec::new();
    let mut buffer = vec![0; 70_000];
    loop {
        match rustix::io::read(tap, &mut buffer) {
            Ok(len) => {
                outputs.push(wire::finished(&buffer[..len]).ok_or("less than a vnet header")?);
            }
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let inputs: Vec<&[u8]> = case.inputs().map(|input| &input.bytes[..]).collect();
    Ok(describe(&inputs, &outputs))
}

fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new(program).args(arguments).output()?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{program} {}: {complaint}", arguments.join(" ")).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn batch(program: &str, arguments: &[&str], lines: &str) -> Outcome<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(lines.as_bytes())?;
    if child.wait()?.success() { Ok(()) } else { Err(format!("{program} refused: {lines}").into()) }
}
