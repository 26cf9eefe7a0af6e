// cublasLtMatmul: checks now, and the numbers in stream order.
#include "descriptor.h"

#include "../access.h"
#include "../backing.h"
#include "../handles.h"
#include "../runtime/runtime.h"
#include "numbers.h"
#include "operand.h"

#include <cstring>

namespace gpusim {
namespace {

constexpr size_t workspace_wanted = 32768;
constexpr uintptr_t workspace_alignment = 256;

struct Buffers {
    const void *a, *b, *c;
    void *d;
    void *workspace;
    size_t workspace_bytes; // that the algorithm uses
    float alpha, beta;                        // host pointer mode
    const float *alpha_device, *beta_device; // device pointer mode
};

// Calls until the one that fails; less than 0: all of them do. By gpusim_blas_failure, under machine_lock().
int *planted()
{
    static int calls_left[2];
    return calls_left;
}

bool planted_failure(gpusim_blas_failure what)
{
    int &left = planted()[what];
    return left < 0 || (left > 0 && --left == 0);
}

cublasStatus_t refuse(const char *call, cublasStatus_t status, const std::string &why)
{
    report(GPUSIM_BLAS, "%s: %s", call, why.c_str());
    return status;
}

MatmulProblem problem_of(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    return {*inside<MatmulDescription>(description), *inside<MatrixLayout>(a), *inside<MatrixLayout>(b),
            *inside<MatrixLayout>(c), *inside<MatrixLayout>(d)};
}

bool operand_access(const Operand &operand)
{
    for (const OperandLine &line : operand.lines())
        if (!range_access(line.begin, line.bytes, operand.written ? kWrite : kRead))
            return false;
    return true;
}

// All that is read and written.
std::vector<Operand> operands_of(const MatmulProblem &problem, const Buffers &buffers, bool reads_c)
{
    const MatmulDescription &given = problem.description;
    EpilogueParts parts;
    epilogue_parts(given.epilogue, &parts);
    std::vector<Operand> all = {{"A", buffers.a, problem.a, false}, {"B", buffers.b, problem.b, false}};
    if (reads_c)
        all.push_back({"C", buffers.c, problem.c, false});
    const bool bias_written = parts.bias_gradient_d || parts.bias_gradient_a || parts.bias_gradient_b;
    if (parts.bias || bias_written) {
        const uint64_t length = parts.bias_gradient_b ? problem.n() : problem.m();
        const MatrixLayout vector = {
            length, 1, int64_t(length), given.bias_stride, CUBLASLT_ORDER_COL, problem.d.batch,
            uint32_t(problem.bias_type()), 0};
        all.push_back({"the bias", given.bias, vector, bias_written});
    }
    if (parts.aux_written || parts.gelu_backward) {
        MatrixLayout aux = problem.d;
        aux.ld = given.aux_ld;
        aux.stride = given.aux_stride;
        aux.type = uint32_t(problem.aux_type());
        all.push_back({"the auxiliary matrix", given.aux, aux, parts.aux_written});
    }
    if (buffers.workspace_bytes) {
        const uint64_t words = buffers.workspace_bytes / sizeof(float);
        all.push_back({"the workspace", buffers.workspace,
                       {words, 1, int64_t(words), 0, CUBLASLT_ORDER_COL, 1, CUDA_R_32F, 0}, true});
    }
    all.push_back({"D", buffers.d, problem.d, true});
    return all;
}

cudaError_t run(const MatmulProblem &problem, Buffers buffers)
{
    if (buffers.alpha_device) {
        if (!range_access(buffers.alpha_device, sizeof(float), kRead) ||
            !range_access(buffers.beta_device, sizeof(float), kRead))
            return cudaErrorIllegalAddress;
        buffers.alpha = *backing(buffers.alpha_device);
        buffers.beta = *backing(buffers.beta_device);
    }
    for (const Operand &operand : operands_of(problem, buffers, buffers.beta != 0))
        if (!operand_access(operand))
            return cudaErrorIllegalAddress;
    if (buffers.workspace_bytes)
        memset(backing(buffers.workspace), 0xA5, buffers.workspace_bytes); // whatever was there is gone
    EpilogueParts parts;
    epilogue_parts(problem.description.epilogue, &parts);
    for (int batch = 0; batch < problem.d.batch; batch++)
        multiply(problem, parts, {buffers.a, buffers.b, buffers.c, buffers.d, buffers.alpha, buffers.beta, batch});
    return cudaSuccess;
}

bool aligned(const void *pointer, uintptr_t bytes)
{
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

cublasStatus_t check_pointers(const MatmulProblem &problem, const Buffers &buffers, const MatmulAlgorithm &algorithm)
{
    static const char *const names[] = {"A", "B", "C", "D"};
    const char *const call = "cublasLtMatmul";
    const void *const pointers[] = {buffers.a, buffers.b, buffers.c, buffers.d};
    const MatrixLayout *const layouts[] = {&problem.a, &problem.b, &problem.c, &problem.d};
    for (int i = 0; i < 4; i++) {
        if (i == 2 && buffers.beta == 0 && !buffers.beta_device)
            continue;
        if (!pointers[i] || !aligned(pointers[i], blas_type_bytes(int(layouts[i]->type))))
            return refuse(call, CUBLAS_STATUS_INVALID_VALUE, format_text("%s is at %p", names[i], pointers[i]));
        if (algorithm.alignment[i] && !aligned(pointers[i], algorithm.alignment[i]))
            return refuse(call, CUBLAS_STATUS_NOT_SUPPORTED,
                          format_text("%s is at %p, and the algorithm was asked for with an alignment of %u "
                                      "(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_%s_BYTES)",
                                      names[i], pointers[i], algorithm.alignment[i], names[i]));
    }
    EpilogueParts parts;
    epilogue_parts(problem.description.epilogue, &parts);
    const bool has_bias = parts.bias || parts.bias_gradient_a || parts.bias_gradient_b || parts.bias_gradient_d;
    if (has_bias && !problem.description.bias)
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE, "the epilogue has a bias and there is no bias pointer");
    if (has_bias && !aligned(problem.description.bias, 16)) // no preference is about it, and kernels read vectors of it
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE,
                      format_text("the bias is at %p (a multiple of 16)", problem.description.bias));
    if ((parts.aux_written || parts.gelu_backward) &&
        (!problem.description.aux || !aligned(problem.description.aux, 16)))
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE,
                      format_text("the auxiliary matrix is at %p (a multiple of 16)", problem.description.aux));
    if (buffers.c == buffers.d && (problem.c.ld != problem.d.ld || problem.c.order != problem.d.order))
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE, "in place, with different layouts of C and D");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_workspace(const MatmulAlgorithm &algorithm, const void *workspace, size_t bytes)
{
    if (algorithm.workspace == 0)
        return CUBLAS_STATUS_SUCCESS;
    if (!workspace || bytes < algorithm.workspace)
        return refuse("cublasLtMatmul", CUBLAS_STATUS_INVALID_VALUE,
                      format_text("%zu bytes of workspace at %p, the algorithm needs %zu", bytes, workspace,
                                  size_t(algorithm.workspace)));
    if (!aligned(workspace, workspace_alignment))
        return refuse("cublasLtMatmul", CUBLAS_STATUS_INVALID_VALUE,
                      format_text("the workspace is at %p (a multiple of 256)", workspace));
    return CUBLAS_STATUS_SUCCESS;
}

MatmulAlgorithm algorithm_of(const MatmulProblem &problem, const cublasLtMatmulAlgo_t *given)
{
    return given ? *inside<MatmulAlgorithm>(given) : MatmulAlgorithm{algorithm_magic, 0, {}, fingerprint(problem)};
}

} // namespace
} // namespace gpusim

using namespace gpusim;

extern "C" {

void gpusim_fail_blas(int n, gpusim_blas_failure what)
{
    Locked lock(machine_lock());
    planted()[what] = n;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *made)
{
    Locked lock(machine_lock());
    if (!made)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (no_device() != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *made = new cublasLtContext{current_device()};
    handle_made(*made, Handle::blas, current_device());
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    Locked lock(machine_lock());
    if (!handle_gone(handle)) {
        report(GPUSIM_BLAS, "cublasLtDestroy of what is no handle, or of one that was destroyed");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

// One algorithm with a workspace where the preference allows it, and one without.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    Locked lock(machine_lock());
    if (!handle || !description || !a || !b || !c || !d || !preference || !results || !found || wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *found = 0;
    counts().heuristics++;
    std::string why;
    const MatmulProblem problem = problem_of(description, a, b, c, d);
    const cublasStatus_t status = check_problem(problem, &why);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status; // the caller may ask just to know
    if (planted_failure(GPUSIM_BLAS_HEURISTIC))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const MatmulPreference &chosen = *inside<MatmulPreference>(preference);
    for (size_t workspace : {workspace_wanted, size_t(0)}) {
        if (workspace > chosen.workspace || *found == wanted)
            continue;
        cublasLtMatmulHeuristicResult_t &result = results[(*found)++];
        memset(&result, 0, sizeof result);
        MatmulAlgorithm *algorithm = inside<MatmulAlgorithm>(&result.algo);
        algorithm->magic = algorithm_magic;
        algorithm->workspace = workspace;
        memcpy(algorithm->alignment, chosen.alignment, sizeof chosen.alignment);
        algorithm->problem = fingerprint(problem);
        result.workspaceSize = workspace;
        result.state = CUBLAS_STATUS_SUCCESS;
        result.wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    Locked lock(machine_lock());
    std::string why;
    const cublasStatus_t status = check_problem(problem_of(description, a, b, c, d), &why);
    memset(result, 0, sizeof *result);
    result->algo = *algo;
    result->state = status;
    result->workspaceSize = inside<MatmulAlgorithm>(algo)->workspace;
    return status;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream_handle)
{
    Locked lock(machine_lock());
    const char *const call = "cublasLtMatmul";
    if (!handle || !description || !a_layout || !b_layout || !d_layout || !alpha || !beta)
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE, "a descriptor or scalar is NULL");
    Stream *stream = stream_of(stream_handle, call);
    if (handle->device != stream->device)
        return refuse(
            call, CUBLAS_STATUS_INVALID_VALUE,
            format_text("the handle is of device %d, the stream of device %d", handle->device, stream->device));
    const MatmulProblem problem = problem_of(description, a_layout, b_layout, c_layout ? c_layout : d_layout, d_layout);
    std::string why;
    if (const cublasStatus_t status = check_problem(problem, &why))
        return refuse(call, status, why);
    const MatmulAlgorithm algorithm = algorithm_of(problem, algo);
    if (algorithm.magic != algorithm_magic)
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE, "an algorithm that no heuristic gave");
    if (algorithm.problem != fingerprint(problem))
        return refuse(
            call, CUBLAS_STATUS_NOT_SUPPORTED,
            "an algorithm that the heuristic gave for another problem (type of computation, layouts or epilogue)");
    Buffers buffers = {a, b, c, d, workspace, size_t(algorithm.workspace), 0, 0, nullptr, nullptr};
    if (problem.description.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        buffers.alpha_device = static_cast<const float *>(alpha);
        buffers.beta_device = static_cast<const float *>(beta);
    } else {
        buffers.alpha = *static_cast<const float *>(alpha);
        buffers.beta = *static_cast<const float *>(beta);
    }
    if (const cublasStatus_t status = check_pointers(problem, buffers, algorithm))
        return status;
    if (const cublasStatus_t status = check_workspace(algorithm, workspace, workspace_bytes))
        return status;
    const std::string overlap =
        operands_overlap(operands_of(problem, buffers, buffers.beta != 0 || buffers.beta_device));
    if (!overlap.empty()) // the real library doesn't look, and what comes out is undefined
        report(GPUSIM_BLAS, "%s: %s", call, overlap.c_str());
    if (device_fault(stream->device) != cudaSuccess || planted_failure(GPUSIM_BLAS_MATMUL))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    counts().library_calls++;
    push_work(*stream, call, [problem, buffers] { return run(problem, buffers); });
    return CUBLAS_STATUS_SUCCESS;
}
}
