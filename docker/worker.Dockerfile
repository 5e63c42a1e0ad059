# The default job image: a shell, an interpreter, common tools, and the worker as its entrypoint.
# The sandbox is enforced from outside. This image contains nothing that weakens it: no setuid files, no volumes, no secrets,
# and an unprivileged user.
#
# BUILDER_BASE and BINARIES select where the programs come from, see docker/binaries.sh. By default they are compiled here.
# The classic builder runs every stage, so the selection is made inside one stage instead of between two.
ARG BUILDER_BASE=rust:1-bookworm

FROM ${BUILDER_BASE} AS binaries
LABEL gantry.stage=binaries
ARG BINARIES=builder
WORKDIR /src
COPY . .
RUN docker/binaries.sh "${BINARIES}" /out
# A separate step, because the one above, which compiles both programs, is shared with the orchestrator's image.
ARG WORKER_MODE=0711
RUN chmod "${WORKER_MODE}" /out/gantry-worker

FROM debian:bookworm-slim
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        bash ca-certificates curl diffutils file git jq less make patch procps python3 ripgrep unzip xz-utils zip \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
RUN groupadd --gid 10001 agent \
    && useradd --uid 10001 --gid 10001 --home-dir /home/agent --shell /bin/bash --no-log-init --no-create-home agent \
    && install -d -o 10001 -g 10001 -m 0700 /home/agent \
    && install -d -o 10001 -g 10001 -m 0755 /workspace \
    && install -d /usr/share/man/man1 \
    && find / -xdev -perm /6000 ! -type l -exec chmod ug-s {} +
ENV LANG=C.UTF-8
# Mode 0711 by default, see docker/binaries.sh.
COPY --from=binaries /out/gantry-worker /usr/local/bin/gantry-worker
USER 10001:10001
WORKDIR /workspace
ENTRYPOINT ["/usr/local/bin/gantry-worker"]
# docker/images.sh finds replaced images by this label. Labels that start with `gantry.` are for containers.
LABEL org.opencontainers.image.title=gantry-worker
