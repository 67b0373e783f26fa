#!/usr/bin/env bash
# Everything that must hold, on a bare machine with Rust and nothing else; CI and a developer run the same.
#
# Usage: ./ci.sh [STEP...]      (default: all of them, in this order)
#
#   setup     gets bare-metal targets and QEMU (scripts/setup-device.sh)
#   shell     shellcheck over our scripts, where it is installed
#   fmt       rustfmt
#   clippy    clippy on the host and for every board, warnings are errors
#   doc       documentation, warnings are errors
#   test      host tests
#   device    the same words on the host and in QEMU: same text, same bits
#   bench     instructions of every operator and of the model in QEMU: none has grown by more than 2%
#   no-panic  links a program that cannot panic, per target and optimisation level
#   sizes     bytes of code of a minimal program, which may not pass a bound
#
# and, only when they are named:
#
#   all-sizes        what each way to search adds; bytes of flash and RAM of the firmware for each board
#   --with-pytorch   installs PyTorch in target/ and compares with it live (tests/pytorch/README.md)
set -euo pipefail
cd "$(dirname "$0")"

readonly ALL_STEPS=(setup shell fmt clippy doc test device bench no-panic sizes)
# Most bytes of code of `runtime` and `model-format` in a minimal program without features on a Cortex-M4.
readonly MOST_CODE=24576
# Targets whose code is probed for panics and weighed, the first one first of all; and all that are built for.
readonly PROBED_TARGETS=(thumbv7em-none-eabihf thumbv6m-none-eabi riscv32imc-unknown-none-elf)
readonly TARGETS=("${PROBED_TARGETS[@]}" thumbv7m-none-eabi thumbv8m.main-none-eabihf
    aarch64-unknown-none wasm32-unknown-unknown)
# What cargo is told to probe kernels of further cores, only with the profile where the optimiser proves least.
# (WebAssembly takes a missing symbol for an import, so that nothing can be probed there.)
readonly MORE_PROBES=(
    "--target thumbv7m-none-eabi"
    "--target thumbv8m.main-none-eabihf --config ../../firmware-example/.cargo/cortex-m33.toml"
    "--target thumbv8m.main-none-eabihf --config ../../firmware-example/.cargo/cortex-m55.toml"
    "--target aarch64-unknown-none"
    "--target thumbv7em-none-eabihf --no-default-features"
)
# What cargo is told to build the firmware for each board, from firmware-example/.
readonly BOARDS=(
    "mps2-an386 --target thumbv7em-none-eabihf"
    "mps2-an386-search --target thumbv7em-none-eabihf --features search"
    "mps2-an386-bench --target thumbv7em-none-eabihf --features bench"
    "mps2-an385 --target thumbv6m-none-eabi"
    "mps2-an385-m3 --target thumbv7m-none-eabi"
    "mps2-an505 --target thumbv8m.main-none-eabihf --config .cargo/cortex-m33.toml"
    "mps3-an547 --target thumbv8m.main-none-eabihf --features mps3 --config .cargo/cortex-m55.toml"
    "riscv-virt --target riscv32imc-unknown-none-elf"
    "aarch64-virt --target aarch64-unknown-none"
    "node --target wasm32-unknown-unknown"
    "node-simd128 --target wasm32-unknown-unknown --config .cargo/wasm-simd128.toml"
    "microbit --target thumbv6m-none-eabi --features microbit"
    "stm32f4 --target thumbv7em-none-eabihf --features stm32f4"
    "rp2040 --target thumbv6m-none-eabi --features rp2040"
)

# Profiles of tests/no-panic: opt-level 3, s and z.
readonly PROFILES=(release small smallest)
# Models with random weights, for firmware that nothing trained is needed for.
readonly RANDOM_MODELS=$PWD/target/random-models
readonly SHIPPED_MODEL=$PWD/models/g2p-en.kfm

# Output of the test runs of this call, for the counts at the end.
test_log=$(mktemp)
trap 'rm -f "$test_log"' EXIT

# for_each_board COMMAND...: runs it in firmware-example, once per board, with cargo's options added
# (--target and its value first), the board's name in $board_name and a model that fits it.
for_each_board() {
    local board board_name options
    # Built as the tests are, with the features of the whole workspace, so that nothing is built twice.
    cargo build --quiet --workspace --example random_models
    "${CARGO_TARGET_DIR:-target}/debug/examples/random_models" "$RANDOM_MODELS" >/dev/null
    for board in "${BOARDS[@]}"; do
        board_name=${board%% *}
        read -ra options <<<"${board#* }"
        (
            KILOFORMER_MODEL=$(model_for "$board_name")
            export KILOFORMER_MODEL
            cd firmware-example && "$@" "${options[@]}"
        )
    done
}

# The model that ships, or one like it with random weights; a tiny one for the micro:bit.
model_for() {
    if [ "$1" = microbit ]; then
        echo "$RANDOM_MODELS/tiny.kfm"
    elif [ -e "$SHIPPED_MODEL" ]; then
        echo "$SHIPPED_MODEL"
    else
        echo "$RANDOM_MODELS/fixed.kfm"
    fi
}

step_setup() { scripts/setup-device.sh "${TARGETS[@]}"; }

step_shell() {
    if command -v shellcheck >/dev/null; then
        shellcheck ci.sh .ci/run scripts/*.sh tests/pytorch/*.sh benches/peers/*.sh
    else
        echo "shellcheck is not installed: skipped"
    fi
}

step_fmt() {
    cargo fmt --all --check
    (cd firmware-example && cargo fmt --check)
    (cd tests/no-panic && cargo fmt --check)
    (cd tests/features && cargo fmt --check)
}

step_clippy() {
    cargo clippy --workspace --all-targets --quiet -- -D warnings
    local target
    for target in "${TARGETS[@]}"; do
        echo "--- runtime for $target"
        cargo clippy -p model-format -p runtime --target "$target" --quiet -- -D warnings
    done
    for_each_board device_clippy
    (cd tests/no-panic && cargo clippy --quiet --target "${PROBED_TARGETS[0]}" -- -D warnings)
    (cd tests/features && cargo clippy --quiet --all-targets -- -D warnings)
}

device_clippy() {
    echo "--- firmware for $board_name"
    cargo clippy --release --quiet "$@" -- -D warnings
}

step_doc() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet; }

step_test() {
    {
        cargo test --workspace
        # Kernels as the workspace's features do not let them run: nothing counts what saturates. At level 1,
        # which compiles in a sixth of the time.
        CARGO_PROFILE_DEV_OPT_LEVEL=1 cargo test --package kiloformer-benches
        cd tests/features
        cargo test
        # As a core whose kernels know one layout reads files.
        RUSTFLAGS='--cfg kiloformer_layout="paired-rows"' cargo test
    } 2>&1 | tee -a "$test_log"
}

step_device() {
    cargo test --workspace --test device -- --ignored --nocapture --test-threads=2 2>&1 |
        tee -a "$test_log"
}

step_bench() {
    cargo test --workspace --test device-bench -- --include-ignored --nocapture 2>&1 |
        tee -a "$test_log"
}

step_no_panic() {
    local target profile probe options
    for probe in "${MORE_PROBES[@]}"; do
        echo "--- $probe"
        read -ra options <<<"$probe"
        (cd tests/no-panic && cargo build --quiet --bin no-panic --profile smallest "${options[@]}")
    done
    for target in "${PROBED_TARGETS[@]}"; do
        for profile in "${PROFILES[@]}"; do
            echo "--- $target, profile $profile"
            (cd tests/no-panic && cargo build --quiet --profile "$profile" --target "$target")
        done
        notices_a_panic "$target"
    done
}

# The control: with one panic added the probe must not link, or it proves nothing.
notices_a_panic() {
    local output
    output=$(cd tests/no-panic &&
        cargo build --quiet --bin no-panic --profile smallest --target "$1" --features control 2>&1) ||
        true
    grep -q "undefined symbol: a_panic_path_survives" <<<"$output" || {
        echo "the probe does not notice a panic: $output" >&2
        return 1
    }
}

step_sizes() {
    local target profile
    echo "--- code of the least that a firmware with an integer model calls, in bytes"
    printf '%-30s %10s %10s %10s %10s\n' target profile .text of-it-ours .rodata
    for target in "${PROBED_TARGETS[@]}"; do
        for profile in "${PROFILES[@]}"; do
            minimal_size "$target" "$profile"
        done
    done
    echo "--- the same without features: integer models with ReLU, 8 bits, in the target's own layout, ASCII"
    for profile in smallest small; do
        minimal_size "${PROBED_TARGETS[0]}" "$profile" --no-default-features
    done
    [ "$(code_of "tests/no-panic/target/${PROBED_TARGETS[0]}/small/minimal")" -le "$MOST_CODE" ] || {
        echo "that is more than $MOST_CODE bytes" >&2
        return 1
    }
}

step_all_sizes() {
    local option
    echo "--- the same on Cortex-M4 with one more way to search"
    for option in scores constraints sampling beams poll alignment; do
        printf '%-14s' "$option"
        minimal_size "${PROBED_TARGETS[0]}" small --features "with-$option"
    done
    echo "--- the firmware example, in bytes; constants hold the model"
    printf '%-17s %12s %12s %12s %12s\n' board code constants initialised zeroed
    for_each_board board_sizes
}

# The bytes of code of `runtime` and `model-format` in a program: the entry point is mostly what was inlined
# into it; the rest is Rust's own: copies, UTF-8.
code_of() {
    nm -S -t d "$1" |
        awk '$3 ~ /^[tT]$/ && $4 ~ /runtime|model_format|^_start$/ { sum += $2 } END { print sum }'
}

# minimal_size TARGET PROFILE [CARGO OPTION...]: what `runtime` and `model-format` have of it, too
minimal_size() {
    (
        cd tests/no-panic
        cargo build --quiet --bin minimal --profile "$2" --target "$1" "${@:3}"
        local program="target/$1/$2/minimal"
        local ours
        ours=$(code_of "$program")
        size -A -d "$program" | awk -v target="$1" -v profile="$2" -v ours="$ours" '
            $1 == ".text" { text = $2 }
            $1 == ".rodata" { constants = $2 }
            END { printf "%-30s %10s %10d %10d %10d\n", target, profile, text, ours, constants }'
    )
}

# Builds for one board, whose options these are, and prints the bytes of its sections.
board_sizes() {
    # A WebAssembly module has no sections of this kind.
    case "$2" in wasm32*) return ;; esac
    cargo build --release --quiet "$@"
    size -A -d "target/$2/release/firmware-example" | awk -v board="$board_name" '
        $1 == ".text" || $1 == ".vector_table" || $1 == ".boot2" || $1 == ".start_vectors" { code += $2 }
        $1 == ".rodata" { constants = $2 }
        $1 == ".data" { data = $2 }
        $1 == ".bss" || $1 == ".uninit" { zeroed += $2 }
        END { printf "%-17s %12d %12d %12d %12d\n", board, code, constants, data, zeroed }'
}

step_with_pytorch() {
    tests/pytorch/run.sh "$PWD/target/pytorch-venv" 2>&1 | tee -a "$test_log"
}

# Adds up the closing lines of all test runs of this call.
print_counts() {
    awk '/^test result:/ { passed += $4; failed += $6 }
        END { if (passed + failed) printf "%d passed, %d failed\n", passed, failed }' "$test_log"
}

main() {
    local step
    local steps=("$@")
    [ "$#" -gt 0 ] || steps=("${ALL_STEPS[@]}")
    for step in "${steps[@]}"; do
        local name=${step#--}
        declare -F "step_${name//-/_}" >/dev/null || {
            echo "ci.sh: no step '$step'; there are: ${ALL_STEPS[*]} all-sizes --with-pytorch" >&2
            exit 2
        }
        local begin=$SECONDS
        echo "=== $step"
        "step_${name//-/_}"
        echo "=== $step: $((SECONDS - begin)) s"
    done
    print_counts
}

main "$@"
