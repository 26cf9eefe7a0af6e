#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void bench_table_init(bench_table *table, const char *command, const bench_column *columns, int count)
{
    *table = (bench_table){.command = command, .columns = columns, .column_count = count,
                           .plot = {.x = -1, .y = -1, .only = -1}};
}

void bench_table_free(bench_table *table)
{
    free(table->cells);
    table->cells = NULL;
    table->rows = table->capacity = 0;
}

const bench_cell *bench_table_cell(const bench_table *table, int row, int column)
{
    return &table->cells[(size_t)row * (size_t)table->column_count + (size_t)column];
}

void bench_row(bench_table *table)
{
    if (table->rows == table->capacity) {
        int capacity = table->capacity == 0 ? 32 : table->capacity * 2;
        size_t bytes = (size_t)capacity * (size_t)table->column_count * sizeof(bench_cell);
        bench_cell *cells = realloc(table->cells, bytes);
        if (cells == NULL) {
            table->out_of_memory = true;
            table->filled = table->column_count;
            return;
        }
        table->cells = cells;
        table->capacity = capacity;
    }
    size_t start = (size_t)table->rows * (size_t)table->column_count;
    memset(table->cells + start, 0, (size_t)table->column_count * sizeof(bench_cell));
    table->rows++;
    table->filled = 0;
}

/* The next cell of the row being filled; a spare one past its end. */
static bench_cell *next_cell(bench_table *table, bench_cell *spare)
{
    if (table->rows == 0 || table->filled >= table->column_count)
        return spare;
    return &table->cells[(size_t)(table->rows - 1) * (size_t)table->column_count + (size_t)table->filled++];
}

void bench_word(bench_table *table, const char *format, ...)
{
    bench_cell spare, *cell = next_cell(table, &spare);
    cell->kind = BENCH_CELL_WORD;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(cell->word, sizeof cell->word, format, arguments);
    va_end(arguments);
}

void bench_integer(bench_table *table, int64_t value)
{
    bench_cell spare, *cell = next_cell(table, &spare);
    cell->kind = BENCH_CELL_INTEGER;
    cell->integer = value;
}

void bench_real(bench_table *table, double value)
{
    bool hidden = (table->hidden >> table->filled & 1) != 0;
    bench_cell spare, *cell = next_cell(table, &spare);
    cell->kind = isfinite(value) && !hidden ? BENCH_CELL_REAL : BENCH_CELL_NONE;
    cell->real = value;
}

void bench_truth(bench_table *table, bool value)
{
    bench_cell spare, *cell = next_cell(table, &spare);
    cell->kind = BENCH_CELL_TRUTH;
    cell->truth = value;
}

void bench_empty(bench_table *table)
{
    bench_cell spare;
    next_cell(table, &spare);
}

void bench_note(bench_table *table, const char *format, ...)
{
    char note[BENCH_NOTE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(note, sizeof note, format, arguments);
    va_end(arguments);
    for (int i = 0; i < table->note_count; i++)
        if (strcmp(table->notes[i], note) == 0)
            return;
    if (table->note_count < BENCH_NOTES)
        memcpy(table->notes[table->note_count++], note, sizeof note);
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

static void format_cell(const bench_column *column, const bench_cell *cell, char text[BENCH_CELL_TEXT])
{
    switch (cell->kind) {
    case BENCH_CELL_NONE: snprintf(text, BENCH_CELL_TEXT, "-"); break;
    case BENCH_CELL_WORD: snprintf(text, BENCH_CELL_TEXT, "%s", cell->word); break;
    case BENCH_CELL_INTEGER: snprintf(text, BENCH_CELL_TEXT, "%lld", (long long)cell->integer); break;
    case BENCH_CELL_TRUTH: snprintf(text, BENCH_CELL_TEXT, "%s", cell->truth ? "yes" : "NO"); break;
    case BENCH_CELL_REAL: {
        int after = -column->digits;
        if (column->digits > 0) {
            double size = fabs(cell->real);
            int before = size > 0 ? 1 + (int)floor(log10(size)) : 1;
            after = column->digits - before;
        }
        if (after > 9)
            snprintf(text, BENCH_CELL_TEXT, "%.*g", column->digits, cell->real);
        else
            snprintf(text, BENCH_CELL_TEXT, "%.*f", after < 0 ? 0 : after, cell->real);
        break;
    }
    }
}

static int column_width(const bench_table *table, int column)
{
    size_t width = strlen(table->columns[column].name);
    size_t unit = strlen(table->columns[column].unit);
    width = unit > width ? unit : width;
    char text[BENCH_CELL_TEXT];
    for (int row = 0; row < table->rows; row++) {
        format_cell(&table->columns[column], bench_table_cell(table, row, column), text);
        width = strlen(text) > width ? strlen(text) : width;
    }
    return (int)width;
}

/* A column that no row fills is left out for people, unless it is kept empty on purpose. */
static bool column_used(const bench_table *table, int column)
{
    if ((table->hidden >> column & 1) != 0)
        return true;
    for (int row = 0; row < table->rows; row++)
        if (bench_table_cell(table, row, column)->kind != BENCH_CELL_NONE)
            return true;
    return table->rows == 0;
}

/* Writes one line; row -2 is the names, row -1 the units. */
static void write_line(const bench_table *table, const int *widths, int row, FILE *file)
{
    char line[BENCH_COLUMNS * (BENCH_CELL_TEXT + 2) + 1];
    size_t used = 0;
    for (int column = 0; column < table->column_count; column++) {
        if (widths[column] < 0)
            continue;
        char text[BENCH_CELL_TEXT];
        const bench_column *c = &table->columns[column];
        if (row < 0)
            snprintf(text, sizeof text, "%s", row == -2 ? c->name : c->unit);
        else
            format_cell(c, bench_table_cell(table, row, column), text);
        int width = c->left ? -widths[column] : widths[column];
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%*s", used > 0 ? "  " : "", width, text);
    }
    while (used > 0 && line[used - 1] == ' ')
        used--;
    fprintf(file, "%.*s\n", (int)used, line);
}

void bench_write_human(const bench_table *table, FILE *file)
{
    int widths[BENCH_COLUMNS] = {0};
    bool units = false;
    for (int column = 0; column < table->column_count; column++) {
        widths[column] = column_used(table, column) ? column_width(table, column) : -1;
        units = units || (widths[column] >= 0 && table->columns[column].unit[0] != '\0');
    }
    fprintf(file, "# tp_bench %s: %s\n# on %s\n", table->command, table->title, table->machine);
    write_line(table, widths, -2, file);
    if (units)
        write_line(table, widths, -1, file);
    for (int row = 0; row < table->rows; row++)
        write_line(table, widths, row, file);
    for (int i = 0; i < table->note_count; i++)
        fprintf(file, "# %s\n", table->notes[i]);
    if (table->out_of_memory)
        fprintf(file, "# rows are missing: out of memory\n");
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

/* RFC 4180: quoted where it has to be. */
static void write_csv_text(const char *text, FILE *file)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, file);
        return;
    }
    fputc('"', file);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            fputc('"', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

static void write_csv_cell(const bench_cell *cell, FILE *file)
{
    switch (cell->kind) {
    case BENCH_CELL_NONE: break;
    case BENCH_CELL_WORD: write_csv_text(cell->word, file); break;
    case BENCH_CELL_INTEGER: fprintf(file, "%lld", (long long)cell->integer); break;
    case BENCH_CELL_REAL: fprintf(file, "%.9g", cell->real); break;
    case BENCH_CELL_TRUTH: fputs(cell->truth ? "true" : "false", file); break;
    }
}

/* "algbw (GB/s)" */
static void full_name(const bench_column *column, char text[BENCH_CELL_TEXT])
{
    if (column->unit[0] == '\0')
        snprintf(text, BENCH_CELL_TEXT, "%s", column->name);
    else
        snprintf(text, BENCH_CELL_TEXT, "%s (%s)", column->name, column->unit);
}

void bench_write_csv(const bench_table *table, FILE *file)
{
    char name[BENCH_CELL_TEXT];
    for (int column = 0; column < table->column_count; column++) {
        full_name(&table->columns[column], name);
        write_csv_text(name, file);
        fputc(',', file);
    }
    fputs("machine\r\n", file);
    for (int row = 0; row < table->rows; row++) {
        for (int column = 0; column < table->column_count; column++) {
            write_csv_cell(bench_table_cell(table, row, column), file);
            fputc(',', file);
        }
        write_csv_text(table->machine, file);
        fputs("\r\n", file);
    }
}

static void write_json_text(const char *text, FILE *file)
{
    fputc('"', file);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c, file);
    }
    fputc('"', file);
}

static void write_json_cell(const bench_cell *cell, FILE *file)
{
    switch (cell->kind) {
    case BENCH_CELL_NONE: fputs("null", file); break;
    case BENCH_CELL_WORD: write_json_text(cell->word, file); break;
    case BENCH_CELL_INTEGER: fprintf(file, "%lld", (long long)cell->integer); break;
    case BENCH_CELL_REAL: fprintf(file, "%.17g", cell->real); break;
    case BENCH_CELL_TRUTH: fputs(cell->truth ? "true" : "false", file); break;
    }
}

static void write_json_row(const bench_table *table, int row, FILE *file)
{
    char name[BENCH_CELL_TEXT];
    for (int column = 0; column < table->column_count; column++) {
        full_name(&table->columns[column], name);
        fputs(column == 0 ? "    {" : ", ", file);
        write_json_text(name, file);
        fputs(": ", file);
        write_json_cell(bench_table_cell(table, row, column), file);
    }
    fputs("}", file);
}

void bench_write_json(const bench_table *table, FILE *file)
{
    fputs("{\n  \"command\": ", file);
    write_json_text(table->command, file);
    fputs(",\n  \"title\": ", file);
    write_json_text(table->title, file);
    fputs(",\n  \"machine\": ", file);
    write_json_text(table->machine, file);
    fputs(",\n  \"rows\": [\n", file);
    for (int row = 0; row < table->rows; row++) {
        write_json_row(table, row, file);
        fputs(row + 1 < table->rows ? ",\n" : "\n", file);
    }
    fputs("  ],\n  \"notes\": [", file);
    for (int i = 0; i < table->note_count; i++) {
        fputs(i > 0 ? ", " : "", file);
        write_json_text(table->notes[i], file);
    }
    fprintf(file, "],\n  \"failed_checks\": %d\n}\n", table->failed_checks);
}
