// Host code that touches device memory, at any time, or pinned memory that queued work uses.
#include "devices.h"
#include "kernels.h"
#include "options.h"

#include <atomic>
#include <thread>

namespace {

// What has happened to the memory before the host touches it.
enum class Before { allocation, launch, other_launch, wait, copy, pool, host_function, touches };

float *prepared(Before before, cudaStream_t stream)
{
    float *memory = device_array<float>(2000), *other = device_array<float>(64);
    switch (before) {
    case Before::launch:
        launch_fill(memory, 1, 2000, 0, stream);
        break;
    case Before::other_launch:
        launch_fill(other, 1, 64, 0, stream);
        break;
    case Before::wait:
        launch_fill(memory, 1, 2000, 0, stream);
        cudaStreamSynchronize(stream);
        break;
    case Before::copy:
        cudaMemsetAsync(memory, 0, 8000, stream);
        break;
    case Before::pool: {
        void *made = nullptr;
        CHECK(cudaMallocAsync(&made, 8000, stream) == cudaSuccess);
        return static_cast<float *>(made);
    }
    default:
        break;
    }
    return memory;
}

volatile float *touched;

} // namespace

GPUSIM_TEST(host_code_touches_device_memory)
{
    for (int before = 0; before < int(Before::touches); before++)
        for (bool writes : {false, true})
            check::in_every_schedule([before, writes] {
                cudaStream_t stream = new_stream();
                touched = prepared(Before(before), stream);
                CHECK(gpusim_reports(-1) == 0);
                auto touch = [](void *write) {
                    const float seen = write ? touched[1500] = 1 : +touched[1500];
                    (void)seen;
                };
                if (Before(before) == Before::host_function)
                    cudaLaunchHostFunc(stream, touch, writes ? &stream : nullptr);
                else
                    touch(writes ? &stream : nullptr);
                CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
                CHECK(check::only_reports(GPUSIM_HOST_ACCESS));
            });
}

// What is read is what was there; the next test run finds it closed again.
GPUSIM_TEST(a_touch_is_let_through)
{
    volatile float *memory = nullptr;
    for (int run = 0; run < 2; run++) {
        gpusim_configure(nullptr);
        cudaStream_t stream = new_stream();
        if (!memory)
            memory = device_array<float>(2000);
        launch_fill(const_cast<float *>(memory), 1, 2000, 0, stream);
        CHECK(memory[1999] == 2000 && memory[3] == 4);
        CHECK(gpusim_reports(GPUSIM_HOST_ACCESS) == 1);
        cudaMemset(const_cast<float *>(memory), 0, 8000); // of the device's, not of the copy that the host has now
        CHECK(download(const_cast<float *>(memory), 1, stream)[0] == 0);
    }
}

GPUSIM_TEST(another_thread_touches_device_memory)
{
    check::in_every_schedule([] {
        volatile char *memory = device_array<char>(64);
        std::thread([memory] { memory[7] = 1; }).join();
        CHECK(check::only_reports(GPUSIM_HOST_ACCESS));
    });
}

// Threads come to the closed page while the machine's lock is held: all but the first, or all if it is opened
// meanwhile, find it open then.
static void touch_at_once(volatile char *memory, const std::function<void()> &meanwhile)
{
    std::atomic<int> come{0};
    std::vector<std::thread> threads;
    {
        gpusim::Locked lock(gpusim::machine_lock());
        for (int i = 0; i < 4; i++)
            threads.emplace_back([&come, memory] {
                come++;
                (void)memory[3];
            });
        while (come < 4)
            std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50)); // until they have faulted
        meanwhile();
    }
    for (std::thread &thread : threads)
        thread.join();
}

GPUSIM_TEST(threads_touch_a_closed_page_at_once)
{
    check::in_every_schedule([] {
        touch_at_once(device_array<char>(64), [] {});
        CHECK(check::only_reports(GPUSIM_HOST_ACCESS) && gpusim_reports(GPUSIM_HOST_ACCESS) == 1);
        gpusim_clear_reports();
        cudaStream_t stream = new_stream();
        char *pinned = pinned_array<char>(64), *device = device_array<char>(64);
        cudaMemsetAsync(device, 0, 64, stream);
        cudaMemcpyAsync(pinned, device, 64, cudaMemcpyDeviceToHost, stream);
        touch_at_once(pinned, [] {});
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
        gpusim_clear_reports();
        cudaMemcpyAsync(pinned, device, 64, cudaMemcpyDeviceToHost, stream);
        touch_at_once(pinned, [stream] { cudaStreamSynchronize(stream); });
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(pinned_memory_is_freed_too_early)
{
    for (bool waits : {false, true})
        check::in_every_schedule([waits] {
            cudaStream_t stream = new_stream();
            char *pinned = pinned_array<char>(64), *device = device_array<char>(64);
            memset(pinned, 1, 64);
            cudaMemcpyAsync(device, pinned, 64, cudaMemcpyHostToDevice, stream);
            if (waits)
                cudaStreamSynchronize(stream);
            CHECK(cudaFreeHost(pinned) == cudaSuccess);
            CHECK(waits ? gpusim_reports(-1) == 0 : check::only_reports(GPUSIM_RACE_STREAM));
            cudaDeviceSynchronize();
        });
}

GPUSIM_TEST(host_touches_device_memory_after_a_query)
{
    for (bool event : {false, true})
        check::in_every_schedule([event] {
            cudaStream_t stream = new_stream();
            cudaEvent_t done = new_event();
            volatile char *memory = device_array<char>(64);
            cudaMemsetAsync(const_cast<char *>(memory), 0, 64, stream);
            cudaEventRecord(done, stream);
            while ((event ? cudaEventQuery(done) : cudaStreamQuery(stream)) == cudaErrorNotReady) {
            }
            CHECK(memory[5] == 0);
            CHECK(check::only_reports(GPUSIM_HOST_ACCESS));
        });
}

// The host touches pinned memory that a copy still reads or writes. `waits`: it has waited.
static void touch_pinned(bool up, bool waits)
{
    cudaStream_t stream = new_stream();
    char *device = device_array<char>(5000);
    volatile char *host = pinned_array<char>(10000);
    for (int i = 0; i < 10000; i++)
        host[i] = 1;
    cudaMemsetAsync(device, 2, 5000, stream);
    if (up)
        cudaMemcpyAsync(device, const_cast<char *>(host + 4096), 5000, cudaMemcpyHostToDevice, stream);
    else
        cudaMemcpyAsync(const_cast<char *>(host + 4096), device, 5000, cudaMemcpyDeviceToHost, stream);
    CHECK(host[4000] == 1 && host[9500] == 1); // beside it
    host[9800] = 7;
    CHECK(gpusim_reports(-1) == 0);
    if (waits)
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    if (up) {
        CHECK(host[4096 + 4999] == 1); // two reads
        CHECK(gpusim_reports(-1) == 0);
        // closes the pages again
        cudaMemcpyAsync(device, const_cast<char *>(host + 4096), 5, cudaMemcpyHostToDevice, stream);
        host[4096 + 10] = 3;
    } else {
        (void)host[4096 + 10];
    }
    CHECK(waits ? gpusim_reports(-1) == 0 : check::only_reports(GPUSIM_RACE_STREAM));
    cudaDeviceSynchronize();
}

GPUSIM_TEST(host_touches_pinned_memory_too_early)
{
    for (bool up : {false, true})
        for (bool waits : {false, true})
            check::in_every_schedule([up, waits] { touch_pinned(up, waits); });
}

// Two buffers in turn, each filled again when its copy is over.
GPUSIM_TEST(pinned_buffers_in_turn)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        cudaEvent_t over[2] = {new_event(), new_event()};
        int *host = pinned_array<int>(128), *device = device_array<int>(6 * 64);
        for (int round = 0; round < 6; round++) {
            int *buffer = host + round % 2 * 64;
            if (round >= 2)
                CHECK(cudaEventSynchronize(over[round % 2]) == cudaSuccess);
            for (int i = 0; i < 64; i++)
                buffer[i] = round;
            cudaMemcpyAsync(device + round * 64, buffer, 256, cudaMemcpyHostToDevice, stream);
            cudaEventRecord(over[round % 2], stream);
        }
        const std::vector<int> got = download(device, 6 * 64, stream);
        for (int i = 0; i < 6 * 64; i++)
            CHECK(got[size_t(i)] == i / 64);
        CHECK(gpusim_reports(-1) == 0);
    });
}

// What a stream's host function touches comes after the stream's earlier work.
GPUSIM_TEST(host_functions_touch_pinned_memory)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        static int *host;
        host = pinned_array<int>(4);
        int *device = device_array<int>(4);
        cudaMemsetAsync(device, 1, 16, stream);
        cudaMemcpyAsync(host, device, 16, cudaMemcpyDeviceToHost, stream);
        cudaLaunchHostFunc(stream, [](void *) { host[2]++; }, nullptr);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(host[2] == 0x01010102 && gpusim_reports(-1) == 0);
    });
}
