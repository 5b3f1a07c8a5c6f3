//! Runs a program the way a runtime does and measures it; or follows it and counts what it starts.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// One call of a plugin.
pub struct Call {
    /// Variables; nothing else is in the environment.
    pub env: Vec<(&'static str, OsString)>,
    /// What it reads.
    pub stdin: String,
}

/// What a program started.
#[derive(Debug, Default, Clone, Copy)]
pub struct Started {
    /// Other programs.
    pub programs: usize,
    /// Processes.
    pub processes: usize,
}

impl Call {
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it and returns the time from start to end, and what it said.
    pub fn time(&self, program: &Path) -> (Duration, Output) {
        let mut command = self.command(program);
        let started = Instant::now();
        let mut child = command.spawn().expect("the program starts");
        child.stdin.take().expect("piped").write_all(self.stdin.as_bytes()).ok();
        let output = child.wait_with_output().expect("the program ends");
        (started.elapsed(), output)
    }

    /// Runs it under ptrace and counts what it starts.
    pub fn follow(&self, program: &Path) -> Started {
        use std::os::unix::process::CommandExt;
        let mut command = self.command(program);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: ptrace is async-signal-safe.
        unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
        let mut child = command.spawn().expect("the program starts");
        child.stdin.take().expect("piped").write_all(self.stdin.as_bytes()).ok();
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        follow(pid)
    }
}

fn follow(first: Pid) -> Started {
    let mut started = Started::default();
    waitpid(first, None).expect("the first stop");
    let options = ptrace::Options::PTRACE_O_TRACEEXEC
        | ptrace::Options::PTRACE_O_TRACEFORK
        | ptrace::Options::PTRACE_O_TRACEVFORK
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(first, options).expect("ptrace options");
    ptrace::cont(first, None).expect("goes on");
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::PtraceEvent(pid, _, event)) => {
                match event {
                    libc::PTRACE_EVENT_EXEC => started.programs += 1,
                    libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => started.processes += 1,
                    _ => {}
                }
                let _ = ptrace::cont(pid, None);
            }
            Ok(WaitStatus::Stopped(pid, signal)) => {
                // New threads and processes report in with a stop of their own.
                let pass_on = (signal != Signal::SIGSTOP && signal != Signal::SIGTRAP).then_some(signal);
                let _ = ptrace::cont(pid, pass_on);
            }
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) if pid == first => return started,
            Ok(_) => {}
            Err(_) => return started,
        }
    }
}

/// Largest resident memory of the program, in KiB: its own, not that of the harness that forked it.
pub fn peak_memory(program: &Path, call: &Call, runs: usize) -> u64 {
    let mut peaks: Vec<u64> = (0..runs).filter_map(|_| one_peak(program, call)).collect();
    peaks.sort_unstable();
    peaks.get(peaks.len() / 2).copied().unwrap_or(0)
}

/// Stops the program at its exit and reads `VmHWM`.
fn one_peak(program: &Path, call: &Call) -> Option<u64> {
    use std::os::unix::process::CommandExt;
    let mut command = call.command(program);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: ptrace is async-signal-safe.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    let mut child = command.spawn().ok()?;
    child.stdin.take()?.write_all(call.stdin.as_bytes()).ok();
    let pid = Pid::from_raw(i32::try_from(child.id()).ok()?);
    waitpid(pid, None).ok()?;
    ptrace::setoptions(pid, ptrace::Options::PTRACE_O_TRACEEXIT | ptrace::Options::PTRACE_O_EXITKILL).ok()?;
    ptrace::cont(pid, None).ok()?;
    let mut peak = None;
    loop {
        match waitpid(pid, None).ok()? {
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXIT) => {
                let status = std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/status"))).ok()?;
                let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
                peak = line.split_whitespace().nth(1)?.parse().ok();
                ptrace::cont(pid, None).ok()?;
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return peak,
            WaitStatus::Stopped(_, signal) => {
                let pass_on = (signal != Signal::SIGSTOP && signal != Signal::SIGTRAP).then_some(signal);
                ptrace::cont(pid, pass_on).ok()?;
            }
            _ => ptrace::cont(pid, None).ok()?,
        }
    }
}
