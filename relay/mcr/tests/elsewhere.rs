//! A relay that is steered from another host: by certificates and tokens, by each as far as its role
//! goes, and by nobody else.

#![expect(clippy::unwrap_used, reason = "tests")]

mod alertmanager;
mod capture;
mod commands;
mod crowd;
mod hosts;
mod keys;
mod page;
mod page_access;
mod page_attacks;
mod page_away;
mod page_fleet;
mod page_frames;
mod page_tasks;
mod properties;
mod refused;
mod reloaded;
mod renewed;
mod steered;
mod telling;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::namespace::Namespace;
use lab::process::{self, Finished, Process};
use lab::topology::Chain;
use lab::wait;
use serde_json::Value;

use crate::bed::can_run;
use keys::Keys;

const RELAY: &str = "10.0.1.1:9471";
const PATIENCE: Duration = Duration::from_secs(30);
/// Roles of the tests' clients, and their tokens.
const TOKENS: [(&str, &str); 3] = [
    ("view", "mcr_view-0123456789"),
    ("operate", "mcr_operate-0123456789"),
    ("change", "mcr_change-0123456789"),
];

/// A relay that listens, and another host: the sink.
struct Bed {
    daemon: Daemon,
    chain: Chain,
    keys: Keys,
}

impl Bed {
    fn new(more: &str) -> Option<Self> {
        if !lab::demo::may_run() {
            eprintln!("skipped: needs root");
            return None;
        }
        for tool in ["openssl", "curl"] {
            if let Err(reason) = can_run(tool) {
                eprintln!("skipped: {reason}");
                return None;
            }
        }
        let chain = Chain::plain().unwrap();
        let keys = Keys::new();
        keys.sign(
            "ci",
            "clients",
            "subjectAltName=DNS:ci.example,URI:spiffe://mcr/ci",
            "-days 30",
        );
        let options = Options {
            config: Some(config(&keys, more)),
            ..Options::default()
        };
        let daemon = Daemon::start(&chain.relay, options).unwrap();
        let bed = Self {
            daemon,
            chain,
            keys,
        };
        bed.write_hosts();
        bed.wait_for("it listens", |api| api["state"] == "up");
        Some(bed)
    }

    /// The other host's `hosts.toml`: each token is a host, and so is the certificate `ci`.
    fn write_hosts(&self) {
        let mut hosts = String::new();
        for (name, token) in TOKENS.into_iter().chain([("nobody", "mcr_nobody")]) {
            self.secret(&format!("{name}.token"), token);
            hosts += &format!(
                "[{name}]\naddress = \"{RELAY}\"\nca = \"../servers.pem\"\ntoken_file = \"../{name}.token\"\n"
            );
        }
        for name in ["ci", "plain", "stranger", "ended", "unlisted"] {
            hosts += &format!(
                "[{name}]\naddress = \"10.0.1.1\"\nca = \"../servers.pem\"\ncertificate = \"../{name}.pem\"\n\
                 key = \"../{name}.key\"\n"
            );
        }
        hosts += "[gone]\naddress = \"10.0.1.1:1\"\nca = \"../servers.pem\"\ntoken_file = \"../view.token\"\n";
        hosts += "[misnamed]\naddress = \"10.0.1.1\"\nserver_name = \"other.example\"\nca = \"../servers.pem\"\n\
                  token_file = \"../view.token\"\n";
        hosts += "[mistaken]\naddress = \"10.0.1.1:9471\"\nca = \"../clients.pem\"\ntoken_file = \"../view.token\"\n";
        self.secret("empty.token", "\n");
        hosts += "[empty]\naddress = \"10.0.1.1\"\nca = \"../servers.pem\"\ntoken_file = \"../empty.token\"\n";
        hosts += "[untls]\naddress = \"10.0.1.1:9480\"\nca = \"../servers.pem\"\ntoken_file = \"../view.token\"\n";
        hosts += "[url]\naddress = \"https://10.0.1.1\"\nca = \"../servers.pem\"\ntoken_file = \"../view.token\"\n";
        fs::create_dir_all(self.keys.path("mcr")).unwrap();
        fs::write(self.keys.path("mcr/hosts.toml"), hosts).unwrap();
    }

    fn secret(&self, name: &str, text: &str) {
        let path = self.keys.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Has the daemon read another configuration.
    fn configure(&self, more: &str) {
        fs::write(self.daemon.config_file(), config(&self.keys, more)).unwrap();
        self.daemon.mcr(&["reload"]).unwrap();
    }

    fn command(&self, host: &str, arguments: &[&str]) -> Command {
        self.command_in(&self.chain.sink, host, arguments)
    }

    fn command_in(&self, from: &Namespace, host: &str, arguments: &[&str]) -> Command {
        let mut command = from.command(lab::binary::mcr().unwrap());
        command.env("XDG_CONFIG_HOME", self.keys.directory());
        command
            .env_remove("MCR_SOCKET")
            .args(["--host", host])
            .args(arguments);
        command
    }

    /// Runs `mcr --host` on the other host.
    fn run(&self, host: &str, arguments: &[&str]) -> Finished {
        process::run(self.command(host, arguments), PATIENCE).unwrap()
    }

    #[track_caller]
    fn mcr(&self, host: &str, arguments: &[&str]) -> String {
        let Finished {
            status,
            stdout,
            stderr,
        } = self.run(host, arguments);
        assert!(status.success(), "{host} {arguments:?}: {stdout}{stderr}");
        stdout
    }

    #[track_caller]
    fn refuses(&self, host: &str, arguments: &[&str], code: i32, word: &str) {
        let Finished {
            status,
            stdout,
            stderr,
        } = self.run(host, arguments);
        assert_eq!(
            status.code(),
            Some(code),
            "{host} {arguments:?}: {stdout}{stderr}"
        );
        assert!(
            stderr.contains(word),
            "{host} {arguments:?}: no {word:?} in {stderr}"
        );
    }

    /// A web server without TLS on the relay's host.
    fn web_server(&self, port: u16) -> Process {
        let mut command = self.chain.relay.command("python3");
        let directory = self.keys.path("mcr").display().to_string();
        command.args([
            "-u",
            "-m",
            "http.server",
            "--directory",
            &directory,
            &port.to_string(),
        ]);
        let server = Process::start(command).unwrap();
        wait::until("the web server listens", || {
            server.stdout().contains("Serving")
        })
        .unwrap();
        server
    }

    /// Asks by curl on the other host: status and body.
    fn curl(&self, arguments: &str) -> (u16, String) {
        let ca = self.keys.path("servers.pem");
        let mut command = self.chain.sink.command("curl");
        command
            .args([
                "-sS",
                "--max-time",
                "20",
                "-w",
                "\n%{http_code}",
                "--cacert",
            ])
            .arg(ca);
        command
            .args(arguments.split(' '))
            .current_dir(self.keys.directory());
        let answer = process::run(command, PATIENCE).unwrap();
        let (body, status) = answer.stdout.rsplit_once('\n').unwrap_or(("", "0"));
        (
            status.parse().unwrap_or_default(),
            format!("{body}{}", answer.stderr),
        )
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.daemon.mcr(&["status", "--json"]).unwrap()).unwrap()
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        wait::until(what, || is_so(&self.status()["api"])).unwrap();
    }
}

/// The time in so many seconds, as `expires` is written.
fn ends_in(seconds: u64) -> String {
    let epoch = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    config::moment_text(epoch.as_secs() + seconds)
}

/// All that a daemon has written below its own directories, unpacked.
fn left_behind(instance: &str) -> String {
    let mut text = String::new();
    let mut folders = vec![
        format!("/run/mcr/{instance}").into(),
        format!("/var/lib/mcr/{instance}").into(),
    ];
    while let Some(folder) = folders.pop() {
        let folder: std::path::PathBuf = folder;
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => {
                    // Earlier rule sets are compressed.
                    let read = Command::new("zcat").arg("-f").arg(entry.path()).output();
                    text += &String::from_utf8_lossy(&read.unwrap().stdout);
                }
                _ => {}
            }
        }
    }
    text
}

/// The last of curl's arguments.
fn address(arguments: &str) -> &str {
    arguments.rsplit(' ').next().unwrap()
}

fn config(keys: &Keys, more: &str) -> String {
    let at = |name: &str| keys.path(name).display().to_string();
    let mut config = format!(
        "version = 1\n[api]\nlisten = \"0.0.0.0:9471\"\ncertificate = \"{}\"\nkey = \"{}\"\n\
         client_ca = \"{}\"\n{more}\n\
         [[api.client]]\nname = \"ci\"\nrole = \"change\"\ncertificate = \"ci.example\"\n",
        at("relay.pem"),
        at("relay.key"),
        at("clients.pem"),
    );
    for (role, token) in TOKENS {
        let hash = tls::token::hash(token);
        config +=
            &format!("[[api.client]]\nname = \"{role}r\"\nrole = \"{role}\"\ntoken = \"{hash}\"\n");
    }
    config
}
