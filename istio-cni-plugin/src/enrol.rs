//! A pod of ambient mode is handed to the agent, and held back until the agent is done with it.
//!
//! The event and its socket are Istio's, so that its agent understands us. Nobody may be listening for a moment, while
//! the agent starts; that is waited for. An event is sent once: the agent may still be at work on one that it did not
//! answer in time, and the runtime tries the whole sandbox again.

use std::io;
use std::time::{Duration, Instant};

use agent_api::event::{EVENT_PATH, Event};
use agent_api::paths;
use cni::error::code;
use cni::{Error, Verb};
use sys::interrupt;

use crate::codes;
use crate::http::{HttpError, excerpt, post};
use crate::judge::Call;
use crate::log::{Level, Logger};

/// Largest answer of the agent that is read, in bytes. It has nothing to say but what went wrong.
const MAX_ANSWER: usize = 8 << 20;
/// Pause before looking again whether the agent listens.
const PAUSE: Duration = Duration::from_millis(50);

/// Has the agent enrol the pod of `call`.
///
/// # Errors
/// It refuses, or did not do it in time. The pod must not start, since it would be outside the mesh.
pub(crate) fn enrol(call: &Call<'_>, patience: Duration, log: &mut Logger) -> Result<(), Error> {
    let event = Event::new(&call.question(Verb::Add), call.request.conf.prev_result()).map_err(|invalid| {
        Error::new(code::INVALID_CONFIG, format!("{}: {invalid}; the plugin before this one made it", call.name()))
    })?;
    let body = serde_json::to_string(&event).unwrap_or_default();
    let socket = paths::event_socket(&call.run_dir);
    let deadline = Instant::now() + patience;
    let failed = |cause: String, hint: &str| {
        let socket = socket.display();
        format!(
            "{} belongs to ambient mode and was not enrolled by the agent on {socket}: {cause}; {hint}",
            call.name()
        )
    };
    let mut waited = false;
    loop {
        let error = match post(&socket, EVENT_PATH, &body, MAX_ANSWER, deadline) {
            Ok(answer) if answer.status == 200 => return Ok(()),
            Ok(answer) => {
                let cause = format!("it answered with status {}: {}", answer.status, excerpt(&answer.body));
                return Err(Error::new(codes::AGENT, failed(cause, "the log of the istio-cni-node pod tells more")));
            }
            Err(error) => error,
        };
        let later = failed(error.to_string(), "is the istio-cni-node pod on this node running?");
        if !nobody_listens(&error) || Instant::now() + PAUSE >= deadline {
            return Err(Error::new(code::TRY_AGAIN, later));
        }
        if !waited {
            waited = true;
            log.write(Level::Warn, &format!("waiting for the agent: {error}"));
            log.send();
        }
        if let Err(stopped) = interrupt::sleep(PAUSE) {
            return Err(Error::new(code::TRY_AGAIN, failed(stopped.to_string(), "nothing was done")));
        }
    }
}

fn nobody_listens(error: &HttpError) -> bool {
    let HttpError::Connect { source, .. } = error else { return false };
    matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
