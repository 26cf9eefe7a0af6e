#!/bin/bash
# tools/lint.sh [DIRECTORY]: house rules that a machine can check, over the checkout (or DIRECTORY). Prints offenders;
# exit status 1 if any.
#   files of at most 500 lines of 120 columns, functions of at most 60 lines (CUDA: 120), public functions of at most
#   6 parameters, no exit, abort, assert or printing in src/, no "#if 0", no note of work left to do without an owner,
#   no tabs or trailing blanks; documents that name only what is there.
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
# files FOLDER... -- ENDING...: the files below the folders whose names end so.
files() {
    local folders=() endings=()
    while [ "$1" != -- ]; do folders+=("$1"); shift; done
    shift
    for ending; do endings+=(-o -name "*$ending"); done
    find "${folders[@]}" -type f \( "${endings[@]:1}" \) 2>/dev/null | sort
}
mapfile -t sources < <(files include src tests bench examples -- .c .h .cu .cuh)
mapfile -t simulator < <(files gpusim -- .c .h .cu .cpp)
mapfile -t scripts < <(files tests bench tools examples cmake CMakeLists.txt -- .sh .awk .py .cmake CMakeLists.txt &&
    files .ci -- '')
mapfile -t library < <(printf '%s\n' "${sources[@]}" | grep '^src/')
# What there is for documents to name: files, and words of the sources, options and commands of tp_bench among them.
names() {
    find . \( -name build -o -name .git \) -prune -o -type f -print | sed 's,^\./,,'
    grep -hoE '\b(tpi?|TPI?)_[A-Za-z0-9_]+|--[a-z][a-z0-9-]+' "${sources[@]}" "${simulator[@]}" "${scripts[@]}" |
        sort -u
    sed -nE 's/^ *\{"([a-z0-9-]+)",.*/--\1/p' bench/option_table.c
    sed -nE 's/^ *\{"([a-z0-9-]+)", BENCH_.*/tp_bench \1/p' bench/commands.c
}
found=$(
    awk -f tools/lint.awk "${sources[@]}"
    for file in "${scripts[@]}"; do
        lines=$(wc -l <"$file")
        [ "$lines" -le 500 ] || echo "$file: $lines lines (at most 500)"
    done
    grep -nHE '(^|[^a-zA-Z0-9_.>])(exit|_exit|abort|assert|printf|fprintf|vfprintf|puts|perror)[ ]*\(' "${library[@]}" \
        /dev/null | grep -vE '^[^:]*:[0-9]*: *(\*|/\*|//)' | sed 's/$/   (no exit, abort, assert or printing in src)/'
    grep -nHE '^[ ]*#[ ]*if[ ]+0' "${sources[@]}" /dev/null | sed 's/$/   (no dead code)/'
    grep -nHwE 'TODO|FIXME|XXX|HACK' "${sources[@]}" "${scripts[@]}" /dev/null | grep -v '^tools/lint' |
        sed 's/$/   (no loose notes)/'
    grep -nHP '\t|[ ]+$' "${sources[@]}" "${scripts[@]}" /dev/null | sed 's/$/   (tab or trailing blank)/'
    grep -nHE '^.{121}' "${sources[@]}" "${simulator[@]}" "${scripts[@]}" /dev/null |
        sed 's/$/   (at most 120 columns)/'
    awk -f tools/docs.awk <(names) README.md CONTRIBUTING.md CHANGELOG.md docs/*.md bench/results/README.md
)
if [ -n "$found" ]; then
    printf '%s\n' "$found"
    echo "lint: $(wc -l <<<"$found") offenders"
    exit 1
fi
echo "lint: ${#sources[@]} sources and ${#scripts[@]} scripts follow the rules"
