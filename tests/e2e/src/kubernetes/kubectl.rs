//! `kubectl`, run on the node's network: what a user types, and the answers as JSON.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use sys::netns::Netns;

use crate::failure::Failure;

/// `kubectl` with an administrator's credentials.
pub struct Kubectl {
    /// The program.
    pub program: PathBuf,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Where it may keep what it remembers.
    pub home: PathBuf,
    /// Network namespace of the node. It is opened for each call: at first it is not there yet.
    pub network: PathBuf,
}

impl Kubectl {
    /// Runs it and gives its standard output.
    ///
    /// # Errors
    /// What it complains.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Failure> {
        self.feed(arguments, "")
    }

    /// Runs it with this standard input and gives its standard output.
    ///
    /// # Errors
    /// What it complains.
    pub fn feed(&self, arguments: &[&str], input: &str) -> Result<String, Failure> {
        let told = || format!("kubectl {}", arguments.join(" "));
        let output = Netns::open(&self.network)?.run(|| {
            let mut command = self.command(arguments);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                // When it does not read to the end, its own message is the better one.
                drop(stdin.write_all(input.as_bytes()));
            }
            child.wait_with_output()
        })?;
        let output = output.map_err(Failure::system(told()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Failure::unexpected(format!("{}: {}", told(), String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// Starts it and lets it write what it says to `file`; it ends with the API server at the latest.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn follow(&self, arguments: &[&str], file: &Path) -> Result<Child, Failure> {
        let started = Netns::open(&self.network)?.run(|| {
            let output = File::create(file)?;
            let mut command = self.command(arguments);
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()
        })?;
        started.map_err(Failure::system(format!("kubectl {}", arguments.join(" "))))
    }

    /// Applies a manifest.
    ///
    /// # Errors
    /// What the API server says against it.
    pub fn apply(&self, manifest: &str) -> Result<(), Failure> {
        self.feed(&["apply", "-f", "-"], manifest).map(drop)
    }

    /// Asks for an object or a list of objects; `arguments` are those of `kubectl get`.
    ///
    /// # Errors
    /// When there is no such object.
    pub fn get(&self, arguments: &[&str]) -> Result<Value, Failure> {
        let text = self.run(&[&["get", "--output=json"], arguments].concat())?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::Unexpected(format!("kubectl get {}: {error}", arguments.join(" "))))
    }

    /// Asks for a list of objects.
    ///
    /// # Errors
    /// As [`Kubectl::get`].
    pub fn list(&self, arguments: &[&str]) -> Result<Vec<Value>, Failure> {
        let mut list = self.get(arguments)?;
        Ok(list.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).env("HOME", &self.home);
        command
    }
}
