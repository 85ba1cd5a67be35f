# Makes the project's own virtual environment, or finds it ready, and leaves its interpreter in $python. Sourced by the
# other scripts, in the repository's root. RESTOKE_PYTHON names an interpreter to use as it is: then nothing is installed.

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; }

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

find_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if supported "$name"; then command -v "$name" && return; fi
    done
    echo "restoke needs Python 3.11 to 3.14, and none was found." >&2
    return 1
}

# Debian's packages by name, where this is Debian and we may install. What still lacks is skipped by name in the tests.
install_system() {
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        echo "Not installed (no apt-get, or not root): $*" >&2
    fi
}

make_venv() {
    local base="$1"
    "$base" -c 'import ensurepip, venv' 2>/dev/null || install_system python3-venv
    # An environment made by another Python, or moved here from elsewhere, is made anew.
    .venv/bin/python -c 'import sys; sys.exit(sys.argv[1] != sys.prefix)' "$PWD/.venv" 2>/dev/null || "$base" -m venv --clear .venv
}

pip_install() { .venv/bin/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt "$@"; }

setup() {
    if [ -n "${RESTOKE_PYTHON:-}" ]; then
        python="$RESTOKE_PYTHON"
        export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
        return
    fi
    local base key
    base="$(find_python)" || return
    command -v mpirun >/dev/null || install_system openmpi-bin || echo "No Open MPI: its tests are skipped." >&2
    key="$({ "$base" -V; pwd; has_gpu && echo gpu; cat pyproject.toml constraints.txt scripts/setup.sh; } | sha256sum)"
    python="$PWD/.venv/bin/python"
    if [ "$(cat .venv/restoke-key 2>/dev/null)" != "$key" ]; then
        echo "Installing into .venv: a few minutes, once." >&2
        # torch first and by itself: what depends on it then takes the build that is there. pip prefers a CPU build (+cpu)
        # where it is offered one; on a GPU machine no such build may be in its find-links or indexes.
        make_venv "$base" && pip_install torch && pip_install -e '.[test,docs,examples,bench]' || return
        has_gpu || "$python" -c 'import torch; torch.version.cuda and print("Note: this torch is a CUDA build; CPU builds are smaller.")'
        echo "$key" >.venv/restoke-key
    fi
}
