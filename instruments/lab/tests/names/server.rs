//! Real name servers in the sink's namespace, all of the same zone: unbound, dnsmasq and Knot DNS.

use std::cell::Cell;
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use lab::namespace::Namespace;
use lab::process::{self, Process};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::wait;

/// The zone; not `test`, which unbound knows to be empty (RFC 6761).
const ZONE: &str = "pods.example";
const AT: &str = "10.0.1.2";
/// What never changes: chains of names, a service, a name of both families.
const ALWAYS: &str = "host10 A 10.0.1.10\nsix A 10.0.1.2\nsix AAAA fd00:1::2\n\
    _rtp._udp.service SRV 1 1 7001 host10\n_rtp._udp.service SRV 2 1 7002 six\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Unbound,
    Dnsmasq,
    Knot,
}

/// One that serves.
pub(super) struct Server {
    program: Program,
    sink: Namespace,
    directory: TempDir,
    process: Option<Process>,
    serial: Cell<u32>,
}

impl Server {
    /// Serves the zone with these addresses of `recorders`; `None` where the program is not there.
    pub(super) fn start(sink: &Namespace, program: Program, zone: &[Ipv4Addr]) -> Option<Self> {
        let mut server = Self {
            program,
            sink: sink.clone(),
            directory: TempDir::new().unwrap(),
            process: None,
            serial: Cell::new(0),
        };
        let name = server.words()[0];
        match sink.command(name).arg("--version").output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                println!("skipped: no {name}; dist/bootstrap test");
                return None;
            }
            there => drop(there.unwrap()),
        }
        server.configure();
        server.write(zone);
        server.run();
        Some(server)
    }

    fn words(&self) -> [&'static str; 2] {
        match self.program {
            Program::Unbound => ["unbound", "unbound-control"],
            Program::Dnsmasq => ["dnsmasq", ""],
            Program::Knot => ["knotd", "knotc"],
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configure(&self) {
        let at = self.directory.path().display();
        let text = match self.program {
            Program::Unbound => format!(
                "server:\n directory: \"{at}\"\n username: \"\"\n chroot: \"\"\n pidfile: \"\"\n \
                 do-daemonize: no\n use-syslog: no\n interface: {AT}\n num-threads: 1\n \
                 access-control: 0.0.0.0/0 allow\n module-config: \"iterator\"\n\
                 remote-control:\n control-enable: yes\n control-use-cert: no\n \
                 control-interface: {at}/control\nauth-zone:\n name: {ZONE}\n zonefile: \"zone\"\n \
                 for-downstream: yes\n for-upstream: no\n fallback-enabled: no\n"
            ),
            Program::Knot => format!(
                "server:\n rundir: {at}\n listen: {AT}@53\n udp-workers: 1\n tcp-workers: 1\n \
                 background-workers: 1\ndatabase:\n storage: {at}/db\ncontrol:\n \
                 listen: {at}/control\nzone:\n - domain: {ZONE}\n   storage: {at}\n   file: zone\n   \
                 zonefile-sync: -1\n   journal-content: none\n   zonefile-load: whole\n"
            ),
            Program::Dnsmasq => format!(
                "listen-address={AT}\nbind-interfaces\nno-resolv\nno-hosts\nuser=root\npid-file=\n\
                 local=/{ZONE}/\naddn-hosts={at}/zone\n\
                 cname=alias.{ZONE},middle.{ZONE}\ncname=middle.{ZONE},recorders.{ZONE}\n\
                 srv-host=_rtp._udp.service.{ZONE},host10.{ZONE},7001,1,1\n\
                 srv-host=_rtp._udp.service.{ZONE},six.{ZONE},7002,2,1\n"
            ),
        };
        fs::write(self.file("conf"), text).unwrap();
    }

    /// Has the zone hold these addresses, in one step; there is no name without any.
    pub(super) fn set(&mut self, addresses: &[Ipv4Addr]) {
        self.write(addresses);
        match self.program {
            Program::Unbound => self.control(&["auth_zone_reload", ZONE]),
            Program::Dnsmasq | Program::Knot => self.signal(Signal::SIGHUP),
        }
    }

    fn write(&self, addresses: &[Ipv4Addr]) {
        self.serial.set(self.serial.get() + 1);
        let mut text = String::new();
        if self.program == Program::Dnsmasq {
            for line in ALWAYS.lines().filter(|line| !line.starts_with('_')) {
                let (name, data) = line.split_once(' ').unwrap();
                let (_, address) = data.split_once(' ').unwrap();
                writeln!(text, "{address} {name}.{ZONE}").unwrap();
            }
            for address in addresses {
                writeln!(text, "{address} recorders.{ZONE}").unwrap();
            }
        } else {
            let serial = self.serial.get();
            write!(
                text,
                "$ORIGIN {ZONE}.\n$TTL 1\n@ SOA ns a {serial} 3600 3600 3600 0\n@ NS ns\n\
                 ns A {AT}\nalias CNAME middle\nmiddle CNAME recorders\n{ALWAYS}"
            )
            .unwrap();
            for address in addresses {
                writeln!(text, "recorders A {address}").unwrap();
            }
        }
        fs::write(self.file("new"), text).unwrap();
        fs::rename(self.file("new"), self.file("zone")).unwrap();
    }

    fn run(&mut self) {
        let mut command = self.sink.command(self.words()[0]);
        match self.program {
            Program::Unbound => command.args(["-d", "-c"]).arg(self.file("conf")),
            Program::Knot => command.arg("-c").arg(self.file("conf")),
            Program::Dnsmasq => command
                .arg("--keep-in-foreground")
                .arg("--log-facility=-")
                .arg(format!("--conf-file={}", self.file("conf").display())),
        };
        self.process = Some(Process::start(command).unwrap());
        let listens = || {
            let sockets = self.sink.read_proc_net("udp").unwrap();
            sockets.contains("0201000A:0035")
        };
        wait::until("it serves", listens).unwrap();
    }

    fn control(&self, words: &[&str]) {
        let mut command = self.sink.command(self.words()[1]);
        match self.program {
            Program::Unbound => command.arg("-c").arg(self.file("conf")),
            _ => command.arg("-s").arg(self.file("control")),
        };
        command.args(words);
        process::run(command, Duration::from_secs(20))
            .and_then(process::Finished::success)
            .unwrap();
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        self.process.as_mut().unwrap().signal(signal).unwrap();
    }

    /// Makes it fail until [`Server::recover`]: Knot answers SERVFAIL, the others do not run.
    pub(super) fn fail(&mut self) {
        match self.program {
            Program::Knot => self.control(&["-f", "zone-purge", ZONE]),
            _ => self.process = None,
        }
    }

    pub(super) fn recover(&mut self, addresses: &[Ipv4Addr]) {
        match self.program {
            Program::Knot => self.set(addresses),
            _ => {
                self.write(addresses);
                self.run();
            }
        }
    }
}
