//! Writes the running rules and settings into the daemon's configuration. Only what is named is changed; a
//! file is replaced atomically or stays as it was.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use config::{ConfigErrors, ConfigFile, rewrite};

use crate::config_files::texts;
use crate::error::{DaemonError, remedy};

/// Why the configuration is not written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] DaemonError),
    /// The current configuration is invalid.
    #[error("the configuration cannot be used as it is:\n{0}")]
    Unusable(ConfigErrors),
    /// The new configuration would be invalid.
    #[error("{0}")]
    Refused(ConfigErrors),
    /// The files were edited meanwhile.
    #[error("somebody else edited it meanwhile; repeat it with --save")]
    Edited,
    /// A file cannot be written.
    #[error("cannot write {}: {source}{}", path.display(), remedy(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The configuration as it was before a change.
#[derive(Debug)]
pub struct Configuration {
    main: PathBuf,
    files: Vec<ConfigFile>,
}

impl Configuration {
    /// Reads it, and checks that it can be written back.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn read(main: &Path) -> Result<Self, SaveError> {
        let files = texts(main)?;
        rewrite(&files, &[]).map_err(SaveError::Unusable)?;
        let directory = main.parent().unwrap_or(Path::new("/"));
        let main = main.to_owned();
        match try_to_write(directory) {
            Ok(()) => Ok(Self { main, files }),
            Err(source) => Err(SaveError::Write { path: main, source }),
        }
    }

    /// The main file.
    #[must_use]
    pub fn main(&self) -> &Path {
        &self.main
    }

    /// Replaces the files that `rewritten` returns.
    ///
    /// # Errors
    /// Why they were not replaced.
    pub fn replace(
        &self,
        rewritten: impl FnOnce(&[ConfigFile]) -> Result<Vec<ConfigFile>, ConfigErrors>,
    ) -> Result<(), SaveError> {
        let written = rewritten(&self.files).map_err(SaveError::Refused)?;
        if texts(&self.main)? != self.files {
            return Err(SaveError::Edited);
        }
        for file in written {
            let path = Path::new(&file.name);
            replace(path, &file.text).map_err(|source| SaveError::Write {
                path: path.to_owned(),
                source,
            })?;
        }
        Ok(())
    }
}

/// Checks that files can be created in a directory.
fn try_to_write(directory: &Path) -> io::Result<()> {
    let path = directory.join(format!(".mcr-{}", std::process::id()));
    File::create(&path)?;
    fs::remove_file(&path)
}

/// Replaces a file atomically by one with this text and the same owner.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Through a link, its target is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A hidden file is not part of the configuration.
    let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = write(&new, text, fs::metadata(&path).ok());
    let replaced = written.and_then(|()| fs::rename(&new, &path));
    if replaced.is_err() {
        // The first error matters more than a failed removal.
        let _ = fs::remove_file(&new);
    }
    replaced?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn write(path: &Path, text: &str, like: Option<fs::Metadata>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    if let Some(like) = &like {
        fchown(&file, Some(like.uid()), Some(like.gid()))?;
    }
    let mode = like.map_or(0o644, |like| like.mode() & 0o7777);
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}
