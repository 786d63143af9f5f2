//! `--without`: treats a feature of the kernel as missing, so that tests see what older kernels
//! get. Hidden from help and manual, since nobody else has a use for it.

use dataplane::features::Feature;

/// What to do without.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Without {
    /// Do without this although the kernel has it, as on an older one
    #[arg(long = "without", value_name = "FEATURE", hide = true, value_parser = feature)]
    pub(crate) features: Vec<Feature>,
}

fn feature(name: &str) -> Result<Feature, String> {
    Feature::named(name).ok_or_else(|| {
        let names = Feature::ALL.map(Feature::as_str).join(", ");
        format!("no such feature (have: {names})")
    })
}
