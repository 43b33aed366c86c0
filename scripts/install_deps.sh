#!/usr/bin/env bash
# Installs what building and testing commfuse needs: packages of the distribution (Debian 12, Ubuntu 24.04 or newer),
# and, where there is no CUDA toolkit, CUDA's headers and NVRTC from Python wheels into .cuda/ in the source tree, where
# the build and the programs look for them. Does nothing, quickly, where everything is there.
#
#   COMMFUSE_IGNORE_TOOLKIT=1   behave as if there were no CUDA toolkit (the build and the library obey it too)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build git ccache clang-format
  libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libsodium-dev libvalijson-dev
  libboost-context-dev libgtest-dev libgmock-dev libbenchmark-dev libopenmpi-dev openmpi-bin
)
# One release for headers and NVRTC, so that two machines compile the same kernels.
cuda_wheels=("nvidia-cuda-nvrtc==13.0.*" "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*")

die() {
  echo "install_deps.sh: $*" >&2
  exit 1
}

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

install_packages() {
  local missing=()
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "no apt-get here; install these in your distribution's way: ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; as root: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  echo "Installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

has_toolkit() {
  [ -z "${COMMFUSE_IGNORE_TOOLKIT:-}" ] || [ "$COMMFUSE_IGNORE_TOOLKIT" = 0 ] || return 1
  local home
  for home in "${CUDA_HOME:-}" /usr/local/cuda; do
    [ -n "$home" ] && [ -e "$home/include/cuda.h" ] && [ -e "$home/include/nvrtc.h" ] || continue
    compgen -G "$home/lib64/libnvrtc.so*" >/dev/null && return 0
  done
  return 1
}

has_private_cuda() { [ "$(cat .cuda/wheels 2>/dev/null)" = "${cuda_wheels[*]}" ]; }

install_private_cuda() {
  python3 -m pip --version >/dev/null 2>&1 || install_packages python3 python3-pip
  echo "No CUDA toolkit: taking headers and NVRTC from Python wheels into .cuda/"
  local work
  work=$(mktemp -d .cuda_download_XXXXXX)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$PWD/$work'" EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$work/wheels" "${cuda_wheels[@]}"
  for wheel in "$work"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$work/unpacked"
  done
  mkdir "$work/cuda"
  mv "$work"/unpacked/nvidia/cu13/include "$work/cuda/include"
  mkdir "$work/cuda/lib"
  mv "$work"/unpacked/nvidia/cu13/lib/libnvrtc*.so.13* "$work/cuda/lib/"
  rm -f "$work"/cuda/lib/*.alt.so.*
  for file in include/cuda.h include/nvrtc.h include/cuda_fp8.h include/cuda_fp4.h lib/libnvrtc.so.13; do
    [ -e "$work/cuda/$file" ] || die "the wheels hold no $file"
  done
  echo "${cuda_wheels[*]}" >"$work/cuda/wheels"
  rm -rf .cuda
  mv "$work/cuda" .cuda
}

install_packages "${packages[@]}"
has_toolkit || has_private_cuda || install_private_cuda
