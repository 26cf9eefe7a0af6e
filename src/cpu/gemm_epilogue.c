/* What happens to a tile of sums before it is stored, in f32 and in the order that ops.h states: one pass over the
 * tile, which stays in L1. Its loop has one dtype and one activation, and independent vectors that overlap. */
#include "cpu/activation_math.h"
#include "cpu/gemm.h"
#include "cpu/random_math.h"

bool CPU(gemm_epilogue_empty)(const tpi_gemm_args *args)
{
    return args->c_dtype == TP_DTYPE_F32 && args->bias == NULL && args->activation == TPI_ACT_NONE &&
           args->pre == NULL && args->act_input == NULL && args->residual == NULL && args->dropout == 0;
}

/* Where the tile lies in C. */
typedef struct tile_place {
    int64_t row, col;
    int rows, cols;
} tile_place;

#define VECTORS (TPI_GEMM_COLS / TPI_LANES)
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* What few layers ask for. */
static inline vf drop(const tpi_gemm_args *args, const tile_place *at, int r, int c, vf x)
{
    tpi_dropout dropout;
    tpi_dropout_init(&dropout, args->dropout, args->dropout_key);
    return tpi_dropout_apply(&dropout, x, (uint64_t)((args->first_row + at->row + r) * args->cols + at->col + c));
}

/* The tile's bias. */
ALWAYS_INLINE void load_bias(const tpi_gemm_args *args, const tile_place *at, vf bias[VECTORS])
{
    for (int v = 0; v < VECTORS; v++) {
        const int64_t col = at->col + v * TPI_LANES, left = at->col + at->cols - col;
        bias[v] = args->bias == NULL || left <= 0 ? vf_zero()
                                                  : vf_load_any(tpi_element(args->bias, args->bias_dtype, col),
                                                                args->bias_dtype, tpi_lanes_of(left));
    }
}

/* `dtype`, `activation`, `slope` (multiply by it) and `simple` (all columns, no dropout) are constants in the copies
 * that count. */
ALWAYS_INLINE void finish_tile(const tpi_gemm_args *args, const tile_place *at, const float *tile, const tp_dtype dtype,
                               const tpi_activation activation, const bool slope, const bool simple)
{
    /* Locals, since the stores could change what `args` points to. */
    const bool biased = args->bias != NULL, storing = args->pre != NULL, adding = args->residual != NULL,
               dropping = !simple && args->dropout > 0;
    const int rows = at->rows, cols = at->cols;
    vf bias[VECTORS];
    load_bias(args, at, bias);
    for (int r = 0; r < rows; r++, tile += TPI_GEMM_COLS) {
        const int64_t row = at->row + r, col = at->col;
        void *c = tpi_element_of(args->c, dtype, row * args->c_stride + col);
        void *pre = storing ? tpi_element_of(args->pre, dtype, row * args->pre_stride + col) : NULL;
        const void *input = slope ? tpi_element(args->act_input, dtype, row * args->act_input_stride + col) : NULL;
        const void *residual = adding ? tpi_element(args->residual, dtype, row * args->residual_stride + col) : NULL;
#pragma GCC unroll 1
        for (int v = 0; v < VECTORS; v++) {
            const int i = v * TPI_LANES, n = simple ? TPI_LANES : tpi_lanes_of(cols - i);
            vf x = vf_load(tile + i);
            if (n <= 0)
                break;
            if (biased)
                x = vf_add(x, bias[v]);
            if (storing)
                vf_store_any(tpi_element_of(pre, dtype, i), dtype, x, n);
            if (slope)
                x = vf_mul(x, tpi_activation_slope(activation, vf_load_any(tpi_element(input, dtype, i), dtype, n)));
            else
                x = tpi_activation_value(activation, x);
            if (dropping)
                x = drop(args, at, r, i, x);
            if (adding)
                x = vf_add(x, vf_load_any(tpi_element(residual, dtype, i), dtype, n));
            vf_store_any(tpi_element_of(c, dtype, i), dtype, x, n);
        }
    }
}

/* Bias and rounding, and nothing else. */
ALWAYS_INLINE void store_tile(const tpi_gemm_args *args, const tile_place *at, const float *tile, const tp_dtype dtype,
                              const bool biased)
{
    const int64_t stride = args->c_stride * (int64_t)tp_dtype_size(dtype);
    char *c = tpi_element_of(args->c, dtype, at->row * args->c_stride + at->col);
    const int rows = at->rows;
    vf bias[VECTORS];
    if (biased)
        load_bias(args, at, bias);
    for (int r = 0; r < rows; r++, tile += TPI_GEMM_COLS, c += stride) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const vf x = vf_load(tile + v * TPI_LANES);
            vf_store_any(tpi_element_of(c, dtype, v * TPI_LANES), dtype, biased ? vf_add(x, bias[v]) : x, TPI_LANES);
        }
    }
}

/* Tiles at the end of rows, and dropout. */
static __attribute__((noinline)) void finish_others(const tpi_gemm_args *args, const tile_place *at, const float *tile)
{
    if (args->act_input != NULL)
        finish_tile(args, at, tile, args->c_dtype, args->activation, true, false);
    else
        finish_tile(args, at, tile, args->c_dtype, args->activation, false, false);
}

ALWAYS_INLINE void finish_any(const tpi_gemm_args *args, const tile_place *at, const float *tile, const tp_dtype dtype,
                              const bool slope)
{
    switch (args->activation) {
    case TPI_ACT_GELU: finish_tile(args, at, tile, dtype, TPI_ACT_GELU, slope, true); return;
    case TPI_ACT_GELU_TANH: finish_tile(args, at, tile, dtype, TPI_ACT_GELU_TANH, slope, true); return;
    case TPI_ACT_RELU: finish_tile(args, at, tile, dtype, TPI_ACT_RELU, slope, true); return;
    case TPI_ACT_RELU2: finish_tile(args, at, tile, dtype, TPI_ACT_RELU2, slope, true); return;
    case TPI_ACT_SILU: finish_tile(args, at, tile, dtype, TPI_ACT_SILU, slope, true); return;
    default: break;
    }
    if (slope || args->pre != NULL || args->residual != NULL)
        finish_tile(args, at, tile, dtype, TPI_ACT_NONE, slope, true);
    else if (args->bias != NULL)
        store_tile(args, at, tile, dtype, true);
    else
        store_tile(args, at, tile, dtype, false);
}

/* The value and the slope of one dtype. */
#define DEFINE_FINISH(name, dtype)                                                                                     \
    static __attribute__((noinline)) void name(const tpi_gemm_args *args, const tile_place *at, const float *tile)     \
    {                                                                                                                  \
        if (args->act_input != NULL)                                                                                   \
            finish_any(args, at, tile, dtype, true);                                                                   \
        else                                                                                                           \
            finish_any(args, at, tile, dtype, false);                                                                  \
    }

DEFINE_FINISH(finish_f32, TP_DTYPE_F32)
DEFINE_FINISH(finish_bf16, TP_DTYPE_BF16)
DEFINE_FINISH(finish_f16, TP_DTYPE_F16)

void CPU(gemm_epilogue)(const tpi_gemm_args *args, const float *tile, int64_t row, int64_t col, int rows, int cols)
{
    const tile_place at = {row, col, rows, cols};
    if (cols < TPI_GEMM_COLS || args->dropout > 0)
        finish_others(args, &at, tile);
    else if (args->c_dtype == TP_DTYPE_BF16)
        finish_bf16(args, &at, tile);
    else if (args->c_dtype == TP_DTYPE_F16)
        finish_f16(args, &at, tile);
    else
        finish_f32(args, &at, tile);
}
