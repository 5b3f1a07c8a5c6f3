//! A defect of the plugin itself.

use std::process::Command;

use serde_json::Value;

#[test]
#[ignore = "ends the process; the test below runs it in one of its own"]
fn panics_on_a_thread() {
    istio_cni_plugin::panic::install();
    let _ = std::thread::spawn(|| panic!("out of cheese")).join();
    println!("still alive");
}

#[test]
fn a_defect_still_gives_an_error_object_and_exit_1() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "last_words::panics_on_a_thread", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stdout = String::from_utf8(output.stdout).unwrap();
    // What precedes it is the test harness's.
    let object: Value = serde_json::from_str(&stdout[stdout.find('{').unwrap()..]).unwrap();
    assert_eq!((&object["code"], &object["cniVersion"]), (&100.into(), &"1.1.0".into()));
    assert!(object["msg"].as_str().unwrap().contains("out of cheese"), "{object}");
}
