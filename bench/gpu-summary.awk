# Figures of bench/gpu.sh in Markdown, from its CSV files; -v gpu=...: the heading. After csv.awk.
function shown(x, format) { return x == "" ? "-" : sprintf(format, x) }

FNR == 1 && /^# tp_bench/ { commands[++command_count] = substr($0, 3) }
/^#/ { next }
file == "torch" {
    peers[++peer_count] = sprintf("| %s | %s | %s | %s | %.1f | %.1f | %.2f |", value("what"), value("shape"),
        value("dtype"), value("pass"), value("ours us"),
        value("torch us"), value("torch us") / value("ours us"))
    next
}
file ~ /^gemm/ && value("layer") == "geometric mean" {
    rows[++row_count] = sprintf("| %s | %s | %s | %s | - | %s | %s |", file, value("variant"), value("dtype"),
        value("ranks"), shown(value("rate"), "%.0f"),
        shown(value("share"), "%.3f"))
    next
}
file ~ /^(norm|attention|block)/ {
    rows[++row_count] = sprintf("| %s | %s | %s | %s | %s + %s us | %s | %s |", file, value("shape"), value("dtype"),
        value("ranks"), shown(value("forward"), "%.1f"), shown(value("backward"), "%.1f"),
        shown(value("rate") != "" ? value("rate") : value("bandwidth"), "%.0f"),
        shown(value("share"), "%.3f"))
}
file ~ /^model/ {
    rows[++row_count] = sprintf("| %s | %s sequences | %s | %s | %s ms | %s | %s |", file, value("batch"),
        value("dtype"), value("ranks"),
        shown(value("step"), "%.2f"), shown(value("rate"), "%.0f"), shown(value("share"), "%.3f"))
}
file ~ /^roofline/ && (value("op") == "phase" || value("phase") == "step") {
    limits[++limit_count] = sprintf("| %s | %s | %s | %s | %s | %s | %s |", file, value("dtype"), value("ranks"),
        value("phase") == "step" ? "step, " value("op") : value("phase"), shown(value("time"), "%.3f"),
        shown(value("limit"), "%.3f"), shown(value("share"), "%.3f"))
}
file == "auto" {
    choices[++choice_count] = sprintf("| %s | %s | %s | %s | %s | %s %s | %s | %s |", value("layer"), value("shape"),
        value("dtype"), value("pass"), value("auto"),
        value("best"), value("chunks"), shown(value("auto / best"), "%.3f"), shown(value("auto / none"), "%.3f"))
}
END {
    print "# " gpu "\n\nWritten by bench/gpu.sh. Share: of cuBLASLt's large product on this GPU in the same dtype " \
        "(f32: not TF32, but where the file's name says so).\n"
    print "| what | shape | dtype | ranks | time | GFLOP/s (norm: GB/s) | share |\n|---|---|---|---|---|---|---|"
    for (i = 1; i <= row_count; i++)
        print rows[i]
    if (peer_count > 0)
        print "\n| against PyTorch | shape | dtype | pass | ours, us | PyTorch, us | times as fast |" \
            "\n|---|---|---|---|---|---|---|"
    for (i = 1; i <= peer_count; i++)
        print peers[i]
    if (limit_count > 0)
        print "\n| roofline | dtype | ranks | phase | time, ms | limit, ms | share |\n|---|---|---|---|---|---|---|"
    for (i = 1; i <= limit_count; i++)
        print limits[i]
    if (choice_count > 0)
        print "\n| auto | shape | dtype | pass | chose | best fixed choice | auto / best | auto / none |" \
            "\n|---|---|---|---|---|---|---|---|"
    for (i = 1; i <= choice_count; i++)
        print choices[i]
    print "\nCommands:\n"
    for (i = 1; i <= command_count; i++)
        print "    " commands[i]
}
