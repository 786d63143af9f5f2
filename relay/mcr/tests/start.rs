//! Starts that fail leave nothing behind, a configuration that cannot be read ends nothing that runs,
//! and a user who may not ask the daemon gets an error that says so.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::process;
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const RULES: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;
const HALF_A_RULE: &str = "version = 1\n[[rule]]\nname = \"cam1\"\n";

struct Bed {
    daemon: Daemon,
    chain: Chain,
}

fn bed(config: Option<&str>) -> Option<Bed> {
    let chain = chain()?;
    let options = Options {
        config: config.map(str::to_owned),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    Some(Bed { daemon, chain })
}

fn chain() -> Option<Chain> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    Some(Chain::plain().unwrap())
}

impl Bed {
    fn names(&self) -> String {
        self.daemon.mcr(&["list", "-o", "name"]).unwrap()
    }

    /// Asks the control socket; the answer and its status.
    fn curl(&self, arguments: &str) -> String {
        let socket = self.daemon.socket();
        let arguments = format!("-s --unix-socket {} {arguments}", socket.display());
        self.chain.relay.tool("curl", &arguments).unwrap()
    }

    fn last_reload_succeeded(&self, expected: u8) -> bool {
        let line = format!("mcr_config_last_reload_successful {expected}\n");
        self.curl("http://mcr/metrics").contains(&line)
    }

    fn hang_up(&self) {
        let process = Pid::from_raw(i32::try_from(self.daemon.id()).unwrap());
        kill(process, Signal::SIGHUP).unwrap();
    }

    fn wait_for_log(&self, words: &str) {
        wait::until(words, || self.daemon.log().contains(words)).unwrap();
    }
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let Some(chain) = chain() else { return };
    let taken = chain.relay.run(|| Ok(TcpListener::bind("127.0.0.1:9469")?));
    let error = start_in_vain(&chain, RULES, &["--listen", "127.0.0.1:9469"]);
    assert!(error.contains("cannot listen on 127.0.0.1:9469"), "{error}");
    drop(taken.unwrap());
}

/// That is noticed last: everything is joined and held by then.
#[test]
fn a_start_whose_rules_do_not_fit_leaves_nothing_behind() {
    let Some(chain) = chain() else { return };
    let mut rules = "version = 1\n[daemon]\nmax_rules = 16000\n".to_owned();
    for number in 0..17_000 {
        let (group, port) = (number % 200, 1000 + number / 200);
        rules += &format!(
            "[[rule]]\nname = \"r{number}\"\ninput = \"239.1.1.{group}%veth1:{port}\"\n\
             outputs = [\"239.10.1.{group}%veth2:{port}\"]\n"
        );
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &rules).unwrap();
    let mut check = chain.relay.command(lab::binary::mcr().unwrap());
    check.arg("check").arg(file.path());
    let checked = process::run(check, Duration::from_secs(60)).unwrap();
    assert_eq!(checked.status.code(), Some(78), "{}", checked.stdout);
    let room = "17000 routes needed, the kernel path has room for 16384";
    assert!(checked.stderr.contains(room), "{}", checked.stderr);
    let error = start_in_vain(&chain, &rules, &["--path", "kernel"]);
    assert!(
        error.contains("17000 routes needed, room for 16384"),
        "{error}"
    );
}

/// Starts a daemon that has to refuse, and expects nothing of it to be left. Returns its standard
/// error.
fn start_in_vain(chain: &Chain, rules: &str, arguments: &[&str]) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("mcr.toml");
    fs::write(&config, rules).unwrap();
    let instance = format!("failing-{}-{number}", std::process::id());
    let mut command = chain.relay.command(lab::binary::mcr().unwrap());
    command.args(["--instance", &instance, "--socket"]);
    command.arg(directory.path().join("mcr.sock"));
    command
        .args(["run", "--config"])
        .arg(&config)
        .args(arguments);
    let finished = process::run(command, Duration::from_secs(60)).unwrap();
    assert_eq!(finished.status.code(), Some(69), "{}", finished.stderr);
    for directory in ["/sys/fs/bpf/mcr", "/run/mcr"] {
        let path = Path::new(directory).join(&instance);
        assert!(!path.exists(), "{} is left", path.display());
    }
    wait::until("nothing is joined and no process is left", || {
        let joined = chain.relay.ip("maddress show dev veth1").unwrap();
        !joined.contains("239.1.1.") && chain.relay.processes().is_empty()
    })
    .unwrap();
    finished.stderr
}

#[test]
fn a_broken_configuration_ends_nothing_after_a_crash() {
    let Some(mut bed) = bed(Some(RULES)) else {
        return;
    };
    bed.daemon
        .add("b", "239.1.1.2%veth1:5001", &["239.10.1.2%veth2:6001"])
        .unwrap();
    bed.daemon.kill().unwrap();
    fs::write(bed.daemon.config_file(), HALF_A_RULE).unwrap();
    bed.daemon.start_again().unwrap();
    assert_eq!(bed.names(), "cam1\nb\n");
    bed.wait_for_log("configuration not used, the rules stay: ");
    wait::until("the metric tells", || bed.last_reload_succeeded(0)).unwrap();
    let events = bed.curl("--max-time 1 http://mcr/v1/status");
    assert!(events.contains("\"succeeded\":false"), "{events}");
    let refused = bed.curl("-X POST http://mcr/v1/reload -w %{http_code}");
    assert!(
        refused.contains("\"invalid\"") && refused.ends_with("422"),
        "{refused}"
    );

    // As after a hand-over, whatever was edited before.
    bed.daemon.stop(Signal::SIGUSR1).unwrap();
    bed.daemon.start_again().unwrap();
    assert_eq!(bed.names(), "cam1\nb\n");
    assert!(bed.last_reload_succeeded(0));

    fs::write(bed.daemon.config_file(), RULES).unwrap();
    bed.hang_up();
    wait::until("the mended file counts", || bed.names() == "cam1\n").unwrap();
    assert!(bed.last_reload_succeeded(1));
}

/// What only a start can try: addresses, users and files of this host.
#[test]
fn a_setting_that_no_start_can_use_ends_nothing_after_a_crash() {
    let Some(mut bed) = bed(Some(RULES)) else {
        return;
    };
    let taken = bed
        .chain
        .relay
        .run(|| Ok(TcpListener::bind("127.0.0.1:9469")?));
    let _taken = taken.unwrap();
    let fleet = "[fleet]\nname = \"plant\"\nendpoints = [\"http://127.0.0.1:2379\"]\nrelay = \"relay-a\"\n\
                 peer = \"127.0.0.1:9470\"\nuser = \"mcr\"\npassword_file = \"/nonexistent/password\"\n\
                 interfaces = { red = \"veth1\", out = \"veth2\" }\n";
    for (settings, problem) in [
        (
            "[daemon]\nworker_user = \"nobody-of-the-host\"\n",
            "nobody-of-the-host",
        ),
        (
            "[daemon]\nlisten = \"127.0.0.1:9469\"\n",
            "cannot listen on 127.0.0.1:9469",
        ),
        (fleet, "/nonexistent/password"),
    ] {
        bed.daemon.kill().unwrap();
        let edited = RULES.replacen("version = 1\n", &format!("version = 1\n{settings}"), 1);
        fs::write(bed.daemon.config_file(), edited).unwrap();
        bed.daemon.start_again().unwrap();
        assert_eq!(bed.names(), "cam1\n", "{settings}");
        bed.wait_for_log("configuration not used, the rules stay: ");
        bed.wait_for_log(problem);
        wait::until("the metric tells", || bed.last_reload_succeeded(0)).unwrap();
        // And as a handover with an edited file, which would count.
        bed.daemon.stop(Signal::SIGUSR1).unwrap();
        bed.daemon.start_again().unwrap();
        assert_eq!(bed.names(), "cam1\n", "{settings}");
        assert!(bed.last_reload_succeeded(0), "{settings}");
    }
    let file = bed.daemon.config_file();
    let checked = bed
        .daemon
        .client(&["check", file.to_str().unwrap()])
        .unwrap();
    assert!(checked.status.success(), "the file may be for another host");
    assert!(
        checked.stderr.contains("/nonexistent/password"),
        "{}",
        checked.stderr
    );

    fs::write(bed.daemon.config_file(), RULES).unwrap();
    bed.hang_up();
    wait::until("the mended file counts", || bed.last_reload_succeeded(1)).unwrap();
}

#[test]
fn what_editors_leave_in_conf_d_is_no_configuration() {
    let Some(mut bed) = bed(Some(RULES)) else {
        return;
    };
    let parts = bed.daemon.config_file().with_file_name("conf.d");
    fs::create_dir_all(parts.join("a.toml")).unwrap();
    fs::write(parts.join(".hidden.toml"), "nonsense").unwrap();
    symlink("somebody@somewhere.17:1", parts.join(".#b.toml")).unwrap();
    bed.hang_up();
    bed.wait_for_log("configuration read again");
    bed.daemon.stop(Signal::SIGTERM).unwrap();
    bed.daemon.start_again().unwrap();
    assert_eq!(bed.names(), "cam1\n");
    let file = bed.daemon.config_file();
    bed.daemon.mcr(&["check", file.to_str().unwrap()]).unwrap();
}

#[test]
fn a_hang_up_without_a_configuration_keeps_the_rules() {
    if Path::new("/etc/mcr/mcr.toml").exists() {
        eprintln!("skipped: this host has a configuration");
        return;
    }
    let Some(bed) = bed(None) else { return };
    bed.daemon
        .add("b", "239.1.1.2%veth1:5001", &["239.10.1.2%veth2:6001"])
        .unwrap();
    bed.hang_up();
    bed.wait_for_log("the rules stay: there is no /etc/mcr/mcr.toml");
    assert_eq!(bed.names(), "b\n");
}

#[test]
fn a_given_configuration_that_vanished_keeps_the_rules() {
    let Some(bed) = bed(Some(RULES)) else { return };
    fs::remove_file(bed.daemon.config_file()).unwrap();
    bed.hang_up();
    bed.wait_for_log("the rules stay: ");
    assert_eq!(bed.names(), "cam1\n");
    assert!(bed.last_reload_succeeded(0));
}

#[test]
fn a_mistyped_socket_makes_no_directory() {
    let Some(chain) = chain() else { return };
    let directory = tempfile::tempdir().unwrap();
    let typo = directory.path().join("typo");
    let mut command = chain.relay.command(lab::binary::mcr().unwrap());
    command.args(["--instance", &format!("typo-{}", std::process::id())]);
    command.arg("--socket").arg(typo.join("x.sock")).arg("run");
    let finished = process::run(command, Duration::from_secs(60)).unwrap();
    assert_eq!(finished.status.code(), Some(69), "{}", finished.stderr);
    assert!(finished.stderr.contains("there is no directory"));
    assert!(!typo.exists());
}

/// Runs `mcr` as nobody, with this socket.
fn as_nobody(chain: &Chain, socket: &Path, arguments: &[&str]) -> process::Finished {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The build directory may be closed to others.
    let binary = directory.path().join("mcr");
    lab::binary::copy(lab::binary::mcr().unwrap(), &binary).unwrap();
    let mut command = chain.relay.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    command.arg(&binary).arg("--socket").arg(socket);
    command.args(arguments).current_dir("/");
    process::run(command, Duration::from_secs(60)).unwrap()
}

#[test]
fn a_user_who_may_not_ask_the_daemon_gets_status_77() {
    let Some(bed) = bed(Some(RULES)) else { return };
    let socket = bed.daemon.socket();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(socket.parent().unwrap(), open).unwrap();
    let listed = as_nobody(&bed.chain, &socket, &["list"]);
    assert_eq!(listed.status.code(), Some(77), "{}", listed.stderr);
    let judged = as_nobody(&bed.chain, &socket, &["doctor"]);
    let skipped = "not looked at: ";
    assert!(judged.stdout.contains(skipped), "{}", judged.stdout);
    assert!(
        judged.stdout.contains("Permission denied"),
        "{}",
        judged.stdout
    );
    assert!(
        !judged.stdout.contains("ok     daemon"),
        "{}",
        judged.stdout
    );
    assert!(matches!(judged.status.code(), Some(5 | 77)));
}

#[test]
fn files_that_may_not_be_read_are_named_with_the_remedy_and_status_77() {
    let Some(bed) = bed(None) else { return };
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let file = directory.path().join("closed.toml");
    fs::write(&file, RULES).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let named = file.to_str().unwrap();
    for arguments in [
        &["check", named][..],
        &["apply", named],
        &["diff", named],
        &["import", named],
        &["fleet", "apply", named],
    ] {
        let done = as_nobody(&bed.chain, &bed.daemon.socket(), arguments);
        let stderr = &done.stderr;
        assert_eq!(done.status.code(), Some(77), "{arguments:?}: {stderr}");
        let words = ["closed.toml: Permission denied", "use sudo"];
        assert!(words.iter().all(|words| stderr.contains(words)), "{stderr}");
    }
}

#[test]
fn a_doctor_without_a_daemon_says_what_it_could_not_look_at() {
    let Some(chain) = chain() else { return };
    let mut command = chain.relay.command(lab::binary::mcr().unwrap());
    command.args(["--socket", "/run/mcr/none.sock", "doctor", "--json"]);
    let finished = process::run(command, Duration::from_secs(60)).unwrap();
    assert_eq!(finished.status.code(), Some(4));
    let report: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["skipped"][0]["check"], "daemon");
    let reason = report["skipped"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("cannot reach the daemon"), "{reason}");
}

#[test]
fn names_that_would_mislead_are_shown_as_what_they_are() {
    let Some(bed) = bed(Some(RULES)) else { return };
    let hostile = "a\u{1b}[2J\u{202e}b";
    let link = format!("link add {hostile} type veth peer name other");
    bed.chain.relay.ip(&link).unwrap();
    let added = ["add", "239.1.1.9%nowhere:1", "239.10.1.9%veth2:1"];
    let finished = bed.daemon.client(&added).unwrap();
    let shown = "a\\u{1b}[2J\\u{202e}b";
    let all = format!("{}{}", finished.stdout, finished.stderr);
    assert!(all.contains(shown), "{all}");
    let doctor = bed.daemon.mcr(&["doctor"]).unwrap_or_default();
    for text in [&all, &doctor, &bed.daemon.log()] {
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    }
    let other = [
        "add",
        &format!("239.1.1.8%{hostile}:1"),
        "239.10.1.9%veth2:1",
    ];
    let refused = bed.daemon.client(&other).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(!refused.stderr.contains(['\u{1b}', '\u{202e}']));
}
