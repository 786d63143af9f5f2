//! What every page of section 1 contains besides its options: files, environment, signals, exit
//! status, other pages.

use clap_mangen::roff::Roff;

use super::configuration::{key, paragraph};

/// The sections of the page of this name, `mcr` or `mcr-add`.
pub(super) fn of(page: &str) -> String {
    let mut roff = Roff::new();
    if matches!(page, "mcr" | "mcr-run") {
        pairs(&mut roff, "FILES", FILES);
        pairs(&mut roff, "SIGNALS", SIGNALS);
    }
    pairs(&mut roff, "ENVIRONMENT", ENVIRONMENT);
    pairs(&mut roff, "EXIT STATUS", EXIT_STATUS);
    let others = match page {
        "mcr" => "`mcr-run(1)`, `mcr-add(1)`, `mcr-doctor(1)`, `mcr.toml(5)`, `ip(8)`, `ss(8)`",
        _ => "`mcr(1)`, `mcr.toml(5)`",
    };
    paragraph(&mut roff, "SEE ALSO", others);
    roff.render()
}

fn pairs(roff: &mut Roff, title: &str, pairs: &[(&str, &str)]) {
    roff.control("SH", [title]);
    for (name, text) in pairs {
        key(roff, name, text);
    }
}

const FILES: &[(&str, &str)] = &[
    ("/etc/mcr/mcr.toml", "The configuration; `mcr.toml(5)`."),
    ("/etc/mcr/conf.d/*.toml", "Further parts of it."),
    (
        "/run/mcr/mcr.sock",
        "The control socket; of an instance, `/run/mcr/NAME.sock`.",
    ),
    (
        "/run/mcr/NAME/",
        "What an instance needs to go on after a crash.",
    ),
    (
        "/sys/fs/bpf/mcr/NAME/",
        "Programs and maps of the kernel path.",
    ),
];

const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGTERM, SIGINT",
        "`mcr run` detaches everything and ends; with --keep-forwarding SIGTERM leaves the kernel path forwarding.",
    ),
    (
        "SIGHUP",
        "`mcr run` reads its configuration again, as `mcr reload` has it do.",
    ),
    (
        "SIGUSR1",
        "`mcr run` ends and leaves everything for the next one to take over.",
    ),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "MCR_SOCKET",
        "The control socket, where --socket does not name one.",
    ),
    ("NO_COLOR", "Where it is set to anything, no colours."),
];

const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "Done."),
    (
        "1",
        "Refused by the daemon; of `mcr diff`, a difference; of `mcr import`, something not taken over.",
    ),
    ("2", "Usage."),
    ("3", "No such rule, input or output, or already there."),
    ("4", "Daemon unreachable."),
    (
        "5",
        "Loss or error found by `mcr send`, `mcr receive` or `mcr doctor`, or too few packets.",
    ),
    ("69", "Interface or service unavailable."),
    ("77", "Missing privilege."),
    ("78", "Bad configuration."),
];
