//! Engines make containers. Contents only: the seam, the posture, and the one engine there is.

mod docker;
mod paths;
mod posture;
mod probe;
mod seam;
mod seccomp;
mod spec;

pub use docker::{Docker, DockerSettings};
pub use seam::{
    Adoption, AdoptionSpec, ContainerRole, ContainerSpec, ContainerStatus, ContainerView, Engine, EngineError,
    EngineFacts, ReadinessReason, Resources, SandboxReadiness,
};
