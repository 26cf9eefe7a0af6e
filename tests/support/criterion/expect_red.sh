#!/bin/bash
# expect_red.sh PROGRAM NAME=TEXT...: each planted fault NAME must make PROGRAM fail and print TEXT; the test without
# a fault must pass.
set -u
program=$1
shift
status=0
fail() {
    echo "expect_red: $1"
    printf '%s\n' "$output"
    status=1
}
output=$("$program" --filter planted/nothing 2>&1) || fail "the test without a fault failed"
for planted in "$@"; do
    name=${planted%%=*} text=${planted#*=}
    if output=$("$program" --filter "planted/$name" 2>&1); then
        fail "planted $name went unnoticed"
    elif ! grep -q "Failing: 1" <<<"$output" || ! grep -Eq "$text" <<<"$output"; then
        fail "planted $name failed, but not as expected ($text)"
    else
        echo "planted $name: red, as it must be"
    fi
done
exit $status
