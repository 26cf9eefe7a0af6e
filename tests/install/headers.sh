#!/bin/bash
# headers.sh INCLUDE: each public header compiles alone, as strict C11 and as C++17, with every compiler that is there.
set -u
include=$1
warnings="-pedantic -Wall -Wextra -Werror -fsyntax-only"
status=0
compiled=0
check() { # COMPILER LANGUAGE STANDARD
    command -v "$1" >/dev/null || return 0
    for header in "$include"/tp/*.h; do
        # shellcheck disable=SC2086
        if echo "#include <tp/$(basename "$header")>" | "$1" -x "$2" -std="$3" $warnings -I"$include" -; then
            compiled=$((compiled + 1))
        else
            echo "headers: tp/$(basename "$header") does not compile alone with $1 -std=$3"
            status=1
        fi
    done
}
check gcc c c11
check clang c c11
check g++ c++ c++17
check clang++ c++ c++17
echo "headers: $compiled compilations without a warning"
[ $compiled -gt 0 ] || status=1
exit $status
