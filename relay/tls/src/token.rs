//! Tokens of clients: made of chance, and known by their hash alone.

use ring::digest::{SHA256, digest};
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

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
