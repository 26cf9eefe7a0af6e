# Reads kernels.csv: one line a source file, then what spills. Fails if an attention or norm kernel does.
/^#/ || /^source,/ { next }
{
    split($0, parts, "\"")
    source = substr(parts[1], 1, length(parts[1]) - 1)
    split(substr(parts[3], 2), value, ",")
    if (!(source in rows))
        order[++sources] = source
    rows[source]++
    if (value[2] + 0 > most[source] + 0) {
        most[source] = value[2]
        largest[source] = parts[2] " on " value[1]
    }
    if (value[6] + 0 > shared[source] + 0)
        shared[source] = value[6]
    if (value[4] + value[5] > 0) {
        spilling[source]++
        spills[++spilled] = sprintf("%s: %s on %s stores %d and loads %d bytes", source, parts[2], value[1], value[4],
            value[5])
        if (source ~ /^(attention|norm)/)
            forbidden++
    }
}
END {
    printf "%-28s %7s %9s %9s %8s  %s\n", "source", "rows", "registers", "shared B", "spilling", "most registers in"
    for (i = 1; i <= sources; i++)
        printf "%-28s %7d %9d %9d %8d  %s\n", order[i], rows[order[i]], most[order[i]], shared[order[i]],
            spilling[order[i]], largest[order[i]]
    for (i = 1; i <= spilled; i++)
        print "spills: " spills[i]
    print (forbidden ? "FAILED: attention or norm kernels spill" : "attention and norm kernels spill nothing")
    exit forbidden != 0
}
