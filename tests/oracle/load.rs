//! Load and measurement for the dynamic comparison, inside the reference kernel; see `dynamic.sh`.
//!
//! ```text
//! oracle-load serve                            in the server's namespace: sends what it is asked for
//! oracle-load measure WARM SECONDS FLOWS…      in the client's: asks for flows, counts what arrives
//! oracle-load report FILE                      prints kernel and ucake side by side
//! ```
//!
//! FLOWS is `tcp:CLIENT:SERVER:COUNT:TOS` or `udp:CLIENT:SERVER:BITS:TOS`, addresses being the last byte.
//! Besides the flows a datagram of another flow goes back and forth fifty times a second.

#![allow(missing_docs, reason = "a program")]

mod bounds;

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

type Outcome<T> = Result<T, Box<dyn Error>>;

const TCP_PORT: u16 = 5000;
const FLOOD_PORT: u16 = 5001;
const ECHO_PORT: u16 = 5002;
/// Bytes of a flood's datagram.
const DATAGRAM: usize = 1250;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["serve"] => serve(),
        ["measure", warm, seconds, flows @ ..] => measure(warm.parse()?, seconds.parse()?, flows),
        ["report", file] => report(&std::fs::read_to_string(file)?),
        _ => Err("usage: oracle-load serve | measure WARM SECONDS FLOWS… | report FILE".into()),
    }
}

fn address(last: &str) -> Outcome<Ipv4Addr> {
    Ok(Ipv4Addr::new(10, 7, 0, last.parse()?))
}

// The server.

fn serve() -> Outcome<()> {
    let echo = UdpSocket::bind((Ipv4Addr::new(10, 7, 0, 209), ECHO_PORT))?;
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((len, from)) = echo.recv_from(&mut bytes) {
            let _ = echo.send_to(&bytes[..len], from);
        }
    });
    // A socket for each address: answers come from the address that was asked.
    for last in 201..=208 {
        let flood = UdpSocket::bind((Ipv4Addr::new(10, 7, 0, last), FLOOD_PORT))?;
        thread::spawn(move || flood_on_request(&flood));
    }
    for stream in TcpListener::bind((Ipv4Addr::UNSPECIFIED, TCP_PORT))?.incoming() {
        let stream = stream?;
        thread::spawn(move || send_tcp(stream));
    }
    Ok(())
}

fn send_tcp(mut stream: TcpStream) -> io::Result<()> {
    let mut tos = [0];
    stream.read_exact(&mut tos)?;
    sockopt::set_ip_tos(&stream, tos[0])?;
    let bytes = vec![0x5a; 64 * 1024];
    loop {
        stream.write_all(&bytes)?;
    }
}

/// A request is TOS, bits per second, milliseconds.
fn flood_on_request(socket: &UdpSocket) {
    let mut request = [0; 17];
    while let Ok((17, from)) = socket.recv_from(&mut request) {
        let number =
            |at: usize| u64::from_be_bytes(request[at..at + 8].try_into().expect("eight bytes"));
        let (rate, span) = (number(1), Duration::from_millis(number(9)));
        let _ = sockopt::set_ip_tos(socket, request[0]);
        let begin = Instant::now();
        let mut sent = 0;
        while begin.elapsed() < span {
            let due = u128::from(rate) * begin.elapsed().as_micros() / 8_000_000;
            while sent < due {
                let _ = socket.send_to(&[0x5a; DATAGRAM], from);
                sent += DATAGRAM as u128;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

// The client.

/// Bytes that flows of one kind have brought.
type Count = Arc<AtomicU64>;

fn measure(warm: u64, seconds: u64, flows: &[&str]) -> Outcome<()> {
    let total = Duration::from_secs(warm + seconds + 1);
    let mut counts = Vec::new();
    for flow in flows {
        let count = Count::default();
        let parts: Vec<&str> = flow.split(':').collect();
        let [kind, client, server, amount, tos] = parts[..] else {
            return Err("a flow has five parts".into());
        };
        let (client, server) = (address(client)?, address(server)?);
        let tos: u8 = tos.parse()?;
        if kind == "tcp" {
            for _ in 0..amount.parse()? {
                receive_tcp(client, server, tos, Arc::clone(&count))?;
            }
        } else {
            receive_udp(client, server, amount.parse()?, tos, total, Arc::clone(&count))?;
        }
        counts.push(count);
    }
    let pinging = Arc::new(AtomicBool::new(false));
    let ping = ping(Arc::clone(&pinging))?;
    thread::sleep(Duration::from_secs(warm));
    let before: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let begin = Instant::now();
    pinging.store(true, Ordering::Relaxed);
    let stalled = sleep_and_count_stalls(Duration::from_secs(seconds));
    pinging.store(false, Ordering::Relaxed);
    let span = begin.elapsed().as_secs_f64();
    let mut arrived = Vec::new();
    for (count, before) in counts.iter().zip(before) {
        arrived.push(megabits(count.load(Ordering::Relaxed) - before, span));
    }
    let total: f64 = arrived.iter().sum();
    println!("goodput_mbit {total:.4}");
    for (number, one) in arrived.iter().enumerate().filter(|_| arrived.len() > 1) {
        println!("share_{} {:.3}", number + 1, one * 100.0 / total);
    }
    let (mean, lost) = ping.join().map_err(|_| "the ping panicked")??;
    println!("ping_mean_ms {mean:.3}\nping_lost {lost}\nstalled_ms {stalled}");
    Ok(())
}

/// Milliseconds by which short sleeps were too long: then the whole machine stood still, and with it
/// what is measured.
fn sleep_and_count_stalls(span: Duration) -> u128 {
    const NAP: Duration = Duration::from_millis(2);
    const STALL: Duration = Duration::from_millis(12);
    let begin = Instant::now();
    let mut stalled = Duration::ZERO;
    while begin.elapsed() < span {
        let asleep_at = Instant::now();
        thread::sleep(NAP);
        let late = asleep_at.elapsed().saturating_sub(NAP);
        if late > STALL {
            stalled += late;
        }
    }
    stalled.as_millis()
}

#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn megabits(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 * 8.0 / seconds / 1e6
}

fn receive_tcp(client: Ipv4Addr, server: Ipv4Addr, tos: u8, count: Count) -> Outcome<()> {
    let fd: OwnedFd =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&fd, &SocketAddrV4::new(client, 0))?;
    rustix::net::connect(&fd, &SocketAddrV4::new(server, TCP_PORT))?;
    let mut stream = TcpStream::from(fd);
    stream.write_all(&[tos])?;
    thread::spawn(move || {
        let mut bytes = vec![0; 256 * 1024];
        while let Ok(len @ 1..) = stream.read(&mut bytes) {
            count.fetch_add(len as u64, Ordering::Relaxed);
        }
    });
    Ok(())
}

fn receive_udp(
    client: Ipv4Addr,
    server: Ipv4Addr,
    rate: u64,
    tos: u8,
    span: Duration,
    count: Count,
) -> Outcome<()> {
    let socket = UdpSocket::bind((client, 0))?;
    let millis = u64::try_from(span.as_millis())?;
    let request = [&[tos][..], &rate.to_be_bytes(), &millis.to_be_bytes()].concat();
    socket.send_to(&request, (server, FLOOD_PORT))?;
    thread::spawn(move || {
        let mut bytes = vec![0; 2048];
        while let Ok(len) = socket.recv(&mut bytes) {
            count.fetch_add(len as u64, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// Mean of the answered echoes in milliseconds, and how many were not.
type Pings = thread::JoinHandle<Result<(f64, u32), String>>;

/// Echoes all the time, counts those sent while `counting`.
fn ping(counting: Arc<AtomicBool>) -> Outcome<Pings> {
    let socket = UdpSocket::bind((Ipv4Addr::new(10, 7, 0, 9), 0))?;
    socket.connect((Ipv4Addr::new(10, 7, 0, 209), ECHO_PORT))?;
    socket.set_read_timeout(Some(Duration::from_millis(900)))?;
    Ok(thread::spawn(move || {
        let (mut times, mut lost, mut number) = (Vec::new(), 0, 0_u32);
        let mut was_counting = false;
        loop {
            let counts = counting.load(Ordering::Relaxed);
            if was_counting && !counts {
                break;
            }
            was_counting = counts;
            number += 1;
            let sent_at = Instant::now();
            socket.send(&number.to_be_bytes()).map_err(|error| error.to_string())?;
            let mut answer = [0; 64];
            let answered = loop {
                match socket.recv(&mut answer) {
                    Ok(4) if answer[..4] == number.to_be_bytes() => break true,
                    Ok(_) => {}
                    Err(_) => break false,
                }
            };
            match (counts, answered) {
                (true, true) => times.push(sent_at.elapsed().as_secs_f64() * 1000.0),
                (true, false) => lost += 1,
                _ => {}
            }
            thread::sleep(Duration::from_millis(20).saturating_sub(sent_at.elapsed()));
        }
        let count = u32::try_from(times.len()).map_err(|error| error.to_string())?;
        Ok((times.iter().sum::<f64>() / f64::from(count.max(1)), lost))
    }))
}

// The report.

/// Prints both sides side by side; an error if any number differs by more than it may.
fn report(text: &str) -> Outcome<()> {
    let rows = bounds::rows(text)?;
    println!("scenario|what|kernel|ucake|allowed|");
    for row in &rows {
        let (kernel, ucake) = row.medians();
        let allowed = bounds::allowed(row.scenario, row.key, kernel);
        let allowed = if allowed.is_finite() { format!("±{allowed:.2}") } else { "-".to_owned() };
        let verdict = if row.agrees() { "" } else { "DIFFERS" };
        println!("{}|{}|{kernel:.2}|{ucake:.2}|{allowed}|{verdict}", row.scenario, row.key);
    }
    let wrong = rows.iter().filter(|row| !row.agrees()).count();
    if wrong == 0 && !rows.is_empty() { Ok(()) } else { Err(format!("{wrong} differ").into()) }
}
