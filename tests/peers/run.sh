#!/bin/sh
# Compares with PyTorch by the first Python that has it: run.sh DUMP_PROGRAM. Exits 77 (skipped) if none has.
here=$(dirname "$0")
for python in ${PYTHON:-python3} /usr/bin/python3; do
    if "$python" -c 'import torch' 2>/dev/null; then
        exec "$python" "$here/compare_torch.py" "$1"
    fi
done
echo "skipped: no Python with PyTorch (Debian: python3-torch)"
exit 77
