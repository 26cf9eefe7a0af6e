#!/bin/bash
# symbols.sh LIBRARY INCLUDE: the shared library exports nothing but tp_ names, and every function that the headers
# declare; its SONAME carries major.minor.
set -eu
library=$1 include=$2
status=0
exported=$(nm -D --defined-only "$library" | awk '{print $NF}' | sort -u)
foreign=$(grep -v '^tp_' <<<"$exported" | grep -Ev '^(_init|_fini|__odr_asan.*)$' || true)
if [ -n "$foreign" ]; then
    echo "symbols: exported without the prefix tp_:" $foreign
    status=1
fi
declared=$(sed -n 's/^TP_API .*[ *]\(tp_[a-z0-9_]*\)(.*/\1/p' "$include"/tp/*.h | sort -u)
missing=$(comm -23 <(printf '%s\n' "$declared") <(printf '%s\n' "$exported"))
if [ -n "$missing" ]; then
    echo "symbols: declared in a header but not in the library:" $missing
    status=1
fi
version=$(awk '/define TP_VERSION_MAJOR/ {major = $3} /define TP_VERSION_MINOR/ {minor = $3}
    END {print major "." minor}' "$include/tp/export.h")
soname=$(objdump -p "$library" | awk '/SONAME/ {print $2}')
if [ "$soname" != "libtp.so.$version" ]; then
    echo "symbols: SONAME is $soname, expected libtp.so.$version"
    status=1
fi
echo "symbols: $(wc -w <<<"$exported") exported, $(wc -w <<<"$declared") declared, SONAME $soname"
exit $status
