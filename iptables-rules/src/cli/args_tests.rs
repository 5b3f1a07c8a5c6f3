//! Tests of the command line and its precedence.

use super::*;

fn parse(args: &[&str], env: &[(&str, &str)]) -> Result<Request, i32> {
    let matches =
        command().try_get_matches_from([&["istio-iptables"], args].concat()).map_err(|error| error.exit_code())?;
    let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
    Ok(request(&matches, &env))
}

fn asked(args: &[&str], env: &[(&str, &str)]) -> Request {
    parse(args, env).unwrap_or_else(|code| panic!("{args:?}: exit {code}"))
}

#[test]
fn the_table_of_flags_makes_a_parser() {
    command().debug_assert();
}

#[test]
fn without_anything_the_defaults_hold() {
    let request = asked(&[], &[]);
    assert_eq!(request.options, Options::default());
    assert_eq!(request.probe_port, 15002);
    assert_eq!(request.probe_timeout, Duration::from_secs(5));
    assert_eq!(request.envoy_user, "istio-proxy");
    assert!(!request.dry_run && !request.explain && !request.cleanup_only && !request.native_nftables);
}

#[test]
fn a_flag_beats_both_variables_and_the_second_beats_the_first() {
    let env = [("REDIRECT_DNS", "true"), ("ISTIO_META_DNS_CAPTURE", "0"), ("ISTIO_INBOUND_PORTS", "80")];
    assert!(!asked(&[], &env).options.redirect_dns);
    assert!(asked(&["--redirect-dns"], &env).options.redirect_dns);
    assert!(!asked(&["--redirect-dns=false"], &[("REDIRECT_DNS", "1")]).options.redirect_dns);
    assert_eq!(asked(&["-b", "*"], &env).options.inbound_ports, "*");
    assert_eq!(asked(&[], &env).options.inbound_ports, "80");
}

#[test]
fn every_flag_with_a_variable_takes_it() {
    for flag in FLAGS.iter().filter(|flag| !flag.env.is_empty()) {
        let value = match flag.kind {
            Kind::Switch => "true",
            Kind::Port => "7",
            Kind::Duration => "7s",
            Kind::Text => "seven",
        };
        for variable in flag.env {
            assert_ne!(asked(&[], &[(variable, value)]), asked(&[], &[]), "{variable}");
            assert_eq!(
                asked(&[], &[(variable, value)]),
                asked(&[&format!("--{}={value}", flag.name)], &[]),
                "{variable}"
            );
        }
    }
}

#[test]
fn a_variable_counts_when_it_is_empty_and_a_mistake_in_it_means_nothing() {
    let request = asked(
        &[],
        &[
            ("INBOUND_CAPTURE_PORT", ""),
            ("DROP_INVALID", "yes"),
            ("IPTABLES_PROBE_PORT", "abc"),
            ("PROBE_TIMEOUT", "5"),
            ("ISTIO_OUTBOUND_OWNER_GROUPS", ""),
        ],
    );
    assert_eq!(request.options.inbound_capture_port, "");
    assert_eq!(request.options.owner_groups, "");
    assert!(!request.options.drop_invalid);
    assert_eq!(request.probe_port, 0);
    assert_eq!(request.probe_timeout, Duration::ZERO);
    assert_eq!(asked(&[], &[("IPTABLES_PROBE_PORT", "70000")]).probe_port, 65535);
}

#[test]
fn the_envoy_port_has_no_variable() {
    assert_eq!(asked(&[], &[("ENVOY_PORT", "1")]).options.envoy_port, "15001");
}

#[test]
fn all_spellings_of_a_value_are_taken_and_the_last_one_counts() {
    for args in
        [&["--envoy-port", "1"][..], &["--envoy-port=1"], &["-p", "1"], &["-p1"], &["-p=1"], &["-p", "9", "-p", "1"]]
    {
        assert_eq!(asked(args, &[]).options.envoy_port, "1", "{args:?}");
    }
    assert_eq!(asked(&["--envoy-port="], &[]).options.envoy_port, "");
    assert_eq!(asked(&["-b", "-1"], &[]).options.inbound_ports, "-1");
    assert_eq!(asked(&["-b", "--dry-run"], &[]).options.inbound_ports, "--dry-run");
    assert!(!asked(&["--dry-run", "--dry-run=false"], &[]).dry_run);
}

#[test]
fn a_switch_never_takes_the_next_word() {
    assert!(asked(&["--dry-run", "false"], &[]).dry_run);
    assert!(asked(&["-n", "false"], &[]).dry_run);
    assert!(!asked(&["-n=false"], &[]).dry_run);
    let both = asked(&["-np", "7"], &[]);
    assert!(both.dry_run);
    assert_eq!(both.options.envoy_port, "7");
}

#[test]
fn positional_arguments_are_ignored() {
    let request = asked(&["istio-iptables", "-p", "7", "foo", "--dry-run", "--", "--no-such-flag"], &[]);
    assert_eq!(request.options.envoy_port, "7");
    assert!(request.dry_run);
}

#[test]
fn wrong_command_lines_are_refused() {
    for args in [
        &["--no-such-flag"][..],
        &["--iptables-trace-logging"],
        &["-y"],
        &["--dry-run=maybe"],
        &["--drop-invalid="],
        &["--iptables-probe-port=70000"],
        &["--iptables-probe-port=-1"],
        &["--iptables-probe-port="],
        &["--probe-timeout=5"],
        &["--probe-timeout="],
        &["--envoy-port"],
    ] {
        assert_eq!(parse(args, &[]), Err(2), "{args:?}");
    }
}

#[test]
fn levels_of_the_log_are_checked() {
    let options =
        |args: &[&str]| log_options(&command().try_get_matches_from([&["istio-iptables"], args].concat()).unwrap());
    assert!(
        options(&["--log_output_level=default:debug,ads:none", "--log_as_json", "--log_caller", "default"]).is_ok()
    );
    assert!(options(&["--log_output_level=default:verbose"]).unwrap_err().contains("--log_output_level"));
    assert!(options(&["--log_stacktrace_level=x"]).unwrap_err().contains("--log_stacktrace_level"));
}

#[test]
fn an_explanation_is_a_dry_run() {
    assert!(asked(&["--explain"], &[]).dry_run);
}
