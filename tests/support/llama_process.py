"""llama.cpp's server in a process of its own, run by path; it ends with its stdin."""

import json
import sys

import xllamacpp

ONE_THREAD = 1  # its threads spin: two on busy cores are a hundred times slower


def main() -> None:
    options = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.hostnames = ["127.0.0.1"]
    params.port = options["port"]
    params.n_ctx = options["context"]
    params.n_parallel = options["slots"]
    params.n_batch = 128  # a cut prompt is noticed between batches
    params.endpoint_slots = params.endpoint_metrics = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = ONE_THREAD
    if options["api_key"]:
        params.api_keys = [options["api_key"]]
    server = xllamacpp.Server(params)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
