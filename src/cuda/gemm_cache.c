#include "cuda/gemm_library.h"

#include <string.h>

static bool set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(product, attribute, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool make_layout(cublasLtMatrixLayout_t *out, int32_t type, int64_t rows, int64_t cols, int64_t line)
{
    return cublasLtMatrixLayoutCreate(out, (cudaDataType_t)type, (uint64_t)rows, (uint64_t)cols, line) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool describe(tpi_cuda_gemm_algorithm *found)
{
    const tpi_cuda_gemm_shape *shape = &found->shape;
    const cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)shape->epilogue;
    const cublasComputeType_t compute = (cublasComputeType_t)shape->compute;
    bool good = cublasLtMatmulDescCreate(&found->product, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
                make_layout(&found->a, shape->type, shape->a_rows, shape->a_cols, shape->a_line) &&
                make_layout(&found->b, shape->type, shape->b_rows, shape->b_cols, shape->b_line) &&
                make_layout(&found->c, shape->d_type, shape->m, shape->n, shape->c_line) &&
                make_layout(&found->d, shape->d_type, shape->m, shape->n, shape->d_line);
    good = good && set(found->product, CUBLASLT_MATMUL_DESC_TRANSA, &shape->transpose_a, sizeof shape->transpose_a) &&
           set(found->product, CUBLASLT_MATMUL_DESC_TRANSB, &shape->transpose_b, sizeof shape->transpose_b) &&
           set(found->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (good && shape->aux_line > 0)
        good = set(found->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &shape->aux_line, sizeof shape->aux_line);
    return good;
}

static bool prefer(cublasLtMatmulPreference_t preference, const tpi_cuda_gemm_shape *shape)
{
    const size_t workspace = TPI_CUDA_GEMM_WORKSPACE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } wanted[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &shape->a_alignment, sizeof shape->a_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &shape->b_alignment, sizeof shape->b_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &shape->c_alignment, sizeof shape->c_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &shape->d_alignment, sizeof shape->d_alignment},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (cublasLtMatmulPreferenceSetAttribute(preference, wanted[i].attribute, wanted[i].value, wanted[i].bytes) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    return true;
}

/* Asks the library; what it can't do is remembered too. */
static void ask(tpi_cuda_gemm_algorithm *found, cublasLtHandle_t handle)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_NOT_SUPPORTED};
    int count = 0;
    if (!describe(found) || cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return;
    if (prefer(preference, &found->shape) &&
        cublasLtMatmulAlgoGetHeuristic(handle, found->product, found->a, found->b, found->c, found->d, preference, 1,
                                       &result, &count) == CUBLAS_STATUS_SUCCESS &&
        count > 0 && result.state == CUBLAS_STATUS_SUCCESS) {
        found->supported = true;
        found->algorithm = result.algo;
        found->workspace = result.workspaceSize;
    }
    cublasLtMatmulPreferenceDestroy(preference);
}

static void forget(tpi_cuda_gemm_algorithm *found)
{
    cublasLtMatrixLayout_t layout[] = {found->a, found->b, found->c, found->d};
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
        if (layout[i])
            cublasLtMatrixLayoutDestroy(layout[i]);
    if (found->product)
        cublasLtMatmulDescDestroy(found->product);
    *found = (tpi_cuda_gemm_algorithm){.supported = false};
}

tpi_cuda_gemm_algorithm *tpi_cuda_gemm_find(tpi_cuda_gemm_cache *cache, cublasLtHandle_t handle,
                                            const tpi_cuda_gemm_shape *shape)
{
    for (int i = 0; i < cache->count; i++)
        if (memcmp(&cache->at[i].shape, shape, sizeof *shape) == 0)
            return &cache->at[i];
    tpi_cuda_gemm_algorithm *found = &cache->at[cache->next];
    forget(found);
    cache->next = (cache->next + 1) % TPI_CUDA_GEMM_SHAPES;
    if (cache->count < TPI_CUDA_GEMM_SHAPES)
        cache->count++;
    found->shape = *shape;
    ask(found, handle);
    return found;
}

void tpi_cuda_gemm_cache_free(tp_ctx *ctx, tpi_cuda_gemm_cache *cache)
{
    if (!cache)
        return;
    for (int i = 0; i < cache->count; i++)
        forget(&cache->at[i]);
    pthread_mutex_destroy(&cache->lock);
    tpi_host_release(ctx, cache, sizeof *cache);
}
