/* What happens to a tile of sums before it is stored, in f32 and in the order that ops.h states. */
#include "cpu/activation_math.h"
#include "cpu/gemm.h"
#include "cpu/random_math.h"

bool CPU(gemm_epilogue_empty)(const tpi_gemm_args *args)
{
    return args->c_dtype == TP_DTYPE_F32 && args->bias == NULL && args->activation == TPI_ACT_NONE &&
           args->pre == NULL && args->act_input == NULL && args->residual == NULL && args->dropout == 0;
}

/* Up to 16 elements at (row, col). */
static inline vf finish(const tpi_gemm_args *args, tpi_dropout *dropout, vf x, int64_t row, int64_t col, int n)
{
    if (args->bias != NULL)
        x = vf_add(x, vf_load_any(tpi_element(args->bias, args->bias_dtype, col), args->bias_dtype, n));
    if (args->pre != NULL)
        vf_store_any(tpi_element_of(args->pre, args->c_dtype, row * args->pre_stride + col), args->c_dtype, x, n);
    if (args->act_input != NULL) {
        vf input = vf_load_any(tpi_element(args->act_input, args->c_dtype, row * args->act_input_stride + col),
                               args->c_dtype, n);
        x = vf_mul(x, tpi_activation_slope(args->activation, input));
    } else if (args->activation != TPI_ACT_NONE) {
        x = tpi_activation_value(args->activation, x);
    }
    if (args->dropout > 0)
        x = tpi_dropout_apply(dropout, x, (uint64_t)((args->first_row + row) * args->cols + col));
    if (args->residual != NULL)
        x = vf_add(x, vf_load_any(tpi_element(args->residual, args->c_dtype, row * args->residual_stride + col),
                                  args->c_dtype, n));
    return x;
}

void CPU(gemm_epilogue)(const tpi_gemm_args *args, const float *tile, int64_t row, int64_t col, int rows, int cols)
{
    tpi_dropout dropout;
    tpi_dropout_init(&dropout, args->dropout, args->dropout_key);
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c += TPI_LANES) {
            int n = tpi_lanes_of(cols - c);
            vf x = vf_load(tile + r * TPI_GEMM_COLS + c);
            x = finish(args, &dropout, x, row + r, col + c, n);
            vf_store_any(tpi_element_of(args->c, args->c_dtype, (row + r) * args->c_stride + col + c), args->c_dtype, x,
                         n);
        }
    }
}
