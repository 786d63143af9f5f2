//! Watches the configuration files: their stamps are compared once a second, which also notices a directory
//! that is swapped by a link; their contents once they have not changed for a second.

use std::path::PathBuf;

use crate::config_files::{self, Stamp};

/// Seconds after which contents are compared whatever the stamps are.
const COMPARE_AFTER: u32 = 10;

/// Detects that the contents of the configuration files differ from what was last read.
#[derive(Debug)]
pub(crate) struct ConfigWatch {
    /// The main file, if one was named.
    named: Option<PathBuf>,
    /// The digest of what was last read.
    read: String,
    stamps: Vec<(PathBuf, Stamp)>,
    /// Seconds since contents were compared; `None` while waiting for a second without changes.
    turns: Option<u32>,
}

impl ConfigWatch {
    /// Watches the main file and its parts; `read` is the digest of what was read.
    pub(crate) fn new(named: Option<PathBuf>, read: String) -> Self {
        Self {
            // A change since they were read shows at the first comparison.
            stamps: Vec::new(),
            turns: None,
            named,
            read,
        }
    }

    /// Records the current contents as read.
    pub(crate) fn note_read(&mut self) {
        self.read = config_files::digest(self.named.as_deref());
    }

    /// Returns whether they are to be read again; to be called once a second.
    pub(crate) fn have_changed(&mut self) -> bool {
        let main = config_files::main_file(self.named.as_deref());
        let stamps = config_files::stamps(&main);
        if std::mem::replace(&mut self.stamps, stamps) != self.stamps {
            self.turns = None;
            return false;
        }
        match &mut self.turns {
            Some(turns) if *turns + 1 < COMPARE_AFTER => {
                *turns += 1;
                false
            }
            turns => {
                *turns = Some(0);
                config_files::digest(self.named.as_deref()) != self.read
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_read_again_once_their_contents_have_changed_and_settled() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // As Kubernetes mounts a ConfigMap: files are links through one that is swapped.
        for (name, text) in [("..1", "a"), ("..2", "b"), ("..3", "b")] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("mcr.toml"), text).unwrap();
        }
        let swap = |to: &str| {
            symlink(to, at("..tmp")).unwrap();
            fs::rename(at("..tmp"), at("..data")).unwrap();
        };
        swap("..1");
        symlink("..data/mcr.toml", at("mcr.toml")).unwrap();
        let main = at("mcr.toml");
        let read = config_files::digest(Some(&main));
        let mut watch = ConfigWatch::new(Some(main.clone()), read);
        let turns = |watch: &mut ConfigWatch, count: usize| -> Vec<bool> {
            (0..count).map(|_| watch.have_changed()).collect()
        };
        assert_eq!(turns(&mut watch, 25), [false; 25]);
        swap("..2");
        assert_eq!(turns(&mut watch, 2), [false, true]);
        // Until the files are read, the change is reported again.
        assert!(turns(&mut watch, 10)[9]);
        watch.note_read();
        swap("..3");
        assert_eq!(turns(&mut watch, 25), [false; 25], "it says the same");
        fs::create_dir(at("conf.d")).unwrap();
        fs::write(at("conf.d/a.toml"), "c").unwrap();
        assert_eq!(turns(&mut watch, 2), [false, true], "a file that came");
        for number in 0..4 {
            fs::write(at("conf.d/b.toml"), "d".repeat(number + 1)).unwrap();
            assert_eq!(turns(&mut watch, 1), [false], "no quiet second yet");
        }
        assert_eq!(turns(&mut watch, 1), [true]);
        fs::remove_file(&main).unwrap();
        assert_eq!(turns(&mut watch, 2), [false, true], "a file that went");
        watch.note_read();
        assert_eq!(turns(&mut watch, 25), [false; 25], "it was told");
        fs::create_dir(&main).unwrap();
        assert_eq!(turns(&mut watch, 2), [false, true], "no file at all");
        watch.note_read();
        fs::remove_dir(&main).unwrap();
        fs::remove_dir_all(at("conf.d")).unwrap();
        fs::write(&main, "").unwrap();
        assert_eq!(turns(&mut watch, 2), [false, true], "a file that is empty");
    }
}
