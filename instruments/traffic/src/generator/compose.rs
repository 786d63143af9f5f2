//! Writes test payloads: framing, own header, body, and the requested corruption.

use super::fault::Emission;
use super::option::Options;
use super::outbox::Outbox;
use super::restart::Labels;
use super::size::Sizes;
use crate::framing::Framing;
use crate::payload::{self, HEADER_BYTES};
use crate::random::{self, Choice};

/// Writes payloads of one run.
pub(super) struct Composer {
    framing: Framing,
    labels: Labels,
    sizes: Sizes,
    seed: u64,
    /// The bytes behind the own header, of the largest size.
    body: Vec<u8>,
    /// Checksum of the first n bytes of the body, by n; empty where the framing changes the body.
    checksums: Vec<u32>,
    /// Whether every slot of the outbox already holds the body.
    is_prefilled: bool,
}

impl Composer {
    pub(super) fn new(options: &Options) -> Self {
        let framing = options.framing;
        let body = body(options);
        Self {
            framing,
            labels: Labels::new(
                options.first_number(),
                &options.restarts,
                &options.schedule(),
            ),
            sizes: options.sizes.clone(),
            seed: options.seed,
            checksums: if framing.has_constant_body() {
                payload::prefix_checksums(&body)
            } else {
                Vec::new()
            },
            body,
            is_prefilled: prefill(options).is_some(),
        }
    }

    /// Writes one datagram; returns `false`, with nothing written, when the outbox is full.
    pub(super) fn emit(&self, emission: &Emission, outbox: &mut Outbox) -> bool {
        let size = self.sizes.pick(self.seed, emission.number);
        let Some(datagram) = outbox.reserve(emission.to, size) else {
            return false;
        };
        self.write(datagram, emission);
        true
    }

    fn write(&self, datagram: &mut [u8], emission: &Emission) {
        let own = self.framing.own_offset();
        let length = datagram.len() - own - HEADER_BYTES;
        if !self.is_prefilled {
            datagram[own + HEADER_BYTES..].copy_from_slice(&self.body[..length]);
        }
        let label = self.labels.label(&emission.stamp);
        self.framing.write(datagram, &emission.stamp, &label);
        let checksum = match self.checksums.get(length) {
            Some(checksum) => *checksum,
            None => payload::body_checksum(&datagram[own + HEADER_BYTES..]),
        };
        payload::write(&mut datagram[own..], &emission.stamp, checksum);
        if emission.corrupt {
            self.corrupt(&mut datagram[own..], emission.number);
        }
    }

    /// Changes one byte that the checksum covers: of the body, or of the send time where there is
    /// none. TS headers stay intact, so that the framing is still recognised.
    fn corrupt(&self, covered: &mut [u8], number: u64) {
        let bits = random::bits(self.seed, Choice::CorruptOffset, number);
        let body = covered.len() - HEADER_BYTES;
        let limit = if self.framing.has_constant_body() {
            body
        } else {
            body.min(packet::mpeg_ts::PACKET - 4 - HEADER_BYTES)
        };
        let offset = if limit == 0 {
            HEADER_BYTES - 5
        } else {
            HEADER_BYTES + random::below(bits, limit as u64) as usize
        };
        covered[offset] ^= 1 << (bits % 8);
    }
}

/// What every slot of the outbox holds from the start, where all payloads have one size and body.
pub(super) fn prefill(options: &Options) -> Option<Vec<u8>> {
    let fixed = matches!(options.sizes, Sizes::Fixed(_)) && options.replay.is_none();
    let constant = options.framing.has_constant_body() && !options.faults.any();
    (fixed && constant).then(|| {
        let mut payload = vec![0; options.framing.own_offset() + HEADER_BYTES];
        payload.extend(body(options));
        payload
    })
}

/// Counts up, so that a hex dump shows where it was cut.
fn body(options: &Options) -> Vec<u8> {
    let header = options.framing.own_offset() + HEADER_BYTES;
    let length = options.sizes.largest().saturating_sub(header);
    (0..length).map(|index| index as u8).collect()
}
