# Lengths of files and functions, and parameters of public functions. Used by lint.sh.
# A function body is what stands between a "{" and a "}" that are alone in column one, or a line that begins a
# definition and ends in "{".
FNR == 1 {
    finish()
    file = FILENAME
    limit = file ~ /\.cuh?$/ ? 120 : 60
    start = 0
    declaration = ""
}
{ lines = FNR }
/^[^ }\/#*].*\) *\{$/ || /^\{$/ { start = FNR; name = /^\{$/ ? previous : $0 }
/^\}/ {
    if (start && FNR - start - 1 > limit)
        print file ":" start ": function of " FNR - start - 1 " lines (at most " limit "): " name
    start = 0
}
/^[^ {}#]/ { previous = $0 }
/^TP_API/ { declaration = "" ; open = 1 }
open {
    declaration = declaration $0
    if (/;/) {
        open = 0
        count_parameters(declaration)
    }
}
END { finish() }

function finish() {
    if (file != "" && lines > 500)
        print file ": " lines " lines (at most 500)"
}

# Commas of the outermost parentheses; those of a function pointer's own parameters don't count.
function count_parameters(text,    i, c, depth, parameters) {
    parameters = 1
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "(") depth++
        if (c == ")") depth--
        if (c == "," && depth == 1) parameters++
    }
    if (parameters > 6)
        print file ":" FNR ": " parameters " parameters (at most 6): " substr(text, 1, 80)
}
