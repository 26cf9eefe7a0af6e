/* Rows of a table by id, and their gradient. */
#include "cpu/cpu.h"
#include "cpu/sequences.h"
#include "cpu/simd.h"
#include "cpu/tiles.h"

/* ---- forward ---- */

typedef struct embedding_work {
    const tpi_embedding_args *args;
    tpi_sequences sequences;
    tpi_tiles tiles;
} embedding_work;

static int64_t id_of(const int32_t *ids, const tpi_sequences *sequences, int64_t row)
{
    return ids ? ids[row] : tpi_sequence_place(sequences, row);
}

/* The sum with +0 is what the tree over ranks gives too: the ranks without this id add it. */
static void embed_span(const embedding_work *work, int64_t row, int64_t col, int64_t col_end)
{
    const tpi_embedding_args *args = work->args;
    int64_t id = id_of(args->ids, &work->sequences, row) - args->first_id;
    bool here = id >= 0 && id < args->table_rows;

    for (int n; col < col_end; col += n) {
        vf x = vf_zero();

        n = tpi_lanes_of(col_end - col);
        if (here)
            x = vf_add(
                vf_load_any(tpi_element(args->table, args->table_dtype, id * args->cols + col), args->table_dtype, n),
                x);
        vf_store_any(tpi_element_of(args->out, args->out_dtype, row * args->cols + col), args->out_dtype, x, n);
    }
}

static void embedding_part(void *arg, int64_t part, int worker)
{
    const embedding_work *work = arg;
    tpi_tile tile = tpi_tile_at(&work->tiles, part);

    (void)worker;
    for (int64_t row = tile.row; row < tile.row_end; row++)
        embed_span(work, row, tile.col, tile.col_end);
}

/* What both directions look at before anything is written. */
typedef struct id_check {
    const int32_t *ids;
    const tpi_sequences *sequences;
    int64_t rows, first_row, vocabulary;
    bool positions;
} id_check;

static tp_status check_ids(tp_ctx *ctx, const id_check *check)
{
    const bool positions = check->positions || !check->ids;

    for (int64_t row = 0; row < check->rows; row++) {
        int64_t id = id_of(check->ids, check->sequences, row);

        if (id < 0 || id >= check->vocabulary)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, TPI_WRONG_ID, positions ? "positions" : "ids",
                              (long long)(check->first_row + row), (long long)id,
                              positions ? "positions" : "vocabulary", (long long)check->vocabulary);
    }
    return TP_OK;
}

tp_status CPU(embedding)(tp_ctx *ctx, const void *args)
{
    embedding_work work = {.args = args};
    const tpi_embedding_args *embedding = args;

    work.sequences = tpi_sequences_of(embedding->offsets, embedding->sequences, embedding->rows);
    TPI_TRY(check_ids(ctx, &(id_check){embedding->ids, &work.sequences, embedding->rows, embedding->first_row,
                                       embedding->vocabulary, embedding->positions}));
    work.tiles = tpi_tiles_of(embedding->rows, embedding->cols);
    tpi_cpu_parallel(ctx, work.tiles.parts, embedding_part, &work);
    return TP_OK;
}

/* ---- backward ---- */

#define GRAD_COLS 128 /* columns of one part, which walks over all tokens in order */

typedef struct embedding_grad_work {
    const tpi_embedding_grad_args *args;
    tpi_sequences sequences;
} embedding_grad_work;

static void embedding_grad_part(void *arg, int64_t part, int worker)
{
    const embedding_grad_work *work = arg;
    const tpi_embedding_grad_args *args = work->args;
    int64_t begin = part * GRAD_COLS, end = begin + GRAD_COLS < args->cols ? begin + GRAD_COLS : args->cols;

    (void)worker;
    for (int64_t row = 0; row < args->rows; row++) {
        int64_t id = id_of(args->ids, &work->sequences, row) - args->first_id;

        if (id < 0 || id >= args->table_rows)
            continue;
        for (int64_t col = begin; col < end; col += TPI_LANES) {
            int n = tpi_lanes_of(end - col);
            float *grad = args->grad + id * args->cols + col;
            vf dy = vf_load_any(tpi_element(args->dy, args->dy_dtype, row * args->cols + col), args->dy_dtype, n);

            vf_store_any(grad, TP_DTYPE_F32, vf_add(vf_load_any(grad, TP_DTYPE_F32, n), dy), n);
        }
    }
}

tp_status CPU(embedding_grad)(tp_ctx *ctx, const void *args)
{
    embedding_grad_work work = {.args = args};
    const tpi_embedding_grad_args *grad = args;

    work.sequences = tpi_sequences_of(grad->offsets, grad->sequences, grad->rows);
    TPI_TRY(check_ids(ctx, &(id_check){grad->ids, &work.sequences, grad->rows, 0, grad->vocabulary, grad->positions}));
    tpi_cpu_parallel(ctx, (grad->cols + GRAD_COLS - 1) / GRAD_COLS, embedding_grad_part, &work);
    return TP_OK;
}
