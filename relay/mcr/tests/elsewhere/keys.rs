//! Certificates made by openssl: a CA of servers, a CA of clients, and the certificates that they signed.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A directory of certificates.
pub(crate) struct Keys(TempDir);

impl Keys {
    /// Makes the CAs `servers`, `clients` and `strangers`, and the certificate `relay` of 10.0.1.1.
    pub(crate) fn new() -> Self {
        let keys = Self(tempfile::tempdir().unwrap());
        for name in ["servers", "clients", "strangers"] {
            let request = format!("req -x509 -days 30 -subj /CN={name} -out {name}.pem");
            keys.openssl(&format!("{request} {} -keyout {name}.key", NEW));
        }
        keys.sign("relay", "servers", "subjectAltName=IP:10.0.1.1", "-days 30");
        keys
    }

    /// Makes a key and a certificate signed by that CA.
    pub(crate) fn sign(&self, name: &str, ca: &str, extension: &str, days: &str) {
        let extensions = self.path(&format!("{name}.ext"));
        let usage = "keyUsage=digitalSignature\n";
        fs::write(&extensions, format!("{usage}{extension}\n")).unwrap();
        self.openssl(&format!(
            "req {NEW} -subj /CN={name}.common -keyout {name}.key -out {name}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -out {name}.pem \
             -extfile {name}.ext {days}"
        ));
        fs::set_permissions(
            self.path(&format!("{name}.key")),
            fs::Permissions::from_mode(0o600),
        )
        .unwrap();
    }

    /// Makes a revocation list of the CA of clients with these certificates.
    pub(crate) fn revoke(&self, names: &[&str]) {
        let config = "[ca]\ndefault_ca=c\n[c]\ndatabase=index.txt\ncrlnumber=crlnumber\ndefault_md=sha256\n\
                      default_crl_days=30\n";
        fs::write(self.path("ca.cnf"), config).unwrap();
        fs::write(self.path("index.txt"), "").unwrap();
        fs::write(self.path("crlnumber"), "01\n").unwrap();
        let ca = "ca -config ca.cnf -keyfile clients.key -cert clients.pem";
        for name in names {
            self.openssl(&format!("{ca} -revoke {name}.pem"));
        }
        self.openssl(&format!("{ca} -gencrl -out new.crl"));
        fs::rename(self.path("new.crl"), self.path("clients.crl")).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.0.path()
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command
            .args(arguments.split_whitespace())
            .current_dir(self.0.path());
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments}: {stderr}");
    }
}

const NEW: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
