//! What this process may do beyond its user: told, and dropped for good.
//!
//! Capabilities belong to threads and are inherited by new ones, so all of this has to happen while there is only one.
//! Called once, at the start of the agent.

#![allow(unsafe_code)]

use std::fmt;
use std::io;

/// Version of the kernel's structures: 64 capabilities.
const VERSION: u32 = 0x2008_0522;
/// More than the kernel has; those that it does not know are refused and passed over.
const COUNT: u8 = 64;
/// Names by number, without `CAP_`.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// One capability, by the kernel's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability(u8);

impl Capability {
    /// Change the owner of files.
    pub const CHOWN: Self = Self(0);
    /// Read and write files whatever their mode.
    pub const DAC_OVERRIDE: Self = Self(1);
    /// Change mode and attributes of files of others.
    pub const FOWNER: Self = Self(3);
    /// Keep set-group-id bits of files of other groups.
    pub const FSETID: Self = Self(4);

    fn bit(self) -> u64 {
        1 << self.0
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(usize::from(self.0)) {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// The lower and the upper 32 capabilities.
type Data = [Sets; 2];

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// What has become of the capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Still there.
    pub kept: Vec<Capability>,
    /// Gone for good.
    pub dropped: Vec<Capability>,
}

/// Drops all capabilities but those of `wanted` that the process has, also from what programs could get back, and gives
/// up gaining any.
///
/// # Errors
/// When the kernel refuses; the capabilities are then as they were.
pub fn keep_only(wanted: &[Capability]) -> io::Result<Kept> {
    let had = permitted()?;
    let keep = had & wanted.iter().fold(0, |bits, capability| bits | capability.bit());
    for number in (0..COUNT).filter(|number| keep & Capability(*number).bit() == 0) {
        // SAFETY: takes numbers only. Without SETPCAP it is refused, and nothing is lost that the next lines do not take.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) };
    }
    set(keep)?;
    // SAFETY: takes numbers only.
    unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    Ok(Kept { kept: list(keep), dropped: list(had & !keep) })
}

fn list(bits: u64) -> Vec<Capability> {
    (0..COUNT).map(Capability).filter(|capability| bits & capability.bit() != 0).collect()
}

fn permitted() -> io::Result<u64> {
    let header = Header { version: VERSION, pid: 0 };
    let mut data = Data::default();
    // SAFETY: both structures are the kernel's, and live longer than the call.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw const header, &raw mut data) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let [low, high] = data;
    Ok(u64::from(low.permitted) | u64::from(high.permitted) << 32)
}

fn set(keep: u64) -> io::Result<()> {
    let half = |bits: u64| {
        let bits = u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
        Sets { effective: bits, permitted: bits, inheritable: 0 }
    };
    let header = Header { version: VERSION, pid: 0 };
    let data: Data = [half(keep), half(keep >> 32)];
    // SAFETY: both structures are the kernel's, and live longer than the call.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const data) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_gone_for_the_thread_and_what_it_starts() {
        // A thread of its own, because there is no way back.
        let told = std::thread::spawn(|| {
            let first = keep_only(&[Capability::CHOWN, Capability::DAC_OVERRIDE]).unwrap();
            let again = keep_only(&[Capability::DAC_OVERRIDE]).unwrap();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            (first, again, status)
        });
        let (first, again, status) = told.join().unwrap();
        assert!(first.kept.iter().all(|it| [Capability::CHOWN, Capability::DAC_OVERRIDE].contains(it)));
        let chown: Vec<_> = first.kept.iter().copied().filter(|it| *it == Capability::CHOWN).collect();
        assert_eq!(again.dropped, chown);
        let expected = again.kept.iter().fold(0, |bits, it| bits | it.bit());
        for set in ["CapPrm", "CapEff"] {
            assert!(status.contains(&format!("{set}:\t{expected:016x}")), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1") && status.contains("CapInh:\t0000000000000000"), "{status}");
    }

    #[test]
    fn capabilities_are_told_by_name() {
        assert_eq!(Capability::DAC_OVERRIDE.to_string(), "DAC_OVERRIDE");
        assert_eq!(
            (Capability(21).to_string(), Capability(40).to_string()),
            ("SYS_ADMIN".into(), "CHECKPOINT_RESTORE".into())
        );
        assert_eq!(Capability(50).to_string(), "50");
    }
}
