// Kernel launches, and what may be asked of a kernel.
#include "capture.h"
#include "module.h"

#include <cstring>

namespace gpusim {
namespace {

constexpr size_t shared_without_asking = 48 << 10;

struct Request {
    const void *function;
    dim3 grid, block;
    void **arguments;
    size_t shared;
    cudaStream_t stream;
    bool cooperative;
};

cudaError_t refuse(const char *kernel, cudaError_t error, const std::string &why)
{
    report(GPUSIM_API, "launch of %s: %s", kernel, why.c_str());
    return fail(error);
}

size_t dynamic_shared_limit(const Function &function, int device)
{
    auto chosen = function.dynamic_shared_limit.find(device);
    const size_t fixed = kernel_static_shared(function.kernel);
    const size_t free_of_charge = fixed < shared_without_asking ? shared_without_asking - fixed : 0;
    return chosen == function.dynamic_shared_limit.end() ? free_of_charge
                                                         : std::max(free_of_charge, size_t(chosen->second));
}

cudaError_t check_shape(const Request &request, const Function &function)
{
    const dim3 &grid = request.grid, &block = request.block;
    const size_t threads = size_t(block.x) * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
        return refuse(function.name, cudaErrorInvalidConfiguration,
                      format_text("a grid of %u x %u x %u", grid.x, grid.y, grid.z));
    if (!threads || block.x > 1024 || block.y > 1024 || block.z > 64 || threads > 1024)
        return refuse(function.name, cudaErrorInvalidConfiguration,
                      format_text("blocks of %u x %u x %u", block.x, block.y, block.z));
    if (threads > size_t(kernel_max_threads(function.kernel)))
        return refuse(
            function.name, cudaErrorLaunchOutOfResources,
            format_text("%zu threads a block, it was compiled for %d", threads, kernel_max_threads(function.kernel)));
    const size_t limit = dynamic_shared_limit(function, current_device());
    if (request.shared > limit)
        return refuse(function.name, cudaErrorInvalidValue,
                      format_text("%zu bytes of dynamic shared memory, %zu are allowed (cudaFuncSetAttribute)",
                                  request.shared, limit));
    return cudaSuccess;
}

std::vector<unsigned char> packed_arguments(const Kernel *kernel, void **arguments)
{
    const std::vector<size_t> &sizes = kernel_parameters(kernel);
    const std::vector<size_t> &offsets = kernel_parameter_offsets(kernel);
    std::vector<unsigned char> packed(sizes.empty() ? 0 : offsets.back() + sizes.back());
    for (size_t i = 0; i < sizes.size(); i++)
        memcpy(packed.data() + offsets[i], arguments[i], sizes[i]);
    return packed;
}

LaunchOptions launch_options()
{
    LaunchOptions chosen;
    chosen.order = options().order == GPUSIM_UP ? BlockOrder::up
                   : options().order == GPUSIM_DOWN ? BlockOrder::down : BlockOrder::random;
    chosen.seed = options().order == GPUSIM_SHUFFLED ? random_number() : 0;
    chosen.check = options().check;
    chosen.skip_barrier = options().skip_barrier - 1;
    return chosen;
}

// A launched kernel, for the scheduler.
struct RunningKernel : Running {
    std::shared_ptr<GridRun> grid;
    double each; // share of a multiprocessor that a block takes

    RunningKernel(const Launch &launched, double share) : grid(grid_start(launched, launch_options())), each(share) {}
    Turn turn(uint64_t steps) override
    {
        const GridState state = grid_turn(*grid, steps);
        return state == GridState::ended ? Turn::ended : state == GridState::polls ? Turn::polls : Turn::goes_on;
    }
    cudaError_t result() const override { return grid_result(*grid); }
    double load() const override { return each * double(grid_unfinished(*grid)); }
    void report_stuck() override { grid_report_stuck(*grid); }
};

// By threads and shared memory; registers are not known here.
int blocks_of_multiprocessor(const Kernel *kernel, int threads, size_t shared)
{
    const size_t each = shared + kernel_static_shared(kernel) + 1024;
    return std::min(2048 / ((threads + 31) / 32 * 32), int((228u << 10) / each));
}

cudaError_t launch(const Request &request)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Function *function = function_of(request.function);
    if (!function)
        return fail(cudaErrorInvalidDeviceFunction);
    Stream *stream = stream_of(request.stream, function->name);
    if (!stream_belongs(*stream, function->name))
        return fail(cudaErrorInvalidResourceHandle);
    if (const cudaError_t error = check_shape(request, *function))
        return error;
    counts().kernels++;
    Launch launched = {function->kernel, request.grid, request.block, request.shared,
                       packed_arguments(function->kernel, request.arguments), stream->device};
    const int threads = int(request.block.x * request.block.y * request.block.z);
    Task task;
    task.kind = TaskKind::kernel;
    task.name = function->name;
    task.share = 1.0 / std::max(1, blocks_of_multiprocessor(function->kernel, threads, request.shared));
    pinned_add_parameters(task.pinned, launched.parameters);
    task.start = [launched, share = task.share] { return std::make_unique<RunningKernel>(launched, share); };
    push(*stream, std::move(task));
    return fail(device_fault(stream->device));
}

} // namespace
} // namespace gpusim

using namespace gpusim;

extern "C" {

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    return launch({function, grid, block, arguments, shared, stream, false});
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream)
{
    return launch({function, grid, block, arguments, shared, stream, true});
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    bool cooperative = false;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute &attribute = config->attrs[i];
        if (attribute.id == cudaLaunchAttributeCooperative) {
            cooperative = attribute.val.cooperative != 0;
        } else if (attribute.id == cudaLaunchAttributeClusterDimension) {
            if (attribute.val.clusterDim.x * attribute.val.clusterDim.y * attribute.val.clusterDim.z > 1) {
                report(GPUSIM_UNSUPPORTED, "launches with clusters");
                return fail(cudaErrorNotSupported);
            }
        } else if (attribute.id == cudaLaunchAttributeProgrammaticEvent ||
                   attribute.id == cudaLaunchAttributeLaunchCompletionEvent) {
            report(GPUSIM_UNSUPPORTED, "launch attribute %d", int(attribute.id));
            return fail(cudaErrorNotSupported);
        } // the others are hints: without overlap, programmatic serialisation is plain order
    }
    return launch({function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream,
                   cooperative});
}

cudaError_t cudaFuncSetAttribute(const void *host, cudaFuncAttribute attribute, int value)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Function *function = function_of(host);
    if (!function)
        return fail(cudaErrorInvalidDeviceFunction);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess; // hints
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device());
    if (value < 0 || size_t(value) + kernel_static_shared(function->kernel) > size_t(most))
        return fail(cudaErrorInvalidValue);
    function->dynamic_shared_limit[current_device()] = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *host)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Function *function = function_of(host);
    if (!function)
        return fail(cudaErrorInvalidDeviceFunction);
    memset(attributes, 0, sizeof *attributes);
    attributes->sharedSizeBytes = kernel_static_shared(function->kernel);
    attributes->maxThreadsPerBlock = kernel_max_threads(function->kernel);
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = options().compute_capability;
    attributes->maxDynamicSharedSizeBytes = int(dynamic_shared_limit(*function, current_device()));
    return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void *, cudaFuncCache)
{
    return cudaSuccess;
}

cudaError_t cudaFuncGetName(const char **name, const void *host)
{
    Locked lock(machine_lock());
    Function *function = function_of(host);
    if (!function)
        return fail(cudaErrorInvalidDeviceFunction);
    *name = function->symbol;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads,
                                                                   size_t shared, unsigned)
{
    Locked lock(machine_lock());
    Function *function = function_of(host);
    if (!function || threads <= 0)
        return fail(function ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    *blocks = blocks_of_multiprocessor(function->kernel, threads, shared);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *host, int blocks, int)
{
    Locked lock(machine_lock());
    Function *function = function_of(host);
    if (!function || blocks <= 0)
        return fail(function ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    const size_t each = (228u << 10) / size_t(blocks), fixed = kernel_static_shared(function->kernel) + 1024;
    *bytes = each > fixed ? std::min(each - fixed, dynamic_shared_limit(*function, current_device())) : 0;
    return cudaSuccess;
}

int gpusim_barrier_sites(void)
{
    Locked lock(machine_lock());
    load_all_modules();
    return int(barrier_sites().size());
}

gpusim_site gpusim_barrier_site(int index)
{
    Locked lock(machine_lock());
    const std::vector<BarrierSite> &all = barrier_sites();
    if (index < 0 || size_t(index) >= all.size())
        return gpusim_site{};
    const BarrierSite &one = all[size_t(index)];
    return {one.kernel, one.what, one.file, one.line, one.executed};
}
}
