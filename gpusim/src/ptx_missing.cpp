// Stands in for the PTX machine where it is not built.
#include "ptx.h"

namespace gpusim {

Module *module_load(const void *, int, std::string *error)
{
    *error = "built without the PTX machine";
    return nullptr;
}
const Kernel *module_kernel(const Module *, const char *) { return nullptr; }
void *module_variable(Module *, const char *, int, size_t *) { return nullptr; }
const std::vector<size_t> &kernel_parameters(const Kernel *)
{
    static std::vector<size_t> none;
    return none;
}
const std::vector<size_t> &kernel_parameter_offsets(const Kernel *kernel) { return kernel_parameters(kernel); }
size_t kernel_static_shared(const Kernel *) { return 0; }
int kernel_max_threads(const Kernel *) { return 1024; }
cudaError_t run_grid(const Launch &, const LaunchOptions &) { return cudaErrorLaunchFailure; }
const std::vector<BarrierSite> &barrier_sites()
{
    static std::vector<BarrierSite> none;
    return none;
}

} // namespace gpusim
