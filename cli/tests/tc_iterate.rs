//! `contrib/tc_iterate` as flent calls it, in front of programs that stand in for ucake and tc.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SHOWN: &str = include_str!("data/tc_show_statistics.txt");

/// A folder with a `ucake` that knows `wan0` and a `tc` that knows `eth0`.
struct Stage(PathBuf);

impl Stage {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder of our own");
        fs::write(folder.join("shown"), SHOWN).expect("a file of our own");
        let stage = Self(folder);
        stage.program("ucake", "wan0");
        stage.program("tc", "eth0");
        stage
    }

    fn program(&self, name: &str, device: &str) {
        let path = self.0.join(name);
        let shown = self.0.join("shown");
        let script = format!(
            "#!/bin/sh\n[ \"$*\" = '-s qdisc show dev {device}' ] || exit 1\n\
             cat '{}'\n",
            shown.display()
        );
        fs::write(&path, script).expect("a file of our own");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    fn run(&self, args: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/tc_iterate");
        let path = format!("{}:{}", self.0.display(), std::env::var("PATH").expect("a PATH"));
        let mut command = Command::new("sh");
        command.arg(script).args(args).env("PATH", path).env_remove("UCAKE").env_remove("TC");
        command.output().expect("there is a shell")
    }
}

/// The records, taken apart as flent does: separated by `---`, each with its time.
fn records(output: &Output) -> Vec<(String, f64)> {
    let text = String::from_utf8_lossy(&output.stdout);
    let parts: Vec<&str> = text.split("---\n").collect();
    let (rest, records) = parts.split_last().expect("a split has a part");
    assert_eq!(*rest, "", "a record ends with its separator");
    let record = |record: &&str| {
        let (shown, time) = record.rsplit_once("Time: ").expect("it has its time");
        assert!(time.contains('.') && time.trim().chars().all(|c| c == '.' || c.is_ascii_digit()));
        (shown.to_owned(), time.trim().parse().expect("seconds"))
    };
    records.iter().map(record).collect()
}

#[test]
fn flent_gets_its_records_in_order_with_their_times() {
    let stage = Stage::new("tc_iterate-records");
    let output = stage.run(&["-i", "wan0", "-c", "3", "-I", "0.05", "-C", "qdisc"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let records = records(&output);
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|(shown, _)| shown == SHOWN));
    let steps: Vec<f64> = records.windows(2).map(|two| two[1].1 - two[0].1).collect();
    assert!(steps.iter().all(|&step| step > 0.0), "{steps:?}");
}

#[test]
fn a_record_has_what_flent_looks_for() {
    let stage = Stage::new("tc_iterate-flent");
    let output = stage.run(&["-i", "wan0", "-c", "1"]);
    let [(record, _)] = &records(&output)[..] else { panic!("one record was asked for") };
    assert!(record.starts_with("qdisc cake 8001: "));
    let titles = record.lines().find(|line| line.contains("Best Effort")).expect("titles of tins");
    assert_eq!(titles.replace("Best Effort", "Best").split_whitespace().count(), 3);
    for label in [
        "av_delay", "sp_delay", "pkts", "bytes", "drops", "marks", "sp_flows", "bk_flows",
        "max_len",
    ] {
        let row = record.lines().find(|line| line.starts_with(&format!("  {label} ")));
        assert_eq!(row.expect(label).split_whitespace().count(), 4, "{label}");
    }
}

#[test]
fn buffered_records_are_the_same() {
    let stage = Stage::new("tc_iterate-buffered");
    let output = stage.run(&["-b", "-i", "wan0", "-c", "2", "-I", "0", "-C", "qdisc"]);
    assert!(output.status.success(), "{output:?}");
    assert!(records(&output).iter().all(|(shown, _)| shown == SHOWN));
    assert_eq!(records(&output).len(), 2);
}

#[test]
fn a_length_of_time_ends_it_too() {
    let stage = Stage::new("tc_iterate-length");
    let output = stage.run(&["-i", "wan0", "-l", "0", "-I", "0.01"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(records(&output).len(), 1);
}

#[test]
fn devices_that_ucake_does_not_shape_are_left_to_tc() {
    let stage = Stage::new("tc_iterate-tc");
    let output = stage.run(&["-i", "eth0", "-c", "1"]);
    assert_eq!(records(&output).len(), 1, "{output:?}");
    let output = stage.run(&["-i", "eth9", "-c", "1"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
}

#[test]
fn what_is_no_device_or_number_is_refused_before_anything_runs() {
    let stage = Stage::new("tc_iterate-refused");
    let bad: [&[&str]; 8] = [
        &["-i", "wan0; reboot"],
        &["-i", ""],
        &["-c", "x"],
        &["-l", "1.5"],
        &["-I", "often"],
        &["-C", "filter"],
        &["-H", "-oProxyCommand=x"],
        &["-x"],
    ];
    for args in bad {
        let output = stage.run(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}
