//! The identity in a certificate, and when it expires. rustls verifies whether the certificate is valid.

use std::net::{Ipv4Addr, Ipv6Addr};

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The owner of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its alternative names: DNS, IP, mail, URI; the common name if it has none.
    pub names: Vec<String>,
    /// When it expires, in seconds since the epoch.
    pub expires: u64,
}

impl Identity {
    /// Reads a certificate in DER.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let names = match certificate.subject_alternative_name().ok()? {
            Some(names) => names.value.general_names.iter().filter_map(name).collect(),
            None => certificate
                .subject()
                .iter_common_name()
                .filter_map(|name| name.as_str().ok().map(str::to_owned))
                .collect(),
        };
        Some(Self {
            names,
            expires: u64::try_from(certificate.validity().not_after.timestamp()).ok()?,
        })
    }
}

/// When a certificate in DER expires, in seconds since the epoch.
pub fn expires(der: &[u8]) -> Option<u64> {
    Identity::read(der).map(|identity| identity.expires)
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some((*name).to_owned())
        }
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(*bytes).ok()?).to_string()),
            16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
            _ => None,
        },
        _ => None,
    }
}
