//! Situations of a node as values: what is wanted, and what stands in the way.

use std::io;

use agent_api::PluginConfig;
use sys::file::{Access, Content};

use super::super::binaries::Target;
use super::super::directory::Text;
use super::super::kubeconfig::{KubeconfigError, Source};
use super::super::steps::Action;
use super::*;
use crate::config::{AgentConfig, Dirs};

const LIST: &str = r#"{"name":"n","plugins":[{"type":"bridge"}]}"#;

fn config() -> Config {
    Config {
        dirs: Dirs::default(),
        conf_name: None,
        chained: true,
        owned: None,
        conf_mode: 0o600,
        kubeconfig_mode: 0o600,
        kubeconfig: Source {
            host: "10.96.0.1".to_owned(),
            port: "443".to_owned(),
            protocol: "https".to_owned(),
            ca_file: None,
            token_file: "/token".into(),
        },
        plugin: PluginConfig::default(),
        health: ([127, 0, 0, 1], 0).into(),
        always_clean_up: false,
        node_name: String::new(),
        agent: AgentConfig::default(),
    }
}

fn content(bytes: &str) -> Content {
    Content { bytes: bytes.as_bytes().to_vec(), access: Access { mode: 0o755, owner: Some((0, 0)) } }
}

fn denied(path: &str) -> FileError {
    FileError::Io { action: "read", path: path.into(), source: io::ErrorKind::PermissionDenied.into() }
}

fn observed(targets: Vec<Result<Option<Content>, FileError>>) -> Observed {
    let path = |number: usize| format!("/bin-{number}").into();
    let targets = targets.into_iter().enumerate();
    Observed {
        image: Ok(vec![("istio-cni".to_owned(), content("new"))]),
        targets: targets.map(|(number, file)| Target { path: path(number), files: vec![file] }).collect(),
        credentials: Ok("text".to_owned()),
        kubeconfig: Ok(None),
    }
}

fn paths(part: &Part) -> Vec<&str> {
    part.steps.iter().map(|step| step.path.to_str().unwrap()).collect()
}

fn directory(files: &[(&str, &str)]) -> Directory {
    let text = |text: &str| Ok(Text { text: text.to_owned(), access: Access::new(0o600) });
    Directory { files: files.iter().map(|(name, it)| ((*name).to_owned(), text(it))).collect(), ..Directory::default() }
}

fn look(config: &Config, files: &[(&str, &str)], memory: &mut Memory, now: Instant) -> Lists {
    let journal = Journal::open(std::path::Path::new("/does/not/exist"));
    let look = Look { journal: &journal, has_program: &|name| name == "bridge", now };
    lists(config, &directory(files), &look, memory)
}

#[test]
fn a_directory_that_cannot_be_used_does_not_keep_the_plugin_from_another() {
    let part = programs(&observed(vec![Ok(None), Err(denied("/bin-1/istio-cni")), Ok(Some(content("new")))]));
    assert_eq!(paths(&part), ["/bin-0/istio-cni"]);
    assert!(matches!(&part.obstacle, Some(Obstacle::Failed(reason)) if reason.contains("/bin-1/istio-cni")));
}

#[test]
fn what_is_in_order_needs_no_step() {
    let all_right = Observed {
        kubeconfig: Ok(Some(Content { bytes: b"text".to_vec(), access: Access::new(0o600) })),
        ..observed(vec![Ok(Some(content("new")))])
    };
    assert_eq!(programs(&all_right), Part::default());
    assert_eq!(credentials(&config(), &all_right), Part::default());
}

#[test]
fn credentials_that_are_not_there_are_a_failure_and_the_old_ones_stay() {
    let seen = Observed { credentials: Err(KubeconfigError::Token(denied("/token"))), ..observed(vec![]) };
    let part = credentials(&config(), &seen);
    assert!(part.steps.is_empty());
    assert!(matches!(part.obstacle, Some(Obstacle::Failed(reason)) if reason.contains("/token")));
}

#[test]
fn the_list_in_use_may_be_half_written_for_a_while() {
    let (config, start) = (config(), Instant::now());
    let mut memory = Memory::default();
    let whole = [("10.conflist", LIST), ("20.conflist", LIST)];
    assert_eq!(look(&config, &whole, &mut memory, start).file.as_deref(), Some("10.conflist"));
    let half = [("10.conflist", "{\"name\":"), ("20.conflist", LIST)];
    for seconds in [1, 9] {
        let lists = look(&config, &half, &mut memory, start + Duration::from_secs(seconds));
        assert!(matches!(lists.part.obstacle, Some(Obstacle::Waiting(reason)) if reason.contains("half written")));
        assert!(lists.part.steps.is_empty());
    }
    let lists = look(&config, &half, &mut memory, start + Duration::from_secs(12));
    assert_eq!(lists.file.as_deref(), Some("20.conflist"), "nobody is writing it any more");
    let other = [("10.conflist", "{"), ("20.conflist", LIST)];
    let lists = look(&config, &other, &mut Memory::default(), start);
    assert_eq!(lists.file.as_deref(), Some("20.conflist"), "one that was never in use is no reason to wait");
}

#[test]
fn a_network_whose_plugin_is_elsewhere_is_a_concern_and_no_obstacle() {
    let text = LIST.replace("bridge", "calico");
    let lists = look(&config(), &[("10.conflist", &text)], &mut Memory::default(), Instant::now());
    assert_eq!(lists.part.obstacle, None);
    assert_eq!(lists.part.steps.len(), 1);
    assert!(lists.concerns[0].contains("calico") && lists.concerns[0].contains("cniBinDir"), "{:?}", lists.concerns);
    let lists = look(&config(), &[("10.conflist", LIST)], &mut Memory::default(), Instant::now());
    assert_eq!(lists.concerns, [""; 0]);
}

#[test]
fn a_copy_goes_with_its_network_but_not_before_it_was_seen() {
    let config = Config { owned: Some("02.conflist".to_owned()), ..config() };
    let mut memory = Memory::default();
    let both = look(&config, &[("10.conflist", LIST)], &mut memory, Instant::now());
    let Action::Write { bytes, .. } = &both.part.steps[0].action else { panic!() };
    let copy = String::from_utf8(bytes.clone()).unwrap();
    let alone = [("02.conflist", copy.as_str())];
    let gone = look(&config, &alone, &mut memory, Instant::now());
    assert!(gone.part.steps[0].action == Action::Remove && gone.part.obstacle.is_some());
    let late = look(&config, &alone, &mut Memory::default(), Instant::now());
    assert!(late.part.steps.is_empty() && late.part.obstacle.is_some());
    let broken = look(&config, &[alone[0], ("10.conflist", "[]")], &mut memory, Instant::now());
    assert!(broken.part.steps.is_empty(), "a file that is only broken has not gone");
}
