//! Certificates as they come over the network, and files of certificates and of lists of the revoked.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

thread_local! {
    static FILE: RefCell<Option<(TempDir, PathBuf)>> = const { RefCell::new(None) };
}

/// Bytes that say that they are a certificate, or a file of them.
///
/// # Panics
/// Where a name of it is longer than the certificate itself.
pub fn certificate(data: &[u8]) {
    if let Some(identity) = tls::Identity::read(data) {
        let longest = identity.names.iter().map(String::len).max();
        // An address is written longer than it is.
        assert!(longest.unwrap_or_default() <= data.len().max(39));
    }
    FILE.with_borrow_mut(|file| {
        let (_, path) = file.get_or_insert_with(|| {
            let directory = TempDir::new().expect("a directory for one file");
            let path = directory.path().join("file");
            (directory, path)
        });
        fs::write(&path, data).expect("a file of the fuzzer's own");
        let _ = tls::roots(path);
        // What is no list of the revoked is refused before the CA is looked for.
        let _ = tls::verifier(Path::new("/nonexistent"), Some(path));
        let _ = tls::verifier(path, Some(path));
    });
}
