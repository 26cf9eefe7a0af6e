/* AdamW and SGD on many parameters in one launch and one pass: the CPU's arithmetic, operation for operation. */
#include <cmath>

#include "cuda/lane.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

struct OptimizerMath {
    float lr, beta1, beta2, epsilon, momentum;
    float first_correction, second_correction; /* 1 / (1 - beta^step) */
};

/* One parameter; blocks from first_block on are its. */
struct OptimizerItem {
    float *master, *m, *v;
    void *value; /* NULL: the master is the value */
    const float *grad;
    int64_t elements;
    unsigned first_block;
    float decay;
    tp_dtype value_dtype;
    bool aligned;
};

constexpr int OPTIMIZER_ITEMS = 192, OPTIMIZER_THREADS = 256, OPTIMIZER_ROUNDS = 4;

/* Everything is in the kernel's arguments, so a graph may replay it. */
struct OptimizerList {
    OptimizerMath math;
    const float *grad_scale;
    int items;
    unsigned blocks;
    bool adamw;
    OptimizerItem item[OPTIMIZER_ITEMS];
};

/* One element; returns the new weight. */
static __device__ __forceinline__ float adamw_step(const OptimizerMath &math, float decay, float w, float grad,
                                                   float &m, float &v)
{
    float root, direction;

    m = vf_fma(m, math.beta1, vf_mul(grad, vf_sub(1.0f, math.beta1)));
    v = vf_fma(v, math.beta2, vf_mul(vf_mul(grad, grad), vf_sub(1.0f, math.beta2)));
    root = vf_sqrt(vf_mul(v, math.second_correction));
    direction = vf_div(vf_mul(m, math.first_correction), vf_add(root, math.epsilon));
    if (m == 0) /* an element that never had a gradient stays, also with eps 0 */
        direction = 0;
    return vf_fnma(vf_fma(w, decay, direction), math.lr, w);
}

static __device__ __forceinline__ float sgd_step(const OptimizerMath &math, float decay, float w, float grad, float &m)
{
    m = vf_fma(m, math.momentum, grad);
    return vf_fnma(vf_fma(w, decay, m), math.lr, w);
}

/* What one thread does for one block's share of a parameter. */
template <bool Aligned, typename T>
static __device__ __forceinline__ void step_share(const OptimizerList &list, const OptimizerItem &item, float scale)
{
    constexpr int N = thread_width<Aligned, T>;
    int64_t first = static_cast<int64_t>(blockIdx.x - item.first_block) * OPTIMIZER_ROUNDS * OPTIMIZER_THREADS;

    for (int round = 0; round < OPTIMIZER_ROUNDS; round++) {
        int64_t at = (first + round * OPTIMIZER_THREADS + threadIdx.x) * N, n = item.elements - at;
        float w[N], grad[N], m[N] = {}, v[N] = {};

        if (n <= 0)
            return;
        load<Aligned>(w, item.master + at, n);
        load<Aligned>(grad, item.grad + at, n);
        if (item.m)
            load<Aligned>(m, item.m + at, n);
        if (list.adamw)
            load<Aligned>(v, item.v + at, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            grad[i] = vf_mul(grad[i], scale);
            w[i] = list.adamw ? adamw_step(list.math, item.decay, w[i], grad[i], m[i], v[i])
                              : sgd_step(list.math, item.decay, w[i], grad[i], m[i]);
        }
        if (item.m)
            store<Aligned>(item.m + at, m, n);
        if (list.adamw)
            store<Aligned>(item.v + at, v, n);
        store<Aligned>(item.master + at, w, n);
        if (item.value)
            store<Aligned>(static_cast<T *>(item.value) + at, w, n);
    }
}

template <typename T>
static __device__ __forceinline__ void step_item(const OptimizerList &list, const OptimizerItem &item, float scale)
{
    if (item.aligned)
        step_share<true, T>(list, item, scale);
    else
        step_share<false, T>(list, item, scale);
}

__global__ void __launch_bounds__(OPTIMIZER_THREADS) optimizer_step(const __grid_constant__ OptimizerList list)
{
    float scale = *list.grad_scale;
    int low = 0, high = list.items;

    if (scale == 0 || !isfinite(scale))
        return;
    while (high - low > 1) { /* first_block of low <= this block < first_block of high */
        int middle = (low + high) / 2;

        if (list.item[middle].first_block <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    switch (list.item[low].value_dtype) {
    case TP_DTYPE_BF16: step_item<__nv_bfloat16>(list, list.item[low], scale); return;
    case TP_DTYPE_F16: step_item<__half>(list, list.item[low], scale); return;
    default: step_item<float>(list, list.item[low], scale);
    }
}

static float correction_of(float beta, int64_t step)
{
    return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), static_cast<double>(step))));
}

static OptimizerMath math_of(const tpi_optimizer_args &args)
{
    OptimizerMath math = {args.lr, args.beta1, args.beta2, args.epsilon, args.momentum, 0, 0};

    if (args.kind == TPI_OPTIMIZER_ADAMW) {
        math.first_correction = correction_of(args.beta1, args.step);
        math.second_correction = correction_of(args.beta2, args.step);
    }
    return math;
}

/* Whether one launch can do both. */
static bool fits_with(const tpi_optimizer_args &a, const tpi_optimizer_args &b)
{
    return a.kind == b.kind && a.grad_scale == b.grad_scale && a.lr == b.lr && a.beta1 == b.beta1 &&
           a.beta2 == b.beta2 && a.epsilon == b.epsilon && a.momentum == b.momentum && a.step == b.step;
}

static void add_item(OptimizerList *list, const tpi_optimizer_args &args)
{
    OptimizerItem *item = &list->item[list->items++];
    int64_t share = OPTIMIZER_ROUNDS * OPTIMIZER_THREADS;

    item->master = args.master ? args.master : static_cast<float *>(args.value);
    item->value = args.value == item->master ? nullptr : args.value;
    item->value_dtype = item->value ? args.value_dtype : TP_DTYPE_F32;
    item->m = args.m;
    item->v = args.v;
    item->grad = args.grad;
    item->elements = args.elements;
    item->decay = args.decay;
    item->first_block = list->blocks;
    item->aligned = is_aligned(item->master, 1, 0) && is_aligned(item->value, 1, 0) && is_aligned(item->m, 1, 0) &&
                    is_aligned(item->v, 1, 0) && is_aligned(item->grad, 1, 0);
    if (item->aligned)
        share *= static_cast<int64_t>(16 / tp_dtype_size(item->value_dtype));
    list->blocks += static_cast<unsigned>(divided_up(args.elements, share));
}

} // namespace tpi

/* A launch takes as many of the list as fit in its arguments and differ in nothing but their memory and decay. */
tp_status tpi_cuda_optimizer_list(tpi_stream *stream, const tpi_optimizer_args *args, int count)
{
    for (int i = 0; i < count;) {
        tpi::OptimizerList list = {};
        const tpi_optimizer_args &first = args[i];

        list.math = tpi::math_of(first);
        list.adamw = first.kind == TPI_OPTIMIZER_ADAMW;
        list.grad_scale = first.grad_scale;
        for (; i < count && list.items < tpi::OPTIMIZER_ITEMS && tpi::fits_with(first, args[i]); i++)
            if (args[i].elements > 0)
                tpi::add_item(&list, args[i]);
        if (list.items == 0)
            continue;
        tpi::optimizer_step<<<list.blocks, tpi::OPTIMIZER_THREADS, 0, tpi_cuda_handle(stream)>>>(list);

        tp_status status = tpi_cuda_check(stream, cudaGetLastError(), "optimizer");
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

tp_status tpi_cuda_optimizer(tpi_stream *stream, const tpi_optimizer_args *args)
{
    return tpi_cuda_optimizer_list(stream, args, 1);
}
