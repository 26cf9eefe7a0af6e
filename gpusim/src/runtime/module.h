// Kernels and variables as the host names them: nvcc registers their addresses before main().
#pragma once
#include "../ptx.h"
#include "runtime.h"

#include <map>

namespace gpusim {

struct Function {
    const void *host = nullptr;
    const char *symbol = "";
    const char *name = ""; // as the source has it
    const Kernel *kernel = nullptr; // once the module is loaded
    std::map<int, int> dynamic_shared_limit; // cudaFuncSetAttribute, by device
};

// NULL: not a kernel of any loaded module; reported with the reason.
Function *function_of(const void *host);

// All that are registered, in that order: their barrier sites are numbered as they are loaded.
void load_all_modules();

} // namespace gpusim
