//! Connections on which nothing outlasts a deadline, whatever the other side does, and which a signal to end interrupts
//! (see [`crate::interrupt`]).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrLike, SockaddrStorage, UnixAddr, connect, getsockopt, recv,
    send, setsockopt, socket, sockopt,
};

use crate::interrupt::{sleep, wait};

/// Pause before asking again a listener whose queue is full.
const QUEUE_FULL: Duration = Duration::from_millis(5);

/// A connection.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    deadline: Instant,
}

impl Stream {
    /// Connects to a Unix socket. One that is not there, or that nobody listens on, is told at once; one whose queue is
    /// full is asked until the deadline.
    ///
    /// # Errors
    /// The system's, or [`io::ErrorKind::TimedOut`].
    pub fn unix(path: &Path, deadline: Instant) -> io::Result<Self> {
        let address = UnixAddr::new(path)?;
        let stream = Self::new(AddressFamily::Unix, deadline)?;
        loop {
            match stream.connect(&address) {
                Err(Errno::EAGAIN) if Instant::now() < deadline => sleep(QUEUE_FULL)?,
                Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                other => return Ok(other.map(|()| stream)?),
            }
        }
    }

    /// Connects over TCP.
    ///
    /// # Errors
    /// The system's, or [`io::ErrorKind::TimedOut`].
    pub fn tcp(address: SocketAddr, deadline: Instant) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let stream = Self::new(family, deadline)?;
        // A small request should not wait for more to send. Slower if refused, not wrong.
        let _ = setsockopt(&stream.socket, sockopt::TcpNoDelay, &true);
        match stream.connect(&SockaddrStorage::from(address)) {
            Err(Errno::EINPROGRESS) => {
                stream.wait(PollFlags::POLLOUT)?;
                match getsockopt(&stream.socket, sockopt::SocketError)? {
                    0 => Ok(stream),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            }
            other => Ok(other.map(|()| stream)?),
        }
    }

    fn new(family: AddressFamily, deadline: Instant) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        Ok(Self { socket: socket(family, SockType::Stream, flags, None)?, deadline })
    }

    fn connect(&self, address: &dyn SockaddrLike) -> Result<(), Errno> {
        connect(self.socket.as_raw_fd(), address)
    }

    fn wait(&self, wanted: PollFlags) -> io::Result<()> {
        wait(Some((self.socket.as_fd(), wanted)), self.deadline)
    }

    /// Does `step` when it can be done.
    fn when(&self, wanted: PollFlags, mut step: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
        loop {
            match step() {
                Err(Errno::EAGAIN) => self.wait(wanted)?,
                Err(Errno::EINTR) => {}
                // The other side may trickle for ever; what it sends in time is all that counts.
                Ok(_) if Instant::now() >= self.deadline => return Err(io::ErrorKind::TimedOut.into()),
                other => return Ok(other?),
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let socket = self.socket.as_raw_fd();
        self.when(PollFlags::POLLIN, || recv(socket, buffer, MsgFlags::empty()))
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let socket = self.socket.as_raw_fd();
        self.when(PollFlags::POLLOUT, || send(socket, buffer, MsgFlags::MSG_NOSIGNAL))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(30)
    }

    #[test]
    fn a_listener_that_accepts_and_stays_silent_holds_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _unix = UnixListener::bind(&path).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = |tcp_address: Option<SocketAddr>| match tcp_address {
            Some(address) => Stream::tcp(address, soon()).unwrap(),
            None => Stream::unix(&path, soon()).unwrap(),
        };
        for address in [None, Some(tcp.local_addr().unwrap())] {
            let mut stream = connect(address);
            let asked = stream.write_all(b"hello").and_then(|()| stream.read(&mut [0]));
            assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn a_full_queue_is_waited_for_and_no_longer_than_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match Stream::unix(&path, soon()) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let accepting = std::thread::spawn(move || listener.accept().map(|_| listener));
        Stream::unix(&path, Instant::now() + Duration::from_secs(30)).unwrap();
        drop(accepting.join().unwrap().unwrap());
    }

    #[test]
    fn what_is_not_a_listening_socket_is_told_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let dead = directory.path().join("dead");
        drop(UnixListener::bind(&dead).unwrap());
        let late = Instant::now() + Duration::from_secs(60);
        for path in [file, dead] {
            assert_eq!(Stream::unix(&path, late).unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "{path:?}");
        }
        let missing = Stream::unix(&directory.path().join("none"), late).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let long = directory.path().join("x".repeat(200));
        assert!(Stream::unix(&long, late).is_err());
    }
}
