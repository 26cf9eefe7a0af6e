/* GEMM by cuBLASLt, for TP_SUM_FAST: what its epilogues can do goes into the product; else it makes f32 sums that a
 * kernel of ours finishes. */
#include "cuda/gemm_library.h"

#include <string.h>

#include "core/stream.h"
#include "cuda/state.h"

typedef struct library_call {
    tpi_stream *stream;
    const tpi_gemm_args *args;
    int64_t begin, length; /* inner indices that take part */
    bool direct;           /* the library finishes C; else it makes sums */
    bool sum_rows;         /* the library sums rows of a: its "bias gradient" of b */
    const void *bias, *residual;
    void *aux;
    tpi_cuda_gemm_shape shape;
} library_call;

/* The indices of an order's segments, if they are all of a range: the library sums them in an order of its own. */
static bool find_range(const tpi_gemm_args *args, int64_t *begin, int64_t *length)
{
    const tpi_inner *order = args->order;
    int64_t low = 0, high = args->inner, count = args->inner;
    if (order) {
        low = INT64_MAX;
        high = 0;
        count = 0;
        for (int i = 0; i < order->segments; i++) {
            int64_t first = order->segment[i].begin, end = first + order->segment[i].length;
            if (first == end)
                continue;
            low = first < low ? first : low;
            high = end > high ? end : high;
            count += end - first;
        }
    }
    *begin = low;
    *length = count;
    return count > 0 && count == high - low;
}

static uint32_t alignment_of(const void *data)
{
    uintptr_t address = (uintptr_t)data, alignment = address & (~address + 1);
    return alignment == 0 || alignment > 256 ? 256 : (uint32_t)alignment;
}

static int32_t type_of(tp_dtype dtype)
{
    return dtype == TP_DTYPE_BF16 ? CUDA_R_16BF : dtype == TP_DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static const void *operand_at(const tpi_operand *operand, int64_t k)
{
    return (const char *)operand->data + (size_t)(k * operand->inner_stride) * tp_dtype_size(operand->dtype);
}

/* What epilogues read and write beside C isn't among the alignments that the heuristic is told: the library takes
 * vectors for granted. */
static bool is_vector(const void *data)
{
    return alignment_of(data) >= 16;
}

/* The auxiliary matrix of GELU: each of its lines too. */
static bool aux_fits(const void *data, int64_t stride)
{
    return is_vector(data) && stride % 8 == 0;
}

static int32_t with_bias(const library_call *call, cublasLtEpilogue_t plain, cublasLtEpilogue_t biased)
{
    return (int32_t)(call->bias ? biased : plain);
}

/* Chooses an epilogue that does the same as ops.h; false: there is none. The library's GELU is the tanh form. */
static bool choose_epilogue(library_call *call)
{
    const tpi_gemm_args *args = call->args;
    int32_t *epilogue = &call->shape.epilogue;
    call->bias = args->bias;
    if (args->dropout > 0 || (args->bias && (args->bias_dtype != args->c_dtype || !is_vector(args->bias))))
        return false;
    if (args->act_input) {
        *epilogue = CUBLASLT_EPILOGUE_DGELU;
        call->aux = (void *)args->act_input;
        call->shape.aux_line = args->act_input_stride;
        return args->activation == TPI_ACT_GELU_TANH && !args->residual &&
               aux_fits(args->act_input, args->act_input_stride);
    }
    switch (args->activation) {
    case TPI_ACT_NONE:
        call->residual = args->residual;
        *epilogue = with_bias(call, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS);
        return !args->pre;
    case TPI_ACT_RELU:
        *epilogue = with_bias(call, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS);
        return !args->pre && !args->residual;
    case TPI_ACT_GELU_TANH:
        *epilogue = with_bias(call, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS);
        if (args->pre) {
            *epilogue = with_bias(call, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
            call->aux = args->pre;
            call->shape.aux_line = args->pre_stride;
        }
        return !args->residual && (!args->pre || aux_fits(args->pre, args->pre_stride));
    default: return false;
    }
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* f32 is computed as f32 unless the context says otherwise. */
static int32_t compute_of(const library_call *call)
{
    const bool f32 = call->args->a.dtype == TP_DTYPE_F32;
    return f32 && tpi_cuda_device_of(call->stream)->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/* The library's A is our b and its B our a, since it counts in columns. */
static void describe(library_call *call)
{
    const tpi_gemm_args *args = call->args;
    tpi_cuda_gemm_shape *shape = &call->shape;
    const bool b_inner = args->b.inner_stride == 1, a_inner = args->a.inner_stride == 1;
    const void *residual = call->residual ? call->residual : args->c;
    shape->m = args->cols;
    shape->n = args->rows;
    shape->k = call->length;
    shape->transpose_a = b_inner ? CUBLAS_OP_T : CUBLAS_OP_N;
    shape->transpose_b = a_inner ? CUBLAS_OP_N : CUBLAS_OP_T;
    shape->a_rows = b_inner ? shape->k : shape->m;
    shape->a_cols = b_inner ? shape->m : shape->k;
    shape->a_line = larger(b_inner ? args->b.outer_stride : args->b.inner_stride, shape->a_rows);
    shape->b_rows = a_inner ? shape->k : shape->n;
    shape->b_cols = a_inner ? shape->n : shape->k;
    shape->b_line = larger(a_inner ? args->a.outer_stride : args->a.inner_stride, shape->b_rows);
    shape->type = type_of(args->a.dtype);
    shape->compute = compute_of(call);
    shape->d_type = call->direct ? type_of(args->c_dtype) : CUDA_R_32F;
    shape->d_line = call->direct ? larger(args->c_stride, shape->m) : shape->m;
    shape->c_line = call->residual ? larger(args->residual_stride, shape->m) : shape->d_line;
    shape->a_alignment = alignment_of(operand_at(&args->b, call->begin));
    shape->b_alignment = alignment_of(operand_at(&args->a, call->begin));
    shape->d_alignment = call->direct ? alignment_of(args->c) : 256;
    shape->c_alignment = call->direct ? alignment_of(residual) : 256;
    if (!call->direct)
        shape->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (call->sum_rows)
        shape->epilogue = CUBLASLT_EPILOGUE_BGRADB;
}

static bool set_pointer(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void *pointer)
{
    return !pointer ||
           cublasLtMatmulDescSetAttribute(product, attribute, &pointer, sizeof pointer) == CUBLAS_STATUS_SUCCESS;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Workspace: the algorithm's, then sums of the product, then those of rows. */
static tp_status multiply(const library_call *call, const tpi_cuda_gemm_algorithm *found, float **sums,
                          float **row_sums)
{
    const tpi_gemm_args *args = call->args;
    const float one = 1, zero = 0;
    const size_t sums_bytes = call->direct ? 0 : rounded((size_t)args->rows * (size_t)args->cols * sizeof(float));
    void *workspace;
    TPI_TRY(tpi_cuda_workspace(
        call->stream, rounded(found->workspace) + sums_bytes + (size_t)args->rows * sizeof(float), &workspace));
    *sums = (float *)((char *)workspace + rounded(found->workspace));
    *row_sums = (float *)((char *)*sums + sums_bytes);
    void *d = call->direct ? args->c : *sums;
    const void *c = call->residual ? call->residual : d, *bias = call->sum_rows ? *row_sums
                                                                 : call->direct ? call->bias
                                                                                : NULL;
    const bool adds = args->accumulate || call->residual;
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    if (set_pointer(found->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias) &&
        set_pointer(found->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call->direct ? call->aux : NULL))
        status = cublasLtMatmul(tpi_cuda_device_of(call->stream)->blaslt, found->product, &one,
                                operand_at(&args->b, call->begin), found->a, operand_at(&args->a, call->begin),
                                found->b, adds ? &one : &zero, c, found->c, d, found->d, &found->algorithm, workspace,
                                found->workspace, tpi_cuda_handle(call->stream));
    if (status != CUBLAS_STATUS_SUCCESS)
        return tpi_fail(call->stream->ctx, TP_ERR_BACKEND,
                        "gemm: cublasLtMatmul returned %d for [%lld, %lld] over %lld", (int)status,
                        (long long)args->rows, (long long)args->cols, (long long)call->length);
    return tpi_cuda_check(call->stream, cudaGetLastError(), "gemm");
}

/* Tries one way; `done` says whether the library took it. */
static tp_status try_call(library_call *call, tpi_cuda_gemm_cache *cache, bool *done)
{
    const tpi_gemm_args *args = call->args;
    float *sums = NULL, *row_sums = NULL;
    describe(call);
    pthread_mutex_lock(&cache->lock);
    const tpi_cuda_gemm_algorithm *found =
        tpi_cuda_gemm_find(cache, tpi_cuda_device_of(call->stream)->blaslt, &call->shape);
    *done = found->supported;
    tp_status status = *done ? multiply(call, found, &sums, &row_sums) : TP_OK;
    pthread_mutex_unlock(&cache->lock);
    if (status != TP_OK || !*done)
        return status;
    if (!call->direct)
        TPI_TRY(tpi_cuda_gemm_finish(call->stream, args, sums));
    if (!args->row_sums)
        return TP_OK;
    if (!call->sum_rows)
        return tpi_cuda_gemm_row_sums(call->stream, args);
    return tpi_cuda_map(call->stream, &(tpi_map_args){.rows = 1,
                                                     .cols = args->rows,
                                                     .in = row_sums,
                                                     .in_dtype = TP_DTYPE_F32,
                                                     .in_stride = args->rows,
                                                     .out = args->row_sums,
                                                     .out_dtype = TP_DTYPE_F32,
                                                     .out_stride = args->rows,
                                                     .accumulate = true});
}

static tpi_cuda_gemm_cache *cache_of(tp_ctx *ctx)
{
    tpi_cuda_state *state = tpi_cuda_state_of(ctx);
    if (!state->gemm_cache) {
        state->gemm_cache = tpi_host_allocate(ctx, sizeof *state->gemm_cache);
        if (state->gemm_cache)
            pthread_mutex_init(&state->gemm_cache->lock, NULL);
    }
    return state->gemm_cache;
}

/* A plain product into C takes the sums of rows along. */
static bool is_plain(const library_call *call)
{
    return call->direct && call->shape.epilogue == CUBLASLT_EPILOGUE_DEFAULT && call->args->c_dtype == TP_DTYPE_F32;
}

/* A dry run asks nobody: the algorithm may want the most that it may have. */
static tp_status count_workspace(tpi_stream *stream, const library_call *call)
{
    void *workspace;
    const size_t sums = call->direct ? 0 : rounded((size_t)call->args->rows * (size_t)call->args->cols * sizeof(float));
    return tpi_cuda_workspace(
        stream, rounded(TPI_CUDA_GEMM_WORKSPACE) + sums + (size_t)call->args->rows * sizeof(float), &workspace);
}

tp_status tpi_cuda_gemm_library(tpi_stream *stream, const tpi_gemm_args *args, bool *done)
{
    library_call call = {.stream = stream, .args = args};
    *done = false;
    if (args->rows == 0 || args->cols == 0 || !find_range(args, &call.begin, &call.length))
        return TP_OK;
    library_call direct = call;
    direct.direct = choose_epilogue(&direct);
    if (tpi_cuda_dry(stream)) {
        *done = true;
        return count_workspace(stream, &direct);
    }
    tpi_cuda_gemm_cache *cache = cache_of(stream->ctx);
    if (!cache)
        return TP_ERR_MEMORY;
    if (args->row_sums && is_plain(&direct)) {
        library_call summing = direct;
        summing.sum_rows = true;
        TPI_TRY(try_call(&summing, cache, done));
    }
    if (!*done && direct.direct)
        TPI_TRY(try_call(&direct, cache, done));
    if (!*done && !args->accumulate)
        TPI_TRY(try_call(&call, cache, done));
    return TP_OK;
}
