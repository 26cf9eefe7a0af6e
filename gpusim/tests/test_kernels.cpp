// Kernels that nvcc compiled: right results and no report where all is well, the fault named where it is not.
#include "devices.h"
#include "kernels.h"

#include <numeric>

namespace {

std::vector<int> counting(size_t count)
{
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), 1);
    return values;
}

bool mentions(const char *text)
{
    for (int i = 0; gpusim_report_text(i); i++)
        if (strstr(gpusim_report_text(i), text))
            return true;
    return false;
}

} // namespace

GPUSIM_TEST(plain_kernels)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        float *x = device_array<float>(1000), *y = device_array<float>(1000);
        CHECK(launch_fill(x, 1, 1000, 0, stream) == cudaSuccess && launch_fill(y, 0, 1000, 0, stream) == cudaSuccess);
        CHECK(launch_axpy(y, x, 2, 1000, stream) == cudaSuccess);
        CHECK(download(y, 1000, stream)[999] == 999 + 2 * 1000);
        CHECK(gpusim_reports(-1) == 0 && gpusim_count().kernels == 3 && gpusim_count().instructions > 0);
    });
}

GPUSIM_TEST(out_of_bounds_write)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        float *x = device_array<float>(1000);
        launch_fill(x, 1, 1000, 1, stream);
        CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
        CHECK(check::only_reports(GPUSIM_OUT_OF_BOUNDS) && mentions("kernels.cu:"));
    });
}

GPUSIM_TEST(barrier_in_shared_memory)
{
    for (int fault = 0; fault < 3; fault++)
        check::in_every_schedule([fault] {
            cudaStream_t stream = new_stream();
            int *in = device_array<int>(512), *out = device_array<int>(512);
            upload(in, counting(512), stream);
            launch_reverse(in, out, 4, fault, stream); // fault 2 is seen at once when work runs at once
            if (fault == 2) {
                CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress &&
                      gpusim_reports(GPUSIM_OUT_OF_BOUNDS) > 0);
                return;
            }
            const std::vector<int> result = download(out, 512, stream);
            CHECK(fault ? gpusim_reports(GPUSIM_RACE_SHARED) > 0 && mentions("kernels.cu:") : gpusim_reports(-1) == 0);
            CHECK(fault || (result[0] == 128 && result[511] == 385));
        });
}

GPUSIM_TEST(asynchronous_tiles)
{
    for (int fault = 0; fault < 4; fault++)
        check::in_every_schedule([fault] {
            cudaStream_t stream = new_stream();
            float *in = device_array<float>(5 * 512), *out = device_array<float>(128);
            upload(in, std::vector<float>(5 * 512, 1), stream);
            CHECK(launch_tiles(in, out, 5, fault, stream) == cudaSuccess);
            const std::vector<float> result = download(out, 128, stream);
            if (fault == 0)
                CHECK(result[0] == 20 && result[127] == 20 && gpusim_reports(-1) == 0);
            else
                CHECK(gpusim_reports(fault == 1 ? GPUSIM_PENDING_COPY : GPUSIM_RACE_SHARED) > 0);
        });
}

GPUSIM_TEST(lanes_of_a_warp)
{
    for (int fault = 0; fault < 2; fault++)
        check::in_every_schedule([fault] {
            cudaStream_t stream = new_stream();
            int *in = device_array<int>(64), *out = device_array<int>(64);
            upload(in, counting(64), stream);
            launch_warp_exchange(in, out, 2, fault, stream);
            CHECK(fault || download(out, 64, stream)[0] == 6);
            cudaStreamSynchronize(stream);
            CHECK(fault ? check::only_reports(GPUSIM_RACE_SHARED) : gpusim_reports(-1) == 0);
        });
}

GPUSIM_TEST(blocks_that_add_up)
{
    for (int fault = 0; fault < 2; fault++)
        check::in_every_schedule([fault] {
            cudaStream_t stream = new_stream();
            int *in = device_array<int>(20), *total = device_array<int>(1);
            upload(in, counting(20), stream);
            cudaMemsetAsync(total, 0, 4, stream);
            launch_total(in, total, 20, fault, stream);
            CHECK(fault || download(total, 1, stream)[0] == 210);
            cudaStreamSynchronize(stream);
            CHECK(fault ? check::only_reports(GPUSIM_RACE_GLOBAL) : gpusim_reports(-1) == 0);
        });
}

GPUSIM_TEST(last_block_adds_up)
{
    for (int fault = 0; fault < 3; fault++)
        check::in_every_schedule([fault] {
            cudaStream_t stream = new_stream();
            int *in = device_array<int>(8 * 128), *partial = device_array<int>(32), *total = device_array<int>(1);
            unsigned *counter = device_array<unsigned>(1);
            upload(in, std::vector<int>(8 * 128, 1), stream);
            cudaMemsetAsync(counter, 0, 4, stream);
            CHECK(launch_last_block(in, partial, counter, total, 8, fault, stream) == cudaSuccess);
            cudaStreamSynchronize(stream);
            CHECK(fault ? gpusim_reports(GPUSIM_RACE_GLOBAL) > 0
                        : gpusim_reports(-1) == 0 && download(total, 1, stream)[0] == 1024);
        });
}

GPUSIM_TEST(byte_arrays)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        unsigned char *in = device_array<unsigned char>(777), *out = device_array<unsigned char>(777);
        upload(in, std::vector<unsigned char>(777, 9), stream);
        launch_bytes(in, out, 777, stream);
        CHECK(download(out, 777, stream)[776] == 9 && gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(cooperative_groups)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        int *values = device_array<int>(8);
        CHECK(launch_grid(values, 4, stream) == cudaSuccess);
        const std::vector<int> result = download(values, 8, stream);
        CHECK(result[4] == 2 && result[7] == 1 && gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(shared_memory_must_be_asked_for)
{
    cudaStream_t stream = new_stream();
    int *out = device_array<int>(128);
    CHECK(launch_shared_bytes(out, 64 << 10, false, stream) == cudaErrorInvalidValue &&
          check::only_reports(GPUSIM_API));
    gpusim_clear_reports();
    CHECK(launch_shared_bytes(out, 64 << 10, true, stream) == cudaSuccess);
    CHECK(launch_shared_bytes(out, 64 << 20, true, stream) == cudaErrorInvalidValue &&
          cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(download(out, 128, stream)[0] == 127 && gpusim_reports(-1) == 0);
}

GPUSIM_TEST(constant_tables)
{
    cudaStream_t stream = new_stream();
    int *out = device_array<int>(8);
    CHECK(launch_table(out, stream) == cudaSuccess && download(out, 8, stream)[6] == 3);
    const int values[4] = {5, 6, 7, 8};
    CHECK(set_table(values, stream) == cudaSuccess);
    CHECK(launch_table(out, stream) == cudaSuccess && download(out, 8, stream)[6] == 7);
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST(kernels_of_two_streams)
{
    for (bool waits : {true, false})
        check::in_every_schedule([waits] {
            cudaStream_t one = new_stream(), two = new_stream();
            float *x = device_array<float>(300), *y = device_array<float>(300);
            launch_fill(y, 0, 300, 0, two);
            launch_fill(x, 1, 300, 0, one);
            if (waits)
                order(one, two);
            launch_axpy(y, x, 1, 300, two);
            CHECK(cudaDeviceSynchronize() == cudaSuccess);
            CHECK(waits ? gpusim_reports(-1) == 0 : gpusim_reports(GPUSIM_RACE_STREAM) > 0);
        });
}

// A kernel that reads another device's memory needs peer access, and an order as any other.
GPUSIM_TEST(memory_of_a_peer)
{
    for (int fault = 0; fault < 3; fault++)
        check::in_every_schedule([fault] {
            cudaStream_t one = new_stream(0), two = new_stream(1);
            float *x = device_array<float>(300, 0), *y = device_array<float>(300, 1);
            cudaSetDevice(0);
            launch_fill(x, 1, 300, 0, one);
            if (fault != 1)
                order(one, two, 0);
            cudaSetDevice(1);
            if (fault != 2)
                CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess);
            launch_fill(y, 0, 300, 0, two);
            launch_axpy(y, x, 1, 300, two);
            CHECK(cudaStreamSynchronize(two) == cudaSuccess && cudaStreamSynchronize(one) == cudaSuccess);
            CHECK(fault == 0   ? gpusim_reports(-1) == 0
                  : fault == 1 ? gpusim_reports(GPUSIM_RACE_STREAM) > 0
                               : check::only_reports(GPUSIM_WRONG_DEVICE));
        });
}

GPUSIM_TEST_EVERYWHERE(stream_of_another_device)
{
    cudaStream_t stream = new_stream(1);
    float *x = device_array<float>(300, 0);
    CHECK(launch_fill(x, 1, 300, 0, stream) == cudaErrorInvalidResourceHandle &&
          check::only_reports(GPUSIM_WRONG_DEVICE));
}

// Each barrier and fence that a kernel executes can be taken out by a run.
GPUSIM_TEST(barrier_sites_are_mutants)
{
    auto run = [](int skipped) {
        gpusim_options options = {};
        options.skip_barrier = skipped;
        gpusim_configure(&options);
        cudaStream_t stream = new_stream();
        int *in = device_array<int>(128), *out = device_array<int>(128);
        float *numbers = device_array<float>(5 * 512), *sums = device_array<float>(128);
        upload(in, counting(128), stream);
        upload(numbers, std::vector<float>(5 * 512, 1), stream);
        launch_reverse(in, out, 1, 0, stream);
        launch_warp_exchange(in, out, 2, 0, stream);
        launch_tiles(numbers, sums, 5, 0, stream);
        cudaStreamSynchronize(stream);
        return gpusim_reports(-1);
    };
    CHECK(run(0) == 0);
    int executed = 0;
    const int sites = gpusim_barrier_sites();
    for (int site = 0; site < sites; site++) {
        if (gpusim_barrier_site(site).executed == 0)
            continue;
        executed++;
        CHECK(run(site + 1) > 0);
        if (run(site + 1) == 0)
            fprintf(stderr, "    site %d: %s of %s at line %d\n", site, gpusim_barrier_site(site).what,
                    gpusim_barrier_site(site).kernel, gpusim_barrier_site(site).line);
    }
    CHECK(executed >= 5);
}
