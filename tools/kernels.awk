# Reads what ptxas -v says of one file; -v source=..., -v arch=.... One CSV row a kernel, its name mangled.
/Compiling entry function/ {
    split($0, quoted, "'")
    name = quoted[2]
}
/bytes stack frame/ {
    stack = $1
    store = $5
    load = $9
}
/Used [0-9]+ registers/ && name != "" {
    registers = shared = barriers = 0
    for (i = 1; i <= NF; i++) {
        if ($(i + 1) ~ /^registers/)
            registers = $i
        if ($(i + 1) ~ /^barriers/)
            barriers = $i
        if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/)
            shared = $i
    }
    printf "%s,\"%s\",%s,%d,%d,%d,%d,%d,%d\n", source, name, arch, registers, stack, store, load, shared, barriers
    name = ""
}
