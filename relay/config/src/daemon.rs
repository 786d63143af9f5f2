//! How a daemon is started: the `[daemon]` table of a configuration, and the same settings on the command
//! line, which take precedence. Keys that both omit have defaults.
//!
//! A running daemon keeps the settings that it was started with, except the permission of link-local inputs.

use std::net::SocketAddr;

use rules::health::Silence;
use rules::path::PathChoice;
use rules::setting::{Form, TextForm, differences, settings, words};

use crate::Xdp;

/// Default of the most rules that clients may create.
pub const MAX_RULES: u32 = 20_000;

/// Default of the most memberships that clients may create: one for each rule.
pub const MAX_MEMBERSHIPS: u32 = MAX_RULES;

const USER: TextForm = TextForm {
    name: "USER",
    fits: |text| !text.is_empty(),
    pattern: ".+",
    remedy: "the name of a user, or a number",
    is_quoted: false,
    numbers: Some((0, u32::MAX as u64)),
};

settings! {
    /// How a daemon is started; `mcr run` has options of the same names.
    pub struct DaemonSettings {
        /// Address and port, as in `127.0.0.1:9469`, that serve the page, metrics and health, read
        /// only.
        optional listen: SocketAddr, otherwise: "none";
        /// Names, as in `["relay1.example"]`, that whoever asks there may know the host by, besides its
        /// addresses, `localhost` and its own name; requests under another name are refused.
        optional listen_names: Vec<String>, otherwise: "none";
        /// Path of rules that do not choose one themselves.
        optional path: PathChoice, default: "auto";
        /// Workers of the userspace path.
        optional workers: u16, form: Form::number(1, 1024), otherwise: "one per core";
        /// User that workers run as, by name or number; needs CAP_SETUID, CAP_SETGID and CAP_KILL.
        optional worker_user: String, form: Form::Text(&USER), otherwise: "the daemon's own";
        /// Form of the log.
        optional log: LogForm, default: "auto";
        /// The most rules that clients may bring about, with eight inputs and outputs for each on
        /// average; the configuration may hold more.
        optional max_rules: u32, form: Form::number(1, u32::MAX as u64), default: "20000";
        /// The most memberships that clients may bring about, one for each group, source and
        /// interface; the configuration may hold more.
        optional max_memberships: u32, form: Form::number(1, u32::MAX as u64), default: "20000";
        /// Whether interfaces of inputs merge packets of a stream before they are relayed
        /// (`rx-udp-gro-forwarding`), where `gro` of an interface does not say it of them.
        optional gro: Automatic, default: "auto";
        /// Whether the kernel path takes packets at XDP, before the kernel makes an skb of each, where `xdp`
        /// of an interface does not say it of them. `auto` takes proven drivers alone, and none is yet.
        optional xdp: Xdp, default: "auto";
        /// Whether the queue behind virtual links (`net.core.netdev_max_backlog`) is lengthened, for
        /// the whole host, where the copies of a rule would not fit.
        optional backlog: Automatic, default: "auto";
        /// How long a stream that its rule does not watch (`health`) may pause before it is silent: a time,
        /// five times its longest pause of late but 2s at least, or never.
        optional silence: Silence, default: "auto", remedy: "give auto, a time from 1s to 24h such as 5s, or off";
        /// What becomes of a change that cannot be written down, because `/run` is full.
        optional on_full: OnFull, default: "refuse";
        /// Whether 224.0.0.0/24 and ff02::/16 may be inputs, as the key of this name at top level
        /// says; one of them is enough.
        optional allow_link_local: bool, default: "false";
        /// Whether the kernel path goes on forwarding when the daemon stops; the next one takes over.
        optional keep_forwarding: bool, default: "false";
        /// Whether the configuration is read again, as by `mcr reload`, when its files say something else:
        /// a second after their last change, and never while a change waits to be confirmed.
        optional watch: bool, default: "false";
    }
}

words! {
    /// Whether the daemon changes a setting of the host by itself.
    pub enum Automatic = Auto {
        /// Where it is safe and pays.
        Auto = "auto",
        /// It is left as it is.
        Off = "off" | "no",
    }
}

words! {
    /// What becomes of a change that cannot be written down.
    pub enum OnFull = Refuse {
        /// It is refused: what was answered survives a crash.
        Refuse = "refuse",
        /// It is carried out, with a warning: a crash would undo it.
        Warn = "warn",
    }
}

words! {
    /// Form of the log.
    pub enum LogForm = Auto {
        /// The journal where standard error goes there, as under systemd; else text.
        Auto = "auto",
        /// A line of text for each event.
        Text = "text",
        /// A JSON object for each event.
        Json = "json",
        /// systemd's journal, each field by itself.
        Journal = "journal",
    }
}

impl DaemonSettings {
    /// Lists what a daemon that runs with `running` would do differently if it were started with
    /// these, each in a few words with what it does now.
    #[must_use]
    pub fn awaiting_restart(&self, running: &Self) -> Vec<String> {
        let differences = differences(self, running).into_iter();
        let awaiting = differences.filter(|difference| difference.key != "allow_link_local");
        awaiting
            .map(|difference| difference.awaiting_restart("daemon"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::setting::Table;

    fn settings(workers: Option<u16>, keep_forwarding: Option<bool>) -> DaemonSettings {
        DaemonSettings {
            workers,
            keep_forwarding,
            ..DaemonSettings::default()
        }
    }

    #[test]
    fn the_command_line_takes_precedence_also_with_false() {
        let file = settings(Some(4), Some(true));
        let over = settings(None, Some(false)).over(&file);
        assert_eq!(over, settings(Some(4), Some(false)));
        assert_eq!(DaemonSettings::default().over(&file), file);
    }

    #[test]
    fn a_default_that_is_written_out_awaits_nothing() {
        let written = DaemonSettings {
            path: Some(PathChoice::Auto),
            log: Some(LogForm::Auto),
            max_rules: Some(MAX_RULES),
            ..settings(None, Some(false))
        };
        let awaiting = written.awaiting_restart(&DaemonSettings::default());
        assert_eq!(awaiting, [""; 0]);
        let other = DaemonSettings {
            allow_link_local: Some(true),
            ..settings(Some(2), None)
        };
        assert_eq!(
            other.awaiting_restart(&settings(None, None)),
            [
                "[daemon] workers: 2 takes effect when the daemon is started again; until then one \
                 per core"
            ]
        );
    }
}
