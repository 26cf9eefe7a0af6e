#!/bin/bash
# Compiles every kernel for every supported GPU and records what each uses. See --help.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/setup.sh

usage() {
    cat <<'TEXT'
usage: tools/cuda-build.sh [option]...

Compiles src/cuda/*.cu for sm_80, 86, 89, 90a, 100 and 120 with warnings as errors, and writes one row a kernel and
architecture to bench/results/kernels.csv: registers a thread, stack, spilled bytes, static shared memory a block, as
ptxas counts them (shared memory that is asked for at launch is not in it). The exit status is 0 if everything
compiled, nothing was said, and attention and norm kernels spill nothing.

  --arch LIST     only these, separated by commas (80,86,89,90a,100,120); needs --out, so that the record stays whole
  --out FILE      where the rows go; default bench/results/kernels.csv
  --jobs N        compilers at the same time (default: number of cores)
  --help          this text
TEXT
}

all=80,86,89,90a,100,120 archs=$all out= jobs=$(nproc)
while [ $# -gt 0 ]; do
    case $1 in
    --arch | --out | --jobs) [ $# -ge 2 ] || die "$1 needs a value (see --help)" ;;
    esac
    case $1 in
    --arch) archs=$2; shift ;;
    --out) out=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --help | -h) usage; exit 0 ;;
    *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs $jobs: expected a number of at least 1"
[[ $archs =~ ^[0-9a-z]+(,[0-9a-z]+)*$ ]] || die "--arch '$archs': expected some of $all"
for arch in ${archs//,/ }; do
    [[ ,$all, == *,$arch,* ]] || die "--arch $archs: $arch is none of $all"
done
[ "$archs" = $all ] || [ -n "$out" ] || die "--arch $archs: where to? give --out FILE"
out=${out:-bench/results/kernels.csv}
nvcc=$(nvcc_path) || die "no nvcc: $(nvcc_advice)"

work=build/cuda
mkdir -p $work || exit 1
rm -f $work/*.log $work/*.failed
launcher=$(command -v ccache)
flags=(-std=c++17 -O3 -DNDEBUG -lineinfo -fmad=false --expt-relaxed-constexpr -Iinclude -Isrc -Werror=all-warnings
    "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off,-Werror" -Xptxas=-v)

compile() { # SOURCE ARCH
    local name
    name=$(basename "$1" .cu)
    $launcher "$nvcc" "${flags[@]}" -gencode "arch=compute_$2,code=sm_$2" -c -o "$work/$name.$2.o" "$1" \
        >"$work/$name.$2.log" 2>&1 ||
        touch "$work/$name.$2.failed"
    rm -f "$work/$name.$2.o"
}

say "$("$nvcc" --version | sed -n 's/^Cuda compilation tools, //p'): src/cuda/*.cu for $archs"
begin=$SECONDS
for arch in ${archs//,/ }; do
    for source in src/cuda/*.cu; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        compile "$source" "$arch" &
    done
done
wait
count=$(find src/cuda -name '*.cu' | wc -l)
echo "$count files, $(tr , '\n' <<<"$archs" | wc -l) architectures, $((SECONDS - begin)) s"

bad=0
for failed in "$work"/*.failed; do
    [ -e "$failed" ] || continue
    bad=1
    echo "FAILED: $(basename "$failed" .failed)"
    grep -v '^ptxas info\|bytes stack frame' "${failed%.failed}.log" | tail -n 20
done
if grep -qi 'warning' "$work"/*.log; then
    bad=1
    grep -i 'warning' "$work"/*.log
fi
[ $bad = 0 ] || die "not every file compiled without a word: nothing is recorded"

{
    echo "# tools/cuda-build.sh; $("$nvcc" --version | sed -n 's/^Cuda compilation tools, //p')"
    printf 'source,kernel,architecture,registers,stack bytes,'
    echo 'spill store bytes,spill load bytes,static shared bytes,barriers'
    for log in "$work"/*.log; do
        name=$(basename "$log" .log)
        awk -f tools/kernels.awk -v source="${name%.*}.cu" -v arch="sm_${name##*.}" "$log"
    done | c++filt | sed -E 's/\(([^()]|\([^()]*\))*\)"/"/; s/tpi:://g; s/"void /"/' | LC_ALL=C sort
} >"$work/kernels.csv"
cp "$work/kernels.csv" "$out" || exit 1

say "$out: $(grep -vc '^#\|^source' "$out") rows"
awk -f tools/kernels-summary.awk "$out"
