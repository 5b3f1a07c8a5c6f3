//! Positions inside JSON text that has already been parsed without error.
//!
//! serde_json says what a text means but not where; to change a list and keep every foreign byte we need the places.
//! Not a validator: on text that is not JSON the result is `None` or nonsense. Called by the editor next door only.

use std::ops::Range;

/// Where an array and its items are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Array {
    /// Position after `[`.
    pub open: usize,
    /// From the first to behind the last byte of each item, without white space around it.
    pub items: Vec<Range<usize>>,
}

/// The array that is the value of `key` in the object `text` consists of. Of several equal keys the last one counts,
/// as for every JSON reader involved. `None` when there is no such key or its value is not an array.
pub(crate) fn array_at(text: &str, key: &str) -> Option<Array> {
    let mut scanner = Scanner { bytes: text.as_bytes(), at: 0 };
    scanner.skip_space();
    scanner.expect(b'{')?;
    let mut found = None;
    scanner.skip_space();
    while scanner.peek()? != b'}' {
        let name = scanner.value()?;
        scanner.skip_space();
        scanner.expect(b':')?;
        scanner.skip_space();
        let value = scanner.value()?;
        // Keys may be written with escapes.
        if serde_json::from_str::<String>(text.get(name)?).ok()? == key {
            found = Some(value);
        }
        scanner.skip_separator();
    }
    items(text, found?)
}

/// Position behind the white space that starts at `at`.
pub(crate) fn after_space(text: &str, at: usize) -> usize {
    let mut scanner = Scanner { bytes: text.as_bytes(), at };
    scanner.skip_space();
    scanner.at
}

fn items(text: &str, array: Range<usize>) -> Option<Array> {
    let mut scanner = Scanner { bytes: text.as_bytes(), at: array.start };
    scanner.expect(b'[')?;
    let open = scanner.at;
    let mut items = Vec::new();
    scanner.skip_space();
    while scanner.peek()? != b']' {
        items.push(scanner.value()?);
        scanner.skip_separator();
    }
    Some(Array { open, items })
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// White space, at most one comma, white space.
    fn skip_separator(&mut self) {
        self.skip_space();
        if self.expect(b',').is_some() {
            self.skip_space();
        }
    }

    /// Skips one value and says where it is.
    fn value(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                _ => self.scalar(),
            }
            if depth == 0 {
                return Some(start..self.at);
            }
        }
    }

    fn string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        loop {
            match self.peek()? {
                b'\\' => self.at += 2,
                b'"' => return self.expect(b'"'),
                _ => self.at += 1,
            }
        }
    }

    fn scalar(&mut self) {
        while !matches!(self.peek(), None | Some(b',' | b':' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<Vec<&str>> {
        array_at(text, "plugins").map(|array| array.items.into_iter().map(|item| &text[item]).collect())
    }

    #[test]
    fn items_are_found_whatever_stands_around_them() {
        assert_eq!(found(r#"{"plugins":[{"a":"]}"},{"b":[1,{}]}]}"#), Some(vec![r#"{"a":"]}"}"#, r#"{"b":[1,{}]}"#]));
        assert_eq!(
            found("{ \"x\" : -1.5e3 ,\n\"plugins\"\t:\r\n[ 1 , \"\\\"]\\\\\" ] }"),
            Some(vec!["1", "\"\\\"]\\\\\""])
        );
        assert_eq!(found(r#"{"plugins":[ ]}"#), Some(vec![]));
    }

    #[test]
    fn the_last_of_two_equal_keys_counts_and_escapes_are_understood() {
        assert_eq!(found(r#"{"plugins":[1],"p\u006cugins":[2]}"#), Some(vec!["2"]));
        assert_eq!(found(r#"{"x":{"plugins":[1]}}"#), None, "only at the top");
        assert_eq!(found(r#"{"plugins":{}}"#), None);
    }

    #[test]
    fn broken_text_gives_nothing_and_does_not_hang() {
        for text in ["", "{", "[", "{\"plugins\":[", "{\"plugins\":[1", "{\"a", "{\"plugins\":[}", "nope"] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
