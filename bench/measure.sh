#!/bin/bash
# Measures what bench/results/ records, on an idle machine, in about half an hour. See --help.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/setup.sh

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
    cat <<'TEXT'
usage: bench/measure.sh [--quick] [--only PART,...] [NAME]

Builds the release preset and runs tp_bench: products, collectives, scaling, layers, a model beside PyTorch's,
overlap. Results go to bench/results/NAME/ (NAME: by default the processor and its number of cores), one CSV a
command, each beginning with the command, the commit and the machine's load; bench/results/summary.md, made from all
CSV files that are there, holds the goals beside the figures. Run it on an idle machine.

--only: some parts, the others' files stay:
  info gemm gemm-avx2 gemm-portable peers-onednn peers-onednn-small threads sweep collective peers-mpi attention model
  peers-torch-4x64 peers-torch-4x256 peers-torch-1x1024 roofline-4x64 roofline-4x256 roofline-1x1024 overlap-column
  overlap-row overlap-mlp overlap-attention direct-mlp direct-attention auto plans-4 plans-8 (the last two are
  simulated), or only the beginning of a name: peers-torch, roofline, overlap, direct, plans; "none" only writes the
  summary
peers-torch takes the interpreter that the variable TP_BENCH_PYTHON names, else python3, if that has PyTorch
--quick: a few samples of everything, to see that it runs
TEXT
    exit 0
fi
quick=
only=
while :; do
    case ${1:-} in
    --quick) quick=yes ;;
    --only) only=${2:?"--only: which parts?"} && shift ;;
    -*) echo "bench/measure.sh: unknown option $1" >&2 && exit 2 ;;
    *) break ;;
    esac
    shift
done

say "building (release)"
configure_and_build release "$(nproc)" tp_bench || exit 1
program=build/release/tp_bench
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
machine=$("$program" info --seconds 0.001 --csv | awk -F, '$1 == "processor" || $1 == "cores" { printf "%s-", $2 }' |
    tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
folder=bench/results/${1:-${machine%-}}
mkdir -p "$folder" || exit 1
load=$(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo unknown) # before: later it is our own
failed=0
began=$SECONDS

# wanted PART: --only says so, by its name or the beginning of it.
wanted() {
    local part
    [ -n "$only" ] || return 0
    for part in ${only//,/ }; do
        case $1 in "$part" | "$part"-*) return 0 ;; esac
    done
    return 1
}

# record FILE ARGUMENT...: one command's rows, under its command line.
record() {
    wanted "$1" || return 0
    local file=$folder/$1.csv words
    shift
    words="tp_bench $*"
    say "$words"
    "$program" "$@" --csv "$file.part"
    local status=$?
    {
        printf '# %s\n# commit %s, %s, load before %s\n' "$words" "$commit" "$(date -u +%Y-%m-%d)" "$load"
        cat "$file.part" 2>/dev/null
    } >"$file"
    rm -f "$file.part"
    [ $status = 0 ] || { echo "status $status: $words"; failed=$((failed + 1)); }
}

# brief SECONDS: how long each figure is measured.
if [ -n "$quick" ]; then
    brief() { echo --seconds 0.005 --samples 3; }
    steps=3
    near=1
else
    brief() { echo --seconds "$1"; }
    steps=60
    near=120 # seconds in which a host may bring the two cores together
fi

# Layers of GPT-2 with the tokens of a small batch: 36 products.
few_tokens=$(for tokens in 64 128 256; do
    printf "${tokens}x%s\n" 2304x768 768x768 3072x768 768x3072
done | paste -sd,)

# shellcheck disable=SC2046 # brief gives several words
{
    record info info $([ -n "$quick" ] && echo --seconds 0.01)
    record gemm gemm --dtype f32,bf16 --callers 1,2 $(brief 0.15)
    # Of other instruction sets: against their own peaks.
    "$program" info --seconds 0.001 --csv | grep -q "^avx2,yes" &&
        record gemm-avx2 gemm --isa avx2 --dtype f32,bf16 --callers 1 $(brief 0.1)
    # Portable kernels take more than ten operations for a fused multiply-add of two: shapes of some milliseconds, as
    # longer samples are seldom clean.
    record gemm-portable gemm --isa portable --dtype f32,bf16 --callers 1 --shapes 192x192x192,128x256x256,128x192x384 \
        $(brief 0.1)
    # Apart: a peer between our calls leaves its operands in the caches, which costs both sides some percent of the
    # peak.
    record peers-onednn gemm --dtype f32,bf16 --callers 1,2 --peer onednn $(brief 0.4)
    record peers-onednn-small gemm --dtype f32,bf16 --callers 1,2 --peer onednn --shapes "$few_tokens" $(brief 0.06)
    record threads sweep --scaling strong --ranks 1,2 --threads 1,2 --dtype f32,bf16 --steps $steps
    record sweep sweep --ranks 1,2,4,8 --threads 1 --dtype f32 --steps $((steps / 3 > 2 ? steps / 3 : 3))
    record collective collective --ranks 2 -b 4K -e 4M -f 4 --dtype f32 $(brief 0.04)
    # Only against what is installed.
    peers=$(cd build/release && find . -maxdepth 1 -name 'tp_peer_*pi*' -executable | sed 's,./tp_peer_,,' | sort -r |
        paste -sd,)
    if [ -n "$peers" ]; then
        record peers-mpi collective --peer "$peers" -b 4K -e 64M -f 4 --near "$near" $(brief 0.15)
    else
        wanted peers-mpi && echo "peers-mpi: no MPI library is installed"
    fi
    record attention attention --model gpt2 --batch 1 --sequence 1024 --ranks 1,2 --threads 1 $(brief 0.5)
    record model model --model gpt2 --layers 2 --batch 1 --sequence 512 --ranks 1,2 --dtype f32,bf16 \
        --steps $((steps / 6 > 3 ? steps / 6 : 4))
    whole=(--model gpt2 --ranks 2 --threads 1)
    [ -n "$quick" ] && whole+=(--layers 1)
    if ! wanted peers-torch-4x64 && ! wanted peers-torch-4x256 && ! wanted peers-torch-1x1024; then
        :
    elif "${TP_BENCH_PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
        beside=("${whole[@]}" --dtype f32,bf16 --peer torch)
        record peers-torch-4x64 model "${beside[@]}" --batch 4 --sequence 64 \
            --steps $((steps / 3 > 3 ? steps / 3 : 3)) --warmup 1
        record peers-torch-4x256 model "${beside[@]}" --batch 4 --sequence 256 --steps 6 --warmup 1
        record peers-torch-1x1024 model "${beside[@]}" --batch 1 --sequence 1024 --steps 6 --warmup 1
    else
        echo "peers-torch: ${TP_BENCH_PYTHON:-python3} has no PyTorch (TP_BENCH_PYTHON names an interpreter that has)"
    fi
    record roofline-4x64 roofline "${whole[@]}" --batch 4 --sequence 64 --steps $((steps / 6 > 3 ? steps / 6 : 3))
    record roofline-4x256 roofline "${whole[@]}" --batch 4 --sequence 256 --steps 9 --warmup 1
    record roofline-1x1024 roofline "${whole[@]}" --batch 1 --sequence 1024 --steps 9 --warmup 1
    chunked=(--overlap "ring,pipeline,pull" --chunks "8,16" --link gemm --sequence-parallel --hidden 768 --ffn 3072
        --sequence 128 --dtype f32)
    record overlap-column linear --kind column "${chunked[@]}" --batch 8 $(brief 0.4)
    record overlap-row linear --kind row "${chunked[@]}" --batch 8 $(brief 0.4)
    record overlap-mlp mlp "${chunked[@]}" --batch 4 $(brief 0.5)
    record overlap-attention attention --overlap "ring,pipeline,pull" --chunks "4,16" --link gemm --sequence-parallel \
        --hidden 768 --heads 12 --sequence 128 --dtype f32 --batch 4 $(brief 0.3)
    record direct-mlp mlp --overlap none,direct --sequence-parallel --hidden 768 --ffn 3072 --batch 4 --sequence 128 \
        $(brief 2)
    record direct-attention attention --overlap none,direct --sequence-parallel --hidden 768 --heads 12 --batch 4 \
        --sequence 128 $(brief 2)
    if [ -n "$quick" ]; then
        record auto auto --dtype f32 --tokens 40 --seconds 0.005 --samples 3
    else
        record auto auto --seconds 0.03
    fi
    # Simulated: GEMMs of 10 ms, and links over which (n - 1)/n of 16 MB take as long.
    simulated=(plan --algorithm "ring,pipeline,pull"
        --pattern "gather-gemm,gemm-scatter,backward,chain,chain-backward" --chunks "8,16")
    record plans-4 "${simulated[@]}" --ranks 4 --link 5e-6,1.2e9
    record plans-8 "${simulated[@]}" --ranks 8 --link 5e-6,1.4e9
}

awk -v commit="$commit" -v day="$(date -u +%Y-%m-%d)" -v folder="${folder#bench/results/}" -v quick="$quick" \
    -f bench/csv.awk -f bench/summary.awk \
    "$folder"/*.csv >bench/results/summary.md || failed=$((failed + 1))
say "bench/results/summary.md, after $((SECONDS - began)) s"
cat bench/results/summary.md
[ $failed = 0 ] || { echo "$failed failed"; exit 1; }
