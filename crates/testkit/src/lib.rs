//! Stand-ins and sandboxes for tests; never part of the product.

pub mod api;
