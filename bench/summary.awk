# Goals beside figures, in Markdown, from the CSV files that bench/measure.sh records. After csv.awk.

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
    lines[++line_count] = sprintf("| %s | %s | %s | %s |", what, percent(least), percent(reached),
        clean == "0" ? "disturbed" : verdict(least, reached, most))
}

# A ratio that must not be above `most`; clean "0": it was disturbed.
function limit(what, most, reached, clean) {
    lines[++line_count] = sprintf("| %s | at most %.2f | %s | %s |", what, most,
        reached == "" ? "not measured" : sprintf("%.3f", reached),
        clean == "0" ? "disturbed" : reached == "" ? "-" : reached + 0 <= most ? "met" : "missed")
}

# A ratio that must not be below `least`; clean "0": it was disturbed.
function ratio_goal(what, least, reached, clean) {
    lines[++line_count] = sprintf("| %s | at least %.2f | %s | %s |", what, least,
        reached == "" ? "not measured" : sprintf("%.2f", reached),
        clean == "0" ? "disturbed" : reached == "" ? "-" : reached + 0 >= least ? "met" : "missed")
}

# Whether a mean is of all products: "1", or "0" where some had no turn that nothing disturbed.
function is_whole(of, products) { return of == "" || of == "of " products ? "1" : "0" }

# The worst of an operation's sizes in [from, to] bytes, of samples on two near cores without a switch. What was
# measured far from each other or never clean says nothing: with it nothing is met, but missed is missed.
function collective_goal(what, operation, around, from, to, least,    i, worst, at, unknown, size) {
    worst = ""
    for (i = 1; i <= sizes; i++) {
        size = size_of[i] + 0
        key = operation "," around "," size
        if (size < from || size > to || !(key in faster))
            continue
        if (faster[key] == "unknown")
            unknown++
        else if (worst == "" || faster[key] + 0 < worst) {
            worst = faster[key] + 0
            at = size
        }
    }
    if (worst != "" && worst >= least && unknown > 0)
        lines[++line_count] = sprintf("| %s | at least %.2f | %.2f, %d of the sizes not measured on near cores | " \
            "disturbed |", what, least, worst, unknown)
    else if (worst != "")
        ratio_goal(what " (worst: " at / 1024 " KiB)", least, worst)
    else
        ratio_goal(what, least, "", unknown > 0 ? "0" : "1")
}

# Sorts list[1..count].
function sort(list, count,    i, j, one) {
    for (i = 2; i <= count; i++) {
        one = list[i]
        for (j = i - 1; j > 0 && list[j] > one; j--)
            list[j + 1] = list[j]
        list[j + 1] = one
    }
}

function median(list, count) {
    return count == 0 ? "" : count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
}

/^#/ {
    if (FNR == 1)
        command[file] = substr($0, 3)
    else if (FNR == 2) {
        state[file] = substr($0, 3)
        sub(/^commit /, "", state[file])
        load = $0
        sub(/.*load before /, "", load)
        busy += load + 0 > 0.5
    }
    next
}

file == "gemm" && value("layer") == "geometric mean" {
    gemm[value("dtype") "," value("callers")] = value("share")
    gemm_whole[value("dtype") "," value("callers")] = is_whole(value("variant"), 30)
    gemm_rate[value("dtype") "," value("callers")] = value("rate")
}
file == "peers-mpi" {
    if (!((value("size") + 0) in size_seen))
        size_of[++sizes] = value("size") + 0
    size_seen[value("size") + 0] = 1
    key = value("operation") "," (value("around") == "nothing" ? "alone" : "net") "," (value("size") + 0)
    unknown = value("cores") == "far" || value("kept") == "0" || value("best peer / time") == ""
    faster[key] = unknown ? "unknown" : value("best peer / time")
}
file == "roofline-1x1024" && (value("op") == "attention" || value("op") == "attention grad") {
    core[value("dtype") "," value("op")] = value("share")
    core_kept[value("dtype") "," value("op")] = value("kept")
}
file ~ /^roofline-/ && value("phase") == "optimizer" && value("op") ~ /^optimizer/ && value("limit") != "" {
    key = substr(file, 10) "," value("dtype")
    adamw_limit[key] += value("limit")
    adamw_time[key] += value("time")
}
file ~ /^gemm-/ && value("layer") == "geometric mean" {
    other[substr(file, 6) "," value("dtype")] = value("share")
}
file ~ /^gemm-/ && value("layer") != "geometric mean" && value("share") != "" {
    key = substr(file, 6) "," value("dtype")
    if (!(key in other_worst) || value("share") + 0 < other_worst[key])
        other_worst[key] = value("share") + 0
}
file ~ /^peers-onednn/ && value("layer") == "geometric mean" {
    products = file == "peers-onednn" ? 30 : 36
    peer[products "," value("dtype") "," value("callers")] = value("ours")
    peer_whole[products "," value("dtype") "," value("callers")] = is_whole(value("variant"), products)
}
file ~ /^roofline-/ && value("op") == "peak and optimizer\047s bytes" {
    roofline[substr(file, 10) "," value("dtype")] = value("share") # disturbance only lowers it
}
file ~ /^peers-torch-/ {
    key = substr(file, 13) "," value("dtype")
    if (value("torch / step") != "")
        torch[key] = value("torch / step") + 0 # as long a step
    else if (value("on") ~ /^PyTorch /) {
        torch_how[key] = value("on")
        torch_step[key] = sprintf("%.0f ms; %s", value("step"), percent(value("share")))
    }
}
file == "gemm" && value("layer") != "geometric mean" && value("share") != "" {
    key = value("dtype") "," value("callers")
    if (!(key in worst) || value("share") + 0 < worst[key])
        worst[key] = value("share") + 0
}
file == "gemm" && value("share") == "" {
    without_share[value("dtype") "," value("callers")]++
}
file == "threads" { tokens[value("dtype") "," value("ranks") "," value("threads")] = value("tokens/s") }
(file == "threads" || file == "sweep") && value("same weights") != "" {
    runs++
    same += value("same weights") == "yes" || value("same weights") == "reference"
}
file == "attention" { attention[value("dtype") "," value("ranks")] = value("share") }
file == "model" {
    model[value("dtype") "," value("ranks")] = value("share")
    used[value("dtype") "," value("ranks")] = value("all") > 0 ? value("used") / value("all") : ""
}
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
file ~ /^overlap-/ && value("pass") != "both" && value("fused / simulated") != "" {
    ratio[++ratios] = value("fused / simulated") + 0
}
file == "auto" {
    to_best[++points] = value("auto / best") + 0
    if (value("auto") ~ /[a-z]/ && value("auto") !~ /^(none(; )?)+$/)
        to_none[++others] = value("auto / none") + 0
    else
        itself[++own] = value("auto / none") + 0
    noise[points] = value("none / none") + 0
    sure_best[points] = value("surely / best") + 0
    within_best += to_best[points] <= 1.1
}
file ~ /^plans-/ {
    key = value("ranks") "," value("pattern")
    if (!(key in simulated) || value("hidden") + 0 > simulated[key]) {
        simulated[key] = value("hidden") + 0
        simulated_how[key] = value("algorithm") ", " value("chunks") " chunks"
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
            goal("GEMM, " dtype[d] ", " callers " caller" (callers > 1 ? "s" : "") \
                ": share of peak, geometric mean of 30 shapes", 0.92, gemm[dtype[d] "," callers], 1.02,
                gemm_whole[dtype[d] "," callers])
    for (d = 1; d <= dtypes; d++)
        for (callers = 1; callers <= 2; callers++)
            goal("GEMM, " dtype[d] ", callers: " callers ", worst shape: share of peak", 0.85,
                worst[dtype[d] "," callers], 1.02,
                worst[dtype[d] "," callers] + 0 >= 0.85 && without_share[dtype[d] "," callers] ? "0" : "")
    for (d = 1; d <= dtypes; d++) {
        one = gemm_rate[dtype[d] ",1"]
        two = one > 0 ? gemm_rate[dtype[d] ",2"] / one : ""
        ratio_goal("GEMM, " dtype[d] ", two callers: rate / one\047s", 1.95, two,
            two > 2.04 || gemm_whole[dtype[d] ",1"] == "0" || gemm_whole[dtype[d] ",2"] == "0" ? "0" : "1")
    }
    for (products = 30; products <= 36; products += 6)
        for (d = 1; d <= dtypes; d++)
            for (callers = 1; callers <= 2; callers++) {
                key = products "," dtype[d] "," callers
                limit("GEMM, " dtype[d] ", callers: " callers ", time / oneDNN\047s, geometric mean of " \
                    (products == 30 ? "30 shapes" : "36 shapes of 64 to 256 tokens"), 1,
                    peer[key] > 0 ? 1 / peer[key] : "", peer_whole[key])
            }
    for (d = 1; d <= dtypes; d++) {
        goal("attention core, " dtype[d] ", forward, 1024 tokens: useful FLOPs over peak",
            dtype[d] == "f32" ? 0.60 : 0.50, core[dtype[d] ",attention"], 1.02,
            core_kept[dtype[d] ",attention"])
        goal("attention core, " dtype[d] ", backward, 1024 tokens: useful FLOPs over peak",
            dtype[d] == "f32" ? 0.50 : 0.40, core[dtype[d] ",attention grad"], 1.02,
            core_kept[dtype[d] ",attention grad"])
    }
    batches = split("4x64 4x256 1x1024", batch, " ")
    for (d = 1; d <= dtypes; d++)
        for (b = 1; b <= batches; b++)
            goal("GPT-2 step, " dtype[d] ", " batch[b] " tokens, TP 2: " \
                "share of FLOPs over peak and the optimizer\047s bytes", dtype[d] == "f32" ? 0.80 : 0.78,
                roofline[batch[b] "," dtype[d]], 1.02, "")
    # Three arrays in one pass keep more lines in flight than the stream that they are held against: above 1 is
    # possible.
    for (d = 1; d <= dtypes; d++)
        for (b = 1; b <= batches; b++) {
            key = batch[b] "," dtype[d]
            goal("AdamW with packing, " dtype[d] ", " batch[b] " tokens, TP 2: its bytes over streaming bandwidth",
                0.90, adamw_time[key] > 0 ? adamw_limit[key] / adamw_time[key] : "", 1.5, "")
        }
    collective_goal("all-reduce, net, 4 KiB: the better MPI\047s time / ours", "all_reduce", "net", 0, 4096, 4)
    collective_goal("all-reduce, net, 16 to 256 KiB", "all_reduce", "net", 4097, 262144, 6)
    collective_goal("all-reduce, net, 1 to 4 MiB", "all_reduce", "net", 262145, 4194304, 4)
    collective_goal("all-reduce, net, above 4 MiB", "all_reduce", "net", 4194305, 1e18, 2.5)
    collective_goal("reduce-scatter, alone, to 64 KiB", "reduce_scatter", "alone", 0, 65536, 4)
    collective_goal("reduce-scatter, alone, 256 KiB to 1 MiB", "reduce_scatter", "alone", 65537, 1048576, 4)
    collective_goal("reduce-scatter, alone, above 1 MiB", "reduce_scatter", "alone", 1048577, 1e18, 1.6)
    collective_goal("all-gather, alone, to 64 KiB", "all_gather", "alone", 0, 65536, 3)
    collective_goal("all-gather, alone, 256 KiB to 1 MiB", "all_gather", "alone", 65537, 1048576, 1.4)
    collective_goal("all-gather, alone, above 1 MiB", "all_gather", "alone", 1048577, 1e18, 1.2)
    split("1.6 1.2 1.7", torch_least, " ")
    for (d = 1; d <= dtypes; d++)
        for (b = 1; b <= batches; b++)
            ratio_goal("GPT-2 step, " dtype[d] ", " batch[b] " tokens, TP 2: PyTorch\047s time / ours",
                dtype[d] == "f32" ? torch_least[b] : 1.5, torch[batch[b] "," dtype[d]])
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
            goal("hidden, " title ", " pass[p] ", modelled link as slow as the GEMMs" \
                (key in how ? " (" how[key] ")" : ""), 0.90, best[key], 1.02, kept[key])
        }
    layers = split("direct-mlp direct-attention", layer, " ")
    for (l = 1; l <= layers; l++)
        for (d = 1; d <= dtypes; d++) {
            title = layer[l] == "direct-mlp" ? "MLP" : "attention"
            goal("`direct`, no link, " title ", " dtype[d] ", forward and backward: GEMM and core time in layer time",
                0.97, share[layer[l] "," dtype[d] ",direct"], 1.02, kept[layer[l] "," dtype[d] ",direct"])
        }
    goal("overlap rows with the bits of none and of one rank", 1, rows_checked > 0 ? rows_same / rows_checked : "", 1,
        "")

    sort(ratio, ratios)
    if (ratios > 0) {
        limit("overlap rows on a modelled link, time / simulated time: median", 1.10, median(ratio, ratios))
        limit("the same, simulated time / time: median", 1.10, 1 / median(ratio, ratios))
        for (i = 1; i <= ratios; i++)
            near += ratio[i] >= 0.9 && ratio[i] <= 1.1
    }
    sort(to_best, points)
    sort(to_none, others)
    sort(itself, own)
    sort(noise, points)
    sort(sure_best, points)
    limit("`auto`, time / time of the best fixed choice, " points " points: median", 1.03, median(to_best, points))
    # The least of the passes is told beside it, not judged: the least of noisy figures is too small.
    limit("`auto`, the same: worst (" within_best " of " points " points are within 1.10; the least of a point\047s " \
        "passes is at most " sprintf("%.3f", points > 0 ? sure_best[points] : 0) ")", 1.10,
        points > 0 ? to_best[points] : "")
    # Where it runs none's plans, in a layer of its own, what differs is noise.
    limit("`auto`, time / time of `none`, the " others + 0 " points where it runs something else: worst (where it is " \
        "`none`: " sprintf("%.3f", own > 0 ? itself[own] : 0) ")", 1.02, others > 0 ? to_none[others] : "")

    print "# Summary\n"
    printf "Written by `bench/measure.sh%s` on %s, commit %s. Rows are in `%s/`.\n\n", quick != "" ? " --quick" : "",
        day, commit, folder
    if (busy > 0)
        printf "**The machine was not idle before %d of the files were measured: do it again.**\n\n", busy
    print "Hidden: the best of the algorithms and chunks that were tried, each a median. " \
        "Disturbed: no clean sample, or a share above 1.\n"
    print "| what | goal | reached | |\n|---|---|---|---|"
    for (i = 1; i <= line_count; i++)
        print lines[i]
    print "\nWithout a goal here:\n\n| what | reached |\n|---|---|"
    for (d = 1; d <= dtypes; d++) {
        for (ranks = 1; ranks <= 2; ranks++) {
            printf "| attention, %s, TP %d, 1024 tokens: share of peak | %s |\n", dtype[d], ranks,
                percent(attention[dtype[d] "," ranks])
            printf "| GPT-2 step, 2 layers, %s, TP %d: share of peak; memory used of predicted | %s; %s |\n", dtype[d],
                ranks, percent(model[dtype[d] "," ranks]),
                percent(used[dtype[d] "," ranks])
        }
        printf "| `none`, no link, MLP, %s: GEMM time in layer time | %s |\n", dtype[d],
            percent(share["direct-mlp," dtype[d] ",none"])
        printf "| `none`, no link, attention, %s: GEMM and core time in layer time | %s |\n", dtype[d],
            percent(share["direct-attention," dtype[d] ",none"])
    }
    sets = split("avx2 portable", set, " ")
    for (i = 1; i <= sets; i++)
        for (d = 1; d <= dtypes; d++)
            if ((set[i] "," dtype[d]) in other)
                printf "| GEMM, %s, %s, 1 caller: share of its own peak, geometric mean; worst | %s; %s |\n", dtype[d],
                    set[i],
                    percent(other[set[i] "," dtype[d]]), percent(other_worst[set[i] "," dtype[d]])
    for (d = 1; d <= dtypes; d++)
        for (b = 1; b <= batches; b++)
            if ((batch[b] "," dtype[d]) in torch_step)
                printf "| GPT-2 step of %s, %s, %s tokens: time; share of peak | %s |\n",
                    torch_how[batch[b] "," dtype[d]], dtype[d], batch[b], torch_step[batch[b] "," dtype[d]]
    for (p = 1; p <= passes; p++) {
        key = "overlap-attention," pass[p]
        if (key in best)
            printf "| hidden, attention, %s, modelled link as slow as the GEMMs and the core (%s) | %s |\n", pass[p],
                how[key], percent(best[key])
    }
    if (ratios > 0)
        printf "| overlap rows within 0.90 to 1.10 of the simulated time | %d of %d; %.3f to %.3f |\n", near, ratios,
            ratio[1], ratio[ratios]
    if (points > 0)
        printf "| `auto`, time / time of `none`, where it runs something else: median; " \
            "a second `none` / `none`: median, worst | %s; %.3f, %.3f |\n",
            (others > 0 ? sprintf("%.3f", median(to_none, others)) : "-"), median(noise, points), noise[points]
    patterns = split("gather-gemm gemm-scatter backward chain chain-backward", pattern, " ")
    for (ranks = 4; ranks <= 8; ranks += 4)
        for (p = 1; p <= patterns; p++) {
            key = ranks "," pattern[p]
            if (key in simulated)
                printf "| hidden in the simulator, %d ranks, %s (%s) | %s |\n", ranks, pattern[p], simulated_how[key],
                    percent(simulated[key])
        }
    print "\n| file | command | commit, day, load of the minute before |\n|---|---|---|"
    names = split("info gemm gemm-avx2 gemm-portable peers-onednn peers-onednn-small threads sweep collective " \
        "peers-mpi attention model peers-torch-4x64 peers-torch-4x256 peers-torch-1x1024 roofline-4x64 " \
        "roofline-4x256 roofline-1x1024 overlap-column overlap-row overlap-mlp overlap-attention direct-mlp " \
        "direct-attention auto plans-4 plans-8", name_of, " ")
    for (i = 1; i <= names; i++)
        if (name_of[i] in command)
            printf "| `%s.csv` | `%s` | %s |\n", name_of[i], command[name_of[i]], state[name_of[i]]
}
