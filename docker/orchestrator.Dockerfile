# The orchestrator: one program, certificate authorities for the model's provider, curl for the health check.
# It runs as root because it owns the run folder and talks to the engine's socket; no job ever runs in this image.
#
# The root of its file system may be read-only: everything it writes is in /var/lib/gantry, SQLite's temporary files too.
#
# The build stage is the worker image's, word for word, so that one build serves both.
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
# Where a gantry.toml is looked for; compose.yaml mounts a folder of the host here.
WORKDIR /etc/gantry
EXPOSE 8080
CMD ["gantry", "serve"]
# By this docker/images.sh finds the ones that lost their name to a newer build.
LABEL org.opencontainers.image.title=gantry
