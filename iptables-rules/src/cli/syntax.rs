//! How Go's flag packages write switches, small numbers and durations.
//!
//! Istio's charts and mesh configurations are full of such words, so they are taken to the letter. On the command line
//! a mistake is an error. In the environment it is forgiven, as there: the value is then nothing, not the default.

use std::time::Duration;

/// Why a number is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotANumber {
    /// It is something else.
    Syntax,
    /// It is larger than 65535.
    TooLarge,
}

/// A switch on the command line.
pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("it is neither `true` nor `false`".to_owned()),
    }
}

/// A switch in the environment: what cannot be read is off.
pub fn lenient_switch(text: &str) -> bool {
    switch(text).unwrap_or(false)
}

/// A port on the command line: decimal, or with `0x`, `0o`, `0b` or a `0` in front; `_` may part digits.
pub fn port(text: &str) -> Result<u16, String> {
    small_number(text).map_err(|error| match error {
        NotANumber::Syntax => "it is not a number".to_owned(),
        NotANumber::TooLarge => "it is not between 0 and 65535".to_owned(),
    })
}

/// A port in the environment: 0 for what is no number, 65535 for what is too large.
pub fn lenient_port(text: &str) -> u16 {
    small_number(text).unwrap_or_else(|error| match error {
        NotANumber::Syntax => 0,
        NotANumber::TooLarge => u16::MAX,
    })
}

fn small_number(text: &str) -> Result<u16, NotANumber> {
    let (radix, digits) = radix_of(text);
    if text.is_empty() {
        return Err(NotANumber::Syntax);
    }
    let mut value: u32 = 0;
    for character in digits.chars().filter(|character| *character != '_') {
        let digit = character.to_digit(radix).ok_or(NotANumber::Syntax)?;
        value = value * radix + digit;
        if value > u32::from(u16::MAX) {
            return Err(NotANumber::TooLarge);
        }
    }
    if !underscores_part_digits(text, digits) {
        return Err(NotANumber::Syntax);
    }
    u16::try_from(value).map_err(|_| NotANumber::TooLarge)
}

/// The base that the front of a number tells, and what follows it.
fn radix_of(text: &str) -> (u32, &str) {
    let Some(rest) = text.strip_prefix('0') else { return (10, text) };
    let prefixed = |letter: char| {
        let digits = rest.strip_prefix([letter, letter.to_ascii_uppercase()])?;
        (!digits.is_empty()).then_some(digits)
    };
    [('x', 16), ('o', 8), ('b', 2)]
        .into_iter()
        .find_map(|(letter, radix)| prefixed(letter).map(|digits| (radix, digits)))
        .unwrap_or((8, rest))
}

/// An underscore stands after a digit, or after what tells the base, and before a digit.
fn underscores_part_digits(text: &str, digits: &str) -> bool {
    let first_may_be_underscore = digits.len() < text.len();
    !digits.ends_with('_') && !digits.contains("__") && (first_may_be_underscore || !digits.starts_with('_'))
}

/// A duration on the command line: `5s`, `1m30s`, `500ms`, or a bare `0`. A negative one is no time at all.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "it is not a duration such as 5s, 1m30s or 500ms".to_owned();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    if unsigned.is_empty() {
        return Err(wrong());
    }
    let mut nanos: f64 = 0.0;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let number = rest.find(|character: char| character != '.' && !character.is_ascii_digit()).ok_or_else(wrong)?;
        let (count, after) = rest.split_at(number);
        let unit = after.find(|character: char| character == '.' || character.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        if !count.bytes().any(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        nanos += count.parse::<f64>().map_err(|_| wrong())? * nanos_per(unit).ok_or_else(wrong)?;
        rest = after;
    }
    // As many nanoseconds as Go can count, 292 years.
    if nanos > 9.2e18 {
        return Err(wrong());
    }
    Ok(if text.starts_with('-') { Duration::ZERO } else { Duration::from_secs_f64(nanos / 1e9) })
}

/// A duration in the environment: 0 for what is none.
pub fn lenient_duration(text: &str) -> Duration {
    duration(text).unwrap_or_default()
}

fn nanos_per(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        // Micro sign and Greek mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_take_gos_words_only() {
        for word in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(switch(word), Ok(true));
            assert!(lenient_switch(word));
        }
        for word in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(switch(word), Ok(false));
        }
        for word in ["yes", "on", "", "tRUE", " true", "2"] {
            assert!(switch(word).is_err(), "{word}");
            assert!(!lenient_switch(word));
        }
    }

    #[test]
    fn numbers_are_written_as_in_go() {
        for (text, number) in [
            ("15002", 15002),
            ("0", 0),
            ("0x3a9a", 0x3a9a),
            ("0X3A9A", 0x3a9a),
            ("0o17", 15),
            ("017", 15),
            ("0b101", 5),
            ("15_002", 15002),
            ("0x_3a9a", 0x3a9a),
            ("0_7", 7),
            ("65535", 65535),
        ] {
            assert_eq!(port(text), Ok(number), "{text}");
        }
        for text in ["", "abc", "-1", "+1", "0x", "08", "1__0", "_1", "1_", "0b2", "1.0", " 1"] {
            assert!(port(text).is_err(), "{text}");
            assert_eq!(lenient_port(text), 0, "{text}");
        }
        for text in ["65536", "70000", "0x10000", "99999999999999999999999"] {
            assert!(port(text).unwrap_err().contains("65535"), "{text}");
            assert_eq!(lenient_port(text), 65535, "{text}");
        }
    }

    #[test]
    fn durations_are_written_as_in_go() {
        for (text, millis) in [
            ("5s", 5000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("0", 0),
            ("1.5s", 1500),
            (".5s", 500),
            ("1.s", 1000),
            ("1h", 3_600_000),
            ("2000us", 2),
            ("2000\u{b5}s", 2),
            ("+1s", 1000),
            ("-1s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "abc", "s", ".s", "5 s", "5x", "1..5s", "-", "300000000h"] {
            assert!(duration(text).is_err(), "{text}");
            assert_eq!(lenient_duration(text), Duration::ZERO);
        }
    }
}
