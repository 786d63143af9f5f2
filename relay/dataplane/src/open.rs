//! Opens each path, or reports in one sentence why it is not available.

use std::fs;
use std::path::Path;

use bpf::link::{Hook, Link};
use bpf::pin::Pins;

use crate::features::{Feature, Features};
use crate::gates::Gates;
use crate::kernel::Kernel;
use crate::options::Options;
use crate::userspace::{self, Means, Userspace};
use crate::{Capacity, Error};

/// Name of the file that holds the verifier's log of a program that it refused.
pub const VERIFIER_LOG: &str = "verifier.log";

/// Claims the instance's pins, or returns why there are none.
///
/// # Errors
/// When another daemon has them.
pub(crate) fn claim(options: &Options) -> Result<Result<Pins, String>, Error> {
    if !options.kernel {
        return Ok(Err("switched off".to_owned()));
    }
    match Pins::open(&options.bpffs, &options.instance) {
        Err(claimed @ bpf::Error::Claimed { .. }) => Err(claimed.into()),
        pins => Ok(pins.map_err(|error| error.to_string())),
    }
}

/// Removes what an earlier run left pinned, where there is no kernel path to adopt it: it would relay
/// beside the userspace path.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn remove_pinned(pins: &Pins, reason: &str) -> Result<(), Error> {
    let links = pins.links()?;
    if !links.is_empty() {
        tracing::warn!(
            interfaces = links.len(),
            "no kernel path: {reason}; the programs that an earlier run left there are taken away"
        );
    }
    Ok(Link::remove_all(pins)?)
}

pub(crate) fn open_kernel(
    options: &Options,
    features: &Features,
    (pins, gates): (Pins, &Gates),
) -> Result<Kernel, String> {
    bpf::probe::probe().map_err(|reason| reason.to_string())?;
    if features.found(Feature::BpfLoop) == Some(false) {
        return Err(Feature::BpfLoop.lack().to_owned());
    }
    let hook = if features.has(Feature::Tcx) {
        Hook::Tcx
    } else {
        Hook::Clsact
    };
    let opened = Kernel::open(options, hook, (pins, gates.clone()));
    opened.map_err(|error| one_sentence(&error, options.log_directory.as_deref()))
}

/// The reason in one sentence. A verifier's whole log is written to a file that the sentence names.
fn one_sentence(error: &Error, directory: Option<&Path>) -> String {
    let Error::Bpf(bpf::Error::Refused { log, .. }) = error else {
        return error.to_string();
    };
    tracing::debug!("{error}:\n{log}");
    let file = directory.map(|directory| directory.join(VERIFIER_LOG));
    let written = file.filter(|file| fs::write(file, log).is_ok());
    let whole = written.map_or_else(String::new, |file| {
        format!("; all that its verifier said is in {}", file.display())
    });
    format!("{error}; without it rules take the userspace path{whole}")
}

/// Checks whether the kernel path is available here, by loading its programs as [`crate::Dataplane::open`] would.
///
/// # Errors
/// The reason, in one sentence.
pub fn kernel_support(features: &Features) -> Result<(), String> {
    bpf::probe::probe().map_err(|reason| reason.to_string())?;
    if features.found(Feature::BpfLoop) == Some(false) {
        return Err(Feature::BpfLoop.lack().to_owned());
    }
    let least = Capacity {
        routes: 1,
        outputs: 1,
    };
    let loaded = bpf::program::Program::load(None, least);
    loaded
        .map(drop)
        .map_err(|error| one_sentence(&Error::Bpf(error), None))
}

pub(crate) fn open_userspace(
    options: &Options,
    features: &Features,
    gates: &Gates,
) -> Result<Userspace, String> {
    if options.worker_command.is_empty() {
        return Err("no worker command is set".to_owned());
    }
    let fanout = features.found(Feature::PacketFanout) != Some(false);
    let options = userspace::Options {
        workers: if fanout { options.workers } else { 1 },
        worker_command: options.worker_command.clone(),
        worker_user: options.worker_user.clone(),
        attention: options.attention.clone(),
        means: Means {
            super_packets: features.has(Feature::SuperPackets),
            io_uring: features.has(Feature::IoUring),
            landlock: features.has(Feature::Landlock),
        },
    };
    Userspace::open(options, gates.clone()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_is_reported_in_one_sentence_that_names_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let error = Error::Bpf(bpf::Error::Refused {
            program: "relay".to_owned(),
            reason: "R2 type=mem expected=fp".to_owned(),
            log: "one\ntwo\nR2 type=mem expected=fp\n".to_owned(),
        });
        let file = directory.path().join(VERIFIER_LOG);
        assert_eq!(
            one_sentence(&error, Some(directory.path())),
            format!(
                "the kernel refuses the BPF program relay: R2 type=mem expected=fp; without it rules \
                 take the userspace path; all that its verifier said is in {}",
                file.display()
            )
        );
        assert!(
            std::fs::read_to_string(&file)
                .unwrap()
                .starts_with("one\ntwo\n")
        );
        assert!(!one_sentence(&error, None).contains("verifier said"));
    }
}
