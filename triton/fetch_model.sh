#!/usr/bin/env bash
# fetch_model.sh RENDERED DATA
# DATA holds the profile's Hugging Face model. Goes on where it was interrupted; does nothing when all is there.
# HF_TOKEN: of somebody who has accepted the model's licence; ANONYMOUS=1: the model needs none.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# = 2 ] || usage
load_rendered "$1"
load_data "$2"
target=$(on_host "$MODEL_DIR")

if is_whole_model "$target"; then
    note "$MODEL_REPOSITORY is in $target"
    exit 0
fi

saved=${HF_HOME:-${HOME:-/nonexistent}/.cache/huggingface}/token
if [ -z "${HF_TOKEN:-}" ] && [ -f "$saved" ]; then
    HF_TOKEN=$(<"$saved")
fi
[ -n "${HF_TOKEN:-}" ] || [ "${ANONYMOUS:-0}" = 1 ] ||
    die "no Hugging Face token: accept the licence of $MODEL_REPOSITORY on the hub and set HF_TOKEN, or copy the" \
        "model's files to $target"
[ -z "${HF_TOKEN:-}" ] || export HF_TOKEN

mkdir -p "$target"
refused="the hub did not hand out $MODEL_REPOSITORY: is its licence accepted? Run this again to go on"
if tool=$(command -v hf || command -v huggingface-cli); then
    "$tool" download "$MODEL_REPOSITORY" --local-dir "$target" --exclude 'original/*' || die "$refused"
else
    need_docker
    need_image
    run_in_image fetch ${HF_TOKEN:+-e HF_TOKEN} || die "$refused"
fi
is_whole_model "$target" || die "$target is not whole: config.json, tokenizer.json or weights are missing"
note "$MODEL_REPOSITORY is in $target"
