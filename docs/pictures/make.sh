#!/bin/bash
# docs/pictures/make.sh TP_BENCH: draws the pictures of docs/overlap.md again, each by one command.
set -eu
bench=$(realpath "$1")
cd "$(dirname "$0")"
draw() { # FILE ALGORITHM PATTERN RANKS CHUNKS OPTION...
    local file=$1.svg
    "$bench" plan --algorithm "$2" --pattern "$3" --ranks "$4" --chunks "$5" --svg "$file" "${@:6}" >/dev/null
}
draw none none gather-gemm 2 1
draw bulk bulk backward 2 1
draw ring ring gather-gemm 4 2
draw pipeline pipeline gather-gemm 2 4
draw pull pull gather-gemm 2 4
draw pull-one-lane pull gather-gemm 2 4 --one-lane
draw pull-scatter pull gemm-scatter 2 4
draw direct direct gather-gemm 2 1
draw row-backward pull row-backward 2 4
draw chain pull chain 2 4
draw chain-core pull chain-core 2 4
draw chain-core-backward pull chain-core-backward 2 4
