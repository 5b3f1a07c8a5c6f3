//! The plugin as the CNI contract sees it: which verbs do what.

use cni::{About, Error, Plugin, Request};

use crate::config::Environment;
use crate::pod_get::Budget;
use crate::{add, check, notice, status};

/// Who we are.
pub const ABOUT: About = About { name: agent_api::paths::PLUGIN_NAME, version: env!("CARGO_PKG_VERSION") };

/// The plugin.
#[derive(Debug, Clone, Default)]
pub struct IstioCni {
    environment: Environment,
    budget: Budget,
}

impl IstioCni {
    /// A plugin in this environment, with the usual patience.
    pub fn new(environment: Environment) -> Self {
        Self { environment, budget: Budget::default() }
    }

    /// The same plugin with another patience towards the API server.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }
}

impl Plugin for IstioCni {
    fn add(&self, request: &Request) -> Result<String, Error> {
        add::add(request, &self.environment, &self.budget)
    }

    fn check(&self, request: &Request) -> Result<(), Error> {
        check::check(request, &self.environment, &self.budget)
    }

    fn del(&self, request: &Request) -> Result<(), Error> {
        notice::gone(request);
        Ok(())
    }

    fn gc(&self, request: &Request) -> Result<(), Error> {
        notice::attachments(request);
        Ok(())
    }

    fn status(&self, request: &Request) -> Result<(), Error> {
        status::status(request)
    }
}
