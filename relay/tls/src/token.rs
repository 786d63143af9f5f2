//! Tokens of clients: random, and stored only as a hash. Signatures by a shared secret.

use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Makes a token; `None` if the kernel provides no randomness.
pub fn create() -> Option<String> {
    let mut random = [0; 32];
    SystemRandom::new().fill(&mut random).ok()?;
    Some(format!("mcr_{}", hex(&random)))
}

/// The hash of a token, as stored in a configuration.
pub fn hash(token: &str) -> String {
    let hash = digest(&SHA256, token.as_bytes());
    format!("sha256:{}", hex(hash.as_ref()))
}

/// The signature of a body at a time: HMAC-SHA256 over the time, a full stop and the body.
pub fn sign(secret: &str, time: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let text = [time.as_bytes(), b".", body].concat();
    format!("sha256={}", hex(hmac::sign(&key, &text).as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
