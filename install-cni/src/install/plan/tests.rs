//! Plans are carried out on a picture of a directory, so that what is compared is the outcome.

use serde_json::json;

use super::super::steps::Action;
use super::*;

const LIST: &str = "{\n  \"name\": \"n\",\n  \"plugins\": [\n    {\n      \"type\": \"bridge\"\n    }\n  ]\n}\n";
const NETWORK: &str = "{\"type\": \"bridge\", \"name\": \"old\"}\n";

fn element() -> Value {
    json!({"name": "istio-cni", "type": "istio-cni"})
}

fn directory(files: &[(&str, &str)]) -> Directory {
    let text = |text: &str| Ok(Text { text: text.to_owned(), access: Access::new(0o604) });
    Directory { files: files.iter().map(|(name, t)| ((*name).to_owned(), text(t))).collect(), ..Directory::default() }
}

fn carry_out(directory: &mut Directory, steps: Vec<Step>) {
    for step in steps {
        let name = step.path.to_str().unwrap().to_owned();
        match step.action {
            Action::Write { bytes, access, .. } => {
                let text = String::from_utf8(bytes).unwrap();
                directory.files.insert(name, Ok(Text { text, access }));
            }
            Action::Remove => assert!(directory.files.remove(&name).is_some()),
        }
    }
}

fn none() -> OwnFiles {
    OwnFiles::new()
}

fn own(name: &str) -> OwnFiles {
    [name.to_owned()].into()
}

fn writes(step: &Step, name: &str) -> bool {
    step.path.ends_with(name) && matches!(step.action, Action::Write { .. })
}

fn removes(step: &Step, name: &str) -> bool {
    step.path.ends_with(name) && step.action == Action::Remove
}

fn names(directory: &Directory) -> Vec<&str> {
    directory.files.keys().map(String::as_str).collect()
}

/// Installs into `chosen`, checks that a second plan is empty, and returns the directory.
fn installed(files: &[(&str, &str)], chosen: &str) -> Directory {
    let mut directory = directory(files);
    let steps = chained(&directory, chosen, &element(), &none()).unwrap();
    carry_out(&mut directory, steps);
    directory
}

#[test]
fn every_kind_of_file_comes_back_as_it_was() {
    for (name, text, installed_name) in [
        ("a.conflist", LIST, "a.conflist"),
        ("a.conf", NETWORK, "a.conflist"),
        ("a.json", NETWORK, "a.json.conflist"),
        ("a.file", LIST, "a.file"),
        ("a.file", NETWORK, "a.file"),
    ] {
        let mut after = installed(&[(name, text), ("b.conflist", LIST)], name);
        assert_eq!(names(&after), [installed_name, "b.conflist"]);
        assert_eq!(edit::count(&after.text(installed_name).unwrap().text), 1);
        assert_eq!(after.text(installed_name).unwrap().access.mode, 0o604, "the mode is kept");
        assert_eq!(chained(&after, installed_name, &element(), &none()).unwrap(), [], "nothing is left to do");
        let (steps, errors) = uninstall(&after, &none());
        assert_eq!(errors, []);
        carry_out(&mut after, steps.concat());
        assert_eq!(after.files, directory(&[(name, text), ("b.conflist", LIST)]).files);
    }
}

#[test]
fn a_new_first_file_gets_our_plugin_and_the_earlier_one_loses_it() {
    let mut after = installed(&[("10-calico.conf", NETWORK), ("20-x.conflist", LIST)], "10-calico.conf");
    after.files.insert("00-multus.conflist".to_owned(), Ok(Text { text: LIST.to_owned(), access: Access::new(0o600) }));
    let steps = chained(&after, "00-multus.conflist", &element(), &none()).unwrap();
    assert!(writes(&steps[0], "00-multus.conflist"), "first in, then out");
    carry_out(&mut after, steps);
    assert_eq!(names(&after), ["00-multus.conflist", "10-calico.conf", "20-x.conflist"]);
    assert_eq!(after.text("10-calico.conf").unwrap().text, NETWORK);
    assert_eq!(edit::count(&after.text("00-multus.conflist").unwrap().text), 1);
}

#[test]
fn a_conversion_is_complete_before_the_network_goes() {
    let before = directory(&[("a.conf", NETWORK)]);
    let steps = chained(&before, "a.conf", &element(), &none()).unwrap();
    let kinds: Vec<_> = steps.iter().map(|step| matches!(step.action, Action::Write { .. })).collect();
    assert_eq!(kinds, [true, false]);
    // A crash between the two: the next pass only removes.
    let Action::Write { bytes, .. } = &steps[0].action else { panic!() };
    let half = directory(&[("a.conf", NETWORK), ("a.conflist", std::str::from_utf8(bytes).unwrap())]);
    let steps = chained(&half, "a.conf", &element(), &none()).unwrap();
    assert!(matches!(steps.as_slice(), [step] if removes(step, "a.conf")));
}

#[test]
fn a_list_of_someone_else_is_not_overwritten_by_a_conversion() {
    let mut after = installed(&[("a.conf", NETWORK), ("a.conflist", LIST)], "a.conf");
    assert_eq!(names(&after), ["a.conf.conflist", "a.conflist"]);
    assert_eq!(after.text("a.conflist").unwrap().text, LIST);
    let (steps, _) = uninstall(&after, &none());
    carry_out(&mut after, steps.concat());
    assert_eq!(after.files, directory(&[("a.conf", NETWORK), ("a.conflist", LIST)]).files);
}

#[test]
fn a_network_that_its_owner_wrote_anew_replaces_our_older_conversion() {
    let mut after = installed(&[("a.conf", NETWORK)], "a.conf");
    let newer = NETWORK.replace("old", "new");
    after.files.insert("a.conf".to_owned(), Ok(Text { text: newer.clone(), access: Access::new(0o604) }));
    let (steps, _) = uninstall(&after, &none());
    assert!(matches!(steps.concat().as_slice(), [step] if removes(step, "a.conflist")));
    let steps = chained(&after, "a.conf", &element(), &none()).unwrap();
    carry_out(&mut after, steps);
    assert_eq!(names(&after), ["a.conflist"]);
    let (steps, _) = uninstall(&after, &none());
    carry_out(&mut after, steps.concat());
    assert_eq!(after.text("a.conf").unwrap().text, newer);
}

#[test]
fn a_conversion_that_was_changed_since_stays_a_list() {
    let mut after = installed(&[("a.conf", NETWORK)], "a.conf");
    let Some(Ok(list)) = after.files.get_mut("a.conflist") else { panic!() };
    list.text = list.text.replacen("\"old\"", "\"renamed\"", 1);
    let (steps, errors) = uninstall(&after, &none());
    assert_eq!(errors, []);
    carry_out(&mut after, steps.concat());
    assert_eq!(names(&after), ["a.conflist"]);
    assert_eq!(edit::count(&after.text("a.conflist").unwrap().text), 0);
}

#[test]
fn files_that_are_no_configuration_are_never_written() {
    for text in ["", "null", "[]", "{}", "{\"plugins\":null}", "{\"plugins\":{}}", "{\"plugins\":[{\"type\":\"br"] {
        for name in ["a.conflist", "a.conf", "a.file"] {
            let before = directory(&[(name, text)]);
            let error = chained(&before, name, &element(), &none()).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(uninstall(&before, &none()), (vec![], vec![]));
        }
    }
    let single_in_a_list_name = directory(&[("a.conflist", NETWORK)]);
    assert!(chained(&single_in_a_list_name, "a.conflist", &element(), &none()).is_err());
    let both = directory(&[("a.conf", "{\"type\":\"bridge\",\"plugins\":[{\"type\":\"x\"}]}")]);
    assert!(chained(&both, "a.conf", &element(), &none()).is_err());
}

#[test]
fn a_list_with_the_wrong_ending_moves_to_the_right_one() {
    let after = installed(&[("a.conf", LIST)], "a.conf");
    assert_eq!(names(&after), ["a.conflist"]);
}

#[test]
fn stand_alone_mode_writes_and_removes_only_its_own_file() {
    let text = "{\n  \"type\": \"istio-cni\"\n}\n";
    let mut dir = directory(&[("10-a.conflist", LIST)]);
    let steps = standalone(&dir, ("YYY.conf", 0o640), text, &none()).unwrap();
    assert!(matches!(&steps[0].action, Action::Write { access, .. } if *access == Access::new(0o640)));
    carry_out(&mut dir, steps);
    assert_eq!(standalone(&dir, ("YYY.conf", 0o640), text, &none()).unwrap(), []);
    assert_eq!(
        standalone(&dir, ("10-a.conflist", 0o640), text, &none()),
        Err(PlanError::Foreign { name: "10-a.conflist".to_owned(), setting: "CNI_CONF_NAME" })
    );
    let (steps, errors) = uninstall(&dir, &own("10-a.conflist"));
    assert_eq!((steps, errors), (vec![], vec![]));
    let (steps, _) = uninstall(&dir, &own("YYY.conf"));
    carry_out(&mut dir, steps.concat());
    assert_eq!(names(&dir), ["10-a.conflist"]);
}

#[test]
fn our_plugin_does_not_run_twice_when_the_mode_changes() {
    let mut dir = installed(&[("10-a.conflist", LIST)], "10-a.conflist");
    let steps = standalone(&dir, ("YYY.conf", 0o600), "{\"type\":\"istio-cni\"}", &none()).unwrap();
    carry_out(&mut dir, steps);
    assert_eq!(dir.text("10-a.conflist").unwrap().text, LIST);
}

const OWN: &str = "02-istio-cni.conflist";

fn take_over(dir: &mut Directory, primary: &str) {
    let steps = owned(dir, (OWN, 0o640), primary, &element(), &own(OWN)).unwrap();
    carry_out(dir, steps);
}

#[test]
fn a_file_of_our_own_copies_the_network_and_follows_it() {
    for (name, text) in [("10-a.conflist", LIST), ("10-a.conf", NETWORK)] {
        let mut dir = directory(&[(name, text)]);
        take_over(&mut dir, name);
        assert_eq!(names(&dir), [OWN, name]);
        assert_eq!(dir.text(name).unwrap().text, text, "the network's own file is not touched");
        let copy = dir.text(OWN).unwrap();
        assert_eq!(copy.access, Access::new(0o640));
        assert_eq!(edit::kinds(&copy.text), edit::kinds(text));
        assert_eq!(edit::count(&copy.text), 1);
        assert_eq!(owned(&dir, (OWN, 0o640), name, &element(), &own(OWN)).unwrap(), []);
        let newer = text.replace("bridge", "ptp");
        dir.files.get_mut(name).unwrap().as_mut().unwrap().text = newer.clone();
        take_over(&mut dir, name);
        assert_eq!(edit::kinds(&dir.text(OWN).unwrap().text), Some(vec!["ptp".to_owned()]));
        let (steps, errors) = uninstall(&dir, &own(OWN));
        assert_eq!(errors, []);
        carry_out(&mut dir, steps.concat());
        assert_eq!(dir.files, directory(&[(name, &newer)]).files);
    }
}

#[test]
fn a_network_that_once_had_our_plugin_loses_it_when_we_get_a_file_of_our_own() {
    for (name, text) in [("10-a.conflist", LIST), ("10-a.conf", NETWORK)] {
        let mut dir = installed(&[(name, text)], name);
        let edited = names(&dir)[0].to_owned();
        let steps = owned(&dir, (OWN, 0o600), &edited, &element(), &own(OWN)).unwrap();
        assert!(writes(&steps[0], OWN), "first in, then out");
        carry_out(&mut dir, steps);
        assert_eq!(names(&dir), [OWN, name]);
        assert_eq!(dir.text(name).unwrap().text, text);
        let steps = chained(&dir, name, &element(), &own(OWN)).unwrap();
        assert!(removes(steps.last().unwrap(), OWN), "and the other way round");
        carry_out(&mut dir, steps);
        assert_eq!(names(&dir), [edited.as_str()]);
    }
}

#[test]
fn a_file_of_somebody_else_is_not_taken_for_our_own() {
    let other = "{\"name\":\"n\",\"plugins\":[{\"type\":\"other\"}]}";
    let dir = directory(&[(OWN, other), ("10-a.conflist", LIST)]);
    let error = owned(&dir, (OWN, 0o600), "10-a.conflist", &element(), &none()).unwrap_err();
    assert!(error.to_string().contains("ISTIO_OWNED_CNI_CONFIG_FILENAME"), "{error}");
    assert_eq!(uninstall(&dir, &own(OWN)), (vec![], vec![]), "neither runs our plugin nor is a copy");
    let stripped = directory(&[(OWN, LIST), ("10-a.conflist", LIST)]);
    assert!(removes(&uninstall(&stripped, &own(OWN)).0[0][0], OWN), "a copy without our plugin is ours all the same");
}
