// The PTX machine: modules from nvcc's fat binaries, and kernels run on them. The runtime (runtime/*.cpp) registers
// modules and launches; the machine knows nothing of streams.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpusim {

struct Module;
struct Kernel;

// Takes the PTX for the highest virtual architecture not above `compute_capability` (80 for 8.0) out of an uncompressed
// fat binary. NULL with the reason in *error. Parsed once; never freed.
Module *module_load(const void *fatbin, int compute_capability, std::string *error);
const Kernel *module_kernel(const Module *module, const char *name);
// A __device__ or __constant__ variable: its storage (of each device; allocated by the monitor) and size.
void *module_variable(Module *module, const char *name, int device, size_t *bytes);

// Bytes of each parameter, in order: cudaLaunchKernel's args are pointers to them and are copied when enqueued.
const std::vector<size_t> &kernel_parameters(const Kernel *kernel);
const std::vector<size_t> &kernel_parameter_offsets(const Kernel *kernel); // where each goes in Launch::parameters
size_t kernel_static_shared(const Kernel *kernel);
int kernel_max_threads(const Kernel *kernel); // .maxntid, 1024 without

enum class BlockOrder { up, down, random };

struct LaunchOptions {
    BlockOrder order = BlockOrder::up; // of blocks and of warps within them
    uint64_t seed = 0;
    bool check = true;          // tell the monitor about every access
    int skip_barrier = -1;      // mutation: the barrier site with this number does nothing
};

struct Launch {
    const Kernel *kernel;
    dim3 grid, block;
    size_t dynamic_shared;
    std::vector<unsigned char> parameters; // packed with each parameter's alignment, as the PTX declares it
    int device;
};

// A grid under way, which others may run between its turns. Destroyed before it has ended: dropped.
struct GridRun;
enum class GridState {
    ended,
    goes_on, // it has had its steps
    polls,   // all its blocks do nothing but look again and again for what somebody else must write
};
std::shared_ptr<GridRun> grid_start(const Launch &launch, const LaunchOptions &options);
GridState grid_turn(GridRun &run, uint64_t steps);
// Of an ended one: cudaSuccess, cudaErrorIllegalAddress, cudaErrorMisalignedAddress, cudaErrorLaunchFailure (trap,
// unknown opcode: reported with its name and the kernel's), cudaErrorLaunchTimeout (threads wait at a barrier that
// others left).
cudaError_t grid_result(const GridRun &run);
size_t grid_unfinished(const GridRun &run); // blocks
void grid_report_stuck(GridRun &run);       // where it polls; it has ended then

// Synchronisation sites of all loaded modules (bar.sync, bar.warp.sync, cp.async.wait_*, fences): numbered in load
// order, for mutation.
struct BarrierSite {
    const char *kernel, *what, *file;
    int line;
    uint64_t executed;
};
const std::vector<BarrierSite> &barrier_sites();

// Warp instructions executed by all launches so far.
uint64_t executed_instructions();

} // namespace gpusim
