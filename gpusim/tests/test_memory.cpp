// Memory: bounds, lifetime, devices, and what a fault does afterwards.
#include "devices.h"

#include <cstdlib>

GPUSIM_TEST(new_memory_is_poison)
{
    for (size_t bytes : {size_t(1), size_t(4097), size_t(5) << 20}) {
        unsigned char *pinned = pinned_array<unsigned char>(bytes);
        CHECK(pinned[0] == 0xFF && pinned[bytes / 2] == 0xFF && pinned[bytes - 1] == 0xFF);
        CHECK(cudaFreeHost(pinned) == cudaSuccess);
    }
}

GPUSIM_TEST(copy_out_of_bounds)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        char *memory = device_array<char>(100);
        cudaMemsetAsync(memory, 0, 101, stream);
        CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
        CHECK(check::only_reports(GPUSIM_OUT_OF_BOUNDS));
        // it stays
        CHECK(cudaGetLastError() == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress);
        void *more;
        CHECK(cudaMalloc(&more, 10) == cudaErrorIllegalAddress);
        CHECK(cudaSetDevice(1) == cudaSuccess && cudaMalloc(&more, 10) == cudaSuccess); // the other device is well
    });
}

GPUSIM_TEST(use_after_free)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        char *memory = device_array<char>(100);
        cudaMemsetAsync(memory, 0, 100, stream);
        cudaFree(memory);
        cudaMemsetAsync(memory, 0, 100, stream);
        CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
        CHECK(check::only_reports(GPUSIM_USE_AFTER_FREE));
    });
}

GPUSIM_TEST_EVERYWHERE(double_free)
{
    char *memory = device_array<char>(100);
    CHECK(cudaFree(memory) == cudaSuccess && cudaFree(memory) == cudaErrorInvalidValue);
    CHECK(check::only_reports(GPUSIM_API));
}

// Each kind of memory is freed by its own call.
GPUSIM_TEST_EVERYWHERE(the_wrong_free)
{
    char *memory = device_array<char>(100), *pinned = pinned_array<char>(100);
    char *own = static_cast<char *>(malloc(100));
    CHECK(cudaHostRegister(own, 100, 0) == cudaSuccess);
    const cudaStream_t stream = new_stream();
    for (int fault = 0; fault < 7; fault++) {
        const cudaError_t error = fault == 0   ? cudaFree(pinned)
                                  : fault == 1 ? cudaFreeHost(memory)
                                  : fault == 2 ? cudaFreeAsync(pinned, stream)
                                  : fault == 3 ? cudaFreeHost(own)
                                  : fault == 4 ? cudaFree(memory + 1)
                                  : fault == 5 ? cudaHostUnregister(pinned)
                                               : cudaFreeHost(own + 200);
        CHECK(error != cudaSuccess && check::only_reports(GPUSIM_API));
        gpusim_clear_reports();
    }
    CHECK(cudaFree(memory) == cudaSuccess && cudaFreeHost(pinned) == cudaSuccess &&
          cudaHostUnregister(own) == cudaSuccess && gpusim_reports(-1) == 0);
    CHECK(cudaFreeHost(pinned) == cudaErrorInvalidValue && check::only_reports(GPUSIM_API)); // a second time
    free(own);
}

GPUSIM_TEST(uninitialised_read)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        int *memory = device_array<int>(100);
        cudaMemsetAsync(memory, 0, 396, stream);
        download(memory, 100, stream);
        CHECK(check::only_reports(GPUSIM_UNINITIALISED));
    });
}

// Bytes next to each other, written by unordered streams, are no race.
GPUSIM_TEST(neighbouring_bytes)
{
    check::in_every_schedule([] {
        cudaStream_t one = new_stream(), two = new_stream();
        char *memory = device_array<char>(64);
        for (int i = 0; i < 64; i++)
            cudaMemsetAsync(memory + i, i, 1, i % 2 ? one : two);
        CHECK(cudaDeviceSynchronize() == cudaSuccess && gpusim_reports(-1) == 0);
        CHECK(download(memory, 64, one)[33] == 33);
        cudaMemsetAsync(memory + 3, 0, 1, one);
        cudaMemsetAsync(memory + 3, 0, 1, two);
        cudaDeviceSynchronize();
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST(asynchronous_allocation_is_ordered)
{
    check::in_every_schedule([] {
        cudaStream_t one = new_stream(), two = new_stream();
        void *memory = nullptr;
        CHECK(cudaMallocAsync(&memory, 256, one) == cudaSuccess);
        order(one, two);
        cudaMemsetAsync(memory, 1, 256, two);
        order(two, one);
        CHECK(cudaFreeAsync(memory, one) == cudaSuccess);
        CHECK(cudaDeviceSynchronize() == cudaSuccess && gpusim_reports(-1) == 0);
        CHECK(cudaMallocAsync(&memory, 256, one) == cudaSuccess);
        cudaMemsetAsync(memory, 1, 256, two);
        cudaDeviceSynchronize();
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST(free_on_the_wrong_stream)
{
    check::in_every_schedule([] {
        cudaStream_t one = new_stream(), two = new_stream();
        void *memory = nullptr;
        cudaMallocAsync(&memory, 256, one);
        cudaMemsetAsync(memory, 1, 256, one);
        cudaFreeAsync(memory, two);
        cudaDeviceSynchronize();
        CHECK(gpusim_reports(GPUSIM_RACE_STREAM) + gpusim_reports(GPUSIM_USE_AFTER_FREE) > 0);
    });
}

GPUSIM_TEST(out_of_memory)
{
    gpusim_options options = {};
    options.device_bytes = 1 << 20;
    gpusim_configure(&options);
    void *first = nullptr, *second = nullptr;
    size_t free_bytes, total_bytes;
    CHECK(cudaMalloc(&first, 700 << 10) == cudaSuccess);
    CHECK(cudaMalloc(&second, 700 << 10) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess && total_bytes == 1 << 20 &&
          free_bytes == 324 << 10);
    CHECK(cudaFree(first) == cudaSuccess && cudaMalloc(&second, 700 << 10) == cudaSuccess);
    cudaSetDevice(1);
    CHECK(cudaMalloc(&first, 700 << 10) == cudaSuccess); // each device has its own
}

GPUSIM_TEST_EVERYWHERE(copy_kinds)
{
    cudaStream_t stream = new_stream();
    char host[16] = {}, *device = device_array<char>(16), *pinned = pinned_array<char>(16);
    CHECK(cudaMemcpyAsync(device, host, 16, cudaMemcpyDeviceToHost, stream) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(host, device, 16, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
    CHECK(gpusim_reports(GPUSIM_API) > 0);
    gpusim_clear_reports();
    CHECK(cudaMemcpyAsync(device, host, 16, cudaMemcpyDefault, stream) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, device, 16, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && pinned[15] == 0);
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, device + 3) == cudaSuccess && attributes.type == cudaMemoryTypeDevice);
    CHECK(cudaPointerGetAttributes(&attributes, pinned) == cudaSuccess && attributes.type == cudaMemoryTypeHost);
    CHECK(cudaPointerGetAttributes(&attributes, host) == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered);
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(copies_that_overlap)
{
    cudaStream_t stream = new_stream();
    int *memory = device_array<int>(64);
    cudaMemsetAsync(memory, 0, 256, stream);
    cudaMemcpyAsync(memory + 32, memory, 128, cudaMemcpyDeviceToDevice, stream); // side by side
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && gpusim_reports(-1) == 0);
    cudaMemcpyAsync(memory + 31, memory, 128, cudaMemcpyDeviceToDevice, stream);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && check::only_reports(GPUSIM_API));
}

GPUSIM_TEST(two_dimensional_copies)
{
    cudaStream_t stream = new_stream();
    std::vector<int> values(5 * 7);
    for (size_t i = 0; i < values.size(); i++)
        values[i] = int(i);
    int *device = device_array<int>(5 * 8);
    CHECK(cudaMemcpy2DAsync(device, 32, values.data(), 28, 28, 5, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    std::vector<int> back(5 * 3);
    CHECK(cudaMemcpy2DAsync(back.data(), 12, device + 2, 32, 12, 5, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && back[14] == 32 && back[3] == 9);
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(registered_memory)
{
    std::vector<int> host(1000, 3);
    CHECK(cudaHostRegister(host.data(), 4000, cudaHostRegisterDefault) == cudaSuccess);
    CHECK(cudaHostRegister(host.data() + 10, 40, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
    cudaStream_t stream = new_stream();
    int *device = device_array<int>(1000);
    CHECK(cudaMemcpyAsync(device, host.data(), 4000, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && gpusim_reports(-1) == 0);
    CHECK(cudaHostUnregister(host.data()) == cudaSuccess);
    CHECK(cudaHostUnregister(host.data()) == cudaErrorHostMemoryNotRegistered);
}

GPUSIM_TEST(no_device)
{
    setenv("GPUSIM_DEVICES", "0", 1);
    gpusim_configure(nullptr);
    int count = 77;
    CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 77); // left unwritten, as the real one does
    void *memory;
    CHECK(cudaMalloc(&memory, 1) == cudaErrorNoDevice);
}

GPUSIM_TEST(values_of_variables_that_mean_nothing)
{
    static const char *const wrong[][2] = {
        {"GPUSIM_SCHEDULE", "lasy"}, {"GPUSIM_ORDER", "Down"},     {"GPUSIM_DEVICES", "17"}, {"GPUSIM_DEVICES", "four"},
        {"GPUSIM_CC", "sm_80"},      {"GPUSIM_CC", "8"},           {"GPUSIM_SEED", "1x"},    {"GPUSIM_CHECKS", "yes"},
        {"GPUSIM_GUARD", "2"},       {"GPUSIM_SKIP_WAIT", "last"}, {"GPUSIM_MULTIPROCESSORS", "0"}};
    static const char *const right[][2] = {{"GPUSIM_SCHEDULE", "random"}, {"GPUSIM_ORDER", "down"},
                                           {"GPUSIM_DEVICES", "2"},       {"GPUSIM_CC", "100"},
                                           {"GPUSIM_SEED", "-5"},         {"GPUSIM_CHECKS", ""}};
    int count = 0;
    for (const auto &one : wrong) {
        setenv(one[0], one[1], 1);
        gpusim_configure(nullptr);
        CHECK(cudaGetDeviceCount(&count) == cudaErrorInitializationError && check::only_reports(GPUSIM_API));
        CHECK(strstr(gpusim_report_text(0), one[0]) && strstr(gpusim_report_text(0), one[1]));
        CHECK(cudaFree(nullptr) == cudaErrorInitializationError);
        unsetenv(one[0]);
    }
    for (const auto &one : right) {
        setenv(one[0], one[1], 1);
        gpusim_configure(nullptr);
        CHECK(cudaGetDeviceCount(&count) == cudaSuccess && gpusim_reports(-1) == 0);
        unsetenv(one[0]);
    }
}

GPUSIM_TEST(where_an_access_outside_lies)
{
    static const struct {
        int offset;
        const char *place;
    } outside[] = {{100, "0 bytes past the end of an allocation of 100 bytes"},
                   {140, "40 bytes past the end of an allocation of 100 bytes"},
                   {-4, "4 bytes before an allocation of 100 bytes"}};
    for (const auto &one : outside) {
        check::in_every_schedule([&one] {
            cudaStream_t stream = new_stream();
            device_array<char>(64);
            char *memory = device_array<char>(100);
            device_array<char>(64);
            cudaMemsetAsync(memory + one.offset, 0, 4, stream);
            CHECK(gpusim_reports(-1) == 1 && strstr(gpusim_report_text(0), one.place));
        });
    }
}

GPUSIM_TEST(properties)
{
    gpusim_options options = {};
    options.compute_capability = 90;
    options.devices = 3;
    gpusim_configure(&options);
    int count = 0, value = 0;
    CHECK(cudaGetDeviceCount(&count) == cudaSuccess && count == 3);
    CHECK(cudaSetDevice(3) == cudaErrorInvalidDevice);
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 2) == cudaSuccess && properties.major == 9 && properties.minor == 0);
    CHECK(std::string(properties.name) == "gpusim 2");
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess &&
          value == 227 << 10);
    CHECK(std::string(cudaGetErrorName(cudaErrorIllegalAddress)) == "cudaErrorIllegalAddress");
}

GPUSIM_TEST(peer_access_is_asked_for)
{
    int can = 0;
    CHECK(cudaDeviceCanAccessPeer(&can, 0, 1) == cudaSuccess && can == 1);
    cudaSetDevice(0);
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
    CHECK(cudaGetLastError() == cudaErrorPeerAccessAlreadyEnabled);
    CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorInvalidDevice);
    CHECK(cudaDeviceDisablePeerAccess(1) == cudaSuccess);
    CHECK(cudaDeviceDisablePeerAccess(1) == cudaErrorPeerAccessNotEnabled);
}

// Memory of a pool that is made while older memory is closed to the host.
GPUSIM_TEST(allocations_between_waits)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        int *old = device_array<int>(4);
        for (int i = 0; i < 3; i++) {
            void *made = nullptr;
            CHECK(cudaMallocAsync(&made, 16, stream) == cudaSuccess);
            cudaMemsetAsync(made, i, 16, stream);
            cudaMemcpyAsync(old, made, 16, cudaMemcpyDeviceToDevice, stream);
            CHECK(cudaFreeAsync(made, stream) == cudaSuccess);
            CHECK(i % 2 || cudaStreamSynchronize(stream) == cudaSuccess);
        }
        CHECK(download(old, 4, stream)[3] == 0x02020202 && gpusim_reports(-1) == 0);
    });
}
