//! The operations of the fake engine, as the orchestrator calls them.

use std::time::Duration;

use futures_util::future::BoxFuture;
use orchestrator::engine::{
    Adoption, AdoptionSpec, AttachedStreams, ContainerSpec, ContainerStatus, ContainerView, Engine, EngineError,
    McpContainerSpec, SandboxReadiness,
};

use super::{Container, FakeEngine, McpEngine, StopBehaviour, Workers};
use crate::process;

impl FakeEngine {
    fn answers(&self) -> Result<(), EngineError> {
        if self.lock().is_reachable { Ok(()) } else { Err(EngineError::Unreachable("simulated".to_owned())) }
    }

    async fn start(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        self.answers()?;
        if let Some(there) = self.lock().containers.get(&spec.name) {
            return Ok(there.id.clone());
        }
        self.change(|table| table.requested_starts.push(spec.name.clone()));
        self.until("starts to be unblocked", |_| (!self.lock().are_starts_blocked).then_some(())).await;
        if let Some(failure) = self.change(|table| table.failures.pop_front()) {
            return Err(failure);
        }
        assert!(spec.run_dir.join("worker.sock").exists(), "the socket must exist before the container");
        let token =
            std::fs::read_to_string(spec.run_dir.join("token")).expect("the token must exist before the container");
        assert!(spec.workspace.is_dir(), "the workspace must exist before the container");
        let id = format!("fake-{}", spec.name);
        let output = self.0.directory.join(format!("{}.out", spec.name));
        let mut container = Container {
            spec: spec.clone(),
            id: id.clone(),
            status: ContainerStatus::Running,
            token,
            pid: None,
            is_paused: false,
            output,
        };
        if self.lock().workers == Workers::Process {
            let child = process::spawn(spec, &container.output);
            container.pid = child.id().and_then(|pid| i32::try_from(pid).ok());
            let (engine, name) = (self.clone(), spec.name.clone());
            self.0.tasks.spawn(async move {
                let code = process::wait(child).await;
                engine.ended(&name, code);
            });
        }
        self.change(|table| {
            table.containers.insert(spec.name.clone(), container);
        });
        Ok(id)
    }

    fn ended(&self, name: &str, code: i64) {
        self.change(|table| {
            if let Some(container) = table.containers.get_mut(name) {
                container.status = ContainerStatus::Exited { code, oom_killed: false };
                container.pid = None;
            }
        });
    }

    /// Stops what is running: SIGTERM, a grace period, SIGKILL.
    async fn end(&self, name: &str, grace: Duration) -> Result<(), EngineError> {
        self.answers()?;
        let Some(container) = self.lock().containers.get(name).cloned() else { return Ok(()) };
        if container.status != ContainerStatus::Running {
            return Ok(());
        }
        if self.lock().stop_behaviour == StopBehaviour::Failing {
            return Err(EngineError::Unreachable("it hangs on this one".to_owned()));
        }
        let Some(pid) = container.pid else {
            self.ended(name, 143);
            return Ok(());
        };
        if !grace.is_zero() {
            process::terminate(pid);
            if tokio::time::timeout(grace, self.stopped(name)).await.is_ok() {
                return Ok(());
            }
        }
        process::kill(pid);
        self.stopped(name).await;
        Ok(())
    }

    fn freeze(&self, name: &str, is_paused: bool) -> Result<(), EngineError> {
        self.answers()?;
        let is_new = |container: &&mut Container| container.is_paused != is_paused;
        let found = self.lock().containers.get_mut(name).filter(is_new).map(|container| {
            container.is_paused = is_paused;
            container.pid
        });
        if let Some(pid) = found {
            if let Some(pid) = pid {
                process::freeze(pid, is_paused);
            }
            self.change(|table| table.pauses += u64::from(is_paused));
        }
        Ok(())
    }

    async fn stopped(&self, name: &str) {
        self.until("a process to end", |all| {
            let running = all.iter().any(|c| c.spec.name == name && c.status == ContainerStatus::Running);
            (!running).then_some(())
        })
        .await;
    }
}

fn view(container: &Container) -> ContainerView {
    ContainerView {
        name: container.spec.name.clone(),
        id: container.id.clone(),
        job_id: Some(container.spec.job_id),
        attempt: container.spec.attempt,
        role: Some(container.spec.role),
        status: container.status,
    }
}

impl Engine for FakeEngine {
    fn probe(&self) -> BoxFuture<'_, SandboxReadiness> {
        Box::pin(async { self.lock().readiness.clone() })
    }

    fn create<'a>(&'a self, spec: &'a ContainerSpec) -> BoxFuture<'a, Result<String, EngineError>> {
        Box::pin(self.start(spec))
    }

    fn start_mcp<'a>(&'a self, spec: &'a McpContainerSpec) -> BoxFuture<'a, Result<AttachedStreams, EngineError>> {
        Box::pin(async move {
            match self.0.mcp.get() {
                Some(McpEngine(real)) => real.start_mcp(spec).await,
                None => Err(EngineError::ImageMissing(spec.image.clone())),
            }
        })
    }

    fn adopt<'a>(&'a self, spec: &'a AdoptionSpec) -> BoxFuture<'a, Result<Adoption, EngineError>> {
        Box::pin(async move {
            self.answers()?;
            let table = self.lock();
            Ok(match table.containers.get(&spec.name) {
                None => Adoption::NotFound,
                Some(there) if there.status == ContainerStatus::Created => Adoption::NotStarted,
                Some(there) => Adoption::Adopted { id: there.id.clone() },
            })
        })
    }

    fn observe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<ContainerView>, EngineError>> {
        Box::pin(async move {
            self.answers()?;
            let own = self.lock().containers.get(name).map(view);
            match self.0.mcp.get() {
                Some(McpEngine(real)) if own.is_none() => real.observe(name).await,
                _ => Ok(own),
            }
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ContainerView>, EngineError>> {
        Box::pin(async {
            self.lock().list_requests += 1;
            self.0.step.send_modify(|step| *step += 1);
            self.answers()?;
            let mut containers: Vec<_> = self.lock().containers.values().map(view).collect();
            if let Some(McpEngine(real)) = self.0.mcp.get() {
                containers.extend(real.list().await?);
            }
            Ok(containers)
        })
    }

    fn stop<'a>(&'a self, name: &'a str, grace: Duration) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            self.until("stops to be unblocked", |_| {
                (self.lock().stop_behaviour != StopBehaviour::StopsBlocked).then_some(())
            })
            .await;
            self.end(name, grace).await
        })
    }

    fn kill<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(self.end(name, Duration::ZERO))
    }

    fn pause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            self.freeze(name, true)?;
            self.until("pauses to be unblocked", |_| (!self.lock().are_pauses_blocked).then_some(())).await;
            Ok(())
        })
    }

    fn unpause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move { self.freeze(name, false) })
    }

    fn pid<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<u32>, EngineError>> {
        Box::pin(async move {
            self.answers()?;
            Ok(self.lock().containers.get(name).and_then(|container| container.pid?.try_into().ok()))
        })
    }

    fn logs<'a>(&'a self, name: &'a str, max_bytes: usize) -> BoxFuture<'a, Result<String, EngineError>> {
        Box::pin(async move {
            self.answers()?;
            let output = self.lock().containers.get(name).map(|container| container.output.clone());
            let text = output.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
            Ok(text[text.ceil_char_boundary(text.len().saturating_sub(max_bytes))..].to_owned())
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            self.end(name, Duration::ZERO).await?;
            let own = self.change(|table| table.containers.remove(name));
            match self.0.mcp.get() {
                Some(McpEngine(real)) if own.is_none() => real.remove(name).await,
                _ => Ok(()),
            }
        })
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.0.changed.notified().await;
            let delay = self.lock().change_delay;
            tokio::time::sleep(delay).await;
            self.lock().delivered_changes += 1;
            self.0.step.send_modify(|step| *step += 1);
        })
    }
}
