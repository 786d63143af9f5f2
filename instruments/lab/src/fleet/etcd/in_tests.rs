//! What tests alone do to members of etcd.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::{CLIENT_PORT, Cluster};
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

    /// Takes what a member that does not run has written, so that it begins anew.
    ///
    /// # Errors
    /// When there is none of that number.
    pub fn wipe(&mut self, member: usize) -> Result<()> {
        let data = &self.member(member)?.data;
        std::fs::remove_dir_all(data).with_context(|| data.display().to_string())
    }

    /// Writes what makes no sense into a key.
    ///
    /// # Errors
    /// When the first member does not take it.
    pub fn garble(&self, key: &str) -> Result<()> {
        // `{}` in the base of 64.
        self.ask("put", key, ",\"value\":\"e30=\"")
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// When the first member does not take it.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.ask("deleterange", key, "")
    }

    fn ask(&self, what: &str, key: &str, more: &str) -> Result<()> {
        let member = self.member(0)?;
        let url = format!("http://{}:{CLIENT_PORT}/v3/kv/{what}", member.place.1);
        let body = format!("{{\"key\":\"{}\"{more}}}", base64(key));
        let arguments = format!("-sS -f -X POST -d {body} {url}");
        self.namespace(0)?.tool("curl", &arguments).map(drop)
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

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for bytes in text.as_bytes().chunks(3) {
        let word = bytes
            .iter()
            .fold(0, |word, byte| word << 8 | usize::from(*byte));
        let word = word << (8 * (3 - bytes.len()));
        for place in 0..4 {
            let digit = DIGITS[word >> (18 - 6 * place) & 63];
            encoded.push(if place > bytes.len() {
                '='
            } else {
                digit.into()
            });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn the_base_of_64_is_filled_up() {
        let all = ["", "M", "Ma", "Man", "Many"].map(base64);
        assert_eq!(all, ["", "TQ==", "TWE=", "TWFu", "TWFueQ=="]);
    }
}
