//! Who answers: small servers and clients that tell which program a connection really reached.
//!
//! Everything runs on threads of the test, inside a [`Sandbox`]. A client can act as another user: Linux keeps user ids
//! per thread, and that is what owner matches look at.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use sys::original_dst::original_destination;

use crate::netns::Sandbox;

/// How long a client waits before it counts as refused.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts a TCP server inside `sandbox` that answers every connection with `name`, the destination the client asked for,
/// and the client's address: `NAME for 10.0.0.2:8080 from 10.0.0.3`. It ends with the test process.
///
/// # Panics
/// When it cannot listen.
pub fn serve_tcp(sandbox: &Sandbox, port: u16, name: &str) {
    serve(sandbox, port, name, false);
}

/// The same with transparent sockets, which take connections to any address that TPROXY rules hand them.
///
/// # Panics
/// When it cannot listen.
pub fn serve_transparent(sandbox: &Sandbox, port: u16, name: &str) {
    serve(sandbox, port, name, true);
}

fn serve(sandbox: &Sandbox, port: u16, name: &str, transparent: bool) {
    let listeners = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    for ip in listeners {
        let name = name.to_owned();
        let listener = sandbox.run(|| listen_tcp(SocketAddr::new(ip, port), transparent));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().filter_map(Result::ok) {
                let peer = stream.peer_addr().map(|peer| peer.ip().to_canonical().to_string()).unwrap_or_default();
                let asked = original_destination(&stream).or_else(|_| stream.local_addr());
                let asked = asked.map(|to| to.to_string()).unwrap_or_default();
                let _ = write!(stream, "{name} for {asked} from {peer}");
            }
        });
    }
}

/// Asserts that somebody answered, and that the answer starts so.
///
/// # Panics
/// When it is not so.
#[track_caller]
pub fn says(answer: Result<String, String>, start: &str) {
    match answer {
        Ok(answer) => assert!(answer.starts_with(start), "expected `{start}…`, got `{answer}`"),
        Err(error) => panic!("expected `{start}…`, got no answer: {error}"),
    }
}

/// Starts a UDP server of user `uid` and group `gid` inside `sandbox` that answers every packet with `name`.
///
/// # Panics
/// When it cannot listen.
pub fn serve_udp(sandbox: &Sandbox, (uid, gid): (u32, u32), address: &str, name: &str) {
    let name = name.to_owned();
    let socket = sandbox.run(|| {
        // A socket belongs to who opens it.
        become_user(uid, gid);
        UdpSocket::bind(address).expect("a free UDP port")
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(name.as_bytes(), peer);
        }
    });
}

/// Connects from inside `sandbox` as user `uid` and group `gid`. Returns what the other side says, or why there is none.
///
/// # Errors
/// "refused", "timed out" and the like.
pub fn ask_tcp(sandbox: &Sandbox, (uid, gid): (u32, u32), to: &str) -> Result<String, String> {
    let to: SocketAddr = to.parse().expect("an address with port");
    sandbox.run(|| {
        become_user(uid, gid);
        exchange_tcp(to).map_err(|error| error.kind().to_string())
    })
}

/// Sends a packet from inside `sandbox` as user `uid` and group `gid`. Returns the answer, or why there is none.
///
/// # Errors
/// "refused", "timed out" and the like.
pub fn ask_udp(sandbox: &Sandbox, (uid, gid): (u32, u32), to: &str) -> Result<String, String> {
    let to: SocketAddr = to.parse().expect("an address with port");
    sandbox.run(|| {
        become_user(uid, gid);
        exchange_udp(to).map_err(|error| error.kind().to_string())
    })
}

/// One connection of this thread: what the other side says until it closes.
pub(crate) fn exchange_tcp(to: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    // Closed without a farewell: it has all been said, and a flood would run out of ports.
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&stream, sockopt::Linger, &at_once)?;
    Ok(answer)
}

/// One question of this thread from a fresh port, and its answer.
pub(crate) fn exchange_udp(to: SocketAddr) -> io::Result<String> {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"?")?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// IPv6 sockets listen on IPv6 only, so that both families can have the same port.
fn listen_tcp(address: SocketAddr, transparent: bool) -> TcpListener {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, socket};
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true).expect("an IPv6 socket");
    }
    setsockopt(&fd, sockopt::ReuseAddr, &true).expect("a reusable address");
    if transparent {
        let (level, option) = if address.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TRANSPARENT)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT)
        };
        set_option(fd.as_raw_fd(), level, option, 1).expect("a transparent socket");
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).expect("a free port");
    listen(&fd, Backlog::new(64).expect("a backlog")).expect("a listening socket");
    TcpListener::from(fd)
}

fn set_option(fd: i32, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`.
    let result = unsafe {
        libc::setsockopt(fd, level, option, (&raw const value).cast(), size_of_val(&value) as libc::socklen_t)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Changes user and group of this thread only; the C library's functions would change the whole process.
pub(crate) fn become_user(uid: u32, gid: u32) {
    // SAFETY: plain numbers; the calls change nothing but this thread's credentials.
    let results = unsafe {
        [
            libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()),
            libc::syscall(libc::SYS_setresgid, gid, gid, gid),
            libc::syscall(libc::SYS_setresuid, uid, uid, uid),
        ]
    };
    assert_eq!(results, [0, 0, 0], "this test needs root");
}
