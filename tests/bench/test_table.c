/* Tables as text, CSV, JSON and plots. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "table.h"

#ifdef TPT_HAVE_CJSON
#include <cjson/cJSON.h>
#endif

static const bench_column columns[] = {
    {"name", "", 0, true},   {"size", "B", 0, false}, {"rate", "GB/s", 3, false}, {"good", "", 0, false},
    {"empty", "", 0, false},
};

static bench_table table;

static void fill(void)
{
    bench_table_init(&table, "test", columns, 5);
    snprintf(table.title, sizeof table.title, "a \"title\"");
    snprintf(table.machine, sizeof table.machine, "box, 2 cores");
    bench_row(&table);
    bench_word(&table, "a,\"b\"\n");
    bench_integer(&table, 1234567890123);
    bench_real(&table, 0.012345);
    bench_truth(&table, true);
    bench_row(&table);
    bench_word(&table, "plain");
    bench_integer(&table, -1);
    bench_real(&table, NAN);
    bench_truth(&table, false);
    bench_note(&table, "note %d", 1);
    bench_note(&table, "note %d", 1);
}

static char *written(void (*write)(const bench_table *, FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    write(&table, file);
    fclose(file);
    return text;
}

Test(table, human)
{
    fill();
    char *text = written(bench_write_human);
    cr_assert_not_null(strstr(text, "# tp_bench test: a \"title\"\n# on box, 2 cores\n"), "%s", text);
    cr_assert_not_null(strstr(text, "0.0123"), "three significant digits: %s", text);
    cr_assert_null(strstr(text, "empty"), "a column without cells is left out: %s", text);
    cr_assert_not_null(strstr(text, "# note 1\n"), "%s", text);
    cr_assert_null(strstr(text, "# note 1\n# note 1\n"), "a note comes once");
    free(text);
    bench_table_free(&table);
}

Test(table, csv)
{
    fill();
    char *text = written(bench_write_csv);
    cr_assert_str_eq(text, "name,size (B),rate (GB/s),good,empty,machine\r\n"
                           "\"a,\"\"b\"\"\n\",1234567890123,0.012345,true,,\"box, 2 cores\"\r\n"
                           "plain,-1,,false,,\"box, 2 cores\"\r\n");
    free(text);
    bench_table_free(&table);
}

Test(table, many_rows)
{
    bench_table_init(&table, "test", columns, 5);
    for (int i = 0; i < 1000; i++) {
        bench_row(&table);
        bench_word(&table, "%d", i);
        bench_integer(&table, i);
        for (int extra = 0; extra < 9; extra++)
            bench_empty(&table);
    }
    cr_assert_eq(table.rows, 1000);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(bench_table_cell(&table, i, 1)->integer, i);
    bench_table_free(&table);
}

#ifdef TPT_HAVE_CJSON
Test(table, json)
{
    fill();
    table.failed_checks = 2;
    char *text = written(bench_write_json);
    cJSON *root = cJSON_Parse(text);
    cr_assert_not_null(root, "%s", text);
    cr_assert_str_eq(cJSON_GetObjectItem(root, "title")->valuestring, "a \"title\"");
    cr_assert_eq(cJSON_GetObjectItem(root, "failed_checks")->valueint, 2);
    cJSON *rows = cJSON_GetObjectItem(root, "rows");
    cr_assert_eq(cJSON_GetArraySize(rows), 2);
    cJSON *row = cJSON_GetArrayItem(rows, 0);
    cr_assert_str_eq(cJSON_GetObjectItem(row, "name")->valuestring, "a,\"b\"\n");
    cr_assert_eq(cJSON_GetObjectItem(row, "rate (GB/s)")->valuedouble, 0.012345);
    cr_assert(cJSON_IsTrue(cJSON_GetObjectItem(row, "good")));
    cr_assert(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetArrayItem(rows, 1), "rate (GB/s)")),
              "a number that is none is null");
    cJSON_Delete(root);
    free(text);
    bench_table_free(&table);
}
#endif

static void write_program(const bench_table *t, FILE *file)
{
    bench_write_gnuplot(t, "out.svg", file);
}

/* One line for each group, in order of appearance; rows outside the plot and points without a number are left out. */
Test(table, plot_program)
{
    static const bench_column four[] = {
        {"kind", "", 0, true}, {"ranks", "", 0, false}, {"speed", "", 3, false}, {"fits", "", 0, false}};
    static const struct {
        const char *kind;
        int ranks;
        double speed;
        bool fits;
    } rows[] = {{"strong", 1, 10, true}, {"weak", 1, 11, true}, {"strong", 2, 19, true}, {"strong", 8, 21, false},
    {"weak", 2, NAN, true}};
    bench_table_init(&table, "test", four, 4);
    snprintf(table.title, sizeof table.title, "it's \"quoted\"");
    table.plot = (bench_plot){.x = 1, .y = 2, .only = 3, .groups = 1, .group = {0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench_row(&table);
        bench_word(&table, "%s", rows[i].kind);
        bench_integer(&table, rows[i].ranks);
        bench_real(&table, rows[i].speed);
        bench_truth(&table, rows[i].fits);
    }
    char *text = written(write_program);
    cr_assert_not_null(strstr(text, "\"it's \\\"quoted\\\"\""), "%s", text);
    cr_assert_not_null(strstr(text, "set xtics (1, 2)\n"), "only what is drawn has a mark: %s", text);
    cr_assert_not_null(strstr(text, "title \"strong\", '-' using 1:2 with linespoints linewidth 2 pointtype 7 title "
                                    "\"weak\"\n1 10\n2 19\ne\n1 11\ne\n"),
                       "%s", text);
    free(text);
    bench_table_free(&table);
}

Test(table, plot_refuses_what_it_cannot_draw)
{
    char message[512];
    fill();
    cr_assert_not(bench_write_plot(&table, "out.svg", message));
    cr_assert_not_null(strstr(message, "nothing to draw"), "%s", message);
    cr_assert_neq(access("out.svg", F_OK), 0);
    bench_table_free(&table);
}
