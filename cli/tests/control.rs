//! A running ucake, shown and changed from outside: verbs of `tc`, the control socket, and clients that mean harm.
//!
//! Where namespaces or taps are not to be had the tests say SKIPPED; with `UCAKE_REQUIRE_NETNS=1` they fail.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use assert_cmd::cargo::cargo_bin;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use ucake::io::namespace::Namespace;
use ucake_cli::protocol::{self, Class, Reply, Request};

mod world;

use world::{CLIENT, Curious, Load, PATIENCE, SERVER, Talker, World, await_that, pid, text};

const DEFAULTS: &str = "diffserv3 triple-isolate nonat nowash no-ack-filter split-gso";

#[test]
fn every_verb_does_what_it_does_in_tc() {
    let Some(world) = World::running("bandwidth 20mbit overhead 38 mpu 84") else { return };
    let both = world.done("qdisc show");
    let lines: Vec<_> = both.lines().collect();
    assert!(lines[0].starts_with("qdisc cake 8002: dev lan0 root refcnt 2 bandwidth unlimited "));
    assert!(lines[1].starts_with("qdisc cake 8001: dev wan0 root refcnt 2 bandwidth 20Mbit "));
    assert_eq!(lines.len(), 2);

    // Line by line: the command, its exit status, then what is shown or what is said.
    let cake = |handle: &str, rate: &str, rest: &str| {
        format!("qdisc cake {handle} root refcnt 2 bandwidth {rate} {DEFAULTS} rtt 100ms {rest}\n")
    };
    let ours = cake("8001:", "20Mbit", "noatm overhead 38 mpu 84 ");
    let slower = cake("8001:", "5Mbit", "noatm overhead 38 mpu 84 ");
    let longer = cake("8001:", "5Mbit", "noatm overhead 44 mpu 84 ");
    let plain = "qdisc pfifo 0: root refcnt 2 limit 1000p\n".to_owned();
    let table = [
        ("q add dev wan0 root cake", 2, "Error: Exclusivity flag on, cannot modify.", &ours),
        ("qdisc add dev wan0 root handle 7: cake", 2, "NLM_F_REPLACE", &ours),
        ("qdisc change dev wan0 root cake bandwidth 5mbit", 0, "", &slower),
        ("qdisc change dev tap:wan0 handle 7: cake lan", 2, "8001:", &slower),
        ("qdisc replace dev wan0 root cake overhead 44", 0, "", &longer),
        ("qdisc change dev wan0 root cake bestefort", 1, "What is \"bestefort\"?", &longer),
        ("qdisc change dev wan0 root cake bandwidth", 255, "not complete", &longer),
        ("qdisc del dev wan0 root handle 9:", 2, "Error: Invalid handle.", &longer),
        ("qdisc del dev wan0 root", 0, "", &plain),
        ("qdisc del dev wan0 root", 2, "Cannot delete qdisc with handle of zero.", &plain),
        ("qdisc change dev wan0 root cake lan", 2, "Error: Qdisc not found.", &plain),
        ("q a dev wan0 root cake", 0, "", &cake("8003:", "unlimited", "raw overhead 0 ")),
        (
            "qdisc replace dev wan0 root handle a: cake bandwidth 1gbit",
            0,
            "",
            &cake("a:", "1Gbit", "raw overhead 0 "),
        ),
        (
            "qdisc chan dev wan0 parent 1: cake",
            2,
            "root of a port",
            &cake("a:", "1Gbit", "raw overhead 0 "),
        ),
    ];
    for (line, exit, message, shown) in table {
        let output = world.tc(line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{line}: {said}");
        assert!(said.contains(message) && said.is_empty() == (exit == 0), "{line}: {said}");
        assert_eq!(&world.done("qd sh dev wan0"), shown, "{line}");
    }
    let other = world.tc("qdisc show dev eth9");
    assert_eq!(other.status.code(), Some(1));
    let said = text(&other.stderr);
    assert!(said.contains("Cannot find device \"eth9\"\n  ucake's ports are tap:lan0, tap:wan0"));
    assert!(world.done("-s qdisc show dev lan0").contains("\n capacity estimate: 0bit\n"));
    assert_eq!(world.done("qdisc show handle a: root").lines().count(), 1);
    let json = world.done("-j -s qdisc show dev wan0");
    assert!(json.starts_with("[{\"kind\":\"cake\",\"handle\":\"a:\",\"root\":true"), "{json}");
    assert_eq!(world.done("-j class show dev wan0"), "[]\n");
}

/// One line of a dialogue, and what was answered.
#[derive(Default)]
struct Turn<'a> {
    typed: &'a str,
    stdout: String,
    /// The first line.
    stderr: &'a str,
    status: i32,
}

fn dialogue(text: &str) -> Vec<Turn<'_>> {
    let mut turns = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(typed) = line.strip_prefix("$ ") {
            turns.push(Turn { typed, ..Turn::default() });
            continue;
        }
        let turn: &mut Turn<'_> = turns.last_mut().expect("something was typed first");
        if let Some(status) = line.strip_prefix("= ") {
            turn.status = status.parse().expect("a number");
        } else if let Some(message) = line.strip_prefix("! ") {
            // `tc` prints a backslash and an n where it means a line feed.
            turn.stderr = message.trim_end_matches("\\n");
        } else {
            turn.stdout.push_str(line);
            turn.stdout.push('\n');
        }
    }
    turns
}

/// What is answered otherwise on purpose, and why.
const OTHERWISE: [(&str, &str); 3] = [
    ("qdisc add dev d0 cake", "root may be left out, so that this one is there already"),
    ("qdisc add dev d0 root", "the kind is missing first of all"),
    ("qdisc add dev d0 root cake help", "our own text"),
];

#[test]
fn a_dialogue_goes_as_it_does_with_tc() {
    let Some(mut world) = World::new() else { return };
    world.ucake = Some(world.run("lan0", "d0", ""));
    world.done("qdisc del dev d0 root");
    let turns = dialogue(include_str!("data/tc_dialogue.txt"));
    assert!(turns.len() > 80);
    let mut differences = String::new();
    for Turn { typed, stdout, stderr, status } in turns {
        if OTHERWISE.iter().any(|(otherwise, _)| *otherwise == typed) {
            continue;
        }
        let output = world.tc(typed);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let err = err.replace("try \"ucake ", "try \"tc ");
        let first = err.lines().next().unwrap_or_default();
        if out != stdout || first != stderr || output.status.success() != (status == 0) {
            differences += &format!(
                "$ {typed}\n  tc: {status}: {stderr}\n{stdout}  ucake: {}: {err}\n{out}\n",
                output.status
            );
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn a_link_named_tc_works_the_same_and_says_what_is_not_its_own() {
    let Some(world) = World::running("") else { return };
    let link = world.directory.join("tc");
    std::os::unix::fs::symlink(cargo_bin("ucake"), &link).expect("a link");
    let tc = |line: &str| world.command(&link, line).output().expect("the binary was built");
    let shown = tc("qdisc show dev wan0");
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert_eq!(text(&shown.stdout), world.done("qdisc show dev wan0"));
    let other = tc("qdisc replace dev eth0 root cake");
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stderr).contains("the system's tc"), "{}", text(&other.stderr));
    assert!(text(&tc("").stdout).starts_with("Usage: "));
}

#[test]
fn what_sqm_scripts_type_is_understood_as_it_is() {
    let Some(world) = World::running("") else { return };
    let link = world.directory.join("tc");
    std::os::unix::fs::symlink(cargo_bin("ucake"), &link).expect("a link");
    let tc = |line: &str| world.command(&link, line).output().expect("the binary was built");
    // Of piece_of_cake and layer_cake, each way, with what their users set. There the download leaves through an ifb, here
    // through the port to the hosts; `stab` is for shapers that cannot count overhead.
    let table = [
        ("wan0", "bandwidth 9000kbit besteffort", "9Mbit besteffort triple-isolate"),
        ("wan0", "bandwidth 9000kbit besteffort overhead 44 mpu 84 atm", "atm overhead 44 mpu 84 "),
        (
            "lan0",
            "bandwidth 45000kbit besteffort wash",
            "45Mbit besteffort triple-isolate nonat wash",
        ),
        (
            "wan0",
            "bandwidth 18000kbit diffserv3 overhead 18 mpu 64 noatm",
            "noatm overhead 18 mpu 64 ",
        ),
        (
            "wan0",
            "bandwidth 18000kbit diffserv3 dual-srchost ack-filter",
            "dual-srchost nonat nowash ack-filter",
        ),
        (
            "lan0",
            "bandwidth 90000kbit diffserv3 wash dual-dsthost ingress",
            "dual-dsthost nonat wash ingress",
        ),
        ("lan0", "bandwidth 90000kbit diffserv4 memlimit 32mb rtt 50ms", "rtt 50ms"),
        ("lan0", "unlimited besteffort", "bandwidth unlimited besteffort"),
        ("wan0", "bandwidth 950000kbit diffserv3 no-split-gso ether-vlan ethernet", "950Mbit"),
    ];
    for (device, words, shown) in table {
        // What was there may be gone already; nobody looks.
        tc(&format!("qdisc del dev {device} root"));
        let added = tc(&format!("qdisc add dev {device} root cake {words}"));
        assert!(added.status.success(), "{words}: {}", text(&added.stderr));
        let found = text(&tc(&format!("-s qdisc show dev {device}")).stdout);
        assert!(found.starts_with("qdisc cake ") && found.contains(shown), "{words}: {found}");
    }
    for (line, said) in [
        ("qdisc add dev lan0 handle ffff: ingress", "shape it there"),
        ("qdisc add dev wan0 root stab mtu 2047 overhead 44 cake", "\"stab\""),
        (
            "filter add dev lan0 parent ffff: protocol all",
            "Object \"filter\" is unknown, try \"tc help\"",
        ),
        ("qdisc add dev wan0 root fq_codel limit 1001", "Error: Specified qdisc kind is unknown."),
    ] {
        let output = tc(line);
        assert!(
            !output.status.success() && text(&output.stderr).contains(said),
            "{line}: {output:?}"
        );
    }
    assert_eq!(text(&tc("-V").stdout).split('-').next(), Some("tc utility, ucake"));
}

#[test]
fn a_batch_says_which_line_failed_and_goes_on_if_forced() {
    let Some(world) = World::running("") else { return };
    let file = world.directory.join("batch");
    let lines = "# both ways\nqdisc change dev wan0 root cake bandwidth 7mbit\n\
                 qdisc add dev wan0 root cake\nqdisc change dev lan0 root cake bandwidth 8mbit\n";
    fs::write(&file, lines).expect("a file");
    let name = file.display();
    let stopped = world.tc(&format!("-batch {name}"));
    assert_eq!(stopped.status.code(), Some(1));
    let said = text(&stopped.stderr);
    assert!(said.contains("Exclusivity flag on"), "{said}");
    assert!(said.ends_with(&format!("Command failed {name}:3\n")), "{said}");
    let shown = world.done("qdisc show");
    assert!(shown.contains("bandwidth 7Mbit") && !shown.contains("bandwidth 8Mbit"), "{shown}");

    let forced = world.tc(&format!("-force -b {name}"));
    assert_eq!(forced.status.code(), Some(1));
    assert!(world.done("qdisc show").contains("bandwidth 8Mbit"));

    let mut command = world.command(cargo_bin("ucake").as_ref(), "-batch -");
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the binary was built");
    let said = child.stdin.take().expect("piped").write_all(b"qdisc show dev wan0\nqd ls\n");
    said.expect("it reads");
    let output = child.wait_with_output().expect("it is our child");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 3);
    assert_eq!(world.tc("-batch /nonexistent/file").status.code(), Some(1));
}

#[test]
fn monitor_prints_each_change_as_it_happens() {
    let Some(mut world) = World::running("") else { return };
    let mut command = world.command(cargo_bin("ucake").as_ref(), "monitor");
    let mut monitor = command.spawn().expect("the binary was built");
    let mut printed = BufReader::new(monitor.stdout.take().expect("piped"));
    let mut line = String::new();
    // Until it watches, changes go unseen.
    let (seen, first) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        printed.read_line(&mut line).expect("it prints");
        seen.send(()).expect("somebody waits");
        let mut rest = String::new();
        printed.read_to_string(&mut rest).expect("it prints");
        (line, rest)
    });
    await_that("the first line", || {
        world.done("qdisc change dev wan0 root cake bandwidth 3mbit");
        first.try_recv().is_ok()
    });
    world.done("qdisc del dev wan0 root");
    world.done("qdisc add dev wan0 root cake bandwidth 4mbit");
    world.done("qdisc replace dev wan0 root handle 5: cake");
    assert_eq!(world.tc("qdisc add dev wan0 root cake").status.code(), Some(2));
    world.stop();
    assert!(monitor.wait().expect("it is our child").success(), "it ends with whom it watches");
    let (first, rest) = reader.join().expect("it reads");
    assert!(first.starts_with("qdisc cake 8001: dev wan0 root refcnt 2 bandwidth 3Mbit "));
    let rest: Vec<_> = rest.lines().filter(|line| !line.starts_with("qdisc cake 8001:")).collect();
    let expected = [
        "deleted qdisc cake 8001: dev wan0 root bandwidth 3Mbit ",
        "deleted qdisc pfifo 0: dev wan0 root limit ",
        "qdisc cake 8003: dev wan0 root refcnt 2 bandwidth 4Mbit ",
        "deleted qdisc cake 8003: dev wan0 root bandwidth 4Mbit ",
        "qdisc cake 5: dev wan0 root refcnt 2 bandwidth unlimited ",
    ];
    assert_eq!(rest.len(), expected.len(), "{rest:?}");
    for (line, start) in rest.iter().zip(expected) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn del_and_add_and_replace_under_load_neither_lose_nor_reorder() {
    const DATAGRAMS: u32 = 600;
    // Nothing is too old and there is room for all: what is missing at the end was lost by us.
    let words = "bandwidth 2mbit interplanetary memlimit 64mb";
    let Some(mut world) = World::running(words) else { return };
    let ends = world.ends();
    let [client, server] = &ends;
    let sink = server.run(|| UdpSocket::bind((SERVER, 9))).expect("the address is ours");
    sink.set_read_timeout(Some(PATIENCE)).expect("more than nothing");
    let source = client.run(|| UdpSocket::bind((CLIENT, 0))).expect("the address is ours");
    let receiver = thread::spawn(move || {
        let mut buffer = [0; 2048];
        let mut numbers = Vec::new();
        while numbers.last() != Some(&(DATAGRAMS - 1)) {
            sink.recv(&mut buffer).expect("the last one comes");
            let [a, b, c, d, ..] = buffer;
            numbers.push(u32::from_be_bytes([a, b, c, d]));
        }
        numbers
    });
    let sender = thread::spawn(move || {
        let mut payload = [0; 1000];
        for number in 0..DATAGRAMS {
            payload[..4].copy_from_slice(&number.to_be_bytes());
            source.send_to(&payload, (SERVER, 9)).expect("there is a way");
            thread::sleep(Duration::from_millis(1));
        }
    });
    let add = format!("qdisc add dev wan0 root cake {words}");
    let replace = |handle| format!("qdisc replace dev wan0 root handle {handle}: cake {words}");
    let waiting = || world.done("-s qdisc show dev wan0").contains("backlog 0b 0p");
    await_that("a queue", || !waiting());
    while !sender.is_finished() {
        for line in ["qdisc del dev wan0 root", &add, &replace(7), &replace(8)] {
            world.done(line);
            thread::sleep(Duration::from_millis(30));
        }
    }
    world.done("qdisc del dev wan0 root");
    sender.join().expect("it sent all");
    let numbers = receiver.join().expect("it received all");
    assert!(numbers.into_iter().eq(0..DATAGRAMS), "lost or reordered");
    let load = Load::start(&ends);
    load.goes_on_for(500_000);
    world.done("qdisc add dev wan0 root cake bandwidth 20mbit");
    load.goes_on_for(500_000);
    world.done("qdisc del dev lan0 root");
    load.goes_on_for(500_000);
    drop(load);
    assert_nothing_lost(&world.stop());
}

/// Neither port lost a frame before ucake read it.
fn assert_nothing_lost(table: &str) {
    for port in ["port lan0: ", "port wan0: "] {
        let line = table.lines().find(|line| line.starts_with(port)).expect("the table has it");
        assert!(line.contains("lost before reading 0)"), "{line}");
    }
}

#[test]
fn clients_that_mean_harm_do_none() {
    let Some(world) = World::running("") else { return };
    let mut idle = world.connect();

    let mut garbage = world.connect();
    for line in [&b"\n"[..], b"{}\n", b"\xff\xfe\0\n", b"GET / HTTP/1.1\r\n", b"[[[[[[\n"] {
        assert!(garbage.say(line), "it listens");
        let reply = garbage.hear().expect("it answers");
        assert!(matches!(&reply, Reply::Refused(refusal) if refusal.class == Class::Protocol));
    }
    assert!(garbage.is_answered(), "and goes on");

    let mut half = world.connect();
    half.say(b"{\"version\":1,\"do\":");
    let mut gone = world.connect();
    gone.say(b"{\"version\":1,\"do\":\"hello\"");
    drop(gone);

    let mut endless = world.connect();
    // It may be closed before all of it is said.
    let _ = endless.say(&vec![b'x'; 10 << 20]);
    if let Some(reply) = endless.hear() {
        assert!(matches!(&reply, Reply::Refused(refusal) if refusal.class == Class::Protocol));
    }
    assert!(endless.hear().is_none(), "it was closed");

    // One that asks and asks and reads nothing.
    let deaf = UnixStream::connect(world.socket()).expect("somebody listens");
    deaf.set_nonblocking(true).expect("an option");
    let show = protocol::write_request(&Request::Show { port: None, queues: true }).repeat(100);
    while (&deaf).write(show.as_bytes()).is_ok() {}

    assert!(half.say(b"\"hello\"}\n"), "it was waited for");
    assert!(matches!(half.hear(), Some(Reply::Hello { .. })));
    assert!(idle.is_answered());
}

#[test]
fn the_sixty_fifth_client_is_told_and_the_others_do_not_notice() {
    let Some(world) = World::running("") else { return };
    let mut clients = Vec::new();
    // The connections that waited for the socket may still be there.
    await_that("sixty-four places", || {
        let mut client = world.connect();
        if client.say(b"{\"version\":1,\"do\":\"hello\"}\n")
            && matches!(client.hear(), Some(Reply::Hello { .. }))
        {
            clients.push(client);
        }
        clients.len() == 64
    });
    let mut late = world.connect();
    let reply = late.hear().expect("it is told");
    assert!(matches!(&reply, Reply::Refused(refusal) if refusal.class == Class::Busy));
    assert!(late.hear().is_none(), "and closed");
    let turned_away = world.tc("qdisc show");
    assert_eq!(turned_away.status.code(), Some(1));
    assert!(text(&turned_away.stderr).contains("64 clients"), "{}", text(&turned_away.stderr));
    assert!(clients.iter_mut().all(Talker::is_answered));
    drop(clients);
    await_that("a free place", || world.tc("qdisc show").status.success());
}

#[test]
fn sixty_four_that_never_say_a_word_keep_nobody_out() {
    let Some(mut world) = World::running("bandwidth 20mbit") else { return };
    let ends = world.ends();
    let load = Load::start(&ends);
    let mut silent: Vec<_> = (0..64).map(|_| world.connect()).collect();
    // What came before them, or just before they did, is not silent yet.
    await_that("a place", || world.tc("qdisc show").status.success());
    for _ in 0..20 {
        world.done("-s qdisc show dev wan0");
        load.goes_on_for(20_000);
    }
    // Who had to give way was told why.
    let told = silent.iter_mut().find_map(|client| client.poll().flatten());
    assert!(matches!(told, Some(Reply::Refused(refusal)) if refusal.class == Class::Busy));
    // Those who were left alone are as good as any.
    assert!(silent.iter_mut().any(|client| client.poll().is_none() && client.is_answered()));
    drop((silent, load));
    assert_nothing_lost(&world.stop());
}

#[test]
fn of_two_hundred_that_come_at_once_each_is_answered_or_told_and_no_frame_is_lost() {
    let Some(mut world) = World::running("bandwidth 20mbit") else { return };
    let ends = world.ends();
    let load = Load::start(&ends);
    load.goes_on_for(200_000);
    let hello = protocol::write_request(&Request::Hello);
    for _ in 0..3 {
        let mut clients: Vec<_> = (0..200).map(|_| world.connect()).collect();
        for client in &mut clients {
            // One that was turned away hears of it all the same.
            client.say(hello.as_bytes());
        }
        let (mut answered, mut told) = (0, 0);
        for client in &mut clients {
            match client.hear() {
                Some(Reply::Hello { .. }) => answered += 1,
                Some(Reply::Refused(refusal)) if refusal.class == Class::Busy => told += 1,
                other => panic!("neither: {other:?}"),
            }
        }
        assert!(answered >= 60 && answered + told == 200, "{answered} and {told}");
        load.goes_on_for(200_000);
        drop(clients);
        await_that("a free place", || world.tc("qdisc show").status.success());
    }
    drop(load);
    assert_nothing_lost(&world.stop());
}

#[test]
fn details_tell_what_a_port_knows_and_leave_what_tc_says_as_it_is() {
    let Some(world) = World::running("bandwidth 20mbit") else { return };
    let ends = world.ends();
    let load = Load::start(&ends);
    load.goes_on_for(1_000_000);
    drop(load);
    let shown = |line: &str| world.done(line);
    let mut plain = String::new();
    await_that("silence", || {
        let before = std::mem::replace(&mut plain, shown("-s qdisc show dev wan0"));
        before == plain && plain.contains(" backlog 0b 0p ")
    });
    let details = shown("-s -d qdisc show dev wan0");
    let ours = details.strip_prefix(&plain).expect("first all that tc says");
    let starts: Vec<_> = ours.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let expected = ["runs", "catch-up", "port", "segments", "wake-ups", "process"];
    assert_eq!(starts, expected, "{ours}");
    let object = |options: &str| -> Value {
        let text = shown(&format!("{options} qdisc show dev wan0"));
        let all: Value = serde_json::from_str(&text).expect("it is JSON");
        all[0].clone()
    };
    assert!(object("-j -s").get("ucake").is_none());
    // The supervisor tells it once a second.
    await_that("what was lost", || object("-j -d")["ucake"]["port"]["lost_before_reading"] == 0);
    let port = &object("-j -s -d")["ucake"]["port"];
    let number = |key: &str| port[key].as_u64().expect(key);
    assert!(number("written_bytes") > 1_000_000 && number("read_frames") > 100, "{port}");
    assert!(number("byte_limit") > 0 && number("written_segments") >= 700, "{port}");
    assert_eq!(["refused", "too_long", "in_flight"].map(number), [0; 3], "{port}");
    let late = |key: &str| port["late"][key].as_u64().expect(key);
    assert!(late("wake_ups") > 100, "{port}");
    assert!(late("p50_us") <= late("p99_us") && late("p99_us") <= late("max_us"), "{port}");
    // What is not CAKE goes through a port all the same.
    shown("qdisc del dev wan0 root");
    let pfifo = object("-j -d");
    assert_eq!(pfifo["kind"], "pfifo");
    assert!(pfifo["ucake"]["port"]["written_bytes"].as_u64() >= Some(number("written_bytes")));
    assert!(shown("-d qdisc show dev wan0").contains("\n port wan0: read "));
}

#[test]
fn frames_that_a_device_lost_before_they_were_read_are_told_within_seconds() {
    let Some(world) = World::running("") else { return };
    let [client, _server] = world.ends();
    let source = client.run(|| UdpSocket::bind((CLIENT, 0))).expect("the address is ours");
    let lost = |world: &World| {
        let reply =
            world.connect().ask(&Request::Show { port: Some("lan0".into()), queues: false });
        let Reply::Shown { disciplines } = reply else { panic!("not shown: {reply:?}") };
        disciplines[0].counts.as_ref().and_then(|counts| counts.lost_before_reading)
    };
    await_that("none so far", || lost(&world) == Some(0));
    let Reply::Hello { supervision: Some(supervision), .. } = world.connect().ask(&Request::Hello)
    else {
        panic!("there is a supervisor")
    };
    let data = pid(supervision.pid);
    // Nobody answers for the server's address: what is sent has no need to, it is broadcast.
    source.set_broadcast(true).expect("an option");
    kill_process(data, Signal::STOP).expect("it runs");
    for _ in 0..5_000 {
        let _ = source.send_to(&[0; 100], ("10.78.0.255", 9));
    }
    kill_process(data, Signal::CONT).expect("it runs");
    await_that("the loss", || lost(&world) > Some(100));
    assert!(world.done("-d qdisc show dev lan0").contains("lost before reading "));
}

/// A copy of the command that anybody may run.
fn public_ucake(directory: &std::path::Path) -> std::path::PathBuf {
    let program = directory.join("ucake-for-all");
    // By another process: nothing that this one may have open for writing is run.
    let copied = std::process::Command::new("cp").arg(cargo_bin("ucake")).arg(&program).status();
    assert!(copied.is_ok_and(|status| status.success()));
    program
}

#[test]
fn the_doctor_has_sensible_words_for_nobody_and_for_a_bare_namespace() {
    use std::os::unix::process::CommandExt as _;
    let Some(world) = World::new() else { return };
    let program = public_ucake(&world.directory);
    for (nobody, bare) in [(true, false), (false, true), (true, true)] {
        let examined = |option: Option<&'static str>| {
            let mut command = std::process::Command::new(&program);
            command.arg("doctor").args(option).stdin(Stdio::null()).current_dir("/");
            if nobody {
                command.uid(65_534).gid(65_534);
            }
            let mut run = move || command.output().expect("it runs");
            if bare { Namespace::new("bare").expect("as before").run(run) } else { run() }
        };
        let (said, json) = (examined(None), examined(Some("-j")));
        assert!(said.stderr.is_empty() && json.stderr.is_empty(), "{said:?} {json:?}");
        let found: Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
        let findings = found["findings"].as_array().expect("a list");
        assert!(findings.len() >= 7, "{found}");
        for finding in findings {
            let advised = finding["advice"].as_str().is_some_and(|advice| !advice.is_empty());
            assert_eq!(advised, finding["state"] != "good", "{finding}");
            assert!(!finding["found"].as_str().unwrap_or_default().is_empty(), "{finding}");
        }
        // 1 if something is missing without which nothing works: rights, to anybody but root.
        for output in [&said, &json] {
            assert_eq!(output.status.code(), Some(i32::from(nobody)), "{output:?}");
        }
        assert_eq!(found["ok"], !nobody, "{found}");
        let words = text(&said.stdout);
        assert_eq!(words.contains("MISSING  privileges"), nobody, "{words}");
        assert_eq!(words.contains("no CAP_NET_ADMIN and CAP_NET_RAW"), nobody, "{words}");
        assert!(words.contains("wake-ups are late by "), "{words}");
    }
}

#[test]
fn a_live_socket_is_refused_and_a_dead_one_replaced() {
    let Some(mut world) = World::running("") else { return };
    let second = world.run("lan1", "wan1", "").wait_with_output().expect("it is our child");
    assert_eq!(second.status.code(), Some(1));
    let said = text(&second.stderr);
    assert!(said.contains("another ucake answers there") && said.lines().count() == 1, "{said}");
    world.done("qdisc show dev wan0");

    let mut first = world.ucake.take().expect("it runs");
    first.kill().expect("it is our child");
    first.wait().expect("it is our child");
    assert!(world.socket().exists(), "it could not clean up");
    let nobody = world.tc("qdisc show");
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("no running ucake"), "{}", text(&nobody.stderr));
    world.ucake = Some(world.run("lan0", "wan0", "bandwidth 9mbit"));
    assert!(world.done("qdisc show dev wan0").contains("bandwidth 9Mbit"));
    world.stop();
    assert!(!world.socket().exists());
}

#[test]
fn sixty_four_clients_that_want_statistics_ten_times_a_second_cost_no_packet() {
    let Some(mut world) = World::running("bandwidth 20mbit") else { return };
    let ends = world.ends();
    let load = Load::start(&ends);
    load.goes_on_for(200_000);
    let curious = Curious::start(&world);
    load.goes_on_for(6_000_000);
    assert!(curious.stop().into_iter().all(|answers| answers > 0));
    load.goes_on_for(200_000);
    let shown = world.done("-s qdisc show dev wan0");
    assert!(!shown.contains(" Sent 0 bytes"), "{shown}");
    drop(load);
    assert_nothing_lost(&world.stop());
}
