#!/usr/bin/env bash
# PyTorch, live: installs it, makes all fixtures anew and compares them with the committed ones, then has
# it write checkpoints that the trainer imports and an emulated board runs, and load what the trainer
# exports.
#
# Usage: run.sh VENV      (a folder for the virtual environment, which is kept)
set -euo pipefail
cd "$(dirname "$0")"

readonly venv=$1
readonly python=$venv/bin/python
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --requirement requirements.txt
"$python" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'

"$python" make_fixtures.py "$made/fixtures"
"$python" compare.py fixtures "$made/fixtures"

echo "--- what is too large to commit"
"$python" -W ignore live.py "$made/live"
cd ../..

echo "--- what was trained here, in PyTorch"
mkdir "$made/ours"
KILOFORMER_FOR_PYTORCH=$made/ours \
    cargo test --workspace --test to_pytorch -- --ignored --nocapture
"$python" -W ignore tests/pytorch/ours.py "$made/ours"

echo "--- what PyTorch wrote, imported"
mkdir "$made/boards"
KILOFORMER_PYTORCH=$made/live KILOFORMER_BOARD_MODELS=$made/boards \
    cargo test --workspace --test pytorch -- --ignored --nocapture

echo "--- what was imported, on an emulated Cortex-M4F"
scripts/setup-device.sh thumbv7em-none-eabihf
KILOFORMER_BOARD_MODELS=$made/boards \
    cargo test --workspace --test device -- --ignored --nocapture models_of_a_folder
