/* Normal random values on global indices: the numbers of tp_random_normal, two at a time. */
#include "core/trig.h"
#include "cpu/cpu.h"
#include "cpu/random_math.h"
#include "cpu/tiles.h"

typedef struct random_fill_work {
    const tpi_random_fill_args *args;
    tpi_tiles tiles;
} random_fill_work;

/* n values of elements index.., n <= 16. */
static vf normals(tpi_random_source *source, uint64_t index, int n)
{
    uint32_t word[32];
    float value[TPI_LANES + 2] = {0};
    uint64_t even = index & ~(uint64_t)1;
    int odd = (int)(index - even);

    vi_store(word, tpi_random_words16(source, even));
    if (odd + n > TPI_LANES)
        vi_store(word + 16, tpi_random_words16(source, even + TPI_LANES));
    for (int i = 0; i < odd + n; i += 2)
        tpi_normal_pair(word[i], word[i + 1], value + i);
    return vf_load(value + odd);
}

static void random_fill_part(void *arg, int64_t part, int worker)
{
    const random_fill_work *work = arg;
    const tpi_random_fill_args *args = work->args;
    tpi_tile tile = tpi_tile_at(&work->tiles, part);
    tpi_random_source source;

    (void)worker;
    tpi_random_source_init(&source, args->key);
    for (int64_t row = tile.row; row < tile.row_end; row++) {
        uint64_t first = (uint64_t)(args->first_row + row) * (uint64_t)args->total_cols + (uint64_t)args->first_col;

        for (int64_t col = tile.col; col < tile.col_end; col += TPI_LANES) {
            int n = tpi_lanes_of(tile.col_end - col);
            vf x = vf_mul(normals(&source, first + (uint64_t)col, n), vf_set1(args->std));

            vf_store_any(tpi_element_of(args->out, args->dtype, row * args->stride + col), args->dtype, x, n);
        }
    }
}

tp_status CPU(random_fill)(tp_ctx *ctx, const void *args)
{
    tpi_random_fill_args fill = *(const tpi_random_fill_args *)args;
    random_fill_work work = {.args = &fill};

    if (fill.total_cols == 0)
        fill.total_cols = fill.cols;
    work.tiles = tpi_tiles_of(fill.rows, fill.cols);
    tpi_cpu_parallel(ctx, work.tiles.parts, random_fill_part, &work);
    return TP_OK;
}
