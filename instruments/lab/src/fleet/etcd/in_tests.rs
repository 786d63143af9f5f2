//! Operations on members of etcd for tests only.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::{CLIENT_PORT, Cluster};
use crate::namespace::Namespace;
use crate::process::Finished;

impl Cluster {
    /// Returns whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The namespace of a member.
    ///
    /// # Errors
    /// When there is none of that number.
    pub fn namespace(&self, member: usize) -> Result<&Namespace> {
        Ok(&self.member(member)?.site.0)
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

    /// Removes the data of a member that does not run, so that it starts empty.
    ///
    /// # Errors
    /// When there is none of that number.
    pub fn wipe(&mut self, member: usize) -> Result<()> {
        let data = &self.member(member)?.data;
        std::fs::remove_dir_all(data).with_context(|| data.display().to_string())
    }

    /// Writes an invalid value into a key.
    ///
    /// # Errors
    /// When the first member does not accept it.
    pub fn garble(&self, key: &str) -> Result<()> {
        // `{}` in base64.
        self.post("put", key, ",\"value\":\"e30=\"")
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// When the first member does not accept it.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.post("deleterange", key, "")
    }

    fn post(&self, method: &str, key: &str, more: &str) -> Result<()> {
        let member = self.member(0)?;
        let url = format!("http://{}:{CLIENT_PORT}/v3/kv/{method}", member.site.1);
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
        let bits = bytes
            .iter()
            .fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        let word = bits << (8 * (3 - bytes.len()));
        for index in 0..4 {
            let digit = DIGITS[word >> (18 - 6 * index) & 63];
            encoded.push(if index > bytes.len() {
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
    fn base64_is_padded() {
        let all = ["", "M", "Ma", "Man", "Many"].map(base64);
        assert_eq!(all, ["", "TQ==", "TWE=", "TWFu", "TWFueQ=="]);
    }
}
