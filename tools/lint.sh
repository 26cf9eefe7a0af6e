#!/bin/bash
# tools/lint.sh [DIRECTORY]: house rules that a machine can check, over the checkout (or DIRECTORY). Prints offenders;
# exit status 1 if any.
#   files of at most 500 lines of 120 columns, functions of at most 60 lines (CUDA: 120), public functions of at most
#   6 parameters, no exit, abort, assert or printing in src/, no "#if 0", no note of work left to do without an owner,
#   no tabs or trailing blanks.
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
mapfile -t sources < <(find include src tests bench examples -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)
mapfile -t simulator < <(find gpusim -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cpp' \) 2>/dev/null | sort)
mapfile -t scripts < <(find tests bench tools .ci cmake -type f \( -name '*.sh' -o -name '*.cmake' -o -name 'CMakeLists.txt' -o -path '.ci/*' \) | sort)
mapfile -t library < <(printf '%s\n' "${sources[@]}" | grep '^src/')
found=$(
    awk -f tools/lint.awk "${sources[@]}"
    for file in "${scripts[@]}"; do
        lines=$(wc -l <"$file")
        [ "$lines" -le 500 ] || echo "$file: $lines lines (at most 500)"
    done
    grep -nHE '(^|[^a-zA-Z0-9_.>])(exit|_exit|abort|assert|printf|fprintf|vfprintf|puts|perror)[ ]*\(' "${library[@]}" /dev/null |
        grep -vE '^[^:]*:[0-9]*: *(\*|/\*|//)' | sed 's/$/   (no exit, abort, assert or printing in src)/'
    grep -nHE '^[ ]*#[ ]*if[ ]+0' "${sources[@]}" /dev/null | sed 's/$/   (no dead code)/'
    grep -nHwE 'TODO|FIXME|XXX|HACK' "${sources[@]}" "${scripts[@]}" /dev/null | grep -v '^tools/lint' | sed 's/$/   (no loose notes)/'
    grep -nHP '\t|[ ]+$' "${sources[@]}" /dev/null | sed 's/$/   (tab or trailing blank)/'
    grep -nHE '^.{121}' "${sources[@]}" "${simulator[@]}" /dev/null | sed 's/$/   (at most 120 columns)/'
)
if [ -n "$found" ]; then
    printf '%s\n' "$found"
    echo "lint: $(wc -l <<<"$found") offenders"
    exit 1
fi
echo "lint: ${#sources[@]} sources and ${#scripts[@]} scripts follow the rules"
