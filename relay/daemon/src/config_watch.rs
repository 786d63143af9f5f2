//! Files that others change: their stamps are compared once a second, which also sees a directory that is
//! swapped by a link, and what the configuration says once they have been quiet.

use std::path::PathBuf;

use crate::config_files::{self, Stamp};

/// Turns, of a second each, after which contents are compared whatever the stamps say.
const ANYWAY: u32 = 10;

/// Whether the files of the configuration say something else than what was last read of them.
#[derive(Debug)]
pub(crate) struct ConfigWatch {
    /// The main file, where one was named.
    named: Option<PathBuf>,
    /// What was last read of them.
    read: String,
    stamps: Vec<(PathBuf, Stamp)>,
    /// Turns since contents were compared; none while they wait for a quiet second.
    turns: Option<u32>,
}

impl ConfigWatch {
    /// Watches the main file and what belongs to it, of which this was read.
    pub(crate) fn new(named: Option<PathBuf>, read: String) -> Self {
        Self {
            // What changed since it was read shows at the first comparison.
            stamps: Vec::new(),
            turns: None,
            named,
            read,
        }
    }

    /// Goes by what the files say now.
    pub(crate) fn note_read(&mut self) {
        self.read = config_files::digest(self.named.as_deref());
    }

    /// Says, asked once a second, whether they are to be read again.
    pub(crate) fn have_changed(&mut self) -> bool {
        let main = config_files::main_file(self.named.as_deref());
        let stamps = config_files::stamps(&main);
        if std::mem::replace(&mut self.stamps, stamps) != self.stamps {
            self.turns = None;
            return false;
        }
        match &mut self.turns {
            Some(turns) if *turns + 1 < ANYWAY => {
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
    fn files_are_read_again_once_they_are_quiet_and_say_something_else() {
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
            let turns = std::iter::repeat_with(|| watch.have_changed());
            turns.take(count).collect()
        };
        assert_eq!(turns(&mut watch, 25), [false; 25]);
        swap("..2");
        assert_eq!(turns(&mut watch, 2), [false, true]);
        // Whoever was told and has not read is told again.
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
