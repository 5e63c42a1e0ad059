//! Container engines: the `Engine` trait with the facts it deals in, and the one implementation, Docker. Contents only.

mod container;
mod docker;
mod interface;

pub use container::{
    Adoption, AdoptionSpec, AttachedStreams, ContainerRole, ContainerSpec, ContainerStatus, ContainerView,
    McpContainerSpec, Resources, SIGKILL_EXIT_CODE,
};
pub use docker::{Docker, DockerSettings};
pub use interface::{Engine, EngineError, EngineFacts, ReadinessReason, SandboxReadiness};
