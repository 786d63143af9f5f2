//! What tests alone do to members of etcd.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::Cluster;
use crate::namespace::Namespace;
use crate::process::Finished;

impl Cluster {
    /// Says whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Where a member is.
    ///
    /// # Errors
    /// When there is none of that number.
    pub fn namespace(&self, member: usize) -> Result<&Namespace> {
        Ok(&self.member(member)?.place.0)
    }

    /// Kills a member with SIGKILL; its data stays.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&mut self, member: usize) -> Result<()> {
        let member = self
            .members
            .get_mut(member)
            .context("no such member of etcd")?;
        let process = member
            .process
            .take()
            .context("this member of etcd does not run")?;
        let Finished { stderr, .. } = process.stop(Signal::SIGKILL)?;
        member.logs.push(stderr);
        Ok(())
    }

    /// Sends a member a signal: SIGSTOP, SIGCONT.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&mut self, member: usize, signal: Signal) -> Result<()> {
        let member = self
            .members
            .get_mut(member)
            .context("no such member of etcd")?;
        let process = member.process.as_mut();
        process
            .context("this member of etcd does not run")?
            .signal(signal)
    }
}
