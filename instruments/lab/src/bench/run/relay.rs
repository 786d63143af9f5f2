//! The compared relays: MCR on either path, its peers, the floor of the bed, and any other by a script.

mod mcr;
mod peers;
mod running;
mod script;

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, bail};

use super::bed::{Bed, BedKind};
use super::driver;
use super::plan::{Family, Plan};

pub use running::{Running, Tools};

/// A relay that can be put on a bed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relay {
    /// MCR, kernel path.
    Kernel,
    /// MCR, userspace path.
    Userspace,
    /// One socat per output.
    Socat,
    /// Kernel multicast routing, set up by smcroute.
    KernelRouting,
    /// A tc program that redirects everything and does nothing else: what the bed itself can do.
    Floor,
    /// MCR, kernel path at XDP.
    Xdp,
    /// An XDP program that redirects everything and does nothing else.
    Redirect,
    /// `NAME=SCRIPT`, see [`script`].
    Script {
        /// Its name in the report.
        name: String,
        /// The program to start and stop it with.
        program: PathBuf,
    },
}

impl Relay {
    /// MCR and the peers, without the floor.
    pub const ALL: [Self; 4] = [
        Self::Kernel,
        Self::Userspace,
        Self::KernelRouting,
        Self::Socat,
    ];

    /// Reads a relay's name, or `NAME=SCRIPT`.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some((name, program)) = text.split_once('=') {
            return Ok(Self::Script {
                name: name.to_owned(),
                program: PathBuf::from(program),
            });
        }
        let mut relays = Self::ALL
            .into_iter()
            .chain([Self::Floor, Self::Xdp, Self::Redirect]);
        let names: Vec<String> = relays.clone().map(|relay| relay.to_string()).collect();
        match relays.find(|relay| relay.to_string() == text) {
            Some(relay) => Ok(relay),
            None => bail!("no relay {text} (have: {}, NAME=SCRIPT)", names.join(", ")),
        }
    }

    /// Why this relay cannot carry a plan, if it cannot.
    pub fn cannot(&self, bed: BedKind, plan: Plan) -> Option<String> {
        match self {
            Self::KernelRouting if plan.outputs > 31 => {
                Some("the kernel has 32 multicast interfaces: 31 outputs".into())
            }
            Self::KernelRouting
                if plan.outputs > 1 && !matches!(bed, BedKind::ManyLinks { .. }) =>
            {
                Some("kernel routing copies to different links only".into())
            }
            Self::Socat if usize::from(plan.streams) * usize::from(plan.outputs) > 1000 => {
                Some("one process per output: more than 1000".into())
            }
            Self::Floor if plan.family == Family::V6 => Some("the floor redirects IPv4".into()),
            Self::Floor | Self::Redirect if plan.outputs > 1 => {
                Some("a bare redirect sends one copy".into())
            }
            Self::Floor if plan.streams > 1 && !matches!(bed, BedKind::Driver { .. }) => {
                Some("the floor redirects one stream to one output".into())
            }
            Self::Xdp if plan.outputs > 1 => Some("MCR sends several copies at tc".into()),
            _ => None,
        }
    }

    /// The bed this relay needs instead of `bed` for a plan with fan-out.
    pub fn bed_for(&self, bed: BedKind, plan: Plan) -> BedKind {
        match (self, bed, u8::try_from(plan.outputs)) {
            (Self::KernelRouting, BedKind::Chain, Ok(links @ 2..=31)) => {
                BedKind::ManyLinks { links }
            }
            _ => bed,
        }
    }

    /// Starts the relay in every relay namespace of a bed. It relays shortly after this returns; the caller
    /// has to wait for that.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(&self, bed: &Bed, plan: Plan, tools: &Tools) -> Result<Running> {
        match self {
            Self::Kernel => mcr::start(bed, plan, "kernel", tools),
            Self::Xdp => mcr::start_at_xdp(bed, plan, tools),
            Self::Redirect => {
                let link = driver::redirect(bed)?;
                Ok(Running::new(Vec::new(), move || drop(link)))
            }
            Self::Userspace => mcr::start(bed, plan, "userspace", tools),
            Self::Socat => peers::socat(bed, plan),
            Self::KernelRouting => peers::kernel_routing(bed, plan),
            Self::Floor => peers::floor(bed),
            Self::Script { program, .. } => script::start(bed, plan, program),
        }
    }

    /// Returns whether this is MCR.
    pub const fn is_own(&self) -> bool {
        matches!(self, Self::Kernel | Self::Xdp | Self::Userspace)
    }

    /// Returns whether its packets reach the sink without an skb.
    pub const fn is_at_xdp(&self) -> bool {
        matches!(self, Self::Xdp | Self::Redirect)
    }

    /// Returns whether streams keep their group and port.
    pub const fn keeps_groups(&self) -> bool {
        matches!(self, Self::KernelRouting | Self::Floor | Self::Redirect)
    }
}

impl fmt::Display for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "mcr-kernel",
            Self::Userspace => "mcr-userspace",
            Self::Socat => "socat",
            Self::KernelRouting => "kernel-routing",
            Self::Floor => "floor",
            Self::Xdp => "mcr-xdp",
            Self::Redirect => "xdp-floor",
            Self::Script { name, .. } => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_are_written() {
        for relay in Relay::ALL {
            assert_eq!(Relay::parse(&relay.to_string()).unwrap(), relay);
        }
        let other = Relay::parse("udpxy=/opt/start-udpxy").unwrap();
        assert_eq!(other.to_string(), "udpxy");
        assert!(Relay::parse("nonsense").is_err());
    }

    #[test]
    fn kernel_routing_stops_at_31_outputs() {
        let wide = Plan {
            streams: 1,
            outputs: 50,
            family: Family::V4,
        };
        let bed = Relay::KernelRouting.bed_for(BedKind::Chain, wide);
        assert!(Relay::KernelRouting.cannot(bed, wide).is_some());
        let narrow = Plan {
            outputs: 31,
            ..wide
        };
        let bed = Relay::KernelRouting.bed_for(BedKind::Chain, narrow);
        assert_eq!(bed, BedKind::ManyLinks { links: 31 });
        assert!(Relay::KernelRouting.cannot(bed, narrow).is_none());
    }
}
