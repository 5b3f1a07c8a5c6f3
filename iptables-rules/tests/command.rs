//! The finished `istio-iptables` command, run as an init container runs it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::netns::{Sandbox, available};

const BINARY: &str = env!("CARGO_BIN_EXE_istio-iptables");
const V4: &[&str] = &["10.0.0.2/24"];
const V6: &[&str] = &["fd00::2/64"];
const BOTH: &[&str] = &["10.0.0.2/24", "fd00::2/64"];
/// All traffic, and this process counts as the proxy.
const CAPTURE_OURS: [&str; 6] = ["-i", "*", "-b", "*", "-u", "0"];

/// How a run ended.
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

fn run_here(args: &[&str], env: &[(&str, &str)]) -> Run {
    run_as(Path::new(BINARY), args, env, None)
}

fn run_as(binary: &Path, args: &[&str], env: &[(&str, &str)], user: Option<u32>) -> Run {
    let mut command = Command::new(binary);
    command.args(args).env_clear().envs(env.iter().copied());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output().expect("the command starts");
    Run {
        code: output.status.code().expect("an exit code"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run(sandbox: &Sandbox, args: &[&str], env: &[(&str, &str)]) -> Run {
    sandbox.run(|| run_here(args, env))
}

/// What a dry run puts into its transcript.
fn transcript(sandbox: &Sandbox, args: &[&str], env: &[(&str, &str)]) -> (i32, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transcript");
    let env = [env, &[("DRY_RUN_FILE_PATH", path.to_str().unwrap())]].concat();
    let code = run(sandbox, &[&["--dry-run"], args].concat(), &env).code;
    let text = fs::read_to_string(&path).unwrap_or_default();
    (code, text.lines().map(str::to_owned).collect())
}

fn has_no_rules(sandbox: &Sandbox) -> bool {
    !sandbox.saved_rules().contains("-A ")
}

#[test]
fn help_tells_every_flag_and_the_exit_codes() {
    let help = run_here(&["--help"], &[]);
    assert_eq!(help.code, 0);
    for word in
        ["--istio-inbound-interception-mode", "-z", "ISTIO_META_DNS_CAPTURE", "ENVOY_USER", "126", "--log_as_json"]
    {
        assert!(help.stdout.contains(word), "{word}");
    }
    assert!(!help.stdout.contains("--generate"), "packagers only");
}

#[test]
fn a_wrong_command_line_ends_with_255_and_names_the_flag() {
    for (args, named) in [
        (&["--no-such-flag"][..], "--no-such-flag"),
        (&["--iptables-trace-logging"], "--iptables-trace-logging"),
        (&["-y"], "-y"),
        (&["--drop-invalid=yes"], "--drop-invalid"),
        (&["--iptables-probe-port=70000"], "--iptables-probe-port"),
        (&["--probe-timeout", "5"], "--probe-timeout"),
        (&["--envoy-port"], "--envoy-port"),
        (&["--log_output_level=default:loud"], "--log_output_level"),
        (&["--log_target=/does/not/exist/log"], "--log_target"),
    ] {
        let run = run_here(args, &[]);
        assert_eq!(run.code, 255, "{args:?}");
        assert!(run.stderr.contains(named), "{args:?}: {}", run.stderr);
    }
}

#[test]
fn a_dry_run_writes_what_istio_would_run_and_changes_nothing() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let (code, lines) = transcript(&sandbox, &[], &[]);
    assert_eq!(code, 0);
    let expected = "\
iptables-save
ip6tables-save
* nat
-N ISTIO_INBOUND
-N ISTIO_REDIRECT
-N ISTIO_IN_REDIRECT
-N ISTIO_OUTPUT
-A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -o lo -s 127.0.0.6/32 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
COMMIT
iptables-save";
    assert_eq!(lines, expected.lines().collect::<Vec<_>>());
    assert!(has_no_rules(&sandbox));
}

#[test]
fn a_dry_run_of_a_clean_up_names_the_commands() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V6);
    let (code, lines) = transcript(&sandbox, &["--cleanup-only"], &[]);
    assert_eq!(code, 0);
    assert_eq!(lines[..2], ["iptables-save", "ip6tables-save"]);
    assert!(lines.contains(&"iptables -t nat -D OUTPUT -j ISTIO_OUTPUT".to_owned()));
    assert!(lines.contains(&"ip6tables -t nat -X ISTIO_INBOUND".to_owned()));
    assert_eq!(lines[lines.len() - 2..], ["iptables-save", "ip6tables-save"]);
}

#[test]
fn an_older_longer_transcript_keeps_its_tail() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transcript");
    let env = [("DRY_RUN_FILE_PATH", path.to_str().unwrap())];
    run(&sandbox, &["-n"], &env);
    let fresh = fs::read_to_string(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o133, 0);
    fs::write(&path, "x".repeat(fresh.len()) + "tail").unwrap();
    run(&sandbox, &["-n"], &env);
    assert_eq!(fs::read_to_string(&path).unwrap(), fresh + "tail");
}

#[test]
fn odd_texts_are_printed_as_they_are() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let (code, lines) = transcript(&sandbox, &["-b", "80, 443,*", "-m", "TPROXY", "-t", "abc"], &[]);
    assert_eq!(code, 0);
    assert!(lines.contains(&"-A ISTIO_INBOUND -p tcp --dport  443 -j ISTIO_TPROXY".to_owned()), "{lines:#?}");
    assert!(lines.contains(&"-A ISTIO_INBOUND -p tcp --dport * -j ISTIO_TPROXY".to_owned()));
    assert!(lines.contains(&"-A ISTIO_DIVERT -j MARK --set-mark abc".to_owned()));
}

#[test]
fn flags_beat_variables_and_the_proxys_user_is_looked_up() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let env = [("ISTIO_INBOUND_PORTS", "80"), ("INBOUND_CAPTURE_PORT", "16006"), ("ENVOY_USER", "root")];
    let (_, lines) = transcript(&sandbox, &["-b", "90"], &env);
    assert!(lines.contains(&"-A ISTIO_INBOUND -p tcp --dport 90 -j ISTIO_IN_REDIRECT".to_owned()));
    assert!(lines.contains(&"-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 16006".to_owned()));
    assert!(lines.contains(&"-A ISTIO_OUTPUT -m owner --uid-owner 0 -j RETURN".to_owned()));
    assert!(lines.contains(&"-A ISTIO_OUTPUT -m owner --gid-owner 0 -j RETURN".to_owned()));
    let (_, lines) = transcript(&sandbox, &[], &[("ENVOY_USER", "no-such-user")]);
    assert!(lines.contains(&"-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN".to_owned()));
}

#[test]
fn an_explanation_stands_above_each_rule_and_the_text_still_loads() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let explained = run(&sandbox, &["--explain", "-i", "*", "--log_target=stderr"], &[]);
    assert_eq!(explained.code, 0);
    assert!(
        explained.stdout.contains("# Captured outbound connections go to this port of the proxy.\n-A ISTIO_REDIRECT")
    );
    let rules = explained.stdout.lines().filter(|line| line.starts_with("-A ")).count();
    let sentences = explained.stdout.lines().filter(|line| line.starts_with("# ") && line.ends_with('.')).count();
    assert_eq!(rules, sentences);
    sandbox.feed("iptables-nft-restore --noflush", &explained.stdout).unwrap();
    assert!(sandbox.saved_rules().contains("-A ISTIO_OUTPUT -j ISTIO_REDIRECT"));
}

#[test]
fn a_dry_run_of_native_rules_prints_a_transaction_that_loads_and_changes_nothing() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(BOTH);
    let args =
        ["--explain", "--native-nftables", "-i", "*", "-b", "*", "-m", "TPROXY", "-k", "tap0", "--log_target=stderr"];
    let printed = run(&sandbox, &args, &[]);
    assert_eq!(printed.code, 0);
    assert_eq!(sandbox.sh("nft list ruleset"), "");
    let rules = printed.stdout.lines().filter(|line| line.contains(" rule inet ")).count();
    let sentences = printed.stdout.lines().filter(|line| line.starts_with("# ") && line.ends_with('.')).count();
    assert_eq!(rules, sentences, "{}", printed.stdout);
    sandbox.feed("nft -f -", &printed.stdout).unwrap();
    assert!(sandbox.sh("nft list ruleset").contains("tproxy ip to :15006"));
}

#[test]
fn the_log_lists_variables_and_effective_values_and_can_be_json() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(BOTH);
    let env = [("ISTIO_SERVICE_CIDR", "*"), ("INVALID_DROP", "true")];
    let text = run(&sandbox, &["-n", "--dual-stack", "-x", "10.0.0.0/8"], &env).stdout;
    let environment = "info\tIstio iptables environment:\nENVOY_PORT=\nINBOUND_CAPTURE_PORT=\n";
    assert!(text.contains(environment), "{text}");
    assert!(
        text.contains(
            "\nISTIO_SERVICE_CIDR=*\nISTIO_SERVICE_EXCLUDE_CIDR=\nISTIO_META_DNS_CAPTURE=\nINVALID_DROP=true\n"
        )
    );
    let config = "\
info\tIstio config:
PROXY_PORT=15001
PROXY_INBOUND_CAPTURE_PORT=15006
PROXY_TUNNEL_PORT=15008
PROXY_UID=1337
PROXY_GID=1337
INBOUND_INTERCEPTION_MODE=
INBOUND_TPROXY_MARK=1337
INBOUND_TPROXY_ROUTE_TABLE=133
INBOUND_PORTS_INCLUDE=
INBOUND_PORTS_EXCLUDE=
OUTBOUND_OWNER_GROUPS_INCLUDE=*
OUTBOUND_OWNER_GROUPS_EXCLUDE=
OUTBOUND_IP_RANGES_INCLUDE=*
OUTBOUND_IP_RANGES_EXCLUDE=10.0.0.0/8
OUTBOUND_PORTS_INCLUDE=
OUTBOUND_PORTS_EXCLUDE=
KUBE_VIRT_INTERFACES=
ENABLE_INBOUND_IPV6=true
DUAL_STACK=true
DNS_CAPTURE=false
DROP_INVALID=true
CAPTURE_ALL_DNS=false
DNS_SERVERS=[],[]
NETWORK_NAMESPACE=
CNI_MODE=false
EXCLUDE_INTERFACES=
RECONCILE=false
CLEANUP_ONLY=false
FORCE_APPLY=false
NATIVE_NFTABLES=false
FORCE_IPTABLES_BINARY=
";
    assert!(text.contains(config), "{text}");
    let json = run(&sandbox, &["-n", "--log_as_json"], &env).stdout;
    let entries: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(entries.iter().all(|entry| entry["level"].is_string() && entry["time"].is_string()));
    assert!(entries.iter().any(|entry| entry["msg"].as_str().unwrap().contains("\n-A OUTPUT -j ISTIO_OUTPUT\n")));
}

#[test]
fn the_log_goes_where_it_is_told_to_and_a_failure_is_seen_all_the_same() {
    if !available() {
        return;
    }
    let empty = Sandbox::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    let failed = run(&empty, &["--log_target", file.to_str().unwrap()], &[]);
    assert_eq!(failed.code, 1);
    assert!(fs::read_to_string(&file).unwrap().contains("error\tno valid local IP address found"));
    assert!(failed.stderr.contains("no valid local IP address found"), "{}", failed.stderr);
    let silent = run(&empty, &["--log_output_level=none"], &[]);
    assert!(silent.stdout.is_empty() && silent.stderr.contains("no valid local IP address found"));
}

#[test]
fn a_namespace_without_addresses_is_refused_whatever_is_asked_for() {
    if !available() {
        return;
    }
    let empty = Sandbox::new();
    for args in [&[][..], &["-n"], &["--skip-rule-apply", "--run-validation"]] {
        let run = run(&empty, args, &[]);
        assert_eq!(run.code, 1, "{args:?}");
        assert!(run.said().contains("no valid local IP address found"), "{}", run.said());
    }
}

#[test]
fn a_value_that_no_rule_can_hold_is_refused_by_its_flag_before_anything_is_touched() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(BOTH);
    let groups = (0..65).map(|group| group.to_string()).collect::<Vec<_>>().join(",");
    let loopback = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR";
    let (owners, excluded) = ("ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE");
    for (args, env, named, value) in [
        (&["-p", "70000"][..], None, "--envoy-port", "70000"),
        (&["-b", "80,http"], None, "--istio-inbound-ports", "http"),
        (&["-b", "*", "-d", "*,15020"], None, "--istio-local-exclude-ports", "*"),
        (&["-c", "interface-too-long"], None, "--istio-exclude-interfaces", "interface-too-long"),
        (&["-u", "nobody-knows"], None, "--proxy-uid", "nobody-knows"),
        (&["-i", "10.0.0.0/33"], None, "--istio-service-cidr", "10.0.0.0/33"),
        (&["-x", "*"], None, "--istio-service-exclude-cidr", "*"),
        (&["-m", "TPROXY", "-b", "*", "-t", "0x10"], None, "--istio-inbound-tproxy-mark", "0x10"),
        (&["--force-iptables-binary", "random"], None, "invalid FORCE_IPTABLES_BINARY value \"random\"", "legacy"),
        (&[], Some((owners, groups.as_str())), owners, "65"),
        (&[], Some((excluded, "nobody-knows")), excluded, "nobody-knows"),
        (&[], Some((loopback, "::1/128")), loopback, "::1/128"),
        (&[], Some((loopback, "127.0.0.0/7")), loopback, "127.0.0.0/7"),
        (&[], Some(("ISTIO_OUTBOUND_PORTS", "x")), "ISTIO_OUTBOUND_PORTS", "x"),
    ] {
        let refused = run(&sandbox, args, &env.into_iter().collect::<Vec<_>>());
        assert_eq!(refused.code, 1, "{args:?} {env:?}: {}", refused.said());
        let said = refused.said();
        assert!(said.contains(named) && said.contains(value), "{args:?} {env:?}: {said}");
    }
    assert!(has_no_rules(&sandbox));
    assert!(!sandbox.sh("ip -6 addr show dev lo").contains("::6/128"));
}

#[test]
fn nothing_is_done_with_skip_rule_apply_even_when_lists_are_wrong() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    assert_eq!(run(&sandbox, &["--skip-rule-apply", "-i", "x"], &[]).code, 0);
    assert!(has_no_rules(&sandbox));
}

#[test]
fn rules_are_applied_once_and_removed_again() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V6);
    let first = run(&sandbox, &["-i", "*", "-b", "*", "istio-iptables"], &[]);
    assert_eq!(first.code, 0, "{}", first.said());
    assert!(first.stdout.contains(" applied; "), "{}", first.stdout);
    assert!(first.stdout.contains("\n-A ISTIO_OUTPUT -j ISTIO_REDIRECT\n"), "the log holds the rules");
    let rules = sandbox.saved_rules();
    assert!(rules.contains("-A ISTIO_OUTPUT -j ISTIO_REDIRECT"));
    let second = run(&sandbox, &["-i", "*", "-b", "*"], &[]);
    assert_eq!(second.code, 0);
    assert!(second.stdout.contains(" already in place; "), "{}", second.stdout);
    assert_eq!(sandbox.saved_rules(), rules);
    assert_eq!(run(&sandbox, &["--cleanup-only"], &[("ISTIO_INBOUND_PORTS", "80")]).code, 0);
    assert!(has_no_rules(&sandbox));
}

#[test]
fn validation_passes_with_rules_for_our_user() {
    if !available() {
        return;
    }
    for addresses in [V4, V6] {
        let sandbox = Sandbox::with_addresses(addresses);
        let run = run(&sandbox, &[&CAPTURE_OURS[..], &["--run-validation"]].concat(), &[]);
        assert_eq!(run.code, 0, "{addresses:?}: {}", run.said());
        assert!(run.stdout.contains("validation passed"), "{}", run.stdout);
    }
}

#[test]
fn validation_takes_the_port_that_it_is_told() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let env = [("RUN_VALIDATION", "true"), ("IPTABLES_PROBE_PORT", "0x3e80")];
    let run = run(&sandbox, &CAPTURE_OURS, &env);
    assert_eq!(run.code, 0, "{}", run.said());
    assert!(run.stdout.contains("127.0.0.6:16000"), "{}", run.stdout);
}

#[test]
fn validation_fails_without_rules_and_with_rules_for_another_user() {
    if !available() {
        return;
    }
    let validate = ["--skip-rule-apply", "--run-validation", "--probe-timeout", "300ms"];
    let bare = Sandbox::with_addresses(V4);
    let failed = run(&bare, &validate, &[]);
    assert_eq!(failed.code, 126, "{}", failed.said());
    assert!(failed.stdout.contains("not ready") && failed.stdout.contains("cni.repair.deletePods=true"));
    let other = Sandbox::with_addresses(V4);
    assert_eq!(run(&other, &["-i", "*", "-b", "*", "-u", "1337"], &[]).code, 0);
    assert_eq!(run(&other, &validate, &[]).code, 126);
}

#[test]
fn a_probe_timeout_without_unit_in_the_environment_is_no_time_at_all() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let failed = run(&sandbox, &["--skip-rule-apply", "--run-validation"], &[("PROBE_TIMEOUT", "5")]);
    assert_eq!(failed.code, 126);
    assert!(failed.stdout.contains("within 0ns"), "{}", failed.stdout);
}

/// A copy that every user can run.
fn public_copy(dir: &Path) -> PathBuf {
    let copy = dir.join("istio-iptables");
    fs::copy(BINARY, &copy).unwrap();
    for path in [dir, &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

#[test]
fn validation_needs_no_privilege_and_rules_do() {
    if !available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let binary = public_copy(dir.path());
    let sandbox = Sandbox::with_addresses(V4);
    let refused = sandbox.run(|| run_as(&binary, &["-i", "*"], &[], Some(1337)));
    assert_eq!(refused.code, 1);
    assert!(refused.said().contains("NET_ADMIN"), "{}", refused.said());
    assert!(has_no_rules(&sandbox));
    assert_eq!(run(&sandbox, &["-i", "*", "-b", "*", "-u", "1337"], &[]).code, 0);
    let proof = ["--skip-rule-apply", "--run-validation"];
    let passed = sandbox.run(|| run_as(&binary, &proof, &[], Some(1337)));
    assert_eq!(passed.code, 0, "{}", passed.said());
}

#[test]
fn completion_and_manual_are_made_on_request() {
    let bash = run_here(&["--generate", "completion-bash"], &[]);
    assert!(bash.code == 0 && bash.stdout.contains("complete -F"), "{}", bash.stderr);
    let manual = run_here(&["--generate=man"], &[]);
    assert!(manual.code == 0 && manual.stdout.contains(".TH istio-iptables"), "{}", manual.stdout);
}
