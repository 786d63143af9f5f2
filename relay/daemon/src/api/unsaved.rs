//! What runs and the configuration does not say.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use api::reply::{Change, ErrorReply};
use axum::Json;
use axum::extract::State;
use config::{Config, Settings};
use observe::view::View;
use rules::ruleset::Policy;

use super::body::Tagged;
use super::changing::{Changing, MessageHeader, change};
use super::refusal::{Answer, Code, Refusal};
use super::service::Service;
use crate::config_files;
use crate::core::{compare, local};
use crate::supervisor::command::Order;

/// What is known of it: it is looked into again where files or rules are others.
#[derive(Debug, Default)]
pub(crate) struct Unsaved(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    stamp: Vec<(PathBuf, Option<SystemTime>, u64, u64)>,
    config: Arc<Config>,
    generation: u64,
    change: Arc<Change>,
}

/// What runs and the configuration does not say, as what it would take there.
#[utoipa::path(get, path = "/v1/unsaved", tag = "rules",
    responses((status = 200, body = Change), (status = 422, body = ErrorReply)))]
pub(super) async fn unsaved(State(service): State<Arc<Service>>) -> Answer<Json<Change>> {
    service
        .unsaved()
        .await
        .map(|change| Json(Change::clone(&change)))
}

/// Writes all that runs into the configuration, whose comments and order stay, where the daemon may.
#[utoipa::path(post, path = "/v1/save", tag = "rules", params(MessageHeader),
    responses((status = 200, body = Change), (status = 400, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 503, body = ErrorReply)))]
pub(super) async fn save(changing: Changing) -> Answer<Tagged<Change>> {
    change(changing, Order::Save).await
}

impl Service {
    /// What runs and the configuration does not say.
    pub(super) async fn unsaved(&self) -> Answer<Arc<Change>> {
        let (view, unsaved) = (self.view(), Arc::clone(&self.unsaved));
        let main = self.identity.config.clone();
        let looked = tokio::task::spawn_blocking(move || unsaved.look(&main, &view)).await;
        looked.map_err(|error| Refusal::new(Code::Internal, error))?
    }
}

impl Unsaved {
    fn look(&self, main: &Path, view: &View) -> Answer<Arc<Change>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = config_files::stamp(main);
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
    match main.exists() {
        false => Ok(Config::default()),
        true => config_files::read(Some(main), policy)
            .map_err(|error| Refusal::new(Code::Invalid, error)),
    }
}

/// Settings without what ends by itself and is never saved.
fn lasting(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.join.retain(|join| join.until.is_none());
    settings
}
