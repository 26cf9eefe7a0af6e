#!/bin/bash
# Installs what is missing, builds tp_bench, and runs its scaling sweep. See --help.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/setup.sh

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
    cat <<'TEXT'
usage: bench/run.sh [option of tp_bench sweep]...

Installs what is missing (with apt-get; through sudo if you are not root), builds the release preset, and runs
"tp_bench sweep": a small GPT-2-style model is trained for some steps at tensor-parallel degree 1, 2, 4 and 8, and the
table compares speed, loss and bits with degree 1. Options are passed on; "tp_bench sweep --help" lists them.

examples
  bench/run.sh
  bench/run.sh --text my.txt --csv
  bench/run.sh --plot sweep.svg
TEXT
    exit 0
fi

jobs=$(nproc)
say "looking for compiler, cmake, ninja, gnuplot"
install_missing cc headers cmake ninja pkg-config gnuplot
missing=$(missing_of cc headers cmake ninja)
[ -z "$missing" ] || die "missing, and needed:" $missing
is_there gnuplot || echo "gnuplot is missing: --plot may be refused"

say "building (release)"
configure_and_build release "$jobs" tp_bench || exit 1
[ -x build/release/tp_bench ] || die "the build made no tp_bench"

say "build/release/tp_bench sweep $*"
exec build/release/tp_bench sweep "$@"
