//! One setting at a time, from its flag, its variable of the environment, or its default.
//!
//! Istio's rule: an empty variable counts as set, and is false or 0. A word that is no boolean or number would be the
//! same there, without a word to the user; here it is a fault, and the process does not start with one.

use std::cell::RefCell;

use super::values::{parse_bool, parse_int};

/// Reads settings and keeps what is wrong with them.
pub(super) struct Reader<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    faults: RefCell<Vec<String>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(variable: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { variable, faults: RefCell::default() }
    }

    /// A variable without a flag; empty when it is not set.
    pub(super) fn plain(&self, name: &str) -> String {
        (self.variable)(name).unwrap_or_default()
    }

    pub(super) fn text(&self, flag: Option<String>, name: &str, default: &str) -> String {
        flag.or_else(|| (self.variable)(name)).unwrap_or_else(|| default.to_owned())
    }

    pub(super) fn switch(&self, flag: Option<bool>, name: &str, default: bool) -> bool {
        let word = |text: String| {
            parse_bool(&text).unwrap_or_else(|| {
                self.unless_empty(name, &text, "one of 1, t, true, 0, f, false is needed");
                false
            })
        };
        flag.or_else(|| (self.variable)(name).map(word)).unwrap_or(default)
    }

    pub(super) fn number(&self, flag: Option<i64>, name: &str) -> Option<i64> {
        let word = |text: String| {
            parse_int(&text).unwrap_or_else(|| {
                self.unless_empty(name, &text, "a whole number is needed, such as 384, 0600, 0o600 or 0x180");
                0
            })
        };
        flag.or_else(|| (self.variable)(name).map(word))
    }

    pub(super) fn fault(&self, text: String) {
        self.faults.borrow_mut().push(text);
    }

    pub(super) fn into_faults(self) -> Vec<String> {
        self.faults.into_inner()
    }

    fn unless_empty(&self, name: &str, text: &str, needed: &str) {
        if !text.is_empty() {
            self.fault(format!("{name} is {text:?}, but {needed}"));
        }
    }
}
