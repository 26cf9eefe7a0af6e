// Which multiplications cuBLASLt does: the tables of its manual for 16-bit and 32-bit floats.
#include "descriptor.h"

#include "../report.h"

namespace gpusim {
namespace {

bool row_order(const MatrixLayout &layout)
{
    return layout.order == CUBLASLT_ORDER_ROW;
}

bool check_layout(const MatrixLayout &layout, const char *name, std::string *why)
{
    const uint64_t inner = row_order(layout) ? layout.cols : layout.rows;
    if (layout.rows == 0 || layout.cols == 0)
        *why = format_text("%s is %zu x %zu: empty", name, size_t(layout.rows), size_t(layout.cols));
    else if (layout.ld < int64_t(inner))
        *why = format_text("%s has a leading dimension of %lld, it needs %zu", name,
                           static_cast<long long>(layout.ld), size_t(inner));
    else if (layout.batch < 1)
        *why = format_text("%s has a batch of %d", name, layout.batch);
    else
        return true;
    return false;
}

bool check_shapes(const MatmulProblem &problem, std::string *why)
{
    const bool a_turned = problem.description.transpose[0], b_turned = problem.description.transpose[1];
    const size_t a_rows = a_turned ? problem.a.cols : problem.a.rows;
    const size_t b_rows = b_turned ? problem.b.cols : problem.b.rows,
                 b_cols = b_turned ? problem.b.rows : problem.b.cols;
    if (a_rows != problem.m() || b_cols != problem.n() || b_rows != problem.k())
        *why = format_text("op(A) is %zu x %zu, op(B) %zu x %zu, D %zu x %zu", a_rows, problem.k(), b_rows,
                           b_cols, problem.m(), problem.n());
    else if (problem.c.rows != problem.d.rows || problem.c.cols != problem.d.cols)
        *why = "C and D have different shapes";
    else if (problem.a.batch != problem.d.batch || problem.b.batch != problem.d.batch ||
             problem.c.batch != problem.d.batch)
        *why = "the batch counts differ";
    else
        return true;
    return false;
}

bool known_types(const MatmulProblem &problem, std::string *why)
{
    const uint32_t a = problem.a.type, d = problem.d.type;
    const bool half = a == CUDA_R_16F || a == CUDA_R_16BF;
    const int compute = problem.description.compute;
    // what f32 may be cut to
    const bool fast = compute == CUBLAS_COMPUTE_32F_FAST_TF32 || compute == CUBLAS_COMPUTE_32F_FAST_16BF;
    if (!fast && compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC)
        *why = format_text("compute type %d", compute);
    else if (problem.description.scale != CUDA_R_32F)
        *why = format_text("scale type %d with a compute type of 32 bits", problem.description.scale);
    else if (a != problem.b.type || (!half && a != CUDA_R_32F))
        *why = format_text("A of type %u with B of type %u", a, problem.b.type);
    else if (fast && a != CUDA_R_32F)
        *why = format_text("compute type %d with A and B of type %u: only f32 is cut", compute, a);
    else if (problem.c.type != d || !(d == CUDA_R_32F || (half && d == a)))
        *why = format_text("A and B of type %u with C of type %u and D of type %u", a, problem.c.type, d);
    else
        return true;
    return false;
}

bool known_epilogue(const MatmulProblem &problem, std::string *why)
{
    EpilogueParts parts;
    if (!epilogue_parts(problem.description.epilogue, &parts)) {
        *why = format_text("epilogue %u", problem.description.epilogue);
        return false;
    }
    const bool plain = problem.description.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    if (!plain && row_order(problem.d))
        *why = format_text("epilogue %u with D in row order", problem.description.epilogue);
    else if (!plain && problem.bias_type() != int(problem.d.type))
        *why = format_text("a bias of type %d with D of type %u", problem.bias_type(), problem.d.type);
    else if (!plain && problem.aux_type() != int(problem.d.type))
        *why = format_text("an auxiliary matrix of type %d with D of type %u", problem.aux_type(), problem.d.type);
    else
        return true;
    return false;
}

bool check_epilogue(const MatmulProblem &problem, std::string *why)
{
    EpilogueParts parts;
    epilogue_parts(problem.description.epilogue, &parts);
    const int64_t ld = problem.description.aux_ld;
    if ((parts.aux_written || parts.gelu_backward) && (ld % 8 != 0 || ld < int64_t(problem.m())))
        *why = format_text("the auxiliary leading dimension %lld must be a multiple of 8 and at least %zu",
                           static_cast<long long>(ld), problem.m());
    else
        return true;
    return false;
}

bool known_order(const MatmulProblem &problem, std::string *why)
{
    for (const MatrixLayout *layout : {&problem.a, &problem.b, &problem.c, &problem.d})
        if (layout->order != CUBLASLT_ORDER_COL && layout->order != CUBLASLT_ORDER_ROW) {
            *why = format_text("order %d of a matrix", layout->order);
            return false;
        }
    if (problem.description.transpose[2] != CUBLAS_OP_N || problem.description.fill != CUBLAS_FILL_MODE_FULL) {
        *why = "C transposed, or a triangle of D";
        return false;
    }
    return true;
}

} // namespace

size_t blas_type_bytes(int type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 0;
}

bool epilogue_parts(uint32_t epilogue, EpilogueParts *parts)
{
    *parts = EpilogueParts{};
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
        return true;
    case CUBLASLT_EPILOGUE_RELU:
        return parts->relu = true;
    case CUBLASLT_EPILOGUE_BIAS:
        return parts->bias = true;
    case CUBLASLT_EPILOGUE_RELU_BIAS:
        return parts->relu = parts->bias = true;
    case CUBLASLT_EPILOGUE_GELU:
        return parts->gelu = true;
    case CUBLASLT_EPILOGUE_GELU_BIAS:
        return parts->gelu = parts->bias = true;
    case CUBLASLT_EPILOGUE_GELU_AUX:
        return parts->gelu = parts->aux_written = true;
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        return parts->gelu = parts->aux_written = parts->bias = true;
    case CUBLASLT_EPILOGUE_DGELU:
        return parts->gelu_backward = true;
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
        return parts->gelu_backward = parts->bias_gradient_d = true;
    case CUBLASLT_EPILOGUE_BGRADA:
        return parts->bias_gradient_a = true;
    case CUBLASLT_EPILOGUE_BGRADB:
        return parts->bias_gradient_b = true;
    default:
        return false;
    }
}

uint64_t fingerprint(const MatmulProblem &problem)
{
    const MatmulDescription &given = problem.description;
    uint64_t hash = 14695981039346656037u; // FNV-1a, by words
    auto add = [&hash](uint64_t word) { hash = (hash ^ word) * 1099511628211u; };
    for (const int word : {given.compute, given.scale, given.pointer_mode, given.transpose[0], given.transpose[1],
                           given.fill, problem.bias_type(), problem.aux_type()})
        add(uint64_t(word));
    add(given.epilogue);
    add(uint64_t(given.aux_ld));
    for (const MatrixLayout *layout : {&problem.a, &problem.b, &problem.c, &problem.d})
        for (const uint64_t word : {layout->rows, layout->cols, uint64_t(layout->ld), uint64_t(layout->stride),
                                    uint64_t(layout->order), uint64_t(layout->batch), uint64_t(layout->type)})
            add(word);
    return hash;
}

cublasStatus_t check_problem(const MatmulProblem &problem, std::string *why)
{
    const bool valid = check_layout(problem.a, "A", why) && check_layout(problem.b, "B", why) &&
                       check_layout(problem.c, "C", why) && check_layout(problem.d, "D", why) &&
                       check_shapes(problem, why);
    if (!valid)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!known_types(problem, why) || !known_order(problem, why) || !known_epilogue(problem, why))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return check_epilogue(problem, why) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

} // namespace gpusim
