//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ucake::time::Span;
use ucake::units::Rate;
use ucake_cli::plan::{Bell, Coalesce, PortName, Words};
use ucake_cli::sandbox::User;
use ucake_cli::{config, value, words};

/// CAKE, the queue discipline that keeps a link's queue short and shares it fairly, as an ordinary
/// program.
#[derive(Debug, Parser)]
#[command(name = "ucake", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
As tc does, against a running ucake:
  ucake [-s] [-d] qdisc show|add|replace|change|del [dev PORT] [root] [handle H:] [cake WORDS]
  ucake class show dev PORT     ucake monitor     ucake -batch FILE|-     more: ucake qdisc help

Exit status: 0 done, 1 refused by the system, 2 bad usage, 130 stopped by a signal before the end.
RUST_LOG=info (or debug, trace) shows what happens, on standard error.";

/// What there is to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shape between two ports, in the foreground
    Run(Box<RunArgs>),
    /// Watch what queues do to a ping: a bottleneck in the laboratory
    Lab(LabArgs),
    /// Say what CAKE would have done to a capture, packet by packet
    Replay(ReplayArgs),
    /// Exchange a running ucake for the program that now stands where it was started from
    Upgrade(UpgradeArgs),
    /// Say what a configuration file asks for, or what is wrong with it
    Check(CheckArgs),
    /// Say what this machine can do, and what to do about what it cannot
    Doctor(DoctorArgs),
    /// Write the script that completes this command in a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Handle frames for a supervisor; what is needed comes from standard input
    #[command(hide = true)]
    Data,
    /// Go on where another ucake leaves off; what is needed comes from standard input
    #[command(hide = true)]
    Resume(ResumeArgs),
}

/// Exchange a running ucake for the program that now stands where it was started from.
///
/// The new program is tried first; if it cannot go on, nothing changes. Ports stay open, configuration and counters
/// are kept; what is lost are the frames that were queued. For root, and for the user that runs it.
#[derive(Debug, ClapArgs)]
pub(crate) struct UpgradeArgs {
    /// Socket of the one that is meant, if more than one runs
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// Say what a configuration file asks for, or what is wrong with it.
///
/// Prints what would be run, every bridge with all its words, as a configuration file. Opens nothing: whether the
/// devices are there is not looked at. Exit status 2 if the file is wrong.
#[derive(Debug, ClapArgs)]
pub(crate) struct CheckArgs {
    /// The file
    #[arg(default_value = config::DEFAULT_PATH)]
    pub(crate) file: PathBuf,
}

/// Go on where another ucake leaves off.
#[derive(Debug, ClapArgs)]
pub(crate) struct ResumeArgs {
    /// Only say whether that would be possible
    #[arg(long)]
    pub(crate) check: bool,
    /// What the first one was started with, for people to see
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}

/// Say what this machine can do, and what to do about what it cannot.
///
/// Looks at the ports of every ucake that runs too, and at those that are named: who else has to do with their devices.
/// Changes nothing. Exit status 1 if something is missing that "ucake run" needs.
#[derive(Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Ports that are meant to be used, such as packet:eth0
    #[arg(value_name = "PORT")]
    pub(crate) ports: Vec<PortName>,
    /// Socket of the one that is meant, if more than one runs
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// One line of JSON instead of text
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// What is said either on the command line or in a file.
const SAID_IN_THE_FILE: [&str; 8] =
    ["lan", "wan", "up", "down", "coalesce", "doorbell", "control", "control_group"];

/// Shape between two ports, in the foreground.
///
/// Frames that come in through LAN leave through WAN and the other way round, each direction through a
/// CAKE of its own. tap:NAME is a tap, created where this runs (or attached to, if it exists), which may be moved
/// to another network namespace afterwards. packet:IFACE is an Ethernet device that is there already; it should
/// have no addresses of its own, or the host answers besides forwarding. Set each direction a little slower than what the link really
/// carries: the queue then stands here, where it is managed.
///
/// While it runs, "ucake qdisc" shows and changes both directions, as tc does. SIGUSR1 prints the statistics of
/// both, SIGINT and SIGTERM print them and stop. With --config, SIGHUP has the file read again and what has changed
/// in it done; a file that is wrong changes nothing.
#[derive(Debug, ClapArgs)]
#[command(after_help = RUN_EXAMPLES, after_long_help = run_help())]
pub(crate) struct RunArgs {
    /// Port on the side of the hosts, such as tap:lan0 or packet:eth0
    #[arg(required_unless_present = "config")]
    pub(crate) lan: Option<PortName>,
    /// Port on the side of the bottleneck, such as tap:wan0 or packet:eth1
    #[arg(required_unless_present = "config")]
    pub(crate) wan: Option<PortName>,
    /// File that says what to run, instead of all this; SIGHUP has it read again
    #[arg(long, value_name = "FILE", conflicts_with_all = SAID_IN_THE_FILE)]
    pub(crate) config: Option<PathBuf>,
    /// CAKE for what leaves through WAN, in the words of "tc qdisc … cake"
    #[arg(long, value_name = "WORDS", default_value = "", value_parser = Words::from_str)]
    #[arg(hide_default_value = true, allow_hyphen_values = true)]
    pub(crate) up: Words,
    /// CAKE for what leaves through LAN
    #[arg(long, value_name = "WORDS", default_value = "", value_parser = Words::from_str)]
    #[arg(hide_default_value = true, allow_hyphen_values = true)]
    pub(crate) down: Words,
    /// Which frames that leave together are joined to superpackets
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Coalesce::Exact)]
    pub(crate) coalesce: Coalesce,
    /// When a port sends what it was given
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Bell::Batch)]
    pub(crate) doorbell: Bell,
    /// Socket to be shown and changed through; /run/ucake/control.sock if that can be had
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Group that may use it, besides the owner
    #[arg(long, value_name = "GROUP")]
    pub(crate) control_group: Option<String>,
    /// User that frames are handled as, by name or number
    #[arg(long, value_name = "USER", default_value = "nobody", value_parser = user)]
    pub(crate) user: User,
    /// Handle frames in the process that is started, with all its rights, and end when it ends
    #[arg(long)]
    pub(crate) no_supervisor: bool,
}

fn user(name: &str) -> Result<User, String> {
    User::find(name).ok_or_else(|| format!("there is no user \"{name}\""))
}

const RUN_EXAMPLES: &str = "\
Examples:
  ucake run tap:lan0 tap:wan0 --up 'bandwidth 20mbit' --down 'bandwidth 100mbit'
  ucake run tap:lan0 tap:wan0 --up 'bandwidth 9mbit docsis' --down 'bandwidth 90mbit docsis'
  ucake run packet:eth0 packet:eth1 --up 'bandwidth 20mbit' --down 'bandwidth 100mbit'
  ucake run --config /etc/ucake.toml

The words of --up and --down: ucake run --help";

fn run_help() -> String {
    let examples = RUN_EXAMPLES.rsplit_once("\n\n").map_or(RUN_EXAMPLES, |(examples, _)| examples);
    format!("{examples}\n\nWORDS, as in \"tc qdisc … cake\":\n\n{}", words::help())
}

/// Watch what queues do to a ping: a bottleneck in the laboratory.
///
/// Two network namespaces, "client" and "server", are joined by a bottleneck with a queue. TCP fills it
/// while a ping measures how long the queue makes everybody else wait: first with the drop-tail queue
/// that most of the world has, then with CAKE. Needs no other program. Needs root, or a system that lets
/// users have network namespaces of their own. Leaves nothing behind.
#[derive(Debug, ClapArgs)]
#[command(after_help = LAB_EXAMPLES, after_long_help = lab_help())]
pub(crate) struct LabArgs {
    /// Which way TCP sends
    #[arg(long, value_enum, default_value_t = Scenario::Upload)]
    pub(crate) scenario: Scenario,
    /// Rate of the bottleneck each way, or "unlimited"; 20mbit if not given, in asym 50mbit down (up is 1/50 of it)
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<LabRate>,
    /// Delay of the path, there and back, without any queue
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = path_delay)]
    pub(crate) rtt: Span,
    /// How long TCP sends in each run; the first fifth, at most 2 s, is not counted
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// TCP flows each way that is loaded; in hosts those of the second host, in rrul dealt to the four marks
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = flow_count)]
    pub(crate) flows: usize,
    /// TCP congestion control of the senders
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    pub(crate) cc: String,
    /// Let TCP use ECN: CAKE then marks packets instead of dropping them
    #[arg(long)]
    pub(crate) ecn: bool,
    /// CAKE to run, in the words of "tc qdisc … cake"; may be repeated, one run each. Each scenario has its own if not
    /// given
    #[arg(long, value_name = "WORDS", value_parser = Words::from_str, allow_hyphen_values = true)]
    pub(crate) cake: Vec<Words>,
    /// Write the results as JSON too; "-" is standard output, and the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a data file for flent per run; FILE is where its name begins
    #[arg(long, value_name = "FILE")]
    pub(crate) flent: Option<PathBuf>,
    /// Draw ping and throughput over time, and the distribution of ping
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Run everything so often, one discipline after the other, and show medians
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) repeat: u16,
}

const LAB_EXAMPLES: &str = "\
Examples:
  ucake lab
  ucake lab --scenario download --rate 100mbit --rtt 40ms --flows 16
  ucake lab --scenario voip --repeat 3 --svg voip.svg --flent voip
  ucake lab --cake 'besteffort flowblind' --cake 'diffserv4' --json results.json";

fn lab_help() -> String {
    format!("{LAB_EXAMPLES}\n\nWORDS, as in \"tc qdisc … cake\":\n\n{}", words::help())
}

/// Say what CAKE would have done to a capture, packet by packet.
///
/// Frames come at their captured times to the same CAKE that "ucake run" has, on a virtual clock: as fast as the
/// machine goes, and with the same outcome each time. IN is a pcap or pcapng file of Ethernet frames, all of which go one
/// way; OUT gets what leaves, at the time it leaves. What "tc -s qdisc show" would show in the end is printed.
/// docs/REPLAY.md explains the trace.
#[derive(Debug, ClapArgs)]
#[command(after_help = REPLAY_EXAMPLES, after_long_help = replay_help())]
pub(crate) struct ReplayArgs {
    /// Capture to read; "-" is standard input
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// Capture to write; "-" is standard output, and the table then goes to standard error
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// "cake", then CAKE in the words of "tc qdisc … cake"
    #[arg(value_name = "cake WORDS", required = true, num_args = 1.., allow_negative_numbers = true)]
    pub(crate) words: Vec<String>,
    /// Write a line of JSON for each packet: when it came, how long it waited, what was decided and why
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// What everything random follows from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Longest frame of the link, in bytes with its Ethernet header; what is longer is a train
    #[arg(long, value_name = "BYTES", default_value_t = 1514)]
    #[arg(value_parser = clap::value_parser!(u32).range(128..=65_535))]
    pub(crate) mtu: u32,
    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print the table as JSON, as "tc -s -j" does
    #[arg(short, long)]
    pub(crate) json: bool,
    /// With statistics, as it always is
    #[arg(short, long)]
    pub(crate) statistics: bool,
    /// Print also what only ucake counts
    #[arg(short, long)]
    pub(crate) details: bool,
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  ucake replay in.pcapng out.pcap cake bandwidth 20mbit
  ucake replay in.pcap out.pcap --trace trace.json cake bandwidth 20mbit diffserv4 ack-filter";

fn replay_help() -> String {
    format!("{REPLAY_EXAMPLES}\n\nWORDS, as in \"tc qdisc … cake\":\n\n{}", words::help())
}

/// Which way TCP sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// From client to server
    Upload,
    /// From server to client
    Download,
    /// Both at once
    Both,
    /// Both at once, in four DSCP marks: CS0 (BE), CS1 (BK), CS5, EF; a ping in each
    Rrul,
    /// A call (one frame each 20 ms, EF) from client to server, beside an upload
    Voip,
    /// Two hosts upload: the first with one flow, the second with --flows
    Hosts,
    /// A download through a line whose upload is 50 times as slow
    Asym,
    /// Uploads in writes of 200 bytes, sent at once (TCP_NODELAY)
    Small,
}

impl Scenario {
    /// As typed.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Both => "both",
            Self::Rrul => "rrul",
            Self::Voip => "voip",
            Self::Hosts => "hosts",
            Self::Asym => "asym",
            Self::Small => "small",
        }
    }
}

/// A rate; `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabRate(pub(crate) Option<Rate>);

impl FromStr for LabRate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "unlimited" {
            return Ok(Self(None));
        }
        let rate = value::parse_rate(text).filter(|rate| !rate.is_zero());
        rate.map(|rate| Self(Some(rate)))
            .ok_or("expected a rate such as 20mbit, 2.5mbit or 128kbit, or \"unlimited\"")
    }
}

fn path_delay(text: &str) -> Result<Span, &'static str> {
    value::parse_time(text)
        .filter(|&span| span <= Span::from_secs(10))
        .ok_or("expected a time such as 20ms or 0.1s, at most 10s")
}

fn flow_count(text: &str) -> Result<usize, &'static str> {
    let count = text.parse().ok().filter(|count| (1..=512).contains(count));
    count.ok_or("expected a number from 1 to 512")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use ucake::io::batch::Coalescing;
    use ucake::io::driver::Doorbell;
    use ucake::packet::coalesce::Push;

    use super::*;

    fn refused(line: &[&str]) -> String {
        Args::try_parse_from(line).expect_err("this is bad usage").to_string()
    }

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn words_are_checked_with_the_rest_of_the_line() {
        let message = refused(&["ucake", "run", "tap:a", "tap:b", "--up", "bestefort"]);
        assert!(message.contains("--up") && message.contains("\"besteffort\""), "{message}");
        let line = ["ucake", "run", "tap:a", "tap:b", "--up", "bandwidth 5mbit", "--down", "lan"];
        let args = Args::try_parse_from(line).expect("this is good usage");
        let Command::Run(run) = args.command else { panic!("run was asked for") };
        assert_eq!(run.up.change.bandwidth, Some(Some(Rate::from_bits(5_000_000))));
        assert_eq!(run.down.change.interval, Some(Span::from_millis(1)));
    }

    #[test]
    fn what_is_joined_and_when_it_is_sent_can_be_said() {
        let parse = |more: &[&str]| {
            let line = [&["ucake", "run", "tap:a", "tap:b"], more].concat();
            let Command::Run(run) = Args::try_parse_from(line).expect("good usage").command else {
                panic!("run was asked for")
            };
            (run.coalesce.into(), run.doorbell.into())
        };
        assert_eq!(parse(&[]), (Coalescing::default(), Doorbell::default()));
        let off = ["--coalesce", "off", "--doorbell", "packet"];
        assert_eq!(parse(&off), (Coalescing::Off, Doorbell::Packet));
        assert_eq!(parse(&["--coalesce", "push"]).0, Coalescing::On(Push::Last));
    }

    #[test]
    fn the_laboratory_has_defaults_and_bounds() {
        let args = Args::try_parse_from(["ucake", "lab"]).expect("everything has a default");
        let Command::Lab(lab) = args.command else { panic!("lab was asked for") };
        assert_eq!(lab.rate, None);
        assert_eq!((lab.rtt, lab.flows, lab.seconds), (Span::from_millis(20), 4, 10));
        for (option, value) in [
            ("--rate", "5m"),
            ("--rate", "0"),
            ("--rtt", "11s"),
            ("--flows", "0"),
            ("--flows", "x"),
            ("--seconds", "0"),
            ("--scenario", "sideways"),
            ("--cake", "bandwidth"),
        ] {
            assert!(refused(&["ucake", "lab", option, value]).contains(option), "{option}");
        }
    }

    #[test]
    fn help_has_every_word() {
        for command in ["run", "lab"] {
            let help = refused(&["ucake", command, "--help"]);
            for word in ["bandwidth RATE", "triple-isolate", "pppoe-ptm", "besteffort"] {
                assert!(help.contains(word), "{command}: {word}");
            }
        }
    }
}
