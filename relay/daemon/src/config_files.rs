//! Finds and reads the configuration files; `config` interprets them.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use config::{Config, ConfigFile};
use rules::ruleset::Policy;

use crate::error::DaemonError;
use crate::state::{generations, journal};

/// The default configuration file.
const DEFAULT: &str = "/etc/mcr/mcr.toml";

/// The absolute path of the main file: `named`, or the default.
pub(crate) fn main_file(named: Option<&Path>) -> PathBuf {
    let main = named.unwrap_or(Path::new(DEFAULT));
    std::path::absolute(main).unwrap_or_else(|_| main.to_owned())
}

/// Reads the texts of the main file and of `conf.d/*.toml` beside it, to write them back. A missing main
/// file counts as empty.
///
/// # Errors
/// The file that cannot be read.
pub fn texts(main: &Path) -> Result<Vec<ConfigFile>, DaemonError> {
    let mut files = vec![match read_file(main) {
        Err(DaemonError::ConfigFile { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            ConfigFile {
                name: main.display().to_string(),
                text: String::new(),
            }
        }
        file => file?,
    }];
    for part in parts(main)? {
        files.push(read_file(&part)?);
    }
    Ok(files)
}

/// Reads the file and the directory of its parts beside it: `conf.d/*.toml` of `mcr.toml`,
/// `NAME.conf.d/*.toml` of any other `NAME.toml`, so that instances do not read each other's. The
/// default file may be missing, a named one may not.
///
/// # Errors
/// The file that cannot be read, or all problems of all files.
pub fn read(named: Option<&Path>, policy: Policy) -> Result<Config, DaemonError> {
    let files = files(named)?;
    if files.is_empty() {
        return Ok(Config::default());
    }
    Ok(Config::load(&files, policy)?)
}

/// Reads them for a running daemon, for which a missing configuration is no request to forward nothing.
///
/// # Errors
/// As [`read`], and if there is no file at all.
pub(crate) fn read_again(named: Option<&Path>, policy: Policy) -> Result<Config, DaemonError> {
    if let Some(path) = named.filter(|path| is_stream(path)) {
        return Err(DaemonError::ConfigFile {
            path: path.to_owned(),
            source: io::Error::other(
                "is no file, and can be read only once; start the daemon with a file",
            ),
        });
    }
    let files = files(named)?;
    if files.is_empty() {
        return Err(DaemonError::NoConfig {
            path: PathBuf::from(DEFAULT),
        });
    }
    Ok(Config::load(&files, policy)?)
}

/// Detects that a file has changed without reading it: device, inode, modification time and size.
pub(crate) type Stamp = Option<(u64, u64, i64, i64, u64)>;

/// The stamp of a file, or of the target of a link.
pub(crate) fn stamp(path: &Path) -> Stamp {
    let file = fs::metadata(path).ok()?;
    Some((
        file.dev(),
        file.ino(),
        file.mtime(),
        file.mtime_nsec(),
        file.size(),
    ))
}

/// The stamps of all files of a configuration.
pub(crate) fn stamps(main: &Path) -> Vec<(PathBuf, Stamp)> {
    let parts = parts(main).unwrap_or_default();
    let files = std::iter::once(main.to_owned()).chain(parts);
    files.map(|path| (path.clone(), stamp(&path))).collect()
}

/// A digest of the contents of the current files.
pub(crate) fn digest(named: Option<&Path>) -> String {
    let files = if named.is_some_and(is_stream) {
        Ok(Vec::new())
    } else {
        files(named)
    };
    // An unreadable file differs from an empty one.
    let texts: Vec<u8> = match files {
        Ok(files) => files
            .into_iter()
            .flat_map(|file| file.text.into_bytes())
            .collect(),
        Err(error) => error.to_string().into_bytes(),
    };
    String::from_utf8_lossy(&journal::head(&texts))
        .trim_end()
        .to_owned()
}

fn files(named: Option<&Path>) -> Result<Vec<ConfigFile>, DaemonError> {
    let main = named.unwrap_or(Path::new(DEFAULT));
    let mut files = Vec::new();
    match read_file(main) {
        Err(DaemonError::ConfigFile { source, .. })
            if named.is_none() && source.kind() == io::ErrorKind::NotFound => {}
        file => files.push(file?),
    }
    for part in parts(main)? {
        files.push(read_file(&part)?);
    }
    Ok(files)
}

fn parts(main: &Path) -> Result<Vec<PathBuf>, DaemonError> {
    let directory = match main.file_stem() {
        Some(name) if name != "mcr" => {
            let mut own = name.to_owned();
            own.push(".conf.d");
            main.with_file_name(own)
        }
        _ => main.with_file_name("conf.d"),
    };
    let failed = |source| DaemonError::ConfigFile {
        path: directory.clone(),
        source,
    };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut parts = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if is_part(&path) {
            parts.push(path);
        }
    }
    parts.sort();
    Ok(parts)
}

/// Returns whether a path in `conf.d` is a file of the configuration. Editors leave hidden files there
/// and dangling links (`.#a.toml`); reading a pipe would block for ever.
fn is_part(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let has_name = name.ends_with(b".toml") && !name.starts_with(b".");
    // A file that cannot be inspected is read, so that the error names it.
    has_name && fs::metadata(path).map_or(true, |metadata| metadata.is_file())
}

/// Returns whether a path is a pipe or the like, on which a reader waits for the other end.
fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

fn read_file(path: &Path) -> Result<ConfigFile, DaemonError> {
    match fs::read(path).and_then(generations::text) {
        Ok(text) => Ok(ConfigFile {
            name: path.display().to_string(),
            text,
        }),
        Err(source) => Err(DaemonError::ConfigFile {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn takes_plain_files_of_conf_d_only() {
        let directory = tempfile::tempdir().unwrap();
        let main = directory.path().join("mcr.toml");
        let at = directory.path().join("conf.d");
        fs::create_dir_all(at.join("directory.toml")).unwrap();
        for name in ["b.toml", "a.toml", ".hidden.toml", "c.toml~", "toml"] {
            fs::write(at.join(name), "").unwrap();
        }
        symlink("somebody@somewhere.17:1", at.join(".#a.toml")).unwrap();
        symlink("a.toml", at.join("link.toml")).unwrap();
        let pipe = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&at.join("pipe.toml"), pipe).unwrap();
        let names: Vec<_> = parts(&main)
            .unwrap()
            .into_iter()
            .map(|path| path.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["a.toml", "b.toml", "link.toml"]);
        let studio = directory.path().join("studio.toml");
        assert_eq!(parts(&studio).unwrap(), Vec::<PathBuf>::new());
        let own = directory.path().join("studio.conf.d");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("a.toml"), "").unwrap();
        assert_eq!(parts(&studio).unwrap(), [own.join("a.toml")]);
        symlink("nowhere", at.join("broken.toml")).unwrap();
        let error = files(Some(&at.join("a.toml"))).map(drop);
        assert!(error.is_ok(), "there is no conf.d in conf.d: {error:?}");
        // Opening it would block until a writer appears.
        let stream = read_again(Some(&at.join("pipe.toml")), Policy::default());
        let error = stream.unwrap_err().to_string();
        assert!(error.contains("can be read only once"), "{error}");
        fs::write(&main, "version = 1\n").unwrap();
        let error = read(Some(&main), Policy::default()).unwrap_err();
        assert!(
            error.to_string().contains("broken.toml: No such file"),
            "{error}"
        );
    }
}
