//! Netlink messages and attributes, written into and read from plain bytes.
//!
//! Lengths of nested attributes are patched when the nest closes. Attribute payloads are padded to four bytes.

/// Flag: a request.
pub const REQUEST: u16 = 0x1;
/// Flag: answer with an acknowledgement.
pub const ACK: u16 = 0x4;
/// Flag: all entries of a kind.
pub const DUMP: u16 = 0x300;
/// Flag: fail when it exists.
pub const EXCL: u16 = 0x200;
/// Flag: create when it does not exist.
pub const CREATE: u16 = 0x400;
/// Flag: at the end of a list.
pub const APPEND: u16 = 0x800;

/// Bit that marks an attribute as holding attributes.
const NESTED: u16 = 0x8000;
/// Bits of an attribute type that are not flags.
const TYPE_MASK: u16 = 0x3fff;
/// Size of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Offset of the flags in `struct nlmsghdr`.
const FLAGS_AT: usize = 6;

/// Netlink messages, one after the other, each with the next sequence number.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    /// Start of the last message.
    last: usize,
    sequence: u32,
}

impl Writer {
    /// Nothing yet. Sequence numbers start at 1.
    pub fn new() -> Self {
        Self { bytes: Vec::with_capacity(8192), last: 0, sequence: 0 }
    }

    /// Writes one message: header, `family_header`, and what `body` writes. Returns its sequence number.
    pub fn message(&mut self, kind: u16, flags: u16, family_header: &[u8], body: impl FnOnce(&mut Self)) -> u32 {
        self.sequence += 1;
        self.last = self.bytes.len();
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(family_header);
        body(self);
        let start = self.last;
        let length = (self.bytes.len() - start) as u32;
        self.patch(start, &length.to_ne_bytes());
        self.sequence
    }

    /// Asks the kernel to acknowledge the last message. Returns its sequence number.
    pub fn acknowledge_last(&mut self) -> u32 {
        let at = self.last + FLAGS_AT;
        let flags = self.bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes);
        self.patch(at, &(flags | ACK).to_ne_bytes());
        self.sequence
    }

    /// An attribute with this payload.
    pub fn attribute(&mut self, kind: u16, payload: &[u8]) {
        let length = (4 + payload.len()) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// An attribute that holds a big-endian number.
    pub fn be32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// An attribute that holds a big-endian number of 64 bits.
    pub fn be64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// An attribute that holds a NUL-terminated string.
    pub fn string(&mut self, kind: u16, text: &str) {
        let mut payload = Vec::with_capacity(text.len() + 1);
        payload.extend(text.as_bytes());
        payload.push(0);
        self.attribute(kind, &payload);
    }

    /// An attribute that holds what `body` writes.
    pub fn nested(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend(0u16.to_ne_bytes());
        self.bytes.extend((kind | NESTED).to_ne_bytes());
        body(self);
        let length = (self.bytes.len() - start) as u16;
        self.patch(start, &length.to_ne_bytes());
    }

    /// The messages.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn patch(&mut self, at: usize, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    }
}

/// The attributes in `bytes`, in order, as type and payload. Stops at the first one that does not fit.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?) & TYPE_MASK;
        let payload = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}

/// The payload of the first attribute of this type.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, payload)| (found == kind).then_some(payload))
}

/// The big-endian number in the first attribute of this type.
pub fn find_be32(bytes: &[u8], kind: u16) -> Option<u32> {
    find(bytes, kind)?.first_chunk().map(|value| u32::from_be_bytes(*value))
}

/// The big-endian number of 64 bits in the first attribute of this type.
pub fn find_be64(bytes: &[u8], kind: u16) -> Option<u64> {
    find(bytes, kind)?.first_chunk().map(|value| u64::from_be_bytes(*value))
}

/// The string in the first attribute of this type, without its NUL.
pub fn find_string(bytes: &[u8], kind: u16) -> Option<&str> {
    let payload = find(bytes, kind)?;
    let text = payload.split(|byte| *byte == 0).next().unwrap_or_default();
    std::str::from_utf8(text).ok()
}

/// The messages in `bytes` as type and what follows the header. Stops at the first one that does not fit.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let payload = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::new();
        writer.message(7, REQUEST, &[2, 0, 0, 0], |message| {
            message.string(1, "nat");
            message.nested(4, |nest| {
                nest.be32(2, 9);
                nest.attribute(3, b"abc");
            });
        });
        assert_eq!(writer.acknowledge_last(), 1);
        let read: Vec<_> = messages(writer.bytes()).collect();
        let [(7, payload)] = read.as_slice() else { panic!("{read:?}") };
        assert_eq!(find_string(&payload[4..], 1), Some("nat"));
        let nest = find(&payload[4..], 4).unwrap();
        assert_eq!(find_be32(nest, 2), Some(9));
        assert_eq!(find(nest, 3), Some(b"abc".as_slice()));
        assert_eq!(writer.bytes().len() % 4, 0);
    }

    #[test]
    fn cut_off_bytes_end_the_reading() {
        let mut writer = Writer::new();
        writer.message(7, REQUEST, &[], |message| message.string(1, "nat"));
        for length in 0..writer.bytes().len() {
            assert_eq!(messages(&writer.bytes()[..length]).count(), 0);
        }
        assert_eq!(attributes(&[0, 0, 0, 0, 0]).count(), 0);
    }
}
