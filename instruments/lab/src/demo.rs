//! The demonstration: a sender, a snooping switch, the real daemon and a receiver, each in a
//! network namespace of its own. Everything is removed when the run ends, however it ends.

mod report;
mod stream;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::reply::{State, Stats};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use traffic::report::{ReceiveReport, SendReport};

pub use self::report::{Delivery, Report};
use self::stream::{Receiver, STREAMS};
use crate::daemon::{self, Daemon};
use crate::guard::Guard;
use crate::process::Process;
use crate::topology::Chain;
use crate::{accounting, binary, link, mark, wait};

/// How much the demonstration sends, and where it is relayed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Packets per second of each stream.
    pub rate_pps: u32,
    /// Seconds to send.
    pub duration_s: u32,
    /// UDP payload bytes of each packet.
    pub size: u32,
    /// `auto`, `kernel` or `userspace`.
    pub path: String,
}

/// Progress of a running demonstration.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step is done.
    Step(String),
    /// The daemon's counters while traffic runs.
    Running(Box<Stats>),
}

/// Beyond the time to send: how long sender and receivers get to finish.
const REST: Duration = Duration::from_secs(5);
/// How often the counters are read while traffic runs.
const REFRESH: Duration = Duration::from_millis(250);

/// Returns whether this process may make network namespaces and start the daemon in them.
pub fn may_run() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs the demonstration from the first namespace to the last counter, and removes everything again.
/// `show` receives the progress; `stop` ends the run early.
///
/// # Errors
/// When a step fails or `stop` was set. Loss is no error but a [`Report`].
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    mut show: impl FnMut(Event) -> Result<()>,
) -> Result<Report> {
    require("socat", "-V")?;
    require("ip", "-V")?;
    let _guard = Guard::start()?;
    let mut bed = Bed::set_up(options, stop, &mut show)?;
    let sender = bed.start_sender()?;
    let account = bed.follow(sender, &mut show)?;
    bed.report(&account)
}

fn require(program: &str, probe: &str) -> Result<()> {
    let output = Command::new(program).arg(probe).output();
    output.map(drop).with_context(|| {
        format!("cannot start {program}; install it (dist/bootstrap demo does), then try again")
    })
}

/// Everything that has to exist before the first packet.
struct Bed<'a> {
    options: &'a Options,
    stop: &'a AtomicBool,
    // Dropped in this order: processes, daemon, namespaces.
    checked: Process,
    stock: Process,
    stock_file: PathBuf,
    daemon: Daemon,
    chain: Chain,
    _directory: TempDir,
}

impl<'a> Bed<'a> {
    fn set_up(
        options: &'a Options,
        stop: &'a AtomicBool,
        show: &mut impl FnMut(Event) -> Result<()>,
    ) -> Result<Self> {
        let step = |show: &mut dyn FnMut(Event) -> Result<()>, text: String| {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            show(Event::Step(text))
        };
        let chain = Chain::snooping().context("making the namespaces")?;
        let switch = chain.switch.as_ref().context("the bed has no switch")?;
        let text = "sender 10.0.0.1 -- snooping switch -- 10.0.0.2 relay 10.0.1.1 -- 10.0.1.2 \
                    receiver: made, and what nobody joined does not pass the switch";
        step(show, text.to_owned())?;

        let daemon = Daemon::start(&chain.relay, daemon_options(options))?;
        for stream in &STREAMS {
            let ready = format!("rule {} is up and joined", stream.rule);
            daemon.wait_for(stream.rule, &ready, |rule| {
                rule.state == State::Up && rule.inputs.iter().all(|input| input.joined)
            })?;
            link::wait_for_member((switch, "br0"), stream.group())?;
        }
        let text = format!(
            "daemon up with {} rules, the switch knows the joins",
            STREAMS.len()
        );
        step(show, text)?;

        let directory = mark::directory()?;
        let stock_file = directory.path().join("received");
        let checked = start_checked_receiver(&chain, options)?;
        let stock = start_stock_receiver(&chain, &stock_file)?;
        step(
            show,
            "mcr receive and socat joined at the receiver".to_owned(),
        )?;
        Ok(Self {
            options,
            stop,
            checked,
            stock,
            stock_file,
            daemon,
            chain,
            _directory: directory,
        })
    }

    /// Packets of each stream.
    fn packets(&self) -> u64 {
        packets(self.options)
    }

    fn start_sender(&self) -> Result<Process> {
        let mut command = self.chain.sender.command(binary::mcr()?);
        command.args(["send", "--json"]);
        command.args(STREAMS.iter().map(|stream| stream.on("veth0")));
        command.args(["--rate", &self.options.rate_pps.to_string()]);
        command.args(["--count", &self.packets().to_string()]);
        command.args(["--size", &self.options.size.to_string()]);
        Process::start(command)
    }

    /// Shows counters until the sender has ended, then waits for the rest to arrive.
    fn follow(
        &mut self,
        mut sender: Process,
        show: &mut impl FnMut(Event) -> Result<()>,
    ) -> Result<SendReport> {
        let sending = Duration::from_secs(self.options.duration_s.into());
        let deadline = Instant::now() + sending + wait::scaled(REST);
        let mut next = Instant::now();
        while sender.is_running() {
            ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
            ensure!(Instant::now() < deadline, "mcr send does not end");
            if Instant::now() >= next {
                show(Event::Running(Box::new(self.daemon.stats()?)))?;
                next += REFRESH;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = sender.wait(REST)?.success().context("mcr send")?;
        self.wait_for_rest()?;
        show(Event::Running(Box::new(self.daemon.stats()?)))?;
        serde_json::from_str(&text).with_context(|| format!("mcr send --json: {text}"))
    }

    /// Waits until everything has arrived. A timeout is loss, which the report shows.
    fn wait_for_rest(&mut self) -> Result<()> {
        let stock = self.packets() * u64::from(self.options.size);
        let _ = wait::until_within(REST, "all is delivered", || {
            self.stop.load(Ordering::Relaxed)
                || (!self.checked.is_running() && self.stock_bytes() >= stock)
        });
        ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    fn stock_bytes(&self) -> u64 {
        fs::metadata(&self.stock_file).map_or(0, |file| file.len())
    }

    fn report(self, sender: &SendReport) -> Result<Report> {
        let stats = self.daemon.stats()?;
        let stock_packets = self.stock_bytes() / u64::from(self.options.size);
        let sent = self.packets();
        drop(self.stock);
        // It has ended by itself, unless packets are missing.
        let text = self.checked.stop(Signal::SIGINT)?.stdout;
        let checked: ReceiveReport =
            serde_json::from_str(&text).with_context(|| format!("mcr receive --json: {text}"))?;
        let law = accounting::check(&stats);
        Ok(Report {
            deliveries: report::deliveries(sent, &stats, &checked, stock_packets)?,
            broken_law: law.err().map(|error| error.to_string()),
            send_errors: sender.errors,
        })
    }
}

fn packets(options: &Options) -> u64 {
    u64::from(options.rate_pps) * u64::from(options.duration_s)
}

fn daemon_options(options: &Options) -> daemon::Options {
    daemon::Options {
        config: Some(stream::configuration()),
        ..daemon::Options::path(&options.path)
    }
}

fn start_checked_receiver(chain: &Chain, options: &Options) -> Result<Process> {
    let streams = STREAMS
        .iter()
        .filter(|stream| stream.receiver == Receiver::Mcr);
    let endpoints: Vec<String> = streams
        .flat_map(|stream| stream.outputs.iter().map(|(to, _)| stream.at(to)))
        .collect();
    let all = packets(options) * endpoints.len() as u64;
    let mut command = chain.sink.command(binary::mcr()?);
    command.args(["receive", "--json"]);
    command.args(&endpoints);
    command.args(["--count", &all.to_string()]);
    let mut process = Process::start(command)?;
    wait::until("mcr receive has joined", || {
        !process.is_running() || process.stderr().contains("receiving on")
    })?;
    ensure!(process.is_running(), "mcr receive: {}", process.stderr());
    Ok(process)
}

fn start_stock_receiver(chain: &Chain, file: &Path) -> Result<Process> {
    let stream = STREAMS
        .iter()
        .find(|stream| stream.receiver == Receiver::Socat);
    let at = stream
        .and_then(|stream| Some(stream.at(stream.outputs.first()?.0)))
        .context("no stream is for socat")?;
    let (group, rest) = at.split_once('%').context("endpoint without interface")?;
    let (interface, port) = rest.split_once(':').context("endpoint without port")?;
    let mut command = chain.sink.command("socat");
    command.arg("-u");
    // SOL_SOCKET, SO_RCVBUFFORCE: socat has no option for it, and the default holds 50 ms.
    command.arg(format!(
        "UDP4-RECV:{port},ip-add-membership={group}:{interface},setsockopt-listen=1:33:i16777216"
    ));
    command.arg(format!("OPEN:{},creat,append", file.display()));
    let mut process = Process::start(command)?;
    let port: u16 = port.parse()?;
    let bound = format!(":{port:04X} ");
    let listening = || {
        let sockets = chain.sink.read_proc_net("udp");
        sockets.is_ok_and(|text| text.contains(&bound))
    };
    wait::until("socat listens", || !process.is_running() || listening())?;
    if !process.is_running() {
        bail!("socat: {}", process.stderr());
    }
    Ok(process)
}
