//! Tokens of clients: made of chance, and known by their hash alone. Signatures by a shared secret.

use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Makes a token; none where the kernel has no chance to give.
pub fn create() -> Option<String> {
    let mut chance = [0; 32];
    SystemRandom::new().fill(&mut chance).ok()?;
    Some(format!("mcr_{}", digits(&chance)))
}

/// The hash of a token, as a configuration has it.
pub fn hash(token: &str) -> String {
    let hash = digest(&SHA256, token.as_bytes());
    format!("sha256:{}", digits(hash.as_ref()))
}

/// The signature of a body at a time: HMAC-SHA256 over the time, a point and the body.
pub fn sign(secret: &str, time: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let text = [time.as_bytes(), b".", body].concat();
    format!("sha256={}", digits(hmac::sign(&key, &text).as_ref()))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
