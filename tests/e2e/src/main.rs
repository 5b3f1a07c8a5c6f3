//! The demo: the product on a real container runtime with a real Envoy.

fn main() {
    eprintln!("the demo is not written yet");
    std::process::exit(1);
}
