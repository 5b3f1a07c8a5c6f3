//! Temporary directories only; nothing here needs root.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_replaced_file_has_the_new_content_and_the_mode_asked_for() {
    let dir = scratch();
    let path = dir.path().join("10-net.conflist");
    for mode in [0o600, 0o640, 0o444, 0o4755] {
        let text = format!("mode {mode:o}");
        let replaced = replace(&path, text.as_bytes(), Access::new(mode)).unwrap();
        assert!(replaced.owner_kept);
        let content = read(&path, 100).unwrap().unwrap();
        assert_eq!((content.bytes, content.access.mode), (text.into_bytes(), mode));
    }
    assert_eq!(names(dir.path()), ["10-net.conflist"], "no temporary file is left");
}

#[test]
fn an_absent_file_is_nothing_and_a_directory_is_an_error() {
    let dir = scratch();
    assert_eq!(read(&dir.path().join("none"), 10).unwrap(), None);
    assert!(read(dir.path(), 10).unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn a_huge_file_is_refused_before_it_is_read() {
    let dir = scratch();
    let path = dir.path().join("huge");
    File::create(&path).unwrap().set_len(50 << 20).unwrap();
    assert!(matches!(read(&path, 1 << 20), Err(FileError::TooBig { size, .. }) if size == 50 << 20));
}

#[test]
fn a_symbolic_link_is_replaced_and_its_target_is_left_alone() {
    let dir = scratch();
    let (target, link) = (dir.path().join("target"), dir.path().join("link"));
    std::fs::write(&target, "theirs").unwrap();
    symlink(&target, &link).unwrap();
    replace(&link, b"ours", Access::new(0o600)).unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "theirs");
    assert!(link.symlink_metadata().unwrap().is_file());
}

#[test]
fn a_directory_in_the_way_keeps_everything_as_it_was() {
    let dir = scratch();
    let path = dir.path().join("istio-cni");
    std::fs::create_dir(&path).unwrap();
    let error = replace(&path, b"x", Access::new(0o755)).unwrap_err();
    assert!(error.to_string().contains("istio-cni"), "{error}");
    assert_eq!(names(dir.path()), ["istio-cni"]);
}

#[test]
fn the_mode_is_not_widened_by_the_umask_or_by_the_temporary_file() {
    let dir = scratch();
    let (_file, temporary) = create_temporary(&dir.path().join("secret")).unwrap();
    assert_eq!(temporary.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let name = temporary.file_name().unwrap().to_str().unwrap();
    assert!(![".conf", ".conflist", ".json"].iter().any(|ending| name.ends_with(ending)), "{name}");
}

#[test]
fn removing_twice_says_that_nothing_was_there() {
    let dir = scratch();
    let path = dir.path().join("f");
    replace(&path, b"", Access::new(0o600)).unwrap();
    assert!(remove(&path).unwrap());
    assert!(!remove(&path).unwrap());
}

#[test]
fn only_our_own_temporary_files_that_nobody_writes_are_cleared() {
    let dir = scratch();
    let path = dir.path().join("istio-cni");
    let others = ["calico.tmp.1", "istio-cni.tmp.", "istio-cni.tmp.123", "istio-cni.tmp.x1", "x.istio-cni.tmp.1a"];
    for name in others.iter().chain(&["x.istio-cni.tmp.12"]) {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let (living, temporary) = create_temporary(&path).unwrap();
    assert_eq!(clear(dir.path()).unwrap(), 1);
    assert!(temporary.exists(), "a living writer keeps its file");
    drop(living);
    assert_eq!(clear(dir.path()).unwrap(), 1);
    assert_eq!(names(dir.path()), others);
    assert_eq!(clear_beside(&path).unwrap(), 1, "that of Istio's agent");
    assert_eq!(names(dir.path()), ["calico.tmp.1", "istio-cni.tmp.", "istio-cni.tmp.x1", "x.istio-cni.tmp.1a"]);
}

#[test]
fn permissions_are_taken_and_never_given() {
    let dir = scratch();
    let mode = || dir.path().metadata().unwrap().mode() & 0o777;
    for (have, wanted, left) in [(0o755, 0o700, 0o700), (0o500, 0o700, 0o500)] {
        std::fs::set_permissions(dir.path(), Permissions::from_mode(have)).unwrap();
        restrict(dir.path(), wanted).unwrap();
        assert_eq!(mode(), left);
    }
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_directory_is_created_with_its_parents_and_kept_when_it_is_there() {
    let dir = scratch();
    let path = dir.path().join("a/b");
    assert!(create_dir(&path, 0o700).unwrap());
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    assert!(!create_dir(&path, 0o700).unwrap());
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o755);
}
