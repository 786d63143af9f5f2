//! What runs and the configuration does not say.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::reply::Change;
use config::{Config, Settings};
use observe::view::View;
use parking_lot::Mutex;
use rules::ruleset::Policy;

use super::api_error::{Answer, ApiError, Code};
use crate::config_files::{self, Stamp};
use crate::core::{compare, local};

/// What is known of it: it is looked into again where files or rules are others.
#[derive(Debug, Default)]
pub(crate) struct Unsaved(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    stamp: Vec<(PathBuf, Stamp)>,
    config: Arc<Config>,
    generation: u64,
    change: Arc<Change>,
}

impl Unsaved {
    /// What it would take in the configuration of that main file.
    pub(super) fn look(&self, main: &Path, view: &View) -> Answer<Arc<Change>> {
        let mut known = self.0.lock();
        let stamp = config_files::stamps(main);
        let same = known.take().filter(|known| known.stamp == stamp);
        let config = match same {
            Some(same) if same.generation == view.generation => {
                return Ok(Arc::clone(&known.insert(same).change));
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
        *known = Some(Known {
            stamp,
            config,
            generation: view.generation,
            change: Arc::clone(&change),
        });
        Ok(change)
    }
}

fn read(main: &Path) -> Answer<Config> {
    // What runs was permitted.
    let policy = Policy::PERMISSIVE;
    if main.exists() {
        config_files::read(Some(main), policy).map_err(|error| ApiError::new(Code::Invalid, error))
    } else {
        Ok(Config::default())
    }
}

/// Settings without what ends by itself and is never saved.
fn lasting(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.join.retain(|join| join.until.is_none());
    settings
}
