//! Network namespaces, topologies, scenarios and the bench.
//!
//! A test's resources are removed when it ends, by values with `Drop`; those of a bench or a demo also
//! when it is killed, by a [`guard`]. The lab runs the `mcr` binary as a user would and never links the
//! data plane. It needs root. Items for tests alone require the feature `test-support`.

pub mod accounting;
#[cfg(feature = "test-support")]
pub mod bed;
pub mod bench;
pub mod binary;
#[cfg(feature = "test-support")]
pub mod capture;
pub mod control;
pub mod daemon;
pub mod demo;
pub mod fleet;
#[cfg(feature = "test-support")]
pub mod frame;
pub mod guard;
mod keep;
pub mod link;
#[cfg(feature = "test-support")]
pub mod load;
mod mark;
pub mod namespace;
pub mod process;
#[cfg(feature = "test-support")]
pub mod random;
#[cfg(feature = "test-support")]
pub mod reliability;
pub mod socket;
#[cfg(feature = "test-support")]
pub mod systemd;
pub mod topology;
pub mod usage;
#[cfg(feature = "test-support")]
pub mod vm;
pub mod wait;

/// Makes a test of each function for each path: `fn name(path: &str)` becomes `kernel::name` and
/// `userspace::name`.
#[macro_export]
macro_rules! on_both_paths {
    ($($name:ident),+ $(,)?) => {
        mod kernel {
            $(#[test] fn $name() { super::$name("kernel"); })+
        }
        mod userspace {
            $(#[test] fn $name() { super::$name("userspace"); })+
        }
    };
}
