//! `--save`: writes the rules that a subcommand changed into the configuration that the daemon reads.
//! Only they are touched; a file is replaced whole or stays as it was.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use config::{ConfigErrors, ConfigFile, StaticJoin, rewrite, rewrite_all, rewrite_joins};
use rules::document::RuleDocument;

use crate::control::Control;
use crate::failure::{Failure, Status};

/// Whether to write the change down.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Save {
    /// Write the change into the daemon's configuration file, too, whose comments stay
    #[arg(long)]
    save: bool,
}

/// The configuration as it was before the change.
pub(crate) struct Configuration {
    main: PathBuf,
    files: Vec<ConfigFile>,
}

impl Save {
    pub(crate) const fn is_asked(self) -> bool {
        self.save
    }

    /// Reads the configuration, so that nothing is changed where it cannot be written back.
    pub(crate) fn begin(self, control: &Control) -> Result<Option<Configuration>, Failure> {
        if !self.save {
            return Ok(None);
        }
        let main = control.status()?.config.ok_or_else(|| {
            let message = "--save: this daemon does not say what it reads; restart it first";
            Failure::new(Status::Unavailable, message)
        })?;
        let main = PathBuf::from(main);
        let files = texts(&main)?;
        rewrite(&files, &[]).map_err(|errors| {
            let message = format!("--save: the configuration cannot be used as it is:\n{errors}");
            Failure::new(Status::Configuration, message)
        })?;
        let directory = main.parent().unwrap_or(Path::new("/"));
        try_to_write(directory).map_err(|error| refused(&main, &error))?;
        Ok(Some(Configuration { main, files }))
    }
}

impl Configuration {
    /// Writes the rules of these names as they run now, or takes out those that are no more.
    pub(crate) fn write(self, control: &Control, names: &[String]) -> Result<(), Failure> {
        let running = control.rules()?.rules;
        let changes: Vec<(String, Option<RuleDocument>)> = { names.iter() }
            .map(|name| {
                let rule = running.iter().find(|rule| rule.name == *name);
                (name.clone(), rule.cloned())
            })
            .collect();
        self.replace_all(|files| rewrite(files, &changes))
    }

    /// Writes what is joined whatever the rules say, as it is now, but not what ends by itself.
    pub(crate) fn write_joins(self, control: &Control) -> Result<(), Failure> {
        let running = control.rules()?.settings.unwrap_or_default();
        let joins = running.join.into_iter().filter(|join| join.until.is_none());
        let joins: Vec<StaticJoin> = joins.collect();
        self.replace_all(|files| rewrite_joins(files, joins))
    }

    /// Writes all rules and settings as they run now, and nothing else.
    pub(crate) fn write_all(self, control: &Control) -> Result<(), Failure> {
        let running = control.rules()?;
        let settings = running.settings.unwrap_or_default();
        self.replace_all(|files| rewrite_all(files, &running.rules, &settings))
    }

    fn replace_all(
        self,
        rewritten: impl FnOnce(&[ConfigFile]) -> Result<Vec<ConfigFile>, ConfigErrors>,
    ) -> Result<(), Failure> {
        let not_saved = |why: &dyn std::fmt::Display| {
            let main = self.main.display();
            let message = format!("the change runs, but {main} stays as it was: {why}");
            Failure::new(Status::Configuration, message)
        };
        let written = rewritten(&self.files).map_err(|errors| not_saved(&errors))?;
        if texts(&self.main)? != self.files {
            return Err(not_saved(
                &"somebody else edited it meanwhile; repeat it with --save",
            ));
        }
        for file in written {
            let path = Path::new(&file.name);
            replace(path, &file.text).map_err(|error| refused(path, &error))?;
        }
        Ok(())
    }
}

fn texts(main: &Path) -> Result<Vec<ConfigFile>, Failure> {
    daemon::config_files::texts(main).map_err(|error| Failure::with_code(error.exit_code(), error))
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    let status = match error.kind() {
        io::ErrorKind::PermissionDenied => Status::Privilege,
        _ => Status::Configuration,
    };
    Failure::new(
        status,
        format!("--save: cannot write {}: {error}", path.display()),
    )
}

/// Finds out whether files can be made in a directory.
fn try_to_write(directory: &Path) -> io::Result<()> {
    let path = directory.join(format!(".mcr-{}", std::process::id()));
    File::create(&path)?;
    fs::remove_file(&path)
}

/// Puts a file with this text in the place of another, whole; it belongs to whom the other did.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Where a link leads, the file there is meant.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A hidden file is none of the configuration's.
    let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = write(&new, text, fs::metadata(&path).ok());
    let replaced = written.and_then(|()| fs::rename(&new, &path));
    if replaced.is_err() {
        // What failed matters more than what cannot be taken away.
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
