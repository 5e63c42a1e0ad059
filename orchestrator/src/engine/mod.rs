//! Engines make containers. Contents only: the seam, the posture, and the one engine there is.

mod seam;

pub use seam::{
    ContainerRole, ContainerSpec, ContainerStatus, ContainerView, Engine, EngineError, EngineFacts, ReadinessReason,
    Resources, SandboxReadiness, StartedContainer,
};
