#!/bin/bash
# Everything that needs a GPU: builds, tests on it, measures, compares with PyTorch. See --help.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/setup.sh

usage() {
    cat <<'TEXT'
usage: bench/gpu.sh [--minutes N] [--only PART,...] [--jobs N] [NAME]
       GPU=sim bench/gpu.sh [same options]

On a machine with one or more GPUs: builds the preset "gpu" for them, runs the tests of the CUDA backend and of
several ranks on one GPU (and of NCCL, where there are two GPUs), measures products, norms, attention, block and
model, the same in PyTorch where a Python has it, each op of a step as a share of its limit (roofline), and what auto
chooses by (calibrate) and how well (auto). Results go to bench/results/NAME/ (NAME: by default the GPU's), one CSV a
command, and summary.md. The end says what was not run, and why. Without a GPU it says so, and does nothing; the exit
status is 0 then, and 1 if a part failed.

--minutes N   stop after about this many, the build included; default 10
--only        some parts: build tests ranks nccl info gemm norm attention block model peers roofline calibrate auto
--jobs N      compilers and test programs at the same time (default: number of cores)

GPU=sim runs the same parts on simulated GPUs, with small shapes, a few of the tests and no times, to see that the
script works; results go to build/gpu-self-test/.
TEXT
}

all_parts="build tests ranks nccl info gemm norm attention block model peers roofline calibrate auto"
minutes=10 only="" jobs=$(nproc) name=""
while [ $# -gt 0 ]; do
    case $1 in
    --minutes | --only | --jobs) [ $# -ge 2 ] || die "$1 needs a value (see --help)" ;;
    esac
    case $1 in
    --minutes) minutes=$2; shift ;;
    --only) only=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --help | -h) usage; exit 0 ;;
    -*) die "unknown option $1 (see --help)" ;;
    *) name=$1 ;;
    esac
    shift
done
[[ $minutes =~ ^[1-9][0-9]*$ && $jobs =~ ^[1-9][0-9]*$ ]] ||
    die "--minutes $minutes, --jobs $jobs: expected numbers of at least 1"
for one in ${only//,/ }; do
    [[ " $all_parts " == *" $one "* ]] || die "--only $only: there is no part $one, only $all_parts"
done
[[ ${GPU:-sim} = sim ]] || die "GPU=$GPU: expected sim, or nothing for the GPUs of this machine"

# ---- what is there ----

gpus=0 gpu_name="" architectures="" left_out=()
if [ "${GPU:-}" = sim ]; then
    gpus=2 gpu_name="simulated" preset=release plugin=libtp_cuda_sim.so
    folder=build/gpu-self-test tests='^cuda_(map|rope|random_fill)$'
else
    preset=gpu plugin=libtp_cuda.so tests='^cuda_'
    found=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>&1) || found=
    # "name, 9.0" each; what is older than 8.0, or doesn't say, is left out.
    fitting=$(awk -F', *' '$NF ~ /^[0-9]+\.[0-9]$/ && $NF + 0 >= 8' <<<"$found")
    mapfile -t left_out < <(awk -F', *' 'NF && !($NF ~ /^[0-9]+\.[0-9]$/ && $NF + 0 >= 8) {
        print "GPU " $1 ": its compute capability is " $NF ", at least 8.0 is needed" }' <<<"$found")
    if [ -n "$fitting" ]; then
        gpus=$(wc -l <<<"$fitting")
        gpu_name=$(head -n 1 <<<"$fitting" | cut -d, -f1)
        architectures=$(awk -F', *' '{ print $NF }' <<<"$fitting" | tr -d ' .' | sort -u | sed 's/$/-real/' |
            paste -sd';')
    fi
    if [ "$gpus" = 0 ]; then
        reason="nvidia-smi $(command -v nvidia-smi >/dev/null && echo "finds none" || echo "is not installed")"
        [ ${#left_out[@]} = 0 ] || reason=$(printf '%s. ' "${left_out[@]}" | sed 's/\. $//')
        echo "no GPU here that can be used: $reason. Nothing was built, run or measured."
        echo "GPU=sim bench/gpu.sh tries this script on simulated GPUs;" \
            "tests/run.sh --cuda runs all tests of the CUDA backend on them."
        exit 0
    fi
    folder=bench/results/${name:-$(tr 'A-Z ' 'a-z-' <<<"$gpu_name" | tr -cd 'a-z0-9-')}
fi
nvcc_path >/dev/null || die "no nvcc 13 or later: $(nvcc_advice)"
say "$gpus x $gpu_name${architectures:+ ($architectures)}"

# ---- parts: each has a budget, and what doesn't run is told at the end ----

end=$((SECONDS + 60 * minutes))
done_parts=() failed_parts=()

wanted() {
    [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]
}

# part NAME SECONDS COMMAND...: runs it within its budget and what is left of the whole.
part() {
    local part=$1 budget=$2 left=$((end - SECONDS)) begin=$SECONDS status
    shift 2
    wanted "$part" || { left_out+=("$part: not asked for"); return 0; }
    [ $left -ge 5 ] || { left_out+=("$part: the $minutes minutes are over (--minutes gives more)"); return 0; }
    [ "$budget" -le $left ] || budget=$left
    say "$part: $* (at most $budget s)"
    timeout "$budget" "$@"
    status=$?
    case $status in
    0) done_parts+=("$part: $((SECONDS - begin)) s") ;;
    77) left_out+=("$part: see its output above") ;;
    124) left_out+=("$part: not done within $budget s"); failed_parts+=("$part: stopped after $budget s") ;;
    *) failed_parts+=("$part: exit status $status") ;;
    esac
    return $status
}

build() {
    . tools/setup.sh
    if [ "$preset" = gpu ]; then
        run_logged build/logs/gpu/configure.log cmake --preset gpu "-DTP_CUDA_ARCHITECTURES=$architectures" || return 1
    fi
    configure_and_build "$preset" "$jobs"
}

# measure FILE ARGUMENT...: a command's rows, under its command line. Without any, what was recorded before stays.
measure() {
    local file=$folder/$1.csv status
    shift
    echo "tp_bench $*"
    "$program" "$@" --csv "$file.part" --plugin "$PWD/build/$preset/$plugin"
    status=$?
    if [ $status != 0 ] && [ ! -s "$file.part" ]; then
        echo "tp_bench $1: exit status $status and no rows; $file is left as it was"
        rm -f "$file.part"
        return $status
    fi
    {
        printf '# tp_bench %s\n# commit %s, %s, %s x %s\n' "$*" \
            "$(git describe --always --dirty 2>/dev/null || echo unknown)" "$(date -u +%Y-%m-%d)" \
            "$gpus" "$gpu_name"
        cat "$file.part" 2>/dev/null
    } >"$file"
    rm -f "$file.part"
    return $status
}

# measure_each FILE+ARGUMENTS...: several, "file|arguments" each; all are tried.
measure_each() {
    local one status=0
    for one in "$@"; do
        # shellcheck disable=SC2086 # arguments are words
        measure "${one%%|*}" ${one#*|} || status=1
    done
    return $status
}

peers() {
    local python
    for python in ${PYTHON:-python3} /usr/bin/python3; do
        if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
            "$python" bench/peers/torch_gpu.py "$folder" >"$folder/torch.csv.part" &&
                mv "$folder/torch.csv.part" "$folder/torch.csv"
            return
        fi
    done
    echo "skipped: no Python here has a PyTorch that sees a GPU"
    return 77
}

program=build/$preset/tp_bench
mkdir -p "$folder" || exit 1
export preset jobs architectures folder program plugin gpus gpu_name
export -f build measure measure_each peers

part build 420 bash -c build || { [ ! -x "$program" ] && die "the build failed (build/logs/$preset/)"; }
on=(--device cuda)
if [ "$preset" = gpu ]; then
    gemm=("gemm|gemm ${on[*]} --dtype bf16,f32 --seconds 0.05"
        "gemm-fast|gemm ${on[*]} --sums fast --dtype bf16,f32 --seconds 0.05"
        "gemm-fast-tf32|gemm ${on[*]} --sums fast --tf32 --dtype f32 --seconds 0.05"
        "gemm-large|gemm ${on[*]} --shapes 4096x4096x4096,8192x8192x4096 --dtype bf16 --seconds 0.1"
        "gemm-large-fast|gemm ${on[*]} --sums fast --shapes 4096x4096x4096,8192x8192x4096 --dtype bf16 --seconds 0.1")
    norm=("norm|norm ${on[*]} --hidden 768 --batch 8 --sequence 1024 --ranks 1 --seconds 0.2 --check"
        "norm-rms|norm ${on[*]} --family llama --hidden 4096 --batch 4 --sequence 2048 --ranks 1 --seconds 0.2 --check")
    gpt2="--model gpt2 --batch 8 --sequence 1024 --ranks 1"
    llama3="--model llama3-8b --batch 1 --ranks 1 --dtype bf16"
    attention=("attention|attention ${on[*]} $gpt2 --seconds 0.3"
        "attention-gqa|attention ${on[*]} $llama3 --sequence 4096 --seconds 0.3")
    block=("block|block ${on[*]} --model gpt2 --batch 8 --sequence 1024 --ranks 1,2 --seconds 0.3"
        "block-llama|block ${on[*]} $llama3 --sequence 2048 --seconds 0.3")
    model=("model|model ${on[*]} $gpt2 --dtype bf16,f32 --steps 12"
        "model-fast|model ${on[*]} --sums fast $gpt2 --dtype bf16,f32 --steps 12"
        "model-fast-tf32|model ${on[*]} --sums fast --tf32 $gpt2 --dtype f32 --steps 12")
    layers=(--hidden 256 --heads 8 --batch 2 --sequence 130 --ranks 1,2,4 --seconds 0.05 --check)
    roofline=("roofline-fast|roofline ${on[*]} --sums fast $gpt2 --dtype bf16,f32 --steps 8"
        "roofline|roofline ${on[*]} $gpt2 --dtype bf16 --steps 8")
    # Ranks get a GPU each where there are two, else they share one: the machine file says which.
    shared=(--ranks 2 --devices $((gpus < 2 ? 1 : 2)) --sums fast)
    calibrate=("calibrate|calibrate ${on[*]} ${shared[*]} --out $folder/machine-cuda.txt")
    auto=("auto|auto ${on[*]} ${shared[*]} --dtype bf16 --tokens 1024 --seconds 0.05")
else
    small="--hidden 32 --batch 1 --sequence 9 --ranks 1 --dtype f32"
    gemm=("gemm|gemm ${on[*]} --shapes 33x48x40 --dtype bf16"
        "gemm-fast-tf32|gemm ${on[*]} --sums fast --tf32 --shapes 33x48x40 --dtype f32")
    norm=("norm|norm ${on[*]} $small --check")
    attention=("attention|attention ${on[*]} $small --heads 4")
    block=("block|block ${on[*]} $small --heads 4")
    model=("model|model ${on[*]} --layers 1 $small --heads 4 --steps 2 --check")
    layers=(--hidden 32 --heads 4 --batch 1 --sequence 9 --ranks 1,2 --dtype f32 --check)
    roofline=("roofline|roofline ${on[*]} --layers 1 $small --heads 4 --steps 2")
    calibrate=("calibrate|calibrate ${on[*]} --devices 2")
    auto=("auto|auto ${on[*]} --devices 2 --dtype bf16 --only mlp")
fi
part tests 150 ctest --test-dir "build/$preset" -R "$tests" -j "$jobs" --output-on-failure --timeout 120
# Several ranks as threads on one GPU: the same bits as one, and the CPU's values within tolerance.
part ranks 60 "$program" block "${on[@]}" --plugin "build/$preset/$plugin" "${layers[@]}"
if [ "$gpus" -lt 2 ]; then
    left_out+=("nccl: needs two GPUs, here is $gpus")
elif [ "$preset" = release ]; then
    left_out+=("nccl: its tests on simulated GPUs are in tests/run.sh --cuda")
else
    part nccl 60 ctest --test-dir "build/$preset" -R '^cuda_nccl' --no-tests=error --output-on-failure --timeout 60
fi
[ "$gpus" -lt 2 ] || part ranks 60 "$program" block "${on[@]}" --devices 2 --plugin "build/$preset/$plugin" \
    "${layers[@]}"
part info 30 bash -c 'measure info info --device cuda --seconds 0.02'
for one in gemm norm attention block model; do
    declare -n commands=$one
    part $one 75 bash -c 'measure_each "$@"' - "${commands[@]}"
done
part peers 60 bash -c peers
for one in roofline calibrate auto; do
    declare -n commands=$one
    part $one 75 bash -c 'measure_each "$@"' - "${commands[@]}"
    # auto goes by what was measured, or measures it itself.
    [ $one != calibrate ] || [ ! -f "$folder/machine-cuda.txt" ] ||
        auto=("${auto[0]} --machine $folder/machine-cuda.txt")
done
[ "$gpus" -ge 2 ] || left_out+=("calibrate, auto: of ranks that share the one GPU; a link between two needs two")

# ---- the end ----

if [ "$preset" = gpu ]; then
    awk -v gpu="$gpus x $gpu_name" -f bench/csv.awk -f bench/gpu-summary.awk "$folder"/*.csv >"$folder/summary.md"
    say "$folder/summary.md"
    cat "$folder/summary.md"
fi
say "after $SECONDS s"
[ ${#done_parts[@]} = 0 ] || printf 'done      %s\n' "${done_parts[@]}"
[ ${#left_out[@]} = 0 ] || printf 'not run   %s\n' "${left_out[@]}"
[ ${#failed_parts[@]} = 0 ] || { printf 'FAILED    %s\n' "${failed_parts[@]}"; exit 1; }
