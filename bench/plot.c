/* --plot: the table's series handed to gnuplot, which draws a file beside the wanted one. */
#include "table.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double cell_number(const bench_cell *cell)
{
    if (cell->kind == BENCH_CELL_INTEGER)
        return (double)cell->integer;
    return cell->kind == BENCH_CELL_REAL ? cell->real : NAN;
}

static bool same_group(const bench_table *table, int a, int b)
{
    for (int i = 0; i < table->plot.groups; i++) {
        const bench_cell *x = bench_table_cell(table, a, table->plot.group[i]),
                         *y = bench_table_cell(table, b, table->plot.group[i]);
        if (x->kind != y->kind || x->integer != y->integer || strcmp(x->word, y->word) != 0)
            return false;
    }
    return true;
}

static bool drawn(const bench_table *table, int row)
{
    const bench_plot *plot = &table->plot;
    if (plot->only >= 0 && !bench_table_cell(table, row, plot->only)->truth)
        return false;
    double x = cell_number(bench_table_cell(table, row, plot->x)),
           y = cell_number(bench_table_cell(table, row, plot->y));
    return isfinite(x) && isfinite(y) && (!plot->log_x || x > 0) && (!plot->log_y || y > 0);
}

static bool first_of_group(const bench_table *table, int row)
{
    if (!drawn(table, row))
        return false;
    for (int earlier = 0; earlier < row; earlier++)
        if (drawn(table, earlier) && same_group(table, earlier, row))
            return false;
    return true;
}

/* Inside double quotes of gnuplot. */
static void write_quoted(const char *text, FILE *file)
{
    fputc('"', file);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        fputc(*text == '\n' ? ' ' : *text, file);
    }
    fputc('"', file);
}

static void write_label(const char *axis, const bench_column *column, FILE *file)
{
    char text[128];
    snprintf(text, sizeof text, column->unit[0] != '\0' ? "%s (%s)" : "%s", column->name, column->unit);
    fprintf(file, "set %slabel ", axis);
    write_quoted(text, file);
    fputc('\n', file);
}

/* "all_reduce, ranks 2" */
static void group_name(const bench_table *table, int row, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int i = 0; i < table->plot.groups; i++) {
        const bench_cell *cell = bench_table_cell(table, row, table->plot.group[i]);
        size_t used = strlen(text);
        const char *comma = used > 0 ? ", " : "";
        if (cell->kind == BENCH_CELL_INTEGER)
            snprintf(text + used, bytes - used, "%s%s %lld", comma, table->columns[table->plot.group[i]].name,
                     (long long)cell->integer);
        else
            snprintf(text + used, bytes - used, "%s%s", comma, cell->word);
    }
}

/* What was measured, and on what. */
static void write_heading(const bench_table *table, FILE *file)
{
    char text[2 * BENCH_NOTE];
    snprintf(text, sizeof text, "tp_bench %s on %s", table->command, table->machine);
    fputs("\nset label 1 ", file);
    write_quoted(text, file);
    fputs(" at screen 0.5, screen 0.97 center\nset label 2 ", file);
    write_quoted(table->title, file);
    fputs(" at screen 0.5, screen 0.935 center font \",9\"\nset tmargin at screen 0.9\n", file);
}

/* A mark at each value of x that there is, and at no other. */
static void write_tics(const bench_table *table, FILE *file)
{
    const char *separator = "set xtics (";
    for (int row = 0; row < table->rows; row++) {
        bool seen = !drawn(table, row);
        double x = cell_number(bench_table_cell(table, row, table->plot.x));
        for (int earlier = 0; earlier < row && !seen; earlier++)
            seen = drawn(table, earlier) && cell_number(bench_table_cell(table, earlier, table->plot.x)) == x;
        if (seen)
            continue;
        fprintf(file, "%s%.9g", separator, x);
        separator = ", ";
    }
    fputs(*separator == ',' ? ")\n" : "", file);
}

static bool is_png(const char *path)
{
    size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, ".png") == 0;
}

void bench_write_gnuplot(const bench_table *table, const char *path, FILE *file)
{
    const bench_plot *plot = &table->plot;
    fprintf(file, "set terminal %s size 900,600 noenhanced\nset output ", is_png(path) ? "png" : "svg");
    write_quoted(path, file);
    write_heading(table, file);
    fputs("set key below\nset grid\nset offsets graph 0.05, graph 0.05, graph 0.05, 0\nset yrange [0:*]\n", file);
    if (plot->log_x)
        fputs("set logscale x 2\nset offsets 0, 0, 0, 0\n", file);
    else
        write_tics(table, file);
    if (plot->log_y)
        fputs("set logscale y\nset yrange [*:*]\n", file);
    write_label("x", &table->columns[plot->x], file);
    write_label("y", &table->columns[plot->y], file);
    const char *separator = "plot ";
    for (int row = 0; row < table->rows; row++) {
        if (!first_of_group(table, row))
            continue;
        char name[BENCH_GROUPS * BENCH_CELL_TEXT];
        group_name(table, row, name, sizeof name);
        fprintf(file, "%s'-' using 1:2 with %s pointtype 7 title ", separator,
                plot->points ? "points" : "linespoints linewidth 2");
        write_quoted(name, file);
        separator = ", ";
    }
    fputc('\n', file);
    for (int first = 0; first < table->rows; first++) {
        if (!first_of_group(table, first))
            continue;
        for (int row = first; row < table->rows; row++)
            if (drawn(table, row) && same_group(table, first, row))
                fprintf(file, "%.9g %.9g\n", cell_number(bench_table_cell(table, row, plot->x)),
                        cell_number(bench_table_cell(table, row, plot->y)));
        fputs("e\n", file);
    }
}

bool bench_has_gnuplot(void)
{
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

static bool fail(char message[512], const char *text, const char *path, const char *reason)
{
    snprintf(message, 512, "--plot %s: %s%s", path, text, reason);
    return false;
}

static bool copy_into(FILE *from, const char *path)
{
    FILE *to = fopen(path, "wb");
    if (to == NULL)
        return false;
    char bytes[4096];
    for (size_t count; (count = fread(bytes, 1, sizeof bytes, from)) > 0;)
        fwrite(bytes, 1, count, to);
    bool good = !ferror(from) && !ferror(to);
    return fclose(to) == 0 && good;
}

/* Draws into a file of its own first, so that a failure leaves no half picture; its bytes then go into the wanted one,
   which stays what it is, a link too. */
static bool draw(const bench_table *table, const char *path, const char *temporary, char message[512])
{
    FILE *pipe = popen("gnuplot", "w");
    if (pipe == NULL)
        return fail(message, "gnuplot did not start: ", path, strerror(errno));
    bench_write_gnuplot(table, temporary, pipe);
    if (pclose(pipe) != 0)
        return fail(message, "gnuplot failed", path, "");
    FILE *drawing = fopen(temporary, "rb");
    bool good = drawing != NULL && copy_into(drawing, path);
    int reason = errno;
    if (drawing != NULL)
        fclose(drawing);
    return good || fail(message, "could not be written: ", path, strerror(reason));
}

bool bench_write_plot(const bench_table *table, const char *path, char message[512])
{
    bool any = false;
    for (int row = 0; row < table->rows && table->plot.x >= 0; row++)
        any = any || drawn(table, row);
    if (!any)
        return fail(message, "there is nothing to draw: no row belongs in the plot", path, "");
    const char *suffix = is_png(path) ? ".png" : ".svg";
    char temporary[4096];
    int length = snprintf(temporary, sizeof temporary, "%s.XXXXXX%s", path, suffix);
    if (length >= (int)sizeof temporary)
        return fail(message, "the name is too long", path, "");
    int descriptor = mkstemps(temporary, (int)strlen(suffix));
    if (descriptor < 0)
        return fail(message, "could not be written: ", path, strerror(errno));
    close(descriptor);
    bool good = draw(table, path, temporary, message);
    unlink(temporary);
    return good;
}
