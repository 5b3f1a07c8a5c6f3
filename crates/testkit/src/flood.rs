//! Clients that open one connection after the other while something else happens.
//!
//! Each client is a thread in its namespace with its user. It stops at the first answer that is not the expected one:
//! a connection that was refused, that nobody answered, or that somebody else answered.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::netns::Sandbox;
use crate::traffic::{become_user, exchange_tcp, exchange_udp};

/// Between two connections of a client. Without it the clients would keep the kernel too busy to change any rule for
/// seconds.
const BREATH: Duration = Duration::from_millis(1);
/// Between two looks at the clients.
const PAUSE: Duration = Duration::from_micros(200);

/// Transport of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A connection.
    Tcp,
    /// A question from a fresh port.
    Udp,
}

/// One client.
pub struct Client<'a> {
    /// Where it runs.
    pub sandbox: &'a Sandbox,
    /// User and group that it acts as.
    pub user: (u32, u32),
    /// How it connects.
    pub transport: Transport,
    /// Address and port that it asks.
    pub to: &'a str,
    /// How every answer begins.
    pub expected: &'a str,
}

/// What one client saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The client.
    pub client: String,
    /// Number of expected answers.
    pub answers: usize,
    /// The answer or error that ended it before its time.
    pub fault: Option<String>,
}

/// The clients at work.
pub struct Flood {
    counts: Vec<AtomicUsize>,
    over: AtomicBool,
    broken: AtomicBool,
}

impl Flood {
    /// Waits until every client has had another answer. Returns false when one of them has met a fault.
    pub fn goes_on(&self) -> bool {
        let before: Vec<usize> = self.counts.iter().map(|count| count.load(Ordering::Acquire)).collect();
        let served = || self.counts.iter().zip(&before).all(|(count, before)| count.load(Ordering::Acquire) > *before);
        loop {
            if self.broken.load(Ordering::Acquire) {
                return false;
            }
            if served() {
                return true;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn work(&self, client: &Client<'_>, count: &AtomicUsize) -> Result<(), String> {
        let to: SocketAddr = client.to.parse().expect("an address with port");
        client.sandbox.run(|| {
            become_user(client.user.0, client.user.1);
            while !self.over.load(Ordering::Acquire) {
                let answer = match client.transport {
                    Transport::Tcp => exchange_tcp(to),
                    Transport::Udp => exchange_udp(to),
                };
                let answer = answer.map_err(|error| error.to_string())?;
                if !answer.starts_with(client.expected) {
                    return Err(format!("expected `{}…`, got `{answer}`", client.expected));
                }
                count.fetch_add(1, Ordering::AcqRel);
                std::thread::sleep(BREATH);
            }
            Ok(())
        })
    }
}

/// Lets `clients` work during `work` and tells what they saw. `work` begins when each has had its first answer.
///
/// # Panics
/// When `work` does, or a thread cannot be started.
pub fn during(clients: &[Client<'_>], work: impl FnOnce(&Flood)) -> Vec<Report> {
    let flood = Flood {
        counts: clients.iter().map(|_| AtomicUsize::new(0)).collect(),
        over: AtomicBool::new(false),
        broken: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (clients.iter().zip(&flood.counts))
            .map(|(client, count)| {
                let flood = &flood;
                scope.spawn(move || {
                    let result = flood.work(client, count);
                    if result.is_err() {
                        flood.broken.store(true, Ordering::Release);
                    }
                    result
                })
            })
            .collect();
        {
            // Also when `work` panics, or the scope would wait for the clients for ever.
            let _over = Over(&flood.over);
            if flood.goes_on() {
                work(&flood);
            }
        }
        let results = threads.into_iter().map(|thread| thread.join().expect("a client that ends"));
        (clients.iter().zip(&flood.counts).zip(results))
            .map(|((client, count), result)| Report {
                client: format!("{:?} to {} as {:?}", client.transport, client.to, client.user),
                answers: count.load(Ordering::Acquire),
                fault: result.err(),
            })
            .collect()
    })
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
