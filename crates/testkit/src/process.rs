//! Runs a program the way a runtime does and measures it; or follows it and counts what it starts.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// One call of a plugin.
pub struct Call {
    /// Variables; nothing else is in the environment.
    pub env: Vec<(String, OsString)>,
    /// What it reads.
    pub stdin: String,
}

/// What a program did besides its work.
#[derive(Debug, Default, Clone, Copy)]
pub struct Observed {
    /// Other programs that it started.
    pub programs: usize,
    /// Processes that it started.
    pub processes: usize,
    /// Its largest resident memory, in KiB.
    pub peak: u64,
}

impl Call {
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it and returns the time from start to end, and what it said.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn time(&self, program: &Path) -> (Duration, Output) {
        let mut command = self.command(program);
        let started = Instant::now();
        let mut child = command.spawn().expect("the program starts");
        child.stdin.take().expect("piped").write_all(self.stdin.as_bytes()).ok();
        let output = child.wait_with_output().expect("the program ends");
        (started.elapsed(), output)
    }

    /// Runs it under ptrace and counts what it starts. Memory is read as it exits; what `wait4` says would at least be
    /// the size of this harness, which forked it.
    ///
    /// # Panics
    /// When it cannot be run, or not be followed.
    pub fn observe(&self, program: &Path) -> Observed {
        use std::os::unix::process::CommandExt;
        let mut command = self.command(program);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: ptrace is async-signal-safe.
        unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
        let mut child = command.spawn().expect("the program starts");
        child.stdin.take().expect("piped").write_all(self.stdin.as_bytes()).ok();
        let observed = follow(Pid::from_raw(i32::try_from(child.id()).expect("a pid")));
        // The tracer has reaped it already.
        let _ = child.wait();
        observed
    }
}

fn follow(first: Pid) -> Observed {
    let mut observed = Observed::default();
    waitpid(first, None).expect("the first stop");
    let options = ptrace::Options::PTRACE_O_TRACEEXEC
        | ptrace::Options::PTRACE_O_TRACEFORK
        | ptrace::Options::PTRACE_O_TRACEVFORK
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_TRACEEXIT
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(first, options).expect("ptrace options");
    ptrace::cont(first, None).expect("goes on");
    // Other threads have children of their own.
    let ours = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        match waitpid(Pid::from_raw(-1), Some(ours)) {
            Ok(WaitStatus::PtraceEvent(pid, _, event)) => {
                match event {
                    libc::PTRACE_EVENT_EXEC => observed.programs += 1,
                    libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => observed.processes += 1,
                    libc::PTRACE_EVENT_EXIT if pid == first => observed.peak = peak_memory(pid).unwrap_or(0),
                    _ => {}
                }
                let _ = ptrace::cont(pid, None);
            }
            Ok(WaitStatus::Stopped(pid, signal)) => {
                // New threads and processes report in with a stop of their own.
                let pass_on = (signal != Signal::SIGSTOP && signal != Signal::SIGTRAP).then_some(signal);
                let _ = ptrace::cont(pid, pass_on);
            }
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) if pid == first => return observed,
            Ok(_) => {}
            Err(_) => return observed,
        }
    }
}

/// The processor time of a running process so far, that of threads which have ended included.
///
/// # Errors
/// When there is no such process.
pub fn cpu_time(process: u32) -> std::io::Result<Duration> {
    let pid = Pid::from_raw(i32::try_from(process).map_err(std::io::Error::other)?);
    Ok(nix::time::clock_getcpuclockid(pid)?.now()?.into())
}

fn peak_memory(pid: Pid) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Runs `work` on a thread of its own as another user; the rest of the process stays what it is.
///
/// # Errors
/// When this process may not become that user.
///
/// # Panics
/// When `work` does.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // The C library's function would change all threads.
            // SAFETY: the call takes numbers only, and changes this thread, which ends with the work.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
            if changed == 0 { Ok(work()) } else { Err(std::io::Error::last_os_error()) }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
