# The orchestrator: one program, certificate authorities for the model's provider, curl for the health check.
# It runs as root because it owns the run directory and uses the engine's socket. No job ever runs in this image.
#
# The root file system may be read-only: all files are written to /var/lib/gantry, including SQLite's temporary files.
#
# The build stage is identical to the worker image's, so that the builder caches it for both.
ARG BUILDER_BASE=rust:1-bookworm

FROM ${BUILDER_BASE} AS binaries
LABEL gantry.stage=binaries
ARG BINARIES=builder
WORKDIR /src
COPY . .
RUN docker/binaries.sh "${BINARIES}" /out

FROM debian:bookworm-slim
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
ENV LANG=C.UTF-8 \
    GANTRY_BIND=0.0.0.0:8080 \
    GANTRY_DATA_DIR=/var/lib/gantry \
    GANTRY_RUN_DIR=/var/lib/gantry/run \
    GANTRY_WORKSPACE_DIR=/var/lib/gantry/workspaces \
    SQLITE_TMPDIR=/var/lib/gantry
COPY docker/demo.yaml /usr/share/gantry/demo.yaml
COPY --from=binaries /out/gantry /usr/local/bin/gantry
# The working directory, from which gantry.toml is read; compose.yaml mounts a directory of the host here.
WORKDIR /etc/gantry
EXPOSE 8080
CMD ["gantry", "serve"]
# docker/images.sh finds replaced images by this label.
LABEL org.opencontainers.image.title=gantry
