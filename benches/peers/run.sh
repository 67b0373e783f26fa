#!/usr/bin/env bash
# Ours against CTranslate2, ONNX Runtime and PyTorch on this machine.
#
# Usage: run.sh [VENV] [--configs S,M,B] [--rounds N]
#   VENV    a folder for the virtual environment, which is kept (default: target/peers-venv)
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=target/peers-venv
if [ "$#" -gt 0 ] && [[ $1 != --* ]]; then
    venv=$1
    shift
fi
readonly venv python=$venv/bin/python

[ -x "$python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --requirement benches/peers/requirements.txt

# Alone, so that no other package adds features that count.
cargo build --quiet --release --package kiloformer-benches
export PYTHONDONTWRITEBYTECODE=1
"$python" benches/peers/peers.py \
    --binary "${CARGO_TARGET_DIR:-target}/release/kiloformer-peer" \
    --models "${CARGO_TARGET_DIR:-target}/peers" "$@"
