// The simulated interfaces, declared with default visibility: the only symbols that leave the library. Include first.
#pragma once
#pragma GCC visibility push(default)
#include <gpusim/gpusim.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#pragma GCC visibility pop
