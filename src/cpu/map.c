/* Copies, casts, scaling, accumulation and dropout of sub-matrices. */
#include "cpu/cpu.h"
#include "cpu/random_math.h"
#include "cpu/tiles.h"

#if TPI_ISA_LEVEL >= 2
#define STREAMED_BYTES ((size_t)1 << 20)
#else
#define STREAMED_BYTES SIZE_MAX
#endif

typedef struct map_work {
    tpi_map_args args;
    tpi_tiles tiles;
    size_t in_size, out_size;
    bool plain; /* bits move unchanged */
    bool streamed; /* zeros past the caches: so many are not read soon */
} map_work;

/* Zeros without reading the lines first. */
static void clear_streamed(char *out, size_t bytes)
{
#if TPI_ISA_LEVEL >= 2
    size_t head = (64 - (uintptr_t)out % 64) % 64;

    head = head < bytes ? head : bytes;
    memset(out, 0, head);
    for (out += head, bytes -= head; bytes >= 64; out += 64, bytes -= 64)
        _mm512_stream_si512((__m512i *)(void *)out, _mm512_setzero_si512());
    _mm_sfence();
#endif
    memset(out, 0, bytes);
}

static void map_span(const tpi_map_args *args, tpi_dropout *dropout, int64_t row, int64_t col, int64_t col_end)
{
    const vf scale = vf_set1(args->scale);

    for (int n; col < col_end; col += n) {
        const void *in = tpi_element(args->in, args->in_dtype, row * args->in_stride + col);
        void *out = tpi_element_of(args->out, args->out_dtype, row * args->out_stride + col);
        vf x;

        n = tpi_lanes_of(col_end - col);
        x = vf_load_any(in, args->in_dtype, n);
        if (args->dropout > 0) {
            x = tpi_dropout_apply(dropout, vf_mul(x, scale), (uint64_t)((args->first_row + row) * args->cols + col));
            if (args->accumulate)
                x = vf_add(vf_load_any(out, args->out_dtype, n), x);
        } else if (args->accumulate) {
            x = vf_fma(x, scale, vf_load_any(out, args->out_dtype, n));
        } else {
            x = vf_mul(x, scale);
        }
        vf_store_any(out, args->out_dtype, x, n);
    }
}

static void map_part(void *arg, int64_t part, int worker)
{
    const map_work *work = arg;
    const tpi_map_args *args = &work->args;
    tpi_tile tile = tpi_tile_at(&work->tiles, part);
    size_t bytes = (size_t)(tile.col_end - tile.col) * work->out_size;
    tpi_dropout dropout;

    (void)worker;
    if (args->dropout > 0)
        tpi_dropout_init(&dropout, args->dropout, args->dropout_key);
    for (int64_t row = tile.row; row < tile.row_end; row++) {
        char *out = (char *)args->out + (size_t)(row * args->out_stride + tile.col) * work->out_size;

        if (!args->in && work->streamed)
            clear_streamed(out, bytes);
        else if (!args->in)
            memset(out, 0, bytes);
        else if (work->plain)
            memmove(out, (const char *)args->in + (size_t)(row * args->in_stride + tile.col) * work->in_size, bytes);
        else
            map_span(args, &dropout, row, tile.col, tile.col_end);
    }
}

tp_status CPU(map)(tp_ctx *ctx, const void *args)
{
    map_work work = {.args = *(const tpi_map_args *)args};
    tpi_map_args *map = &work.args;

    if (map->scale == 0)
        map->scale = 1;
    if (!map->in && map->accumulate)
        return TP_OK;
    work.in_size = tp_dtype_size(map->in_dtype);
    work.out_size = tp_dtype_size(map->out_dtype);
    work.streamed = !map->in && (size_t)map->rows * (size_t)map->cols >= STREAMED_BYTES / work.out_size;
    work.plain = map->in_dtype == map->out_dtype && map->scale == 1 && !map->accumulate && !(map->dropout > 0);
    if (map->in && !work.plain && !(tpi_is_float(map->in_dtype) && tpi_is_float(map->out_dtype)))
        return tpi_refuse(ctx, TP_ERR_DTYPE, "map: %s to %s", tp_dtype_name(map->in_dtype),
                          tp_dtype_name(map->out_dtype));
    if (map->out_stride == map->cols && (!map->in || map->in_stride == map->cols)) {
        /* Dense: one long row. The mask index is the same. */
        int64_t elements = map->rows * map->cols;

        if (!(map->dropout > 0) || map->first_row == 0) {
            map->rows = elements > 0;
            map->cols = map->in_stride = map->out_stride = elements;
        }
    }
    work.tiles = tpi_tiles_of(map->rows, map->cols);
    tpi_cpu_parallel(ctx, work.tiles.parts, map_part, &work);
    return TP_OK;
}
