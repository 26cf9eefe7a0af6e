# What the summaries read: CSV files of tp_bench. `file` is the name without its ending, value(NAME) a cell of the line;
# what the command was stands in lines with #, which are left to the reader.

# Splits a CSV line into field[1..]; quoted fields may hold commas. Fields of records that go over several lines don't
# occur.
function split_line(line,    i, count, part) {
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

FNR == 1 { header = 0; file = FILENAME; sub(/.*\//, "", file); sub(/\.csv$/, "", file) }
{ sub(/\r$/, "") }
!/^#/ && !header {
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
!/^#/ { split_line($0) }
