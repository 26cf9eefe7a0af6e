#!/bin/bash
# gpu_scripts.sh SOURCE: what bench/gpu.sh and tools/cuda-build.sh refuse, leave out and leave alone, with an
# nvidia-smi, an nvcc and a tp_bench that are made up, in a copy of the scripts.
set -u
export LC_ALL=C
source=$1
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/{bench/results/nvidia-h200,tools,build/gpu,programs}
cp "$source"/bench/{gpu.sh,gpu-summary.awk,csv.awk} "$folder/bench"
cp "$source"/tools/{setup.sh,cuda-build.sh} "$folder/tools"
cd "$folder" || exit 1
printf '#!/bin/sh\nprintf "$GPUS"\n' >programs/nvidia-smi
printf '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V13.0.88"\n' >programs/nvcc
printf '#!/bin/sh\nexit 3\n' >build/gpu/tp_bench
chmod +x programs/* build/gpu/tp_bench
export PATH=$folder/programs:$PATH
unset GPU
status=0 checks=0

# expect STATUS WORDS COMMAND...: its exit status, and words that it says.
expect() {
    local wanted=$1 words=$2 said got
    shift 2
    said=$("$@" 2>&1)
    got=$?
    checks=$((checks + 1))
    if [ $got != "$wanted" ] || [[ "$said" != *"$words"* ]]; then
        printf '%s: exit status %d (expected %d), and not "%s":\n%s\n' "$*" $got "$wanted" "$words" "$said"
        status=1
    fi
}

old="Tesla V100, 7.0\n" new="NVIDIA H200, 9.0\n"
expect 1 "there is no part bogus" env GPUS="$new" bench/gpu.sh --only info,bogus
expect 1 "GPU=other" env GPU=other GPUS="$new" bench/gpu.sh
expect 0 "nvidia-smi finds none" env GPUS= bench/gpu.sh
expect 0 "Tesla V100: its compute capability is 7.0, at least 8.0 is needed" env GPUS="$old" bench/gpu.sh
expect 0 "GPU NVIDIA A100: its compute capability is [N/A]" env GPUS="NVIDIA A100, [N/A]\n" bench/gpu.sh

echo "rows" >bench/results/nvidia-h200/info.csv
expect 1 "info.csv is left as it was" env GPUS="$new" bench/gpu.sh --only info
expect 1 "1 x NVIDIA H200 (90-real)" env GPUS="$old$new" bench/gpu.sh --only info
expect 1 "not run   GPU Tesla V100" env GPUS="$old$new" bench/gpu.sh --only info
expect 0 "rows" cat bench/results/nvidia-h200/info.csv

for list in "" , 80,,86 70 80,70; do
    expect 1 "error: --arch" tools/cuda-build.sh --arch "$list" --out rows.csv
done
expect 1 "No such file" cat rows.csv

echo "gpu_scripts: $checks checks"
exit $status
