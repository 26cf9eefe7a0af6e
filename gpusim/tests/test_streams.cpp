// Order between streams: what is legal gives no report, and each missing link is found in every schedule.
#include "devices.h"

namespace {

constexpr size_t bytes = 1000;

struct Pair {
    cudaStream_t first = new_stream(), second = new_stream();
    char *memory = device_array<char>(bytes), *copy = device_array<char>(bytes);

    ~Pair()
    {
        cudaDeviceSynchronize();
        cudaFree(memory);
        cudaFree(copy);
        cudaStreamDestroy(first);
        cudaStreamDestroy(second);
    }
    void write() { CHECK(cudaMemsetAsync(memory, 7, bytes, first) == cudaSuccess); }
    void read() { CHECK(cudaMemcpyAsync(copy, memory, bytes, cudaMemcpyDeviceToDevice, second) == cudaSuccess); }
    // Write, read, write again, each stream waiting for the other.
    void write_read_write()
    {
        write();
        order(first, second);
        read();
        order(second, first);
        write();
    }
};

} // namespace

GPUSIM_TEST(events_order_streams)
{
    check::in_every_schedule([] {
        Pair pair;
        pair.write_read_write();
        const std::vector<char> values = download(pair.copy, bytes, pair.second);
        CHECK(values[0] == 7 && values[bytes - 1] == 7);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(missing_wait_before_read)
{
    check::in_every_schedule([] {
        Pair pair;
        pair.write();
        pair.read();
        cudaDeviceSynchronize();
        const bool reversed = gpusim_reports(GPUSIM_UNINITIALISED) > 0; // the read came first
        CHECK(gpusim_reports(GPUSIM_RACE_STREAM) > 0);
        CHECK(gpusim_reports(-1) == gpusim_reports(GPUSIM_RACE_STREAM) + (reversed ? 1 : 0));
    });
}

GPUSIM_TEST(missing_wait_before_overwrite)
{
    check::in_every_schedule([] {
        Pair pair;
        pair.write();
        order(pair.first, pair.second);
        pair.read();
        pair.write();
        cudaDeviceSynchronize();
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST(wait_for_an_earlier_record_is_not_enough)
{
    check::in_every_schedule([] {
        Pair pair;
        cudaEvent_t event = new_event();
        pair.write();
        cudaEventRecord(event, pair.first);
        pair.write();
        cudaStreamWaitEvent(pair.second, event, 0);
        pair.read();
        cudaDeviceSynchronize();
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

// A later record of the same event does not change what an earlier wait waits for.
GPUSIM_TEST(record_again_after_wait)
{
    check::in_every_schedule([] {
        Pair pair;
        cudaEvent_t event = new_event();
        pair.write();
        cudaEventRecord(event, pair.first);
        cudaStreamWaitEvent(pair.second, event, 0);
        pair.read();
        cudaEventRecord(event, pair.second);
        cudaStreamWaitEvent(pair.first, event, 0);
        pair.write();
        cudaDeviceSynchronize();
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(every_reader_must_be_waited_for)
{
    constexpr int readers = 5;
    for (int forgotten = -1; forgotten < readers; forgotten++)
        check::in_every_schedule([forgotten] {
            Pair pair;
            cudaStream_t streams[readers];
            char *copies[readers];
            pair.write();
            for (int i = 0; i < readers; i++) {
                streams[i] = new_stream();
                copies[i] = device_array<char>(bytes);
                order(pair.first, streams[i]);
                cudaMemcpyAsync(copies[i], pair.memory, bytes, cudaMemcpyDeviceToDevice, streams[i]);
            }
            for (int i = 0; i < readers; i++)
                if (i != forgotten)
                    order(streams[i], pair.first);
            pair.write();
            cudaDeviceSynchronize();
            CHECK(forgotten < 0 ? gpusim_reports(-1) == 0 : check::only_reports(GPUSIM_RACE_STREAM));
        });
}

GPUSIM_TEST(host_waits_order_streams)
{
    check::in_every_schedule([] {
        Pair pair;
        cudaEvent_t event = new_event();
        pair.write();
        CHECK(cudaStreamSynchronize(pair.first) == cudaSuccess);
        pair.read();
        cudaEventRecord(event, pair.second);
        CHECK(cudaEventSynchronize(event) == cudaSuccess);
        pair.write();
        while (cudaStreamQuery(pair.first) == cudaErrorNotReady) {
        }
        cudaGetLastError();
        pair.read();
        cudaEventRecord(event, pair.second);
        while (cudaEventQuery(event) == cudaErrorNotReady) {
        }
        cudaGetLastError();
        pair.write();
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(skipped_wait_is_found)
{
    for (int skipped = 1; skipped <= 2; skipped++)
        for (gpusim_options options : check::schedules()) {
            options.skip_wait = skipped;
            gpusim_configure(&options);
            Pair pair;
            pair.write_read_write();
            cudaDeviceSynchronize();
            CHECK(gpusim_reports(GPUSIM_RACE_STREAM) > 0);
            CHECK(gpusim_count().event_waits == 2);
        }
}

// The first wait orders the write; the second knows it already, though of another event; the third comes after another
// write; and nothing was done before the fourth.
GPUSIM_TEST(waits_that_order_nothing_are_known)
{
    check::in_every_schedule([] {
        Pair pair;
        gpusim_thread(3);
        pair.write();
        order(pair.first, pair.second);
        order(pair.first, pair.second);
        pair.write();
        order(pair.first, pair.second);
        order(pair.second, pair.first);
        gpusim_thread(0);
        cudaDeviceSynchronize();
        const bool expected[] = {true, false, true, false};
        CHECK(gpusim_thread_waits(3) == 4);
        for (int n = 1; n <= 4; n++)
            CHECK(gpusim_wait_orders(3, n) == expected[n - 1]);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(devices_are_ordered_by_events)
{
    check::in_every_schedule([] {
        cudaStream_t one = new_stream(0), two = new_stream(1);
        int *there = device_array<int>(100, 0), *here = device_array<int>(100, 1);
        cudaSetDevice(0);
        upload(there, std::vector<int>(100, 5), one);
        order(one, two, 0);
        cudaSetDevice(1);
        CHECK(cudaMemcpyPeerAsync(here, 1, there, 0, 400, two) == cudaSuccess);
        CHECK(download(here, 100, two)[99] == 5);
        CHECK(gpusim_reports(-1) == 0);
        cudaSetDevice(0);
        CHECK(cudaMemsetAsync(there, 0, 400, one) == cudaSuccess); // after the host's wait above: fine
        cudaDeviceSynchronize();
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(host_functions_run_in_order_and_may_wait)
{
    check::in_every_schedule([] {
        Pair pair;
        static int seen;
        seen = 0;
        pair.write();
        CHECK(cudaLaunchHostFunc(pair.first, [](void *data) { *static_cast<int *>(data) = 1; }, &seen) == cudaSuccess);
        CHECK(cudaStreamSynchronize(pair.first) == cudaSuccess);
        CHECK(seen == 1 && gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST_EVERYWHERE(host_functions_make_no_cuda_calls)
{
    cudaStream_t stream = new_stream();
    auto allocate = [](void *) {
        void *made = nullptr;
        CHECK(cudaMalloc(&made, 8) == cudaErrorNotPermitted && made == nullptr);
    };
    CHECK(cudaLaunchHostFunc(stream, allocate, nullptr) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && check::only_reports(GPUSIM_API));
}

GPUSIM_TEST_EVERYWHERE(misuse_of_handles_is_reported)
{
    cudaStream_t stream = new_stream();
    char *memory = device_array<char>(16);
    CHECK(cudaMemsetAsync(memory, 0, 16, nullptr) == cudaSuccess);
    CHECK(gpusim_reports(GPUSIM_UNSUPPORTED) == 1);
    cudaStreamDestroy(stream);
    gpusim_clear_reports();
    cudaMemsetAsync(memory, 0, 16, stream);
    CHECK(gpusim_reports(GPUSIM_API) > 0);
    gpusim_clear_reports();
    cudaEvent_t elsewhere = new_event(1);
    cudaStream_t other = new_stream(0);
    CHECK(cudaEventRecord(elsewhere, other) == cudaErrorInvalidResourceHandle);
    CHECK(check::only_reports(GPUSIM_WRONG_DEVICE));
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle && cudaGetLastError() == cudaSuccess);
}

GPUSIM_TEST(elapsed_time_needs_timing_events)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t start, end;
    cudaEventCreate(&start);
    cudaEventCreate(&end);
    char *memory = device_array<char>(16);
    cudaEventRecord(start, stream);
    cudaMemsetAsync(memory, 0, 16, stream);
    cudaEventRecord(end, stream);
    cudaStreamSynchronize(stream);
    float milliseconds = -1;
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess && milliseconds > 0);
    CHECK(cudaEventElapsedTime(&milliseconds, new_event(), end) == cudaErrorInvalidResourceHandle);
}
