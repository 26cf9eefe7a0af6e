/* What happens to a tile of sums before it is stored, in f32 and in the order that ops.h states. Each step is a pass over the tile, which stays in L1:
 * its loop has one dtype and one activation, and independent vectors that overlap. */
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

#define TILE_LINE(tile, r, c) ((tile) + (r) * TPI_GEMM_COLS + (c))
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The tile's place in an array; `dtype` is a constant in each copy. */
ALWAYS_INLINE void load_part(const tile_place *at, const void *data, const tp_dtype dtype, int64_t stride, float *tile)
{
    for (int r = 0; r < at->rows; r++) {
        const void *row = tpi_element(data, dtype, (at->row + r) * stride + at->col);
        int c = 0;
        for (; c + TPI_LANES <= at->cols; c += TPI_LANES)
            vf_store(TILE_LINE(tile, r, c), vf_load_any(tpi_element(row, dtype, c), dtype, TPI_LANES));
        if (c < at->cols)
            vf_store(TILE_LINE(tile, r, c), vf_load_any(tpi_element(row, dtype, c), dtype, at->cols - c));
    }
}

ALWAYS_INLINE void store_part(const tile_place *at, const float *tile, void *data, const tp_dtype dtype, int64_t stride)
{
    for (int r = 0; r < at->rows; r++) {
        void *row = tpi_element_of(data, dtype, (at->row + r) * stride + at->col);
        int c = 0;
        for (; c + TPI_LANES <= at->cols; c += TPI_LANES)
            vf_store_any(tpi_element_of(row, dtype, c), dtype, vf_load(TILE_LINE(tile, r, c)), TPI_LANES);
        if (c < at->cols)
            vf_store_any(tpi_element_of(row, dtype, c), dtype, vf_load(TILE_LINE(tile, r, c)), at->cols - c);
    }
}

static void load_tile(const tile_place *at, const void *data, tp_dtype dtype, int64_t stride, float *tile)
{
    switch (dtype) {
    case TP_DTYPE_BF16: load_part(at, data, TP_DTYPE_BF16, stride, tile); return;
    case TP_DTYPE_F16: load_part(at, data, TP_DTYPE_F16, stride, tile); return;
    default: load_part(at, data, TP_DTYPE_F32, stride, tile);
    }
}

static void store_tile(const tile_place *at, const float *tile, void *data, tp_dtype dtype, int64_t stride)
{
    switch (dtype) {
    case TP_DTYPE_BF16: store_part(at, tile, data, TP_DTYPE_BF16, stride); return;
    case TP_DTYPE_F16: store_part(at, tile, data, TP_DTYPE_F16, stride); return;
    default: store_part(at, tile, data, TP_DTYPE_F32, stride);
    }
}

static void add_bias(const tpi_gemm_args *args, const tile_place *at, float *tile)
{
    for (int c = 0; c < at->cols; c += TPI_LANES) {
        const void *bias = tpi_element(args->bias, args->bias_dtype, at->col + c);
        const vf x = vf_load_any(bias, args->bias_dtype, tpi_lanes_of(at->cols - c));
        for (int r = 0; r < at->rows; r++)
            vf_store(TILE_LINE(tile, r, c), vf_add(vf_load(TILE_LINE(tile, r, c)), x));
    }
}

/* Lanes beyond the last column are computed too; nobody reads them. */
ALWAYS_INLINE void activate_part(const tpi_activation activation, int elements, float *tile)
{
    for (int i = 0; i < elements; i += TPI_LANES)
        vf_store(tile + i, tpi_activation_value(activation, vf_load(tile + i)));
}

ALWAYS_INLINE void slope_part(const tpi_activation activation, int elements, const float *input, float *tile)
{
    for (int i = 0; i < elements; i += TPI_LANES)
        vf_store(tile + i, vf_mul(vf_load(tile + i), tpi_activation_slope(activation, vf_load(input + i))));
}

static void activate_tile(tpi_activation activation, int elements, float *tile)
{
    switch (activation) {
    case TPI_ACT_GELU: activate_part(TPI_ACT_GELU, elements, tile); return;
    case TPI_ACT_GELU_TANH: activate_part(TPI_ACT_GELU_TANH, elements, tile); return;
    case TPI_ACT_RELU: activate_part(TPI_ACT_RELU, elements, tile); return;
    case TPI_ACT_RELU2: activate_part(TPI_ACT_RELU2, elements, tile); return;
    case TPI_ACT_SILU: activate_part(TPI_ACT_SILU, elements, tile); return;
    default: return;
    }
}

static void multiply_by_slope(const tpi_gemm_args *args, const tile_place *at, float *tile)
{
    const int elements = at->rows * TPI_GEMM_COLS;
    float input[TPI_GEMM_TILE] __attribute__((aligned(64)));
    if (at->cols < TPI_GEMM_COLS)
        memset(input, 0, sizeof input);
    load_tile(at, args->act_input, args->c_dtype, args->act_input_stride, input);
    switch (args->activation) {
    case TPI_ACT_GELU: slope_part(TPI_ACT_GELU, elements, input, tile); return;
    case TPI_ACT_GELU_TANH: slope_part(TPI_ACT_GELU_TANH, elements, input, tile); return;
    case TPI_ACT_RELU: slope_part(TPI_ACT_RELU, elements, input, tile); return;
    case TPI_ACT_RELU2: slope_part(TPI_ACT_RELU2, elements, input, tile); return;
    case TPI_ACT_SILU: slope_part(TPI_ACT_SILU, elements, input, tile); return;
    default: slope_part(TPI_ACT_NONE, elements, input, tile);
    }
}

static void drop(const tpi_gemm_args *args, const tile_place *at, float *tile)
{
    tpi_dropout dropout;
    tpi_dropout_init(&dropout, args->dropout, args->dropout_key);
    for (int r = 0; r < at->rows; r++) {
        const uint64_t first = (uint64_t)((args->first_row + at->row + r) * args->cols + at->col);
        for (int c = 0; c < at->cols; c += TPI_LANES)
            vf_store(TILE_LINE(tile, r, c), tpi_dropout_apply(&dropout, vf_load(TILE_LINE(tile, r, c)), first + (uint64_t)c));
    }
}

static void add_residual(const tpi_gemm_args *args, const tile_place *at, float *tile)
{
    float residual[TPI_GEMM_TILE] __attribute__((aligned(64)));
    if (at->cols < TPI_GEMM_COLS)
        memset(residual, 0, sizeof residual);
    load_tile(at, args->residual, args->c_dtype, args->residual_stride, residual);
    for (int i = 0; i < at->rows * TPI_GEMM_COLS; i += TPI_LANES)
        vf_store(tile + i, vf_add(vf_load(tile + i), vf_load(residual + i)));
}

void CPU(gemm_epilogue)(const tpi_gemm_args *args, float *tile, int64_t row, int64_t col, int rows, int cols)
{
    const tile_place at = {row, col, rows, cols};
    if (args->bias != NULL)
        add_bias(args, &at, tile);
    if (args->pre != NULL)
        store_tile(&at, tile, args->pre, args->c_dtype, args->pre_stride);
    if (args->act_input != NULL)
        multiply_by_slope(args, &at, tile);
    else
        activate_tile(args->activation, rows * TPI_GEMM_COLS, tile);
    if (args->dropout > 0)
        drop(args, &at, tile);
    if (args->residual != NULL)
        add_residual(args, &at, tile);
    store_tile(&at, tile, args->c, args->c_dtype, args->c_stride);
}
