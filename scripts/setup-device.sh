#!/usr/bin/env bash
# Gets what the device side needs: bare-metal standard libraries for the installed rustc, QEMU, and Node,
# which plays the board of WebAssembly.
#
# Usage: scripts/setup-device.sh [TARGET...]     (default: the targets ci.sh builds for)
#
# Does nothing, silently, where everything is there. Targets come from `rustup target add`; where
# rustup's server does not answer (a CI machine that reaches only package registries), `core`,
# `alloc` and `compiler_builtins` are built from Debian's rust-src of the very same version. QEMU
# and Node come from apt. Fails, and says why, where neither way works.
set -euo pipefail

readonly DEFAULT_TARGETS=(thumbv7em-none-eabihf thumbv6m-none-eabi riscv32imc-unknown-none-elf
    thumbv7m-none-eabi thumbv8m.main-none-eabihf aarch64-unknown-none wasm32-unknown-unknown)
readonly CRATES=(core alloc compiler_builtins)
# Debian suites that may hold the source of this rustc, newest release line first.
readonly SOURCE_SUITES=(trixie-backports sid)
# Seconds rustup may take for one target before we call its server unreachable.
readonly RUSTUP_LIMIT=180

work_dir=""
trap '[ -z "$work_dir" ] || rm -rf "$work_dir"' EXIT

say() { echo "setup-device: $*" >&2; }
die() {
    say "error: $*"
    exit 1
}

# Runs a command as root: as it is, or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null || die "need root (or sudo) for: $*"
        sudo "$@"
    fi
}

# make_work_dir: a scratch directory for downloads and builds, removed at exit.
make_work_dir() {
    [ -n "$work_dir" ] || work_dir=$(mktemp -d)
}

# --- bare-metal targets -------------------------------------------------------------------------

sysroot_lib() { echo "$(rustc --print sysroot)/lib/rustlib/$1/lib"; }

have_target() { compgen -G "$(sysroot_lib "$1")/libcore-*.rlib" >/dev/null; }

add_by_rustup() {
    command -v rustup >/dev/null || return 1
    RUST_BACKTRACE=0 RUSTUP_MAX_RETRIES=0 timeout "$RUSTUP_LIMIT" rustup target add "$@" >&2
}

# apt_with_suites NAME SUITE...: writes NAME.sources for these suites of the system's Debian mirror,
# with package lists of its own; sets APT_OPTIONS. The system's own configuration stays as it is.
apt_with_suites() {
    local name=$1 mirror
    shift
    command -v apt-get >/dev/null || die "this is not a Debian system: no apt-get"
    # shellcheck disable=SC2016  # the variable is apt's
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 '/debian/$') ||
        die "apt knows no Debian mirror"
    make_work_dir
    local root=$work_dir/apt-$name
    mkdir -p "$root/parts" "$root/lists/partial" "$root/cache/archives/partial"
    cat >"$root/parts/$name.sources" <<SOURCES
Types: deb
URIs: $mirror
Suites: $*
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    APT_OPTIONS=(-qq -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$root/parts"
        -o "Dir::State::lists=$root/lists" -o "Dir::Cache=$root/cache"
        -o "APT::Sandbox::User=root" -o "DPkg::Lock::Timeout=300")
}

# Prints the version of Debian's rust-src that matches the installed rustc, if any.
matching_rust_src() {
    apt-cache "${APT_OPTIONS[@]}" madison rust-src |
        awk -v want="$(rustc --version | cut -d' ' -f2)" -F' *[|] *' \
            'index($2, want "+") == 1 || index($2, want "-") == 1 { print $2; exit }'
}

# Puts the standard library's source where cargo's -Zbuild-std looks for it.
add_source_from_debian() {
    local destination suite version
    destination="$(rustc --print sysroot)/lib/rustlib/src/rust"
    [ -e "$destination/library/core/Cargo.toml" ] && return
    for suite in "${SOURCE_SUITES[@]}"; do
        apt_with_suites rust-src "$suite"
        apt-get "${APT_OPTIONS[@]}" update >&2 || continue
        version=$(matching_rust_src)
        [ -n "$version" ] && break
    done
    [ -n "${version:-}" ] ||
        die "rustup's server does not answer, and Debian (${SOURCE_SUITES[*]}) has no rust-src for" \
            "$(rustc --version); use a version that it has"
    # Not installed: the package conflicts with Debian's rustup.
    (cd "$work_dir" && apt-get "${APT_OPTIONS[@]}" download "rust-src=$version" &&
        dpkg -x rust-src_*.deb unpacked) >&2
    mkdir -p "$destination"
    cp -R "$(echo "$work_dir"/unpacked/usr/src/rustc-*/library)" "$destination/"
}

# build_target TARGET: builds the bare-metal crates and installs them into the sysroot.
build_target() {
    local target=$1 crate built lib
    local project=$work_dir/empty out=$work_dir/target-$1
    mkdir -p "$project/src"
    echo '#![no_std]' >"$project/src/lib.rs"
    printf '[package]\nname = "empty"\nedition = "2024"\n[workspace]\n' >"$project/Cargo.toml"
    # Without bitcode, fat LTO of a firmware fails ("can't find section .llvmbc").
    (cd "$project" && RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Cembed-bitcode=yes CARGO_PROFILE_RELEASE_DEBUG=0 \
        CARGO_TARGET_DIR=$out cargo build --quiet --release --target "$target" \
        "-Zbuild-std=$(IFS=,; echo "${CRATES[*]}")") >&2
    lib=$(sysroot_lib "$target")
    mkdir -p "$lib"
    for crate in "${CRATES[@]}"; do
        mapfile -t built < <(compgen -G "$out/$target/release/deps/lib$crate-*.rlib")
        # Two of a kind in a sysroot are error E0464 for whoever builds with it.
        [ "${#built[@]}" -eq 1 ] || die "expected one lib$crate for $target, found ${#built[@]}"
        rm -f "$lib/lib$crate"-*.rlib
        # core comes last: `have_target` takes its presence for the whole.
        cp "${built[0]}" "$work_dir/"
    done
    cp "$work_dir"/lib{alloc,compiler_builtins}-*.rlib "$lib/"
    cp "$work_dir"/libcore-*.rlib "$lib/"
    rm -f "$work_dir"/lib*.rlib
    rm -rf "$out"
}

add_targets() {
    local target missing=()
    for target in "$@"; do
        have_target "$target" || missing+=("$target")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    say "adding ${missing[*]}"
    add_by_rustup "${missing[@]}" && return
    say "rustup cannot add them: building core from Debian's rust-src instead"
    make_work_dir
    add_source_from_debian
    for target in "${missing[@]}"; do
        have_target "$target" || build_target "$target"
    done
}

# --- QEMU ---------------------------------------------------------------------------------------

readonly EMULATORS=(qemu-system-arm qemu-system-aarch64 qemu-system-riscv32)

have_qemu() { command -v "${EMULATORS[@]}" | awk -v want="${#EMULATORS[@]}" 'END { exit NR != want }'; }

# The machine's own suites, or, where its qemu packages are from backports already, that suite.
install_qemu() {
    local packages=(qemu-system-arm qemu-system-misc) codename
    command -v apt-get >/dev/null ||
        die "one of ${EMULATORS[*]} is missing, and there is no apt-get to get it"
    say "installing QEMU"
    as_root apt-get -qq update >&2 || say "apt-get update had errors"
    install_packages "${packages[@]}" && have_qemu && return
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt_with_suites qemu "$codename" "$codename-backports"
    as_root apt-get "${APT_OPTIONS[@]}" update >&2
    install_packages "${APT_OPTIONS[@]}" -t "$codename-backports" "${packages[@]}"
    have_qemu || die "one of ${EMULATORS[*]} is still missing after apt-get install"
}

install_packages() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
        install --yes --no-install-recommends "$@" >/dev/null
}

# --- Node ---------------------------------------------------------------------------------------

install_node() {
    command -v apt-get >/dev/null || die "node is missing, and there is no apt-get to get it"
    say "installing Node"
    as_root apt-get -qq update >&2 || say "apt-get update had errors"
    install_packages nodejs
    command -v node >/dev/null || die "node is still missing after apt-get install"
}

main() {
    local targets=("$@")
    [ "$#" -gt 0 ] || targets=("${DEFAULT_TARGETS[@]}")
    command -v rustc >/dev/null || die "no rustc: install Rust first"
    add_targets "${targets[@]}"
    have_qemu || install_qemu
    command -v node >/dev/null || install_node
}

main "$@"
