// Creating, setting and reading descriptors.
#include "descriptor.h"

#include "../report.h"

#include <cstring>

namespace gpusim {
namespace {

struct Attribute {
    int name;
    size_t offset, bytes;
};

#define GPUSIM_FIELD(type, field) offsetof(type, field), sizeof(type::field)
const Attribute layout_attributes[] = {
    {CUBLASLT_MATRIX_LAYOUT_TYPE, GPUSIM_FIELD(MatrixLayout, type)},
    {CUBLASLT_MATRIX_LAYOUT_ORDER, GPUSIM_FIELD(MatrixLayout, order)},
    {CUBLASLT_MATRIX_LAYOUT_ROWS, GPUSIM_FIELD(MatrixLayout, rows)},
    {CUBLASLT_MATRIX_LAYOUT_COLS, GPUSIM_FIELD(MatrixLayout, cols)},
    {CUBLASLT_MATRIX_LAYOUT_LD, GPUSIM_FIELD(MatrixLayout, ld)},
    {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, GPUSIM_FIELD(MatrixLayout, batch)},
    {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, GPUSIM_FIELD(MatrixLayout, stride)},
};

const Attribute description_attributes[] = {
    {CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, GPUSIM_FIELD(MatmulDescription, compute)},
    {CUBLASLT_MATMUL_DESC_SCALE_TYPE, GPUSIM_FIELD(MatmulDescription, scale)},
    {CUBLASLT_MATMUL_DESC_POINTER_MODE, GPUSIM_FIELD(MatmulDescription, pointer_mode)},
    {CUBLASLT_MATMUL_DESC_TRANSA, offsetof(MatmulDescription, transpose), sizeof(int32_t)},
    {CUBLASLT_MATMUL_DESC_TRANSB, offsetof(MatmulDescription, transpose) + sizeof(int32_t), sizeof(int32_t)},
    {CUBLASLT_MATMUL_DESC_TRANSC, offsetof(MatmulDescription, transpose) + 2 * sizeof(int32_t), sizeof(int32_t)},
    {CUBLASLT_MATMUL_DESC_FILL_MODE, GPUSIM_FIELD(MatmulDescription, fill)},
    {CUBLASLT_MATMUL_DESC_EPILOGUE, GPUSIM_FIELD(MatmulDescription, epilogue)},
    {CUBLASLT_MATMUL_DESC_BIAS_POINTER, GPUSIM_FIELD(MatmulDescription, bias)},
    {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, GPUSIM_FIELD(MatmulDescription, bias_stride)},
    {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, GPUSIM_FIELD(MatmulDescription, bias_type)},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, GPUSIM_FIELD(MatmulDescription, aux)},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, GPUSIM_FIELD(MatmulDescription, aux_ld)},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, GPUSIM_FIELD(MatmulDescription, aux_stride)},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, GPUSIM_FIELD(MatmulDescription, aux_type)},
    {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, GPUSIM_FIELD(MatmulDescription, multiprocessors)},
    {CUBLASLT_MATMUL_DESC_FAST_ACCUM, GPUSIM_FIELD(MatmulDescription, fast_accumulation)},
};

const Attribute preference_attributes[] = {
    {CUBLASLT_MATMUL_PREF_SEARCH_MODE, GPUSIM_FIELD(MatmulPreference, search)},
    {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, GPUSIM_FIELD(MatmulPreference, workspace)},
    {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, GPUSIM_FIELD(MatmulPreference, reductions)},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, offsetof(MatmulPreference, alignment), sizeof(uint32_t)},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, offsetof(MatmulPreference, alignment) + sizeof(uint32_t),
     sizeof(uint32_t)},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, offsetof(MatmulPreference, alignment) + 2 * sizeof(uint32_t),
     sizeof(uint32_t)},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, offsetof(MatmulPreference, alignment) + 3 * sizeof(uint32_t),
     sizeof(uint32_t)},
    {CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, GPUSIM_FIELD(MatmulPreference, waves)},
    {CUBLASLT_MATMUL_PREF_IMPL_MASK, GPUSIM_FIELD(MatmulPreference, implementations)},
};
#undef GPUSIM_FIELD

template <size_t Count>
cublasStatus_t set(const Attribute (&table)[Count], void *object, int name, const void *value, size_t bytes,
                   const char *what)
{
    for (const Attribute &one : table)
        if (one.name == name) {
            if (!value || bytes < one.bytes)
                return CUBLAS_STATUS_INVALID_VALUE;
            memcpy(static_cast<char *>(object) + one.offset, value, one.bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    report(GPUSIM_UNSUPPORTED, "cuBLASLt: attribute %d of a %s", name, what);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

template <size_t Count>
cublasStatus_t get(const Attribute (&table)[Count], const void *object, int name, void *value, size_t bytes,
                   size_t *written)
{
    for (const Attribute &one : table)
        if (one.name == name) {
            if (written)
                *written = one.bytes;
            if (bytes == 0 && written)
                return CUBLAS_STATUS_SUCCESS;
            if (!value || bytes < one.bytes)
                return CUBLAS_STATUS_INVALID_VALUE;
            memcpy(value, static_cast<const char *>(object) + one.offset, one.bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

template <class Opaque> cublasStatus_t created(Opaque **made)
{
    if (!made)
        return CUBLAS_STATUS_INVALID_VALUE;
    *made = new Opaque();
    return CUBLAS_STATUS_SUCCESS;
}

template <class Opaque> cublasStatus_t destroyed(Opaque *object)
{
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace
} // namespace gpusim

using namespace gpusim;

extern "C" {

size_t cublasLtGetVersion(void)
{
    return 130100;
}

size_t cublasLtGetCudartVersion(void)
{
    return CUDART_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_unknown";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    default:
        return "an internal operation failed";
    }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t ld)
{
    if (!layout || bytes < sizeof *layout)
        return CUBLAS_STATUS_INVALID_VALUE;
    *layout = cublasLtMatrixLayoutOpaque_t{};
    *inside<MatrixLayout>(layout) = {rows, cols, ld, 0, CUBLASLT_ORDER_COL, 1, uint32_t(type), 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    const cublasStatus_t status = created(layout);
    return status ? status : cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroyed(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t bytes)
{
    return set(layout_attributes, inside<MatrixLayout>(layout), name, value, bytes, "matrix layout");
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name,
                                                void *value, size_t bytes, size_t *written)
{
    return get(layout_attributes, inside<MatrixLayout>(layout), name, value, bytes, written);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    if (!description || bytes < sizeof *description)
        return CUBLAS_STATUS_INVALID_VALUE;
    *description = cublasLtMatmulDescOpaque_t{};
    MatmulDescription *made = inside<MatmulDescription>(description);
    made->compute = compute;
    made->scale = scale;
    made->fill = CUBLAS_FILL_MODE_FULL;
    made->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    made->bias_type = made->aux_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    const cublasStatus_t status = created(description);
    return status ? status : cublasLtMatmulDescInit_internal(*description, sizeof **description, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description)
{
    return destroyed(description);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes)
{
    return set(description_attributes, inside<MatmulDescription>(description), name, value, bytes, "matmul descriptor");
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name,
                                              void *value, size_t bytes, size_t *written)
{
    return get(description_attributes, inside<MatmulDescription>(description), name, value, bytes, written);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t bytes)
{
    if (!preference || bytes < sizeof *preference)
        return CUBLAS_STATUS_INVALID_VALUE;
    *preference = cublasLtMatmulPreferenceOpaque_t{};
    for (uint32_t &alignment : inside<MatmulPreference>(preference)->alignment)
        alignment = 256;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    const cublasStatus_t status = created(preference);
    return status ? status : cublasLtMatmulPreferenceInit_internal(*preference, sizeof **preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroyed(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t bytes)
{
    return set(preference_attributes, inside<MatmulPreference>(preference), name, value, bytes, "matmul preference");
}

cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, void *value,
                                                    size_t bytes, size_t *written)
{
    return get(preference_attributes, inside<MatmulPreference>(preference), name, value, bytes, written);
}
}
