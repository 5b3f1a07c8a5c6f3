//! What we decide about a pod.
