// What nvcc's host code calls: registration of fat binaries, kernels and variables, and the <<<>>> stack.
#include "module.h"

#include "../guard.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>

namespace gpusim {
namespace {

struct Binary {
    const void *data = nullptr;
    Module *module = nullptr;
    std::string error; // why there is no module
    bool loaded = false;
};

struct Variable {
    Binary *binary;
    std::string name;
};

struct Registered {
    Binary *binary;
    Function function;
};

struct Registry {
    std::vector<Binary *> binaries; // in the order of registration
    std::map<const void *, Registered> functions;
    std::map<const void *, Variable> variables;
};

Registry &registry()
{
    static auto &all = *new Registry; // used by static constructors and destructors
    return all;
}

struct Configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};
thread_local std::vector<Configuration> configurations;

// As the source has it, without parameters.
std::string readable(const char *mangled)
{
    int status = 0;
    char *text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    std::string name = text ? text : mangled;
    free(text);
    const size_t anonymous = name.find("(anonymous namespace)::");
    if (anonymous != std::string::npos)
        name.erase(anonymous, strlen("(anonymous namespace)::"));
    if (name.compare(0, 5, "void ") == 0)
        name.erase(0, 5);
    return name.substr(0, name.find('('));
}

Module *module_of(Binary &binary)
{
    if (!binary.loaded) {
        binary.loaded = true;
        binary.module = module_load(binary.data, options().compute_capability, &binary.error);
    }
    return binary.module;
}

} // namespace

void load_all_modules()
{
    for (Binary *binary : registry().binaries)
        module_of(*binary);
}

Function *function_of(const void *host)
{
    auto found = registry().functions.find(host);
    if (found == registry().functions.end())
        return nullptr;
    Registered &one = found->second;
    if (one.function.kernel)
        return &one.function;
    if (options().skip_barrier != 0)
        load_all_modules(); // so that a site has the same number in every program
    Module *module = module_of(*one.binary);
    one.function.kernel = module ? module_kernel(module, one.function.symbol) : nullptr;
    if (one.function.kernel)
        return &one.function;
    report(GPUSIM_UNSUPPORTED, "kernel %s: %s", one.function.name,
           module ? "not in its module's PTX" : one.binary->error.c_str());
    return nullptr;
}

} // namespace gpusim

using namespace gpusim;

extern "C" {
#pragma GCC visibility push(default)

void **__cudaRegisterFatBinary(void *binary)
{
    Locked lock(machine_lock());
    auto *made = new Binary;
    made->data = binary;
    registry().binaries.push_back(made);
    return reinterpret_cast<void **>(made);
}

void __cudaRegisterFatBinaryEnd(void **) {}

void __cudaUnregisterFatBinary(void **handle)
{
    Locked lock(machine_lock());
    auto *binary = reinterpret_cast<Binary *>(handle);
    auto &binaries = registry().binaries;
    binaries.erase(std::remove(binaries.begin(), binaries.end(), binary), binaries.end());
    auto &functions = registry().functions;
    for (auto one = functions.begin(); one != functions.end();)
        one = one->second.binary == binary ? functions.erase(one) : std::next(one);
}

char __cudaInitModule(void **)
{
    return 1;
}

void __cudaRegisterFunction(void **handle, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *)
{
    Locked lock(machine_lock());
    Registered one = {reinterpret_cast<Binary *>(handle), {}};
    one.function.host = host;
    one.function.symbol = interned(name);
    one.function.name = interned(readable(name));
    registry().functions[host] = one;
}

void __cudaRegisterVar(void **handle, char *host, char *, const char *name, int, size_t, int, int)
{
    Locked lock(machine_lock());
    registry().variables[host] = {reinterpret_cast<Binary *>(handle), name};
}

void __cudaRegisterManagedVar(void **, void **, char *, const char *name, int, size_t, int, int)
{
    report(GPUSIM_UNSUPPORTED, "managed variable %s", name);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (configurations.empty())
        return cudaErrorMissingConfiguration;
    const Configuration top = configurations.back();
    configurations.pop_back();
    *grid = top.grid;
    *block = top.block;
    *shared = top.shared;
    *static_cast<void **>(stream) = top.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void *>(host));
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream)
{
    return cudaLaunchKernel(static_cast<const void *>(kernel), grid, block, arguments, shared, stream);
}

#pragma GCC visibility pop

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    auto found = registry().variables.find(symbol);
    Module *module = found == registry().variables.end() ? nullptr : module_of(*found->second.binary);
    size_t bytes = 0;
    *address = module ? module_variable(module, found->second.name.c_str(), current_device(), &bytes) : nullptr;
    return *address ? cudaSuccess : fail(cudaErrorInvalidSymbol);
}

cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol)
{
    Locked lock(machine_lock());
    auto found = registry().variables.find(symbol);
    Module *module = found == registry().variables.end() ? nullptr : module_of(*found->second.binary);
    return module && module_variable(module, found->second.name.c_str(), current_device(), bytes)
               ? cudaSuccess
               : fail(cudaErrorInvalidSymbol);
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *source, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream)
{
    void *address;
    const cudaError_t error = cudaGetSymbolAddress(&address, symbol);
    return error ? error : cudaMemcpyAsync(static_cast<char *>(address) + offset, source, bytes, kind, stream);
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *source, size_t bytes, size_t offset, cudaMemcpyKind kind)
{
    void *address;
    const cudaError_t error = cudaGetSymbolAddress(&address, symbol);
    return error ? error : cudaMemcpy(static_cast<char *>(address) + offset, source, bytes, kind);
}

cudaError_t cudaMemcpyFromSymbol(void *target, const void *symbol, size_t bytes, size_t offset, cudaMemcpyKind kind)
{
    void *address;
    const cudaError_t error = cudaGetSymbolAddress(&address, symbol);
    return error ? error : cudaMemcpy(target, static_cast<char *>(address) + offset, bytes, kind);
}
}
