/* AdamW and SGD on one parameter, in one pass: the CPU's arithmetic, operation for operation. */
#include <cmath>

#include "cuda/lane.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

struct OptimizerMath {
    float lr, beta1, beta2, epsilon, decay, momentum;
    float first_correction, second_correction; /* 1 / (1 - beta^step) */
};

struct OptimizerView {
    float *master, *m, *v;
    void *value; /* NULL: the master is the value */
    const float *grad, *grad_scale;
    int64_t elements;
    bool adamw;
};

/* One element; returns the new weight. */
static __device__ __forceinline__ float adamw_step(const OptimizerMath &math, float w, float grad, float &m, float &v)
{
    float root, direction;

    m = vf_fma(m, math.beta1, vf_mul(grad, vf_sub(1.0f, math.beta1)));
    v = vf_fma(v, math.beta2, vf_mul(vf_mul(grad, grad), vf_sub(1.0f, math.beta2)));
    root = vf_sqrt(vf_mul(v, math.second_correction));
    direction = vf_div(vf_mul(m, math.first_correction), vf_add(root, math.epsilon));
    if (m == 0) /* an element that never had a gradient stays, also with eps 0 */
        direction = 0;
    return vf_fnma(vf_fma(w, math.decay, direction), math.lr, w);
}

static __device__ __forceinline__ float sgd_step(const OptimizerMath &math, float w, float grad, float &m)
{
    m = vf_fma(m, math.momentum, grad);
    return vf_fnma(vf_fma(w, math.decay, m), math.lr, w);
}

template <bool Aligned, typename T>
__global__ void __launch_bounds__(256) optimizer_step(OptimizerView view, OptimizerMath math)
{
    constexpr int N = thread_width<Aligned, T>;
    float scale = *view.grad_scale;

    if (scale == 0 || !isfinite(scale))
        return;
    for (int64_t group = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; group * N < view.elements;
         group += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        int64_t at = group * N, n = view.elements - at;
        float w[N], grad[N], m[N] = {}, v[N] = {};

        load<Aligned>(w, view.master + at, n);
        load<Aligned>(grad, view.grad + at, n);
        if (view.m)
            load<Aligned>(m, view.m + at, n);
        if (view.adamw)
            load<Aligned>(v, view.v + at, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            grad[i] = vf_mul(grad[i], scale);
            w[i] = view.adamw ? adamw_step(math, w[i], grad[i], m[i], v[i]) : sgd_step(math, w[i], grad[i], m[i]);
        }
        if (view.m)
            store<Aligned>(view.m + at, m, n);
        if (view.adamw)
            store<Aligned>(view.v + at, v, n);
        store<Aligned>(view.master + at, w, n);
        if (view.value)
            store<Aligned>(static_cast<T *>(view.value) + at, w, n);
    }
}

static float correction_of(float beta, int64_t step)
{
    return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), static_cast<double>(step))));
}

} // namespace tpi

tp_status tpi_cuda_optimizer(tpi_stream *stream, const tpi_optimizer_args *args)
{
    tpi::OptimizerView view = {};
    tpi::OptimizerMath math = {args->lr, args->beta1, args->beta2, args->epsilon, args->decay, args->momentum, 0, 0};
    cudaStream_t handle = tpi_cuda_handle(stream);
    bool aligned;

    if (args->elements <= 0)
        return TP_OK;
    view.master = args->master ? args->master : static_cast<float *>(args->value);
    view.value = args->value == view.master ? nullptr : args->value;
    view.m = args->m;
    view.v = args->v;
    view.grad = args->grad;
    view.grad_scale = args->grad_scale;
    view.elements = args->elements;
    view.adamw = args->kind == TPI_OPTIMIZER_ADAMW;
    if (view.adamw) {
        math.first_correction = tpi::correction_of(args->beta1, args->step);
        math.second_correction = tpi::correction_of(args->beta2, args->step);
    }
    aligned = tpi::is_aligned(view.master, 1, 0) && tpi::is_aligned(view.value, 1, 0) &&
              tpi::is_aligned(view.m, 1, 0) && tpi::is_aligned(view.v, 1, 0) && tpi::is_aligned(view.grad, 1, 0);
    tpi::with_dtype(view.value ? args->value_dtype : TP_DTYPE_F32, [&](auto zero) {
        using T = decltype(zero);

        tpi::with_flag(aligned, [&](auto flag) {
            constexpr bool ALIGNED = decltype(flag)::value;
            unsigned grid = tpi::grid_of(args->elements, 256 * tpi::thread_width<ALIGNED, T>);

            tpi::optimizer_step<ALIGNED, T><<<grid, 256, 0, handle>>>(view, math);
        });
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "optimizer");
}
