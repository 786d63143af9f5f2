//! The files that a configuration names: certificates, keys, passwords, secrets. They are tried as the daemon
//! will use them, which changes nothing.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use config::{Config, Settings};
use fleet::relay;
use observe::notify;

use crate::api::remote;

/// What is wrong with the files that a configuration names, as far as this process may read them.
pub fn troubles(config: &Config) -> Vec<String> {
    let mut troubles = Vec::new();
    let api = &config.api;
    let files = [&api.certificate, &api.key, &api.client_ca, &api.client_crl];
    if api.listen.is_some() && api.lacks().is_none() && may_read(files) {
        let tried = remote::try_files(api).err();
        troubles.extend(tried.map(|why| format!("[api] {why}")));
    }
    troubles.extend(of_fleet(&config.settings));
    for (target, number) in config.targets.iter().zip(1..) {
        if may_read([&target.ca, &target.headers_file, &target.secret_file]) {
            let tried = notify::try_files(target).err();
            troubles.extend(tried.map(|why| format!("[[notify.target]] {number}: {why}")));
        }
    }
    troubles
}

/// What is wrong with the files of `[fleet]`.
pub(crate) fn of_fleet(settings: &Settings) -> Option<String> {
    let fleet = settings.fleet.as_ref()?;
    let tls = fleet.tls.clone();
    let files = tls.map(|tls| [Some(tls.ca), tls.cert, tls.key]);
    let may_try = may_read(files.iter().flatten().chain([&fleet.password_file]));
    let tried = may_try.then(|| relay::try_files(fleet).err());
    tried.flatten().map(|why| why.to_string())
}

/// Whether no file is kept from this process: the daemon may be permitted more.
fn may_read<'a>(files: impl IntoIterator<Item = &'a Option<PathBuf>>) -> bool {
    let is_kept =
        |path| File::open(path).is_err_and(|why| why.kind() == ErrorKind::PermissionDenied);
    !files.into_iter().flatten().any(is_kept)
}
