//! A `/run/mcr` that only the daemon uses, that outlives it, and that can be full.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use tempfile::TempDir;

/// A small file system, mounted in its own directory.
pub(super) struct OwnRun(TempDir);

impl OwnRun {
    pub(super) fn mount() -> Result<Self> {
        let directory = TempDir::new()?;
        let options = Some("size=1m,mode=755");
        mount_on(directory.path(), "tmpfs", options)?;
        let run = Self(directory);
        // A mount in the daemon's own mount namespace would end with it.
        let bpffs = Path::new("/sys/fs/bpf");
        if !statfs(bpffs).is_ok_and(|there| there.filesystem_type() == BPF_FS_MAGIC) {
            mount_on(bpffs, "bpf", Some("mode=0700"))?;
        }
        Ok(run)
    }

    /// What has a program see it as `/run/mcr`.
    pub(super) fn under(&self) -> Vec<String> {
        let directory = self.0.path().display();
        let script =
            format!("mkdir -p /run/mcr && mount --bind {directory} /run/mcr && exec \"$@\"");
        let words = ["unshare", "--mount", "sh", "-ec", &script, "sh"];
        words.map(str::to_owned).to_vec()
    }

    /// Leaves no room in it, to the last page.
    pub(super) fn fill(&self) {
        let file = File::create(self.filler());
        while file
            .as_ref()
            .is_ok_and(|mut file| file.write_all(&[0; 512]).is_ok())
        {}
    }

    pub(super) fn make_room(&self) {
        let _ = fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join("filler")
    }
}

impl Drop for OwnRun {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

fn mount_on(path: &Path, kind: &str, options: Option<&str>) -> nix::Result<()> {
    mount(Some(kind), path, Some(kind), MsFlags::empty(), options)
}
