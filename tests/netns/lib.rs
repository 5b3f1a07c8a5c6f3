//! Holds the tests that need network namespaces; see `tests/`.
