# What documents name must be there: files and folders, identifiers, options, commands of tp_bench. Used by lint.sh.
# The first file lists what there is, a name a line: paths, identifiers, "--option", "tp_bench command".
FNR == NR {
    there[$0] = 1
    for (name = $0; name ~ /\//; ) { # a path by its end too, and the folders on the way to it
        sub(/\/[^\/]*$/, "", name)
        for (path = name; path != "" && !((path "/") in there); ) {
            there[path "/"] = 1
            if (!sub(/^[^\/]*\//, "", path))
                path = ""
        }
    }
    for (path = $0; sub(/^[^\/]*\//, "", path); )
        there[path] = 1
    next
}
FNR == 1 {
    fenced = 0
    folders = "(include|src|bench|tests|tools|cmake|docs|examples|gpusim|\\.ci)/[A-Za-z0-9_./-]*[A-Za-z0-9_/]"
}
/^```/ { fenced = !fenced }
{
    line = $0
    while (match(line, folders)) {
        word = substr(line, RSTART, RLENGTH)
        before = substr(line, RSTART - 1, RSTART > 1)
        after = substr(line, RSTART + RLENGTH, 1)
        if (before !~ /[A-Za-z0-9_\/.<-]/ && after !~ /[-*{<$]/)
            expect(word)
        line = substr(line, RSTART + RLENGTH)
    }
    line = $0
    while (match(line, /`[^`]+`/)) {
        check(substr(line, RSTART + 1, RLENGTH - 2))
        line = substr(line, RSTART + RLENGTH)
    }
    if (fenced)
        check($0)
}

# In code.
function check(text,    count, words, i) {
    count = split(text, words, /[ |()\[\],;:"&]+/)
    for (i = 1; i <= count; i++)
        if (words[i] ~ /^[A-Za-z0-9_-]+\.(c|h|cu|cuh|sh|awk|py|cmake|md)$/ || words[i] ~ /^--[a-z]/)
            expect(words[i])
        else if (words[i] ~ /^(tpi?|TPI?)_[A-Za-z0-9_]+[A-Za-z0-9]$/ && words[i] !~ /_avx/) # made by a macro
            expect(words[i])
    if (words[1] ~ /^([a-z\/]*\/)?tp_bench$/ && words[2] ~ /^[a-z]/)
        expect("tp_bench " words[2])
}

function expect(name) {
    sub(/=.*$/, "", name)
    if (!(name in there) && !((name "/") in there))
        print FILENAME ":" FNR ": names " name ", which is not there"
}
