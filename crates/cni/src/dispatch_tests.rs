use std::cell::Cell;
use std::io::Cursor;

use super::*;

const ABOUT: About = About { name: "some-cni", version: "0.0.0" };
const CONF: &str = r#"{"cniVersion":"1.1.0","name":"net","type":"some-cni"}"#;

/// Hands the result on, and counts.
#[derive(Default)]
struct Counter(Cell<u32>);

impl Plugin for Counter {
    fn add(&self, request: &Request) -> Result<String, Error> {
        self.0.set(self.0.get() + 1);
        request.conf.unchanged_result()
    }

    fn status(&self, _: &Request) -> Result<(), Error> {
        Err(Error::new(code::NOT_AVAILABLE, "closed"))
    }
}

struct Outcome {
    exit: u8,
    stdout: String,
    stderr: String,
    adds: u32,
}

fn call(env: &[(&str, &str)], stdin: &str) -> Outcome {
    let lookup = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let plugin = Counter::default();
    let stdin = Cursor::new(stdin.to_owned().into_bytes());
    let exit = run(ABOUT, &lookup, stdin, &mut stdout, &mut stderr, &plugin);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { exit, stdout: text(stdout), stderr: text(stderr), adds: plugin.0.get() }
}

fn sandbox(command: &str) -> Vec<(&str, &str)> {
    vec![("CNI_COMMAND", command), ("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/n"), ("CNI_IFNAME", "eth0")]
}

fn error_of(outcome: &Outcome) -> (u64, String) {
    assert_eq!(outcome.exit, 1);
    let object: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(object["cniVersion"].is_string(), "{object}");
    (object["code"].as_u64().unwrap(), object["msg"].as_str().unwrap().to_owned())
}

#[test]
fn started_by_hand_it_says_what_it_is() {
    let outcome = call(&[], "");
    assert_eq!((outcome.exit, outcome.stdout.as_str()), (0, ""));
    assert!(
        outcome.stderr.contains("some-cni 0.0.0\n")
            && outcome.stderr.contains("0.1.0")
            && outcome.stderr.contains("1.1.0")
    );
}

#[test]
fn all_missing_variables_are_named_at_once() {
    let (code, message) = error_of(&call(&[("CNI_COMMAND", "ADD"), ("CNI_NETNS", "/n")], CONF));
    assert_eq!(code, 4);
    assert!(message.contains("CNI_CONTAINERID, CNI_IFNAME") && !message.contains("CNI_NETNS"), "{message}");
}

#[test]
fn an_unknown_verb_is_named() {
    for verb in ["FOO", "add"] {
        let (code, message) = error_of(&call(&sandbox(verb), CONF));
        assert!(code == 4 && message.contains(verb), "{message}");
    }
}

#[test]
fn verbs_need_their_version() {
    let old = |version: &str| format!(r#"{{"cniVersion":"{version}","name":"net"}}"#);
    for (verb, version, fits) in [
        ("CHECK", "0.3.1", false),
        ("CHECK", "0.4.0", true),
        ("GC", "1.0.0", false),
        ("GC", "1.1.0", true),
        ("DEL", "0.1.0", true),
    ] {
        let outcome = call(&sandbox(verb), &old(version));
        if fits {
            assert_eq!((outcome.exit, outcome.stdout.as_str()), (0, ""), "{verb} {version}");
        } else {
            assert_eq!(error_of(&outcome).0, 1, "{verb} {version}");
        }
    }
    assert_eq!(error_of(&call(&sandbox("STATUS"), &old("1.0.0"))).0, 1);
    assert_eq!(error_of(&call(&sandbox("STATUS"), CONF)).0, 50);
}

#[test]
fn an_error_carries_the_version_of_the_configuration() {
    let outcome = call(&sandbox("ADD"), r#"{"cniVersion":"0.4.0","name":"net","prevResult":7}"#);
    assert_eq!(error_of(&outcome).0, 7);
    assert!(outcome.stdout.contains(r#""cniVersion":"0.4.0""#), "{}", outcome.stdout);
}

#[test]
fn add_prints_the_result_and_nothing_else() {
    let outcome = call(&sandbox("ADD"), CONF);
    assert_eq!((outcome.exit, outcome.adds), (0, 1));
    assert_eq!(outcome.stdout, "{\"cniVersion\":\"1.1.0\"}\n");
    let broken = call(&sandbox("ADD"), "nope");
    assert_eq!((error_of(&broken).0, broken.adds), (6, 0));
}

#[test]
fn version_echoes_what_was_asked_and_never_fails() {
    let asked = |stdin: &str| {
        let outcome = call(&[("CNI_COMMAND", "VERSION"), ("CNI_NETNS", "dummy")], stdin);
        assert_eq!(outcome.exit, 0, "{stdin}");
        let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(answer["supportedVersions"].as_array().unwrap().len(), 7);
        answer["cniVersion"].as_str().unwrap().to_owned()
    };
    assert_eq!(asked(r#"{"cniVersion":"1.0.0"}"#), "1.0.0");
    assert_eq!(asked(r#"{"cniVersion":"1.2.0"}"#), "1.2.0");
    for stdin in ["", "garbage", "[1]", "{}", r#"{"cniVersion":1}"#, r#"{"cniVersion":"<script>"}"#] {
        assert_eq!(asked(stdin), "1.1.0", "{stdin}");
    }
}

#[test]
fn version_does_not_wait_for_a_stdin_that_never_ends() {
    struct Silent(&'static [u8]);
    impl Read for Silent {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            assert!(!self.0.is_empty(), "a read that would block for ever");
            self.0.read(buffer)
        }
    }
    impl Input for Silent {
        fn wait(&mut self, _: Duration) -> bool {
            !self.0.is_empty()
        }
    }
    let lookup = |name: &str| (name == "CNI_COMMAND").then(|| "VERSION".to_owned());
    for (said, version) in [("", "1.1.0"), (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"), (r#"{"cniVersion":"0.4."#, "1.1.0")]
    {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let stdin = Silent(said.as_bytes());
        assert_eq!(run(ABOUT, &lookup, stdin, &mut stdout, &mut stderr, &Counter::default()), 0);
        let answer: Value = serde_json::from_slice(&stdout).unwrap();
        assert_eq!(answer["cniVersion"], version, "{said}");
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("full"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lookup = |name: &str| (name == "CNI_COMMAND").then(|| "VERSION".to_owned());
    let mut stderr = Vec::new();
    assert_eq!(run(ABOUT, &lookup, Cursor::new(Vec::new()), &mut Full, &mut stderr, &Counter::default()), 1);
    assert!(String::from_utf8(stderr).unwrap().contains("stdout"));
}
