//! Certificates from the network, and files of certificates and of revocation lists.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

thread_local! {
    static FILE: RefCell<Option<(TempDir, PathBuf)>> = const { RefCell::new(None) };
}

/// Bytes that claim to be a certificate, or a file of them.
///
/// # Panics
/// If one of its names is longer than the certificate itself.
pub fn certificate(data: &[u8]) {
    if let Some(identity) = tls::Identity::read(data) {
        let longest = identity.names.iter().map(String::len).max();
        // An address is longer as text than in binary.
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
        // An invalid revocation list is refused before the CA is read.
        let _ = tls::verifier(Path::new("/nonexistent"), Some(path));
        let _ = tls::verifier(path, Some(path));
    });
}
