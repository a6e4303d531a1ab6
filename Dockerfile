# Two images of one file: `server` runs api, workers and migrations; `engine` runs Triton with the local engine.
# A release says which base exactly: --build-arg BASE_DIGEST=sha256:…; another registry's is given as BASE_IMAGE.
ARG BASE_IMAGE=python:3.12-slim-trixie
ARG BASE_DIGEST=
FROM ${BASE_IMAGE}${BASE_DIGEST:+@${BASE_DIGEST}} AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    LONGBATCH_CACHE_DIR=/var/cache/longbatch
# Processes get this user by its number: of a name Kubernetes cannot tell whether it is root's.
RUN groupadd --gid 10001 longbatch \
    && useradd --uid 10001 --gid 10001 --create-home longbatch \
    && install -d -o longbatch -g longbatch /var/cache/longbatch /var/lib/longbatch
WORKDIR /app

FROM base AS server
# --build-arg OCR=1 adds the extra `ocr`, which reads scanned pages: 270 MB.
ARG OCR=
COPY requirements-server.lock requirements-ocr.lock ./
RUN pip install --require-hashes -r requirements-server.lock \
    && if [ -n "$OCR" ]; then pip install --no-deps --require-hashes -r requirements-ocr.lock; fi
# Packages by name: `triton/` never comes along, it would shadow the package that torch imports.
COPY jobs ./jobs
COPY worker ./worker
COPY api ./api
COPY cli ./cli
COPY migrations ./migrations
COPY alembic.ini LICENSE NOTICE ./
# The root is read-only at work: without this each start compiles all of it anew, a quarter of the API's start.
RUN python -m compileall -q --invalidation-mode unchecked-hash jobs worker api cli migrations
USER 10001:10001
RUN python -c "from jobs.prompts.tokenizer import ensure_default_tokenizer; ensure_default_tokenizer()"
ARG VERSION=
ARG REVISION=unknown
ARG CREATED=unknown
# What GET /v1/version tells.
ENV LONGBATCH_VERSION=${VERSION}
LABEL org.opencontainers.image.title="longbatch-server" \
      org.opencontainers.image.description="Longbatch: API, workers and migrations of a job queue for batch LLM inference" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
# Asks the API, or a worker's port for metrics; what has no port is healthy while it runs.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 CMD ["python", "-m", "cli.alive"]
CMD ["python", "-m", "api"]

FROM base AS engine
COPY requirements.lock ./
RUN pip install --require-hashes -r requirements.lock
COPY jobs ./jobs
COPY cli ./cli
COPY triton/local ./triton/local
COPY LICENSE NOTICE ./
USER 10001:10001
RUN python -c "from jobs.prompts.tokenizer import ensure_default_tokenizer; ensure_default_tokenizer()"
ARG VERSION=
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="longbatch-engine" \
      org.opencontainers.image.description="Longbatch: Triton with the local engine, a stand-in that needs no GPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=4 CMD ["python", "-m", "cli.alive"]
CMD ["python", "-m", "cli.stack.serve_engine", "--address", "0.0.0.0"]
