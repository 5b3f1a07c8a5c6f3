//! Words for booleans and integers, as Go programs read them.

/// A boolean flag.
pub(super) fn flag_bool(text: &str) -> Result<bool, String> {
    parse_bool(text).ok_or_else(|| "one of 1, t, true, 0, f, false is needed".to_owned())
}

/// An integer flag.
pub(super) fn flag_int(text: &str) -> Result<i64, String> {
    parse_int(text).ok_or_else(|| "a whole number is needed, such as 384, 0600, 0o600 or 0x180".to_owned())
}

/// A boolean, in the words of Go programs.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Decimal, or with a prefix: `0x` hexadecimal, `0b` binary, `0o` or `0` octal. Underscores may stand between digits.
pub(super) fn parse_int(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match (lower.get(..2), lower.strip_prefix('0')) {
        (Some("0x"), Some(rest)) => (16, rest.get(1..)?),
        (Some("0b"), Some(rest)) => (2, rest.get(1..)?),
        (Some("0o"), Some(rest)) => (8, rest.get(1..)?),
        (_, Some(rest)) if !rest.is_empty() => (8, rest),
        _ => (10, lower.as_str()),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(&digits.replace('_', ""), radix).ok().and_then(|number| number.checked_mul(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_go_prefixes() {
        for (text, number) in [
            ("384", 384),
            ("0600", 0o600),
            ("0o600", 0o600),
            ("0O600", 0o600),
            ("0x180", 384),
            ("0b11", 3),
            ("-1", -1),
            ("0", 0),
        ] {
            assert_eq!(parse_int(text), Some(number), "{text}");
        }
        for text in ["", "x", "0x", "09", "1.5", "--1", "0x-1"] {
            assert_eq!(parse_int(text), None, "{text}");
        }
    }

    #[test]
    fn booleans_take_go_words_only() {
        assert_eq!(
            (parse_bool("T"), parse_bool("0"), parse_bool("yes"), parse_bool("")),
            (Some(true), Some(false), None, None)
        );
        assert!(flag_bool("yes").is_err());
    }
}
