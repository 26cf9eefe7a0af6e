// A loaded module: its syntax, its variables on each device, and its kernels, which are decoded when first run.
#pragma once
#include "program.h"
#include "ptx.h"
#include "syntax.h"

#include <map>
#include <memory>
#include <string>

namespace gpusim
{

struct Kernel {
    Module *module = nullptr;
    const ptx::Function *function = nullptr;
    std::string name; // readable
    std::vector<size_t> sizes, offsets;
    size_t parameter_bytes = 0;
    std::unique_ptr<ptx::Program> program;
};

struct ModuleVariable {
    const ptx::Variable *declaration = nullptr;
    std::map<int, void *> storage; // by device
};

struct Module {
    ptx::Syntax syntax;
    std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
    std::map<std::string_view, ModuleVariable> variables; // global and constant
    std::deque<std::string> names;                        // that sites point to
    std::map<std::tuple<const char *, std::string, int, int>, std::unique_ptr<Site>> sites;
};

namespace ptx
{

// The program of a kernel, decoded now if it was not yet.
const Program &program_of(const Kernel *kernel);

// Address of a variable on a device; allocated and initialised now if it was not yet.
void *variable_address(Module *module, std::string_view name, int device);

// Where an access is reported: the innermost position in the function's own file, and for warp-level operations, which
// sit in wrappers, the wrapper's caller.
const Site *site_of(Module *module, const char *kernel, const Function &function, const Location &location,
                    int ptx_line, bool warp_level);

std::string readable_name(std::string_view mangled);

} // namespace ptx
} // namespace gpusim
