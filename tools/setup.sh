# Sourced by tests/run.sh and bench/run.sh: installs what is missing, with apt-get, and says so.

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The Debian package of each thing we look for, and how to see that it is there.
package_of() {
    case $1 in
    cc) echo gcc ;;
    headers) echo libc6-dev ;;
    ninja) echo ninja-build ;;
    criterion) echo libcriterion-dev ;;
    cjson) echo libcjson-dev ;;
    gnuplot) echo gnuplot-nox ;;
    clang-runtime) echo libclang-rt-dev ;;
    nvcc) echo "nvcc 13 or later" ;; # no package of Debian's
    *) echo "$1" ;;
    esac
}
is_there() {
    case $1 in
    cc) command -v gcc ;;
    headers) [ -e /usr/include/stdio.h ] ;;
    criterion) pkg-config --exists criterion ;;
    cjson) pkg-config --exists libcjson ;;
    nvcc) nvcc_path ;;
    clang-runtime) [ -e "$(clang -print-file-name=libclang_rt.asan-x86_64.a 2>/dev/null)" ] ||
        [ -e "$(clang -print-resource-dir 2>/dev/null)/lib/linux" ] ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}
missing_of() {
    local thing
    for thing in "$@"; do
        is_there "$thing" || echo "$thing"
    done
}

# The CUDA compiler: in the path, or where NVIDIA's own packages put it. One that is too old is none. CUDA 13 can't
# come from Debian.
nvcc_path() {
    local nvcc release
    nvcc=$(command -v nvcc) || nvcc=/usr/local/cuda/bin/nvcc
    release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [ "${release:-0}" -ge 13 ] && echo "$nvcc"
}
nvcc_advice() {
    echo "the CUDA backend needs the CUDA toolkit 13 or later (nvcc, cudart, cuBLASLt, NVTX) and NCCL." \
        "Debian's nvidia-cuda-toolkit is too old; take cuda-toolkit-13-0, libnccl2 and libnccl-dev" \
        "from NVIDIA's repository for Debian (https://developer.nvidia.com/cuda-downloads)"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# install_missing THING...: tries to install; what is still missing then is printed by missing_of.
install_missing() {
    local thing packages=()
    for thing in $(missing_of "$@"); do
        [ "$thing" = nvcc ] || packages+=("$(package_of "$thing")")
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || { echo "missing: ${packages[*]} (no apt-get here to install them)"; return 0; }
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        { echo "missing: ${packages[*]} (neither root nor sudo)"; return 0; }
    say "installing ${packages[*]}"
    as_root apt-get update -q >/dev/null || echo "apt-get update failed"
    # One by one if they can't be had together, so that one unknown name doesn't cost the others.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}" \
        >/dev/null ||
        for thing in "${packages[@]}"; do
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$thing" \
                >/dev/null ||
                echo "could not install $thing"
        done
}

# run_logged LOG COMMAND...: on a terminal shows the output too, elsewhere its end if the command fails.
run_logged() {
    local log=$1
    shift
    mkdir -p "$(dirname "$log")"
    if [ -t 1 ]; then
        "$@" 2>&1 | tee "$log"
        return "${PIPESTATUS[0]}"
    fi
    "$@" >"$log" 2>&1 && return 0
    tail -n 60 "$log"
    return 1
}

# configure_and_build PRESET JOBS [TARGET]
configure_and_build() {
    local logs=build/logs/$1
    run_logged "$logs/configure.log" cmake --preset "$1" ||
        { echo "$1: configure failed (all of it: $logs/configure.log)"; return 1; }
    [ -t 1 ] || sed -n 's/^-- \(  \)\?\(tp [0-9].*\|backends: .*\|sanitizers: .*\|found .*\|left out .*\)/  \2/p' \
        "$logs/configure.log"
    run_logged "$logs/build.log" cmake --build --preset "$1" -j "$2" ${3:+--target "$3"} ||
        { echo "$1: build failed (all of it: $logs/build.log)"; return 1; }
}
