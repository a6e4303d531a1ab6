# Two images: `server` runs API, workers and migrations; `engine` runs Triton with the local engine. docs/images.md
# A release passes BASE_DIGEST (sha256:…), VERSION, REVISION and CREATED.
ARG BASE_IMAGE=python:3.12-slim-trixie
ARG BASE_DIGEST=
# Has venv with pip; the same Python as BASE_IMAGE, at the same path.
ARG BUILDER_IMAGE=${BASE_IMAGE}${BASE_DIGEST:+@$BASE_DIGEST}

FROM ${BUILDER_IMAGE} AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 LONGBATCH_CACHE_DIR=/var/cache/longbatch
# pip stays in a folder of its own: no image has it.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/longbatch
WORKDIR /app

FROM builder AS server-files
# --build-arg OCR=1 adds the extra `ocr`, which reads scanned pages: 270 MB.
ARG OCR=
COPY requirements-server.lock requirements-ocr.lock /opt/
RUN /opt/pip/bin/pip --python /opt/longbatch/bin/python install --require-hashes -r /opt/requirements-server.lock \
    && if [ -n "$OCR" ]; then /opt/pip/bin/pip --python /opt/longbatch/bin/python install --no-deps --require-hashes \
        -r /opt/requirements-ocr.lock; fi
# Packages by name: `triton/` never comes along, it would shadow the package that torch imports.
COPY jobs ./jobs
COPY worker ./worker
COPY api ./api
COPY cli ./cli
COPY migrations ./migrations
COPY client/longbatch ./longbatch
COPY alembic.ini LICENSE NOTICE ./
# The root file system of a container may be read-only: what would be written at a first start is made here.
RUN /opt/longbatch/bin/python -m compileall -q --invalidation-mode unchecked-hash . \
    && /opt/longbatch/bin/python -c "from jobs.prompts.tokenizer import ensure_default_tokenizer; ensure_default_tokenizer()"

FROM builder AS engine-files
COPY requirements-engine.lock /opt/
RUN /opt/pip/bin/pip --python /opt/longbatch/bin/python install --require-hashes -r /opt/requirements-engine.lock
COPY jobs ./jobs
COPY worker ./worker
COPY cli ./cli
COPY client/longbatch ./longbatch
COPY triton/local ./triton/local
COPY LICENSE NOTICE ./
RUN /opt/longbatch/bin/python -m compileall -q --invalidation-mode unchecked-hash jobs worker cli longbatch \
    && /opt/longbatch/bin/python -c "from jobs.prompts.tokenizer import ensure_default_tokenizer; ensure_default_tokenizer()"

FROM ${BASE_IMAGE}${BASE_DIGEST:+@$BASE_DIGEST} AS base
ARG BASE_IMAGE
ARG BASE_DIGEST=
ARG VERSION=
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.vendor="Longbatch" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
ENV PATH=/opt/longbatch/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    LONGBATCH_CACHE_DIR=/var/cache/longbatch
# What GET /v1/version tells.
ENV LONGBATCH_VERSION=${VERSION}
# Processes get this user by its number: of a name Kubernetes cannot tell whether it is root's.
# The base's own pip goes too, where it has one.
RUN groupadd --gid 10001 longbatch \
    && useradd --uid 10001 --gid 10001 --create-home longbatch \
    && install -d -o longbatch -g longbatch /var/lib/longbatch \
    && rm -rf /usr/local/bin/pip* /usr/local/lib/python3*/ensurepip /usr/local/lib/python3*/site-packages/pip*
WORKDIR /app
# Asks API or Triton, or a worker's port for metrics; what has no port is healthy while it runs.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 CMD ["python", "-m", "cli.alive"]

FROM base AS server
LABEL org.opencontainers.image.title="longbatch-server" \
      org.opencontainers.image.description="Longbatch's API, workers and migrations"
COPY --from=server-files /opt/longbatch /opt/longbatch
COPY --from=server-files --chown=10001:10001 /var/cache/longbatch /var/cache/longbatch
COPY --from=server-files /app /app
RUN ["python", "-m", "cli.sbom", "/app/sbom.cdx.json"]
USER 10001:10001
CMD ["python", "-m", "api"]

FROM base AS engine
LABEL org.opencontainers.image.title="longbatch-engine" \
      org.opencontainers.image.description="Triton with Longbatch's local engine, a stand-in that needs no GPU"
COPY --from=engine-files /opt/longbatch /opt/longbatch
COPY --from=engine-files --chown=10001:10001 /var/cache/longbatch /var/cache/longbatch
COPY --from=engine-files /app /app
RUN ["python", "-m", "cli.sbom", "/app/sbom.cdx.json"]
USER 10001:10001
CMD ["python", "-m", "cli.stack.serve_engine", "--address", "0.0.0.0"]
