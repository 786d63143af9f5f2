//! Shadows: what the kernel path does about routes of the userspace path.
//!
//! A tap only copies, and the host's stack would see, and pay for, every relayed packet as well.
//! Behind the taps the kernel path's program consumes them, unless a local socket wants them; it
//! sends and counts nothing. Where it cannot (no BPF, an interface it does not work on), the
//! userspace path works all the same.

use std::collections::BTreeSet;
use std::fmt::Display;

use compile::diff::TableDiff;
use compile::table::{Path, RouteKey, Table};

/// Applies `act` to `whole`, which includes shadows, or if that fails to the kernel path's `own` share.
pub(crate) fn or_without<T: Shadowed, E: Display>(
    whole: &T,
    own: &T,
    mut act: impl FnMut(&T) -> Result<(), E>,
) -> Result<(), E> {
    if !whole.has_shadows() {
        return act(own);
    }
    act(whole).or_else(|error| {
        tracing::info!("packets relayed in user space go up the stack as well: {error}");
        act(own)
    })
}

/// The table without shadows.
pub(crate) fn own_table(table: &Table) -> Table {
    let mut own = table.clone();
    own.routes.retain(|_, route| route.path == Path::Kernel);
    own
}

/// The change that removes all shadows.
pub(crate) fn remove_all(shadows: &BTreeSet<RouteKey>) -> TableDiff {
    TableDiff {
        removed: shadows.iter().copied().collect(),
        ..TableDiff::default()
    }
}

/// Something that may hold routes of the userspace path.
pub(crate) trait Shadowed {
    /// Returns whether it holds any.
    fn has_shadows(&self) -> bool;
}

impl Shadowed for Table {
    fn has_shadows(&self) -> bool {
        let mut routes = self.routes.values();
        routes.any(|route| route.path == Path::Userspace)
    }
}

impl Shadowed for TableDiff {
    fn has_shadows(&self) -> bool {
        // A key that is removed may be a shadow's.
        let mut set = self.set.iter();
        !self.removed.is_empty() || set.any(|(_, route)| route.path == Path::Userspace)
    }
}
