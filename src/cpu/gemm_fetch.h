/* What a tile's kernel asks for while it multiplies: memory that the tile's end or the tiles after it need. */
#ifndef TPI_GEMM_FETCH_H
#define TPI_GEMM_FETCH_H

#include "cpu/gemm.h"

#define TPI_GEMM_FETCHES (6 + TPI_GEMM_ROWS)
#define TPI_GEMM_PAIR_BYTES 128

typedef struct tpi_gemm_fetch_list {
    int count;
    tpi_gemm_fetch fetch[TPI_GEMM_FETCHES];
} tpi_gemm_fetch_list;

static inline void tpi_gemm_fetch_rows(tpi_gemm_fetch_list *list, const void *first, int64_t stride, int64_t row_bytes,
                                       int64_t rows, bool writing)
{
    const bool wide = row_bytes > TPI_GEMM_PAIR_BYTES;
    if (rows <= 0)
        return;
    list->fetch[list->count++] =
        (tpi_gemm_fetch){.lines = first,
                         .next = {wide ? TPI_GEMM_PAIR_BYTES : stride, wide ? stride - TPI_GEMM_PAIR_BYTES : stride},
                         .pairs = wide ? 2 * rows : rows,
                         .writing = writing};
}

/* The tile of an array at (row, col). */
static inline void tpi_gemm_fetch_tile(tpi_gemm_fetch_list *list, const void *data, tp_dtype dtype, int64_t stride,
                                       const int64_t place[2])
{
    const int64_t size = (int64_t)tp_dtype_size(dtype);
    const char *first = (const char *)data + (place[0] * stride + place[1]) * size;
    tpi_gemm_fetch_rows(list, first, stride * size, TPI_GEMM_COLS * size, TPI_GEMM_ROWS, true);
}

/* What the epilogue of the tile at (row, col) reads and writes. */
static inline void tpi_gemm_fetch_epilogue(tpi_gemm_fetch_list *list, const tpi_gemm_args *args, const int64_t place[2])
{
    tpi_gemm_fetch_tile(list, args->c, args->c_dtype, args->c_stride, place);
    if (args->pre != NULL)
        tpi_gemm_fetch_tile(list, args->pre, args->c_dtype, args->pre_stride, place);
    if (args->act_input != NULL)
        tpi_gemm_fetch_tile(list, args->act_input, args->c_dtype, args->act_input_stride, place);
    if (args->residual != NULL)
        tpi_gemm_fetch_tile(list, args->residual, args->c_dtype, args->residual_stride, place);
}

/* The kernel stays with the last entry. */
static inline void tpi_gemm_fetch_end(tpi_gemm_fetch_list *list)
{
    list->fetch[list->count] = (tpi_gemm_fetch){.lines = (const char *)list, .pairs = INT64_MAX};
}

#endif
