# Two images of one file: `server` runs api, workers and migrations; `engine` runs Triton with the local engine.
FROM python:3.12-slim-trixie AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    LONGBATCH_CACHE_DIR=/var/cache/longbatch
RUN useradd --uid 10001 --create-home longbatch \
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
USER longbatch
RUN python -c "from jobs.prompts.tokenizer import ensure_default_tokenizer; ensure_default_tokenizer()"

FROM base AS engine
COPY requirements.lock ./
RUN pip install --require-hashes -r requirements.lock
COPY jobs ./jobs
COPY cli ./cli
COPY triton/local ./triton/local
COPY LICENSE NOTICE ./
USER longbatch
RUN python -c "from jobs.prompts.tokenizer import ensure_default_tokenizer; ensure_default_tokenizer()"
CMD ["python", "-m", "cli.stack.serve_engine", "--address", "0.0.0.0"]
