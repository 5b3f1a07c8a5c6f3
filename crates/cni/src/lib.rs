//! The CNI contract.
