//! The running rules and settings that are not in the configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::reply::Change;
use config::{Config, Settings};
use observe::view::View;
use parking_lot::Mutex;
use rules::ruleset::Policy;

use super::api_error::{ApiError, Code, Reply};
use crate::config_files::{self, Stamp};
use crate::core::{compare, local};

/// The last comparison, which is repeated when files or rules have changed.
#[derive(Debug, Default)]
pub(crate) struct Unsaved(Mutex<Option<Comparison>>);

#[derive(Debug)]
struct Comparison {
    stamp: Vec<(PathBuf, Stamp)>,
    config: Arc<Config>,
    generation: u64,
    change: Arc<Change>,
}

impl Unsaved {
    /// The change that the configuration of that main file would need.
    pub(super) fn change(&self, main: &Path, view: &View) -> Reply<Arc<Change>> {
        let mut last = self.0.lock();
        let stamp = config_files::stamps(main);
        let config = match last.take().filter(|last| last.stamp == stamp) {
            Some(same) if same.generation == view.generation => {
                return Ok(Arc::clone(&last.insert(same).change));
            }
            Some(same) => same.config,
            None => Arc::new(read(main)?),
        };
        let before = (&config.rules, &lasting(&config.settings));
        let after = (&local(&view.rules), &lasting(&view.settings));
        let change = Arc::new(Change {
            generation: view.generation,
            ..compare(before, after)
        });
        *last = Some(Comparison {
            stamp,
            config,
            generation: view.generation,
            change: Arc::clone(&change),
        });
        Ok(change)
    }
}

fn read(main: &Path) -> Reply<Config> {
    // The running rules passed the policy already.
    let policy = Policy::PERMISSIVE;
    if main.exists() {
        config_files::read(Some(main), policy).map_err(|error| ApiError::new(Code::Invalid, error))
    } else {
        Ok(Config::default())
    }
}

/// Settings without temporary joins, which are never saved.
fn lasting(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.join.retain(|join| join.until.is_none());
    settings
}
