#!/usr/bin/env bash
# The short regression run of benchmarks/: ours against upstream, both from fresh virtual environments with uvloop.
# Options are those of `benchmarks/bench.py check`. The environments and the cluster's files are kept in BENCH_DIR.
# BENCH_CASES names the cases to be run, of those in benchmarks/ratios.json; all of them otherwise.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

directory=${BENCH_DIR:-${TMPDIR:-/tmp}/kopf-bench}
port=${CLUSTER_PORT:-$(PYTHONPATH=tests/cluster .venv/bin/python -c 'import controlplane; print(controlplane.free_ports(3))')}
mkdir -p "$directory"
trap 'CLUSTER_PORT=$port tests/cluster/cluster down "$directory/cluster" >/dev/null' EXIT

install() { # NAME REQUIREMENT...
    [ -x "$directory/$1/bin/pip" ] || .venv/bin/python -m venv "$directory/$1"
    "$directory/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}
install upstream kopf==1.45.2 uvloop orjson
install ours uvloop .  # not editable: its modules have to be compiled once, as those of others are

# shellcheck disable=SC2086  # these are words
.venv/bin/python benchmarks/bench.py check ${BENCH_CASES:+--only $BENCH_CASES} --dir "$directory/cluster" --port "$port" \
    --venv "upstream=$directory/upstream/bin/python" --venv "ours=$directory/ours/bin/python" "$@"
