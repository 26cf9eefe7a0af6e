# Goals beside figures, in Markdown, from the CSV files that bench/measure.sh records.

# Splits a CSV line into field[1..]; quoted fields may hold commas. Fields of records that go over several lines don't occur.
function split_line(line,    i, count, part, parts) {
    count = split(line, part, "\"")
    line = ""
    for (i = 1; i <= count; i++) {
        if (i % 2 == 0)
            gsub(",", ";", part[i])
        line = line part[i]
    }
    return split(line, field, ",")
}

function value(name) { return (name in column) ? field[column[name]] : "" }

function percent(x) { return x == "" ? "not measured" : sprintf("%.1f %%", 100 * x) }

# A share above 1 (but for noise) can't be: other work took the cores during what it is compared with.
function verdict(least, reached, most) {
    if (reached == "")
        return "-"
    if (reached + 0 > most)
        return "disturbed"
    return reached + 0 >= least ? "met" : "missed"
}

# One line of the table; reached "" is not measured; clean: samples that nothing disturbed, "" where that isn't counted.
function goal(what, least, reached, most, clean) {
    lines[++line_count] = sprintf("| %s | %s | %s | %s |", what, percent(least), percent(reached), clean == "0" ? "disturbed" : verdict(least, reached, most))
}

FNR == 1 { header = 0; file = FILENAME; sub(/.*\//, "", file); sub(/\.csv$/, "", file) }
{ sub(/\r$/, "") }
/^#/ { if (FNR == 1) command[file] = substr($0, 3); next }
!header {
    header = 1
    delete column
    count = split_line($0)
    for (i = 1; i <= count; i++) {
        name = field[i]
        sub(/ \(.*/, "", name)
        if (!(name in column))
            column[name] = i
    }
    next
}
{ split_line($0) }

file == "gemm" && value("layer") == "geometric mean" { gemm[value("dtype") "," value("callers")] = value("share") }
file == "gemm" && value("layer") != "geometric mean" && value("share") != "" {
    key = value("dtype") "," value("callers")
    if (!(key in worst) || value("share") + 0 < worst[key])
        worst[key] = value("share") + 0
}
file == "threads" { tokens[value("dtype") "," value("ranks") "," value("threads")] = value("tokens/s") }
(file == "threads" || file == "sweep") && value("same weights") != "" {
    runs++
    same += value("same weights") == "yes" || value("same weights") == "reference"
}
file == "attention" { attention[value("dtype") "," value("ranks")] = value("share") }
file == "model" { model[value("dtype") "," value("ranks")] = value("share"); used[value("dtype") "," value("ranks")] = value("all") > 0 ? value("used") / value("all") : "" }
file ~ /^overlap-/ && value("pass") != "both" {
    key = file "," value("pass")
    rows_checked++
    rows_same += value("same bits") == "yes"
    # A clean row counts more than a disturbed one, whatever that one says.
    clean = value("kept") > 0 && value("hidden") <= 1.02
    if (!(key in best) || clean > valid[key] || (clean == valid[key] && value("hidden") + 0 > best[key])) {
        valid[key] = clean
        best[key] = value("hidden") + 0
        kept[key] = value("kept")
        how[key] = value("overlap") ", " value("chunks") " chunks, bound " percent(value("bound"))
    }
}
file ~ /^direct-/ {
    rows_checked++
    rows_same += value("same bits") == "yes"
    if (value("pass") == "both")
        share[file "," value("dtype") "," value("overlap")] = value("share")
    if (value("pass") == "both")
        kept[file "," value("dtype") "," value("overlap")] = value("kept")
}

END {
    dtypes = split("f32 bf16", dtype, " ")
    for (d = 1; d <= dtypes; d++)
        for (callers = 1; callers <= 2; callers++)
            goal("GEMM, " dtype[d] ", " callers " caller" (callers > 1 ? "s" : "") ": share of peak, geometric mean of 30 shapes", 0.85, gemm[dtype[d] "," callers], 1.02, "")
    for (d = 1; d <= dtypes; d++) {
        two = tokens[dtype[d] ",2,1"]
        one = tokens[dtype[d] ",1,2"]
        goal("TP 2 against TP 1 with two threads, " dtype[d] ": tokens/s", 0.95, one > 0 ? two / one : "", 1.5, "")
    }
    goal("rows of sweeps with the weights of degree 1, bit for bit", 1, runs > 0 ? same / runs : "", 1, "")
    passes = split("forward backward", pass, " ")
    layers = split("overlap-column overlap-row overlap-mlp", layer, " ")
    for (l = 1; l <= layers; l++)
        for (p = 1; p <= passes; p++) {
            key = layer[l] "," pass[p]
            title = layer[l]
            sub(/overlap-/, "", title)
            title = title == "mlp" ? "MLP" : title "-parallel linear"
            goal("hidden, " title ", " pass[p] ", modelled link as slow as the GEMMs" (key in how ? " (" how[key] ")" : ""), 0.90, best[key], 1.02, kept[key])
        }
    layers = split("direct-mlp direct-attention", layer, " ")
    for (l = 1; l <= layers; l++)
        for (d = 1; d <= dtypes; d++) {
            title = layer[l] == "direct-mlp" ? "MLP" : "attention"
            goal("`direct`, no link, " title ", " dtype[d] ", forward and backward: GEMM and core time in layer time", 0.97, share[layer[l] "," dtype[d] ",direct"], 1.02, kept[layer[l] "," dtype[d] ",direct"])
        }
    goal("overlap rows with the bits of none and of one rank", 1, rows_checked > 0 ? rows_same / rows_checked : "", 1, "")

    print "# Summary\n"
    printf "Written by `bench/measure.sh%s` on %s, commit %s; load of the minute before: %s. Rows are in `%s/`.\n\n", quick != "" ? " --quick" : "", day, commit, load, folder
    if (load + 0 > 0.5)
        print "**The machine was not idle: measure again.**\n"
    print "Hidden: the best of the algorithms and chunks that were tried, each a median. Disturbed: no sample without a switch, or a share above 1.\n"
    print "| what | goal | reached | |\n|---|---|---|---|"
    for (i = 1; i <= line_count; i++)
        print lines[i]
    print "\nWithout a goal here:\n\n| what | reached |\n|---|---|"
    for (d = 1; d <= dtypes; d++) {
        for (callers = 1; callers <= 2; callers++)
            printf "| GEMM, %s, callers: %d, worst shape: share of peak | %s |\n", dtype[d], callers, percent(worst[dtype[d] "," callers])
        for (ranks = 1; ranks <= 2; ranks++) {
            printf "| attention, %s, TP %d, 1024 tokens: share of peak | %s |\n", dtype[d], ranks, percent(attention[dtype[d] "," ranks])
            printf "| GPT-2 step, 2 layers, %s, TP %d: share of peak; memory used of predicted | %s; %s |\n", dtype[d], ranks, percent(model[dtype[d] "," ranks]),
                percent(used[dtype[d] "," ranks])
        }
        printf "| `none`, no link, MLP, %s: GEMM time in layer time | %s |\n", dtype[d], percent(share["direct-mlp," dtype[d] ",none"])
        printf "| `none`, no link, attention, %s: GEMM and core time in layer time | %s |\n", dtype[d], percent(share["direct-attention," dtype[d] ",none"])
    }
    print "\n| file | command |\n|---|---|"
    names = split("info gemm threads sweep collective attention model overlap-column overlap-row overlap-mlp direct-mlp direct-attention", name_of, " ")
    for (i = 1; i <= names; i++)
        if (name_of[i] in command)
            printf "| `%s.csv` | `%s` |\n", name_of[i], command[name_of[i]]
}
