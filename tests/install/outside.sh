#!/bin/bash
# outside.sh BUILD: installs the build to a temporary prefix, moves it, and builds a small outside program against it,
# in C11 and C++17, with find_package(tp) and with pkg-config, shared and static, and runs each. tp_bench, where it
# was built, must work from there too.
set -eu
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
compiler() { sed -n "s/^CMAKE_$1_COMPILER:[A-Z]*=//p" "$build/CMakeCache.txt"; }
cc=$(compiler C) cxx=$(compiler CXX)
case $cxx in
*NOTFOUND | "") languages="C" cxx="" ;;
*) languages="C CXX" ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { # COMMAND...: silent unless it fails
    "$@" >"$work/log" 2>&1 || { echo "outside: failed: $*"; cat "$work/log"; exit 1; }
}

run cmake --install "$build" --prefix "$work/first"
# Nothing in the installed tree may depend on where it was installed.
mv "$work/first" "$work/prefix"
prefix=$work/prefix

run cmake -S "$here/outside" -B "$work/package" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    ${cxx:+-DCMAKE_CXX_COMPILER="$cxx"} -DLANGUAGES="${languages// /;}"
run cmake --build "$work/package"
for program in "$work"/package/outside_*; do
    run "$program"
    echo "outside: find_package, $(basename "$program"): works"
done

if grep -q '^TP_BENCH:BOOL=ON' "$build/CMakeCache.txt"; then
    bench=$prefix/bin/tp_bench
    run "$bench" gemm --shapes 33x48x40 --seconds 0.002 --samples 3
    run "$bench" plan --algorithm auto --ranks 2 --rows 64 --cols 64 --inner 64
    # What it starts is of this tree, not of the one that it was built in.
    printf '#!/bin/sh\necho "fail got $1"\n' >"$work/python"
    chmod +x "$work/python"
    "$bench" model --layers 1 --hidden 32 --steps 2 --ranks 1 --peer torch --python "$work/python" \
        >"$work/log" 2>&1 || true
    script=$(sed -n 's/.*: got \(.*torch_step.py\)$/\1/p' "$work/log")
    case $(realpath "${script:-/missing}") in
    "$(realpath "$prefix")"/*) ;;
    *) echo "outside: the installed tp_bench starts '$script'"; cat "$work/log"; exit 1 ;;
    esac
    for name in openmpi mpich; do
        [ ! -e "$build/tp_peer_$name" ] || find "$prefix" -name "tp_peer_$name" -perm -u+x | grep -q . ||
            { echo "outside: tp_peer_$name is not installed"; exit 1; }
    done
    echo "outside: tp_bench: works"
fi

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tp.pc)")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir tp)
warnings="-pedantic -Wall -Wextra -Werror"
# shellcheck disable=SC2046,SC2086
for language in $languages; do
    case $language in
    C) compile="$cc -std=c11 -x c" ;;
    *) compile="$cxx -std=c++17 -x c++" ;;
    esac
    run $compile $warnings "$here/outside/outside.c" -x none -o "$work/shared" $(pkg-config --cflags --libs tp)
    run env LD_LIBRARY_PATH="$libdir" "$work/shared"
    run $compile $warnings "$here/outside/outside.c" -x none -o "$work/static" $(pkg-config --cflags tp) \
        "$libdir/libtp.a" -lm -pthread
    run "$work/static"
    echo "outside: pkg-config, $language, shared and static: works"
done
packaged=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$(find "$prefix" -name tp-config-version.cmake)")
[ "$(pkg-config --modversion tp)" = "$packaged" ] ||
    { echo "outside: pkg-config and CMake give different versions"; exit 1; }
