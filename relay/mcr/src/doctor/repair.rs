//! What `--fix` may change: settings that can be reverted and whose old value no other service needs.
//! Every change lasts until the next boot only.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use host::connect;
use rtnetlink::LinkBridge;
use serde::{Serialize, Serializer};

/// One safe change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Writes a kernel setting.
    Setting { file: PathBuf, value: String },
    /// Switches features of an interface off.
    Features {
        interface: String,
        features: Vec<&'static str>,
    },
    /// Makes a bridge the querier of its network.
    Querier { bridge: String, index: u32 },
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { file, value } => write!(f, "echo {value} > {}", file.display()),
            Self::Features {
                interface,
                features,
            } => write!(f, "ethtool -K {interface} {} off", features.join(" off ")),
            Self::Querier { bridge, .. } => {
                write!(f, "ip link set {bridge} type bridge mcast_querier 1")
            }
        }
    }
}

impl Serialize for Repair {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Repair {
    /// Carries it out.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Setting { file, value } => Ok(fs::write(file, value)?),
            Self::Features {
                interface,
                features,
            } => {
                for feature in features {
                    sys::ethtool::switch(interface, feature, false)?;
                }
                Ok(())
            }
            Self::Querier { bridge, index } => enable_querier(bridge, *index),
        }
    }
}

fn enable_querier(bridge: &str, index: u32) -> anyhow::Result<()> {
    const REQUEST_AND_ACK: u16 = 1 | 4;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let message = LinkBridge::new(bridge)
        .index(index)
        .mcast_querier(true)
        .build();
    runtime.block_on(async {
        let handle = connect()?;
        let request = handle.link().change(message).set_flags(REQUEST_AND_ACK);
        Ok(request.execute().await?)
    })
}
