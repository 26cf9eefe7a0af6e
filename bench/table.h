/* What a command found: one table of rows, written for people, as CSV, as JSON, or drawn. */
#ifndef BENCH_TABLE_H
#define BENCH_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define BENCH_COLUMNS 28
#define BENCH_CELL_TEXT 256 /* room for TP_DEVICE_TEXT: why a GPU can't be used */
#define BENCH_NOTES 24
#define BENCH_NOTE 400

typedef enum bench_cell_kind { BENCH_CELL_NONE = 0, BENCH_CELL_WORD, BENCH_CELL_INTEGER, BENCH_CELL_REAL,
                              BENCH_CELL_TRUTH } bench_cell_kind;

typedef struct bench_cell {
    bench_cell_kind kind;
    int64_t integer;
    double real;
    bool truth;
    char word[BENCH_CELL_TEXT];
} bench_cell;

typedef struct bench_column {
    const char *name;
    const char *unit;  /* "" for none */
    int digits;        /* significant ones of a real in the human table; a negative number: that many after the point */
    bool left;         /* aligned to the left */
} bench_column;

#define BENCH_GROUPS 5

/* What --plot draws: y over x, one line for each value of the group columns, of the rows whose `only` column (-1: all
 * rows) is true. */
typedef struct bench_plot {
    int x, y, only;
    bool log_x, log_y;
    bool points; /* without lines */
    int groups;
    int group[BENCH_GROUPS];
} bench_plot;

typedef struct bench_table {
    const char *command;
    char title[BENCH_NOTE];
    char machine[BENCH_NOTE]; /* on what it was measured */
    const bench_column *columns;
    int column_count;
    bench_cell *cells; /* [rows][column_count] */
    int rows, capacity;
    int filled; /* cells set in the row being filled */
    bool out_of_memory;
    uint64_t hidden; /* bit by column: reals there stay empty, because they would say nothing */
    char notes[BENCH_NOTES][BENCH_NOTE];
    int note_count;
    int failed_checks;
    bench_plot plot;
} bench_table;

void bench_table_init(bench_table *table, const char *command, const bench_column *columns, int count);
void bench_table_free(bench_table *table);

/* Begins a row, then sets its cells from left to right; cells that are not set stay empty. */
void bench_row(bench_table *table);
void bench_word(bench_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bench_integer(bench_table *table, int64_t value);
void bench_real(bench_table *table, double value); /* not finite: an empty cell */
void bench_truth(bench_table *table, bool value);
void bench_empty(bench_table *table);

/* A line under the table. A repeated one is written once. */
void bench_note(bench_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

const bench_cell *bench_table_cell(const bench_table *table, int row, int column);

void bench_write_human(const bench_table *table, FILE *file);
void bench_write_csv(const bench_table *table, FILE *file);
void bench_write_json(const bench_table *table, FILE *file);

bool bench_has_gnuplot(void);

/* Draws into path (.svg or .png). False, with a message, if that can't be done. */
bool bench_write_plot(const bench_table *table, const char *path, char message[512]);

/* The gnuplot program for it: the pure part of the above. */
void bench_write_gnuplot(const bench_table *table, const char *path, FILE *file);

#endif
