/* What a GPU is, or why it can't be used. */
#include <stdio.h>
#include <string.h>

#include "core/plugin.h"
#include "cuda/state.h"

/* Kernels use what sm_80 has. */
#define LEAST_MAJOR 8

static bool no(tp_device_info *out, const char *text)
{
    snprintf(out->reason, sizeof out->reason, "CUDA: %s", text);
    return false;
}

static bool has_driver(tp_device_info *out)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        return no(out, "no driver");
    if (driver / 1000 >= runtime / 1000)
        return true;
    char text[TP_DEVICE_TEXT / 2];
    snprintf(text, sizeof text, "driver too old: it supports CUDA %d.%d, the plugin needs %d.%d", driver / 1000,
             driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return no(out, text);
}

static bool count_devices(tp_device_info *out)
{
    int count = 0; /* stays unwritten when the call fails */
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
        return no(out, "no device");
    if (error != cudaSuccess)
        return no(out, cudaGetErrorString(error));
    out->count = count;
    return true;
}

static bool look(int index, tp_device_info *out)
{
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess)
        return no(out, cudaGetErrorString(error));
    out->major = properties.major;
    out->minor = properties.minor;
    out->memory_bytes = properties.totalGlobalMem;
    if (properties.major < LEAST_MAJOR) {
        char text[TP_DEVICE_TEXT / 2];
        snprintf(text, sizeof text, "device %d has compute capability %d.%d, at least %d.0 is needed", index,
                 properties.major, properties.minor, LEAST_MAJOR);
        return no(out, text);
    }
    snprintf(out->name, sizeof out->name, "%s", properties.name);
    out->simulated = strncmp(properties.name, "gpusim", strlen("gpusim")) == 0;
    return true;
}

void tpi_cuda_describe(int index, tp_device_info *out)
{
    if (!has_driver(out) || !count_devices(out))
        return;
    if (index < 0 || index >= out->count) {
        snprintf(out->reason, sizeof out->reason, "CUDA: no such device: device_index is %d, there %s %d", index,
                 out->count == 1 ? "is" : "are", out->count);
        return;
    }
    out->usable = look(index, out);
}
