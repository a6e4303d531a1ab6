#!/usr/bin/env bash
# smoke.sh [RENDERED]
# Asks a running Triton for proof: health, metadata, a short and a long request, text through ensemble and BLS, cancelling
# frees blocks, metrics. Needs curl and nothing else. With the rendered folder of its profile it also compares batch,
# longest prompt and pool, and asks that the profile's models are all there.
# TRITON_HTTP, TRITON_METRICS, MODEL: where and what. PROMPT_TOKENS: of the long request. WAIT: seconds to be ready in.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# -le 1 ] || usage
[ $# = 0 ] || load_rendered "$1"
http=${TRITON_HTTP:-http://127.0.0.1:8000}
metrics=${TRITON_METRICS:-http://127.0.0.1:8002/metrics}
model=${MODEL:-${TRITON_NAME:-tensorrt_llm}}
prompt_tokens=${PROMPT_TOKENS:-${MAX_INPUT_LEN:-96000}}
wait_seconds=${WAIT:-300}
long_seconds=${LONG_SECONDS:-600}
command -v curl >/dev/null || die "curl is not installed"

work=$(mktemp -d)
asked=""
cleanup() {
    [ -z "$asked" ] || kill "$asked" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

ok() {
    echo "✓ $*"
}

fail() {
    echo "✗ $*"
    exit 1
}

get() {
    curl --noproxy '*' -sS --max-time 10 "$@"
}

main() {
    check_health
    if [ "${FLOW:-build}" = llmapi ]; then
        check_llmapi
        return
    fi
    check_metadata
    check_short
    check_long
    check_cancel
    check_metrics
    check_text
}

check_health() {
    local until=$((SECONDS + wait_seconds))
    until get -f -o "$work/ready" "$http/v2/models/$model/ready" 2>"$work/why"; do
        [ "$SECONDS" -lt "$until" ] || fail "health: $model on $http was not ready in $wait_seconds s: $(<"$work/why")"
        sleep 1
    done
    ok "health: $model on $http is ready"
}

check_metadata() {
    local config version name batch
    config=$(get -f "$http/v2/models/$model/config") || fail "metadata: $model has no configuration"
    version=$(get -f "$http/v2" | sed 's/.*"version":"\([^"]*\)".*/\1/')
    for name in input_ids input_lengths request_output_len streaming; do
        grep -q "\"name\":\"$name\"" <<<"$config" || fail "metadata: $model takes no $name; it must take token ids"
    done
    grep -q '"decoupled":true' <<<"$config" || fail "metadata: $model is not decoupled, so it cannot stream"
    batch=${config#*'"max_batch_size":'}
    batch=${batch%%[!0-9]*}
    [ "$batch" = "${MAX_BATCH_SIZE:-$batch}" ] ||
        fail "metadata: max_batch_size is $batch, the profile says $MAX_BATCH_SIZE"
    ok "metadata: Triton $version, $model streams, batch $batch"
}

check_short() {
    request short 16 8 >"$work/short.json"
    ask short "$long_seconds"
    ok "short request: $generated tokens, the first after $first_seconds s"
}

check_long() {
    request long "$prompt_tokens" 32 >"$work/long.json"
    ask long "$long_seconds"
    ok "long request: $prompt_tokens prompt tokens, $generated tokens, the first after $first_seconds s"
}

# Triton's model llmapi: text in, text out, and no gauges, so neither its pool nor what a cancel frees can be seen.
check_llmapi() {
    local config words
    config=$(get -f "$http/v2/models/$model/config") || fail "metadata: $model has no configuration"
    grep -q '"name":"sampling_param_max_tokens"' <<<"$config" || fail "metadata: $model is not llmapi"
    grep -q '"decoupled":true' <<<"$config" ||
        fail "metadata: $model is not decoupled: model.yaml must say so, and the server run with auto-complete"
    ok "metadata: $model is llmapi and streams"
    for words in 16 $((prompt_tokens / 2)); do # a word is a token or two
        text_request "$words" >"$work/text.json"
        stream text "$long_seconds" >"$work/text.out" 2>"$work/why" || true
        ! grep -q '"error"' "$work/text.out" || fail "$words words: $(grep -o '"error":.*' "$work/text.out" | head -c 300)"
        grep -q '"text_output":"[^"]' "$work/text.out" ||
            fail "$words words: no text came: $(head -c 300 "$work/why" "$work/text.out")"
        ok "$words words: text came in $(grep -c '"text_output"' "$work/text.out") responses"
    done
}

# text_request WORDS: its JSON.
text_request() {
    awk -v words="$1" 'BEGIN {
        printf "{\"text_input\":\""
        for (place = 0; place < words; place++) printf "%sword", place ? " " : ""
        printf "\",\"sampling_param_max_tokens\":16,\"streaming\":true,"
        print "\"sampling_param_exclude_input_from_output\":true}"
    }'
}

# Text in and text out. A repository may have the engine alone; a profile's has what the profile says.
check_text() {
    local name
    for name in ensemble tensorrt_llm_bls; do
        if ! get -f -o "$work/ready" "$http/v2/models/$name/ready" 2>"$work/why"; then
            [[ " ${MODELS:-} " != *" $name "* ]] || fail "$name: the profile has it, and it is not ready"
            continue
        fi
        printf '{"text_input":"One, two, three,","max_tokens":16,"bad_words":"","stop_words":"","stream":true}' \
            >"$work/$name.json"
        stream "$name" "$long_seconds" "$name" >"$work/$name.out" 2>"$work/why" || true
        ! grep -q '"error"' "$work/$name.out" || fail "$name: $(grep -o '"error":.*' "$work/$name.out" | head -c 300)"
        grep -q '"text_output":"[^"]' "$work/$name.out" ||
            fail "$name: no text came: $(head -c 300 "$work/why" "$work/$name.out")"
        ok "$name: text came in $(grep -c '"text_output"' "$work/$name.out") responses"
    done
}

# Gauges move only while the engine iterates and may show the blocks of its last request for ever, so a short request,
# which takes a block or two, is sent before they are read.
check_cancel() {
    local before during until=$((SECONDS + 60))
    ask short "$long_seconds"
    before=$(used_blocks)
    [ -n "$before" ] || fail "cancel: $metrics has no gauge of used blocks for $model"
    before=$((before + 2))
    request cancelled 2000 8000 >"$work/cancelled.json"
    exec_stream cancelled "$long_seconds" >"$work/cancelled.out" &
    asked=$!
    until during=$(used_blocks) && [ "$during" -gt "$before" ]; do
        kill -0 "$asked" 2>/dev/null ||
            fail "cancel: the request ended before it was seen: $(tail -c 300 "$work/cancelled.out")"
        [ "$SECONDS" -lt "$until" ] || fail "cancel: no blocks were taken within 60 s"
        sleep 0.1
    done
    kill "$asked" 2>/dev/null || true
    wait "$asked" 2>/dev/null || true
    asked=""
    until=$((SECONDS + 60))
    until [ "$(used_blocks)" -le "$before" ]; do
        [ "$SECONDS" -lt "$until" ] || fail "cancel: $(used_blocks) blocks are in use 60 s after the stream was closed"
        ask short "$long_seconds"
        sleep 0.2
    done
    ok "cancel: $((during - before)) blocks were taken, and are free again"
}

check_metrics() {
    local blocks per_block slots waiting
    blocks=$(gauge kv_cache_block_type max)
    per_block=$(gauge kv_cache_block_type tokens_per)
    slots=$(gauge request_type max)
    waiting=$(gauge request_type waiting)
    [ -n "$blocks" ] && [ -n "$per_block" ] || fail "metrics: $metrics does not tell the size of the KV pool"
    [ "$blocks" -ge "${POOL_BLOCKS:-$blocks}" ] ||
        fail "metrics: the pool has $blocks blocks, the profile says $POOL_BLOCKS: it was reduced at load"
    ok "metrics: $blocks blocks of $per_block tokens, ${slots:-unknown} slots, ${waiting:-unknown} requests waiting inside"
}

# request ID PROMPT_TOKENS MAX_TOKENS: its JSON. No end token, so that its length is known.
request() {
    awk -v id="$1-$$" -v tokens="$2" -v most="$3" 'BEGIN {
        printf "{\"id\":\"%s\",\"input_lengths\":%d,\"request_output_len\":%d,", id, tokens, most
        printf "\"streaming\":true,\"input_ids\":["
        for (place = 0; place < tokens; place++) printf "%s%d", place ? "," : "", 1000 + (place * 7919) % 50000
        print "]}"
    }'
}

# stream NAME SECONDS [MODEL]: sends NAME.json.
stream() {
    (exec_stream "$@")
}

exec_stream() {
    exec curl --noproxy '*' -sSN --max-time "$2" -H 'Content-Type: application/json' \
        -d "@$work/$1.json" "$http/v2/models/${3:-$model}/generate_stream"
}

# ask NAME SECONDS: $generated tokens came, the first after $first_seconds.
ask() {
    local begun=$EPOCHREALTIME first="" line
    while IFS= read -r line; do
        [[ $line == data:* ]] || continue
        first=${first:-$EPOCHREALTIME}
        echo "$line"
    done >"$work/$1.out" < <(stream "$1" "$2" 2>"$work/why")
    ! grep -q '"error"' "$work/$1.out" || fail "$1 request: $(grep -o '"error":.*' "$work/$1.out" | head -c 300)"
    generated=$(grep -o '"output_ids":\(\[[^]]*\]\|[0-9]*\)' "$work/$1.out" | grep -o '[0-9][0-9]*' | wc -l)
    [ "$generated" -gt 0 ] || fail "$1 request: no token came: $(head -c 300 "$work/why")"
    first_seconds=$(awk -v from="$begun" -v to="$first" 'BEGIN { printf "%.2f", to - from }')
}

used_blocks() {
    gauge kv_cache_block_type used
}

# gauge LABEL VALUE: of this model; empty when there is none.
gauge() {
    get "$metrics" 2>/dev/null | grep '^nv_trt_llm_' | grep "[{,]$1=\"$2\"" | grep "[{,]model=\"$model\"" |
        sed 's/.*} *//; s/\..*//' | head -n 1 || true
}

main
