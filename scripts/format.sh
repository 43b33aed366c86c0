#!/usr/bin/env bash
# Formats every C++ and CUDA file that git knows; with --check, changes nothing and fails where one is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."

options=(-i)
[ "${1:-}" != --check ] || options=(--dry-run --Werror)
# safe.directory: a checkout may belong to another user than the one who builds.
git -c safe.directory="$PWD" ls-files -z -- '*.hpp' '*.cpp' '*.h' '*.cuh' | xargs -0 -r clang-format "${options[@]}"
