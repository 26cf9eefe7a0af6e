/* Activations and gated activations, forward and backward. */
#include "cpu/activation_math.h"
#include "cpu/cpu.h"
#include "cpu/tiles.h"

typedef struct activation_work {
    const tpi_activation_args *args;
    tpi_tiles tiles;
} activation_work;

static void activate_span(const tpi_activation_args *args, int64_t row, int64_t col, int64_t col_end)
{
    tp_dtype dtype = args->dtype;

    for (int n; col < col_end; col += n) {
        int64_t x_at = row * args->x_stride + col, dx_at = row * args->dx_stride + col;
        vf x, y = vf_zero(), up = vf_set1(1.0f), dy, slope;

        n = tpi_lanes_of(col_end - col);
        x = vf_load_any(tpi_element(args->x, dtype, x_at), dtype, n);
        if (args->y || args->gated)
            y = tpi_activation_value(args->activation, x);
        if (args->gated)
            up = vf_load_any(tpi_element(args->x, dtype, x_at + args->cols), dtype, n);
        if (args->dy) {
            dy = vf_load_any(tpi_element(args->dy, dtype, row * args->dy_stride + col), dtype, n);
            slope = tpi_activation_slope(args->activation, x);
            if (args->gated) {
                vf_store_any(tpi_element_of(args->dx, dtype, dx_at + args->cols), dtype, vf_mul(dy, y), n);
                dy = vf_mul(dy, up);
            }
            vf_store_any(tpi_element_of(args->dx, dtype, dx_at), dtype, vf_mul(dy, slope), n);
        }
        if (args->y) {
            y = args->gated ? vf_mul(y, up) : y;
            vf_store_any(tpi_element_of(args->y, dtype, row * args->y_stride + col), dtype, y, n);
        }
    }
}

static void activation_part(void *arg, int64_t part, int worker)
{
    const activation_work *work = arg;
    tpi_tile tile = tpi_tile_at(&work->tiles, part);

    (void)worker;
    for (int64_t row = tile.row; row < tile.row_end; row++)
        activate_span(work->args, row, tile.col, tile.col_end);
}

tp_status CPU(activation)(tp_ctx *ctx, const void *args)
{
    activation_work work = {.args = args};

    work.tiles = tpi_tiles_of(work.args->rows, work.args->cols);
    tpi_cpu_parallel(ctx, work.tiles.parts, activation_part, &work);
    return TP_OK;
}
