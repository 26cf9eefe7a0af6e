// What lies in cuBLASLt's opaque structures here.
#pragma once
#include "../api.h"

#include <cstddef>
#include <cstdint>
#include <string>

struct cublasLtContext {
    int device;
};

namespace gpusim {

struct MatrixLayout {
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t order, batch;
    uint32_t type;
    int32_t batch_mode;
};

struct MatmulDescription {
    int32_t compute, scale, pointer_mode, transpose[3], fill;
    uint32_t epilogue;
    const void *bias;
    void *aux;
    int64_t bias_stride, aux_ld, aux_stride;
    int32_t bias_type, aux_type; // -1: as D
    int32_t multiprocessors;
    int8_t fast_accumulation;
};

struct MatmulPreference {
    uint64_t workspace;
    uint32_t search, reductions;
    uint32_t alignment[4]; // A, B, C, D
    float waves;
    uint64_t implementations;
};

struct MatmulAlgorithm {
    uint64_t magic;
    uint64_t workspace;
    uint32_t alignment[4];
    uint64_t problem; // fingerprint() of what the heuristic was asked about
};

constexpr uint64_t algorithm_magic = 0x6770757369;

static_assert(sizeof(MatrixLayout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
static_assert(sizeof(MatmulDescription) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");
static_assert(sizeof(MatmulPreference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");
static_assert(sizeof(MatmulAlgorithm) <= sizeof(cublasLtMatmulAlgo_t), "fits");

template <class Inside, class Opaque> Inside *inside(Opaque *opaque)
{
    return reinterpret_cast<Inside *>(opaque->data);
}

template <class Inside, class Opaque> const Inside *inside(const Opaque *opaque)
{
    return reinterpret_cast<const Inside *>(opaque->data);
}

// A whole multiplication, as both the heuristic and the run see it.
struct MatmulProblem {
    MatmulDescription description;
    MatrixLayout a, b, c, d;

    size_t m() const { return d.rows; }
    size_t n() const { return d.cols; }
    size_t k() const { return description.transpose[0] ? a.rows : a.cols; }
    int bias_type() const { return description.bias_type < 0 ? int(d.type) : description.bias_type; }
    int aux_type() const { return description.aux_type < 0 ? int(d.type) : description.aux_type; }
};

// SUCCESS, or why not in *why: INVALID_VALUE for what contradicts itself, NOT_SUPPORTED for what the library (or the
// simulator) has not.
cublasStatus_t check_problem(const MatmulProblem &problem, std::string *why);

// Of all that decides which algorithms there are: layouts, types, transposes, epilogue; not the pointers.
uint64_t fingerprint(const MatmulProblem &problem);

size_t blas_type_bytes(int type); // 0: not simulated

// What an epilogue consists of.
struct EpilogueParts {
    bool bias, gelu, relu, gelu_backward, aux_written, bias_gradient_d, bias_gradient_a, bias_gradient_b;
};
bool epilogue_parts(uint32_t epilogue, EpilogueParts *parts); // false: not simulated

} // namespace gpusim
