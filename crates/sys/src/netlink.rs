//! Blocking netlink sockets: send what others encoded, wait for the kernel's word.
//!
//! A socket belongs to the namespace of the thread that opened it. The kernel's own error text (`NLMSGERR_ATTR_MSG`) is
//! asked for and passed on, because it says more than an errno.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};
use thiserror::Error;

/// Size of the receive buffer, in bytes. The kernel fills dumps in pieces of at most 32 KiB.
const RECEIVE: usize = 32 * 1024;
/// Requests longer than this need a larger send buffer than the default one.
const DEFAULT_SEND: usize = 128 * 1024;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Message flag: a dump was interrupted by a change.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Flag in an error message: the request is not repeated in it.
const NLM_F_CAPPED: u16 = 0x100;
/// Flag in an error message: attributes follow.
const NLM_F_ACK_TLVS: u16 = 0x200;
/// Attribute of an error message that holds the kernel's sentence.
const NLMSGERR_ATTR_MSG: u16 = 1;
const HEADER: usize = 16;

/// Part of the kernel that a socket talks to.
#[derive(Debug, Clone, Copy)]
pub enum Protocol {
    /// Packet filter.
    Netfilter,
    /// Links, addresses, routes.
    Route,
}

/// Why the kernel did not do what was asked.
#[derive(Debug, Error)]
pub enum NetlinkError {
    /// The socket itself failed.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
    /// The kernel refused one message.
    #[error("{}{}", .source, .kernel.as_deref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        /// Sequence number of the message.
        sequence: u32,
        /// The errno.
        source: io::Error,
        /// The kernel's sentence, if it gave one.
        kernel: Option<String>,
    },
    /// The list changed while it was read; asking again may help.
    #[error("the list changed while it was read")]
    Interrupted,
}

impl NetlinkError {
    /// The errno, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Socket(source) | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Interrupted => None,
        }
    }
}

/// A netlink socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// What was received last; kept because a fresh one for every answer would cost more than the answer.
    buffer: RefCell<Vec<u8>>,
}

impl Socket {
    /// Opens a socket in the namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel has no such protocol, or no more sockets.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let protocol = match protocol {
            Protocol::Netfilter => SockProtocol::NetlinkNetFilter,
            Protocol::Route => SockProtocol::NetlinkRoute,
        };
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        // Both only make errors shorter and clearer; a kernel without them still works.
        let _ = set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1);
        let _ = set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1);
        Ok(Self { fd, buffer: RefCell::default() })
    }

    /// Sends `request` and waits for the acknowledgement of message `last`, or for the first error.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`] with the sequence number of the message that failed.
    pub fn transact(&self, request: &[u8], last: u32) -> Result<(), NetlinkError> {
        self.send(request)?;
        self.receive(|message| match message.kind {
            NLMSG_ERROR if message.errno() != 0 => Err(message.refusal()),
            NLMSG_ERROR if message.sequence == last => Ok(Step::Done),
            _ => Ok(Step::More),
        })
    }

    /// Sends a query and hands every answer, as type and what follows the header, to `each` until the list ends.
    ///
    /// # Errors
    /// [`NetlinkError::Interrupted`] when the list is not one consistent state.
    pub fn dump(&self, query: &[u8], mut each: impl FnMut(u16, &[u8])) -> Result<(), NetlinkError> {
        self.send(query)?;
        let mut interrupted = false;
        self.receive(|message| {
            interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
            match message.kind {
                NLMSG_DONE => Ok(Step::Done),
                NLMSG_ERROR if message.errno() != 0 => Err(message.refusal()),
                NLMSG_ERROR => Ok(Step::Done),
                kind => {
                    each(kind, message.payload);
                    Ok(Step::More)
                }
            }
        })?;
        if interrupted { Err(NetlinkError::Interrupted) } else { Ok(()) }
    }

    /// Sends a query that has one answer and hands that to `read`.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`] when the kernel refuses.
    pub fn query<T>(&self, query: &[u8], read: impl Fn(u16, &[u8]) -> Option<T>) -> Result<Option<T>, NetlinkError> {
        self.send(query)?;
        let mut answer = None;
        self.receive(|message| match message.kind {
            NLMSG_ERROR if message.errno() != 0 => Err(message.refusal()),
            kind => {
                answer = read(kind, message.payload);
                Ok(Step::Done)
            }
        })?;
        Ok(answer)
    }

    fn send(&self, request: &[u8]) -> io::Result<()> {
        if request.len() > DEFAULT_SEND {
            // A netlink request is one datagram and must fit. Without the privilege the plain option may still do.
            let wanted = i32::try_from(request.len() * 2).unwrap_or(i32::MAX);
            set_option(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, wanted)
                .or_else(|_| set_option(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted))?;
        }
        let sent = send(self.fd.as_raw_fd(), request, MsgFlags::empty())?;
        if sent == request.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
    }

    fn receive(&self, mut step: impl FnMut(&Message<'_>) -> Result<Step, NetlinkError>) -> Result<(), NetlinkError> {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.is_empty() {
            // All zeros at once. Filling a vector byte by byte takes longer than all the rest.
            *buffer = vec![0; RECEIVE];
        }
        loop {
            let length = match recv(self.fd.as_raw_fd(), buffer.as_mut_slice(), MsgFlags::empty()) {
                Ok(length) => length,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => return Err(NetlinkError::Socket(errno.into())),
            };
            let mut rest = buffer.get(..length).unwrap_or_default();
            while let Some((message, after)) = Message::split(rest) {
                if let Step::Done = step(&message)? {
                    return Ok(());
                }
                rest = after;
            }
        }
    }
}

enum Step {
    More,
    Done,
}

/// One received message.
struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let message = Self {
            kind: u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?),
            flags: u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?),
            sequence: u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
            payload: bytes.get(HEADER..length)?,
        };
        Some((message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
    }

    /// The errno of an error message, as a positive number.
    fn errno(&self) -> i32 {
        self.payload.first_chunk().map_or(libc::EIO, |value| -i32::from_ne_bytes(*value))
    }

    fn refusal(&self) -> NetlinkError {
        NetlinkError::Refused {
            sequence: self.sequence,
            source: io::Error::from_raw_os_error(self.errno()),
            kernel: self.kernel_text(),
        }
    }

    /// The sentence among the attributes of an error message. They follow the errno and the header of the request,
    /// and the rest of the request unless that was left out.
    fn kernel_text(&self) -> Option<String> {
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        let request = self.payload.get(4..)?;
        let skip = if self.flags & NLM_F_CAPPED != 0 {
            HEADER
        } else {
            (u32::from_ne_bytes(*request.first_chunk()?) as usize).next_multiple_of(4)
        };
        let mut rest = request.get(skip..)?;
        loop {
            let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
            let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
            let value = rest.get(4..length)?;
            if kind == NLMSGERR_ATTR_MSG {
                return Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned());
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }
}

fn set_option(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which outlives the call; the descriptor is open.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
