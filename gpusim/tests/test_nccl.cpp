// NCCL: results of every call, what ranks must agree on, and what happens when they don't.
#include "nccl_world.h"

#include <cmath>
#include <thread>

GPUSIM_TEST(all_reduce)
{
    check::in_every_schedule([] {
        for (int ranks : {1, 2, 3, 4}) {
            World world(ranks);
            const size_t count = 101;
            float *buffers[most_ranks];
            for (int rank = 0; rank < ranks; rank++)
                buffers[rank] = world.filled(rank, values_of(rank, count));
            world.each([&](int rank) {
                return ncclAllReduce(buffers[rank], buffers[rank], count, ncclFloat32, ncclSum, world.comms[rank],
                                     world.streams[rank]);
            });
            for (int rank = 0; rank < ranks; rank++) {
                const std::vector<float> result = download(buffers[rank], count, world.streams[rank]);
                for (size_t i = 0; i < count; i++)
                    CHECK(result[i] == sum_at(ranks, i));
            }
        }
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST_EVERYWHERE(average_and_scaled_sum)
{
    World world(4);
    float *in[most_ranks], *out[most_ranks];
    ncclRedOp_t scaled[most_ranks];
    float quarter = 0.25f;
    for (int rank = 0; rank < 4; rank++) {
        in[rank] = world.filled(rank, values_of(rank, 10));
        out[rank] = device_array<float>(10, rank);
        CHECK(ncclRedOpCreatePreMulSum(&scaled[rank], &quarter, ncclFloat32, ncclScalarHostImmediate,
                                       world.comms[rank]) == ncclSuccess);
    }
    world.each([&](int r) {
        return ncclAllReduce(in[r], out[r], 10, ncclFloat32, ncclAvg, world.comms[r], world.streams[r]);
    });
    CHECK(download(out[3], 10, world.streams[3])[7] == sum_at(4, 7) / 4);
    world.each([&](int r) {
        return ncclAllReduce(in[r], out[r], 10, ncclFloat32, scaled[r], world.comms[r], world.streams[r]);
    });
    CHECK(download(out[2], 10, world.streams[2])[7] == sum_at(4, 7) / 4);
    world.each([&](int r) {
        return ncclAllReduce(in[r], out[r], 10, ncclFloat32, ncclMax, world.comms[r], world.streams[r]);
    });
    CHECK(download(out[0], 10, world.streams[0])[7] == 307);
    world.each([&](int r) {
        return ncclAllReduce(in[r], out[r], 10, ncclFloat32, ncclMin, world.comms[r], world.streams[r]);
    });
    CHECK(download(out[1], 10, world.streams[1])[7] == 7);
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST(gather_and_scatter)
{
    check::in_every_schedule([] {
        World world(3);
        const size_t count = 11;
        float *small[3], *large[3];
        for (int rank = 0; rank < 3; rank++) {
            small[rank] = world.filled(rank, values_of(rank, count));
            large[rank] = world.filled(rank, values_of(rank, 3 * count));
        }
        world.each([&](int r) {
            return ncclReduceScatter(large[r], small[r], count, ncclFloat32, ncclSum, world.comms[r], world.streams[r]);
        });
        for (int rank = 0; rank < 3; rank++)
            CHECK(download(small[rank], count, world.streams[rank])[5] == sum_at(3, size_t(rank) * count + 5));
        world.each([&](int r) {
            return ncclAllGather(small[r], large[r], count, ncclFloat32, world.comms[r], world.streams[r]);
        });
        for (int rank = 0; rank < 3; rank++)
            CHECK(download(large[rank], 3 * count, world.streams[rank])[2 * count + 4] == sum_at(3, 2 * count + 4));
        world.each([&](int r) {
            return ncclBroadcast(small[r], small[r], count, ncclFloat32, 1, world.comms[r], world.streams[r]);
        });
        CHECK(download(small[2], count, world.streams[2])[4] == sum_at(3, count + 4));
        world.each([&](int r) {
            return ncclReduce(small[r], small[r], count, ncclFloat32, ncclSum, 2, world.comms[r], world.streams[r]);
        });
        CHECK(download(small[2], count, world.streams[2])[4] == 3 * sum_at(3, count + 4));
        float *received[3];
        for (int rank = 0; rank < 3; rank++)
            received[rank] = device_array<float>(3 * count, rank);
        world.each([&](int r) {
            return ncclAlltoAll(large[r], received[r], count, ncclFloat32, world.comms[r], world.streams[r]);
        });
        CHECK(download(received[1], 3 * count, world.streams[1])[2 * count + 3] == sum_at(3, count + 3));
        CHECK(gpusim_reports(-1) == 0);
    });
}

// Every hop rounds to bf16, and where the ring starts differs.
GPUSIM_TEST(bf16_rounds_at_each_hop)
{
    World world(4);
    const uint16_t terms[4] = {0x4380, 0x3F80, 0x3F80, 0x3F80}; // 256, 1, 1, 1: 256 + 1 rounds back to 256
    uint16_t *buffers[4];
    for (int rank = 0; rank < 4; rank++)
        buffers[rank] = world.filled(rank, std::vector<uint16_t>(40, terms[rank]));
    world.each([&](int r) {
        return ncclAllReduce(buffers[r], buffers[r], 40, ncclBfloat16, ncclSum, world.comms[r], world.streams[r]);
    });
    const std::vector<uint16_t> result = download(buffers[0], 40, world.streams[0]);
    CHECK(result[0] == 0x4380);  // from rank 0 on: 256
    CHECK(result[10] == 0x4382); // from rank 1 on: 3 + 256 = 259, rounded to 260
    CHECK(download(buffers[3], 40, world.streams[3]) == result);
}

GPUSIM_TEST(messages)
{
    check::in_every_schedule([] {
        World world(3);
        float *out[3], *in[3];
        for (int rank = 0; rank < 3; rank++) {
            out[rank] = world.filled(rank, values_of(rank, 50));
            in[rank] = device_array<float>(50, rank);
        }
        CHECK(ncclGroupStart() == ncclSuccess);
        for (int r = 0; r < 3; r++) {
            CHECK(ncclSend(out[r], 50, ncclFloat32, (r + 1) % 3, world.comms[r], world.streams[r]) == ncclSuccess);
            CHECK(ncclRecv(in[r], 50, ncclFloat32, (r + 2) % 3, world.comms[r], world.streams[r]) == ncclSuccess);
        }
        CHECK(ncclGroupEnd() == ncclSuccess);
        CHECK(download(in[1], 50, world.streams[1])[3] == 3 && download(in[0], 50, world.streams[0])[3] == 203);
        // Without a group, in an order that fits: 0 sends, 1 receives and answers.
        CHECK(ncclSend(out[0], 50, ncclFloat32, 1, world.comms[0], world.streams[0]) == ncclSuccess);
        CHECK(ncclRecv(in[0], 50, ncclFloat32, 1, world.comms[0], world.streams[0]) == ncclSuccess);
        CHECK(ncclRecv(in[1], 50, ncclFloat32, 0, world.comms[1], world.streams[1]) == ncclSuccess);
        CHECK(ncclSend(in[1], 50, ncclFloat32, 0, world.comms[1], world.streams[1]) == ncclSuccess);
        CHECK(download(in[0], 50, world.streams[0])[3] == 3);
        CHECK(gpusim_reports(-1) == 0);
    });
}

// Both ends of a message name the same type and count, even where the bytes agree.
GPUSIM_TEST_EVERYWHERE(ends_of_a_message_that_disagree)
{
    for (int fault = 0; fault < 4; fault++) { // 0: none
        World world(2);
        float *out = world.filled(0, values_of(0, 8)), *in = world.filled(1, values_of(1, 8));
        const ncclDataType_t type = fault == 1 ? ncclInt32 : fault == 2 ? ncclInt8 : ncclFloat32;
        const size_t count = fault == 2 ? 32 : fault == 3 ? 4 : 8;
        world.each([&](int r) {
            return r == 0 ? ncclSend(out, 8, ncclFloat32, 1, world.comms[0], world.streams[0])
                          : ncclRecv(in, count, type, 0, world.comms[1], world.streams[1]);
        });
        CHECK(cudaStreamSynchronize(world.streams[0]) == cudaSuccess &&
              cudaStreamSynchronize(world.streams[1]) == cudaSuccess);
        CHECK(fault ? check::only_reports(GPUSIM_NCCL) : gpusim_reports(-1) == 0);
        gpusim_clear_reports();
    }
}

// 0: ended in time; 1: the stream is waited for before; 2: the communicators go before; 3: nobody ends it.
GPUSIM_TEST_EVERYWHERE(a_group_that_is_not_ended)
{
    for (int fault = 0; fault < 4; fault++) {
        World world(2);
        float *buffers[2] = {world.filled(0, values_of(0, 8)), world.filled(1, values_of(1, 8))};
        CHECK(cudaStreamSynchronize(world.streams[0]) == cudaSuccess);
        CHECK(ncclGroupStart() == ncclSuccess);
        CHECK(cudaStreamSynchronize(world.streams[0]) == cudaSuccess); // of what came before the group
        for (int r = 0; r < 2; r++)
            CHECK(ncclAllReduce(buffers[r], buffers[r], 8, ncclFloat32, ncclSum, world.comms[r], world.streams[r]) ==
                  ncclSuccess);
        CHECK(gpusim_reports(-1) == 0);
        if (fault == 1)
            CHECK(cudaStreamSynchronize(world.streams[1]) == cudaSuccess);
        if (fault == 2)
            CHECK(ncclCommFinalize(world.comms[1]) == ncclSuccess);
        if (fault == 3)
            CHECK(gpusim_report_leaks() > 0 && gpusim_reports(GPUSIM_NCCL) == 1);
        else
            CHECK(fault ? check::only_reports(GPUSIM_NCCL) : gpusim_reports(-1) == 0);
        gpusim_clear_reports();
        CHECK(ncclGroupEnd() == ncclSuccess);
        CHECK(download(buffers[1], 8, world.streams[1])[3] == sum_at(2, 3) && gpusim_reports(-1) == 0);
    }
}

GPUSIM_TEST(a_thread_that_leaves_a_group_open)
{
    for (const bool ends : {true, false}) {
        std::thread([ends] {
            CHECK(ncclGroupStart() == ncclSuccess);
            if (ends)
                CHECK(ncclGroupEnd() == ncclSuccess);
        }).join();
        CHECK(ends ? gpusim_reports(-1) == 0 : check::only_reports(GPUSIM_NCCL));
    }
}

GPUSIM_TEST(sends_that_wait_for_each_other)
{
    check::in_every_schedule([] {
        World world(2);
        float *out[2], *in[2];
        for (int r = 0; r < 2; r++) {
            out[r] = world.filled(r, values_of(r, 8));
            in[r] = device_array<float>(8, r);
        }
        for (int r = 0; r < 2; r++) {
            ncclSend(out[r], 8, ncclFloat32, 1 - r, world.comms[r], world.streams[r]);
            ncclRecv(in[r], 8, ncclFloat32, 1 - r, world.comms[r], world.streams[r]);
        }
        CHECK(cudaStreamSynchronize(world.streams[0]) != cudaSuccess);
        CHECK(check::only_reports(GPUSIM_DEADLOCK));
    });
}

GPUSIM_TEST(ranks_that_disagree)
{
    for (int fault = 0; fault < 5; fault++)
        check::in_every_schedule([fault] {
            World world(2);
            float *buffers[2];
            for (int r = 0; r < 2; r++)
                buffers[r] = world.filled(r, values_of(r, 16));
            world.each([&](int r) {
                const bool odd = r == 1;
                if (fault == 4 && odd)
                    return ncclBroadcast(buffers[r], buffers[r], 16, ncclFloat32, 0, world.comms[r], world.streams[r]);
                if (fault == 3)
                    return ncclReduce(buffers[r], buffers[r], 16, ncclFloat32, ncclSum, r, world.comms[r],
                                      world.streams[r]);
                return ncclAllReduce(buffers[r], buffers[r], fault == 0 && odd ? 12 : 16,
                                     fault == 1 && odd ? ncclInt32 : ncclFloat32, fault == 2 && odd ? ncclMax : ncclSum,
                                     world.comms[r], world.streams[r]);
            });
            cudaDeviceSynchronize();
            CHECK(check::only_reports(GPUSIM_NCCL));
        });
}

GPUSIM_TEST(calls_in_different_order)
{
    check::in_every_schedule([] {
        World world(2);
        ncclComm_t others[2];
        CHECK(ncclCommInitAll(others, 2, nullptr) == ncclSuccess);
        float *buffers[2];
        for (int r = 0; r < 2; r++)
            buffers[r] = world.filled(r, values_of(r, 16));
        // Two communicators, one stream a rank, and the ranks' calls crossed: each waits for the other's second.
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < 2; i++)
                ncclAllReduce(buffers[r], buffers[r], 16, ncclFloat32, ncclSum, i == r ? world.comms[r] : others[r],
                              world.streams[r]);
        CHECK(cudaStreamSynchronize(world.streams[0]) != cudaSuccess);
        CHECK(check::only_reports(GPUSIM_DEADLOCK));
    });
}

GPUSIM_TEST(missing_waits_around_a_collective)
{
    for (int fault = 0; fault < 3; fault++) // 0: none
        check::in_every_schedule([fault] {
            World world(2);
            cudaStream_t communication[2];
            float *buffers[2];
            for (int r = 0; r < 2; r++) {
                communication[r] = new_stream(r);
                buffers[r] = world.filled(r, values_of(r, 64));
                if (!(fault == 1 && r == 1))
                    order(world.streams[r], communication[r], r);
            }
            world.each([&](int r) {
                return ncclAllReduce(buffers[r], buffers[r], 64, ncclFloat32, ncclSum, world.comms[r],
                                     communication[r]);
            });
            for (int r = 0; r < 2; r++) {
                if (!(fault == 2 && r == 0))
                    order(communication[r], world.streams[r], r);
                cudaSetDevice(r);
                cudaMemsetAsync(buffers[r], 0, 256, world.streams[r]);
            }
            for (int r = 0; r < 2; r++) {
                cudaSetDevice(r);
                cudaDeviceSynchronize();
            }
            CHECK(fault ? gpusim_reports(GPUSIM_RACE_STREAM) > 0 : gpusim_reports(-1) == 0);
        });
}

GPUSIM_TEST_EVERYWHERE(split)
{
    World world(4);
    ncclComm_t parts[4];
    world.each([&](int r) {
        return ncclCommSplit(world.comms[r], r == 3 ? NCCL_SPLIT_NOCOLOR : r % 2, -r, &parts[r], nullptr);
    });
    int count = 0, rank = -1;
    CHECK(parts[3] == nullptr);
    CHECK(ncclCommCount(parts[0], &count) == ncclSuccess && count == 2 &&
          ncclCommUserRank(parts[0], &rank) == ncclSuccess && rank == 1);
    CHECK(ncclCommCount(parts[1], &count) == ncclSuccess && count == 1);
    float *buffers[3];
    for (int r = 0; r < 3; r++)
        buffers[r] = world.filled(r, values_of(r, 4));
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int r : {0, 2})
        CHECK(ncclAllReduce(buffers[r], buffers[r], 4, ncclFloat32, ncclSum, parts[r], world.streams[r]) ==
              ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(download(buffers[2], 4, world.streams[2])[1] == 202);
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(two_ranks_on_one_device)
{
    ncclComm_t comms[2];
    const int devices[2] = {1, 1};
    CHECK(ncclCommInitAll(comms, 2, devices) == ncclInvalidUsage);
    CHECK(check::only_reports(GPUSIM_NCCL));
}

GPUSIM_TEST(abort_ends_the_own_work)
{
    check::in_every_schedule([] {
        World world(2);
        float *buffer = world.filled(0, values_of(0, 4));
        CHECK(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, world.comms[0], world.streams[0]) == ncclSuccess);
        CHECK(cudaStreamQuery(world.streams[0]) == cudaErrorNotReady);
        CHECK(ncclCommAbort(world.comms[0]) == ncclSuccess);
        CHECK(cudaStreamSynchronize(world.streams[0]) == cudaSuccess);
        CHECK(ncclCommAbort(world.comms[1]) == ncclSuccess);
        CHECK(gpusim_reports(-1) == 0);
        CHECK(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, world.comms[0], world.streams[0]) ==
              ncclInvalidArgument);
        CHECK(check::only_reports(GPUSIM_NCCL));
        gpusim_clear_reports();
        world.size = 0;
    });
}

GPUSIM_TEST(planted_failures)
{
    check::in_every_schedule([] {
        World world(2);
        float *buffers[2] = {world.filled(0, values_of(0, 4)), world.filled(1, values_of(1, 4))};
        auto sum = [&](int rank) {
            return ncclAllReduce(buffers[rank], buffers[rank], 4, ncclFloat32, ncclSum, world.comms[rank],
                                 world.streams[rank]);
        };
        ncclResult_t state = ncclSuccess;
        gpusim_fail_nccl(1, 2, GPUSIM_NCCL_AT_CALL);
        world.each(sum);
        CHECK(ncclGroupStart() == ncclSuccess && sum(1) == ncclSystemError && ncclGroupEnd() == ncclSystemError);
        CHECK(ncclCommGetAsyncError(world.comms[1], &state) == ncclSuccess && state == ncclSuccess);
        world.each(sum); // only one failed
        gpusim_fail_nccl(1, 1, GPUSIM_NCCL_LATER);
        world.each(sum);
        CHECK(cudaStreamQuery(world.streams[1]) == cudaErrorNotReady);
        CHECK(ncclCommGetAsyncError(world.comms[1], &state) == ncclSuccess && state == ncclRemoteError);
        CHECK(ncclCommGetAsyncError(world.comms[0], &state) == ncclSuccess && state == ncclSuccess);
        for (int rank = 0; rank < 2; rank++) {
            CHECK(ncclCommAbort(world.comms[rank]) == ncclSuccess);
            CHECK(cudaStreamSynchronize(world.streams[rank]) == cudaSuccess);
        }
        CHECK(gpusim_reports(-1) == 0);
        world.size = 0;
    });
}

GPUSIM_TEST_EVERYWHERE(arguments_are_checked)
{
    World world(2);
    float *buffer = world.filled(0, values_of(0, 4));
    CHECK(ncclBroadcast(buffer, buffer, 4, ncclFloat32, 2, world.comms[0], world.streams[0]) == ncclInvalidArgument);
    CHECK(ncclAllReduce(buffer, buffer, 4, ncclDataType_t(77), ncclSum, world.comms[0], world.streams[0]) ==
          ncclInvalidArgument);
    CHECK(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclRedOp_t(77), world.comms[0], world.streams[0]) ==
          ncclInvalidArgument);
    CHECK(ncclSend(buffer, 4, ncclFloat32, 5, world.comms[0], world.streams[0]) == ncclInvalidArgument);
    CHECK(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, world.comms[0], world.streams[1]) ==
          ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(gpusim_reports(GPUSIM_NCCL) > 0);
    gpusim_clear_reports();
    int version = 0;
    CHECK(ncclGetVersion(&version) == ncclSuccess && version == NCCL_VERSION(2, 30, 7));
    CHECK(std::string(ncclGetErrorString(ncclSuccess)) == "no error");
    // nothing at all
    CHECK(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, world.comms[0], world.streams[0]) == ncclSuccess);
}

GPUSIM_TEST(buffer_of_another_device)
{
    check::in_every_schedule([] {
        World world(2);
        float *buffers[2] = {world.filled(0, values_of(0, 4)), world.filled(0, values_of(0, 4))};
        order(world.streams[0], world.streams[1], 0);
        world.each([&](int r) {
            return ncclAllReduce(buffers[r], buffers[r], 4, ncclFloat32, ncclSum, world.comms[r], world.streams[r]);
        });
        cudaDeviceSynchronize();
        CHECK(check::only_reports(GPUSIM_WRONG_DEVICE));
    });
}

// One host thread a rank, as processes would be.
static void thread_of_rank(int rank, int ranks, ncclUniqueId id, int skipped_step, int *wrong)
{
    cudaSetDevice(rank);
    cudaStream_t compute = new_stream(rank), communication = new_stream(rank);
    ncclComm_t comm;
    CHECK(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess);
    float *in = device_array<float>(1000, rank), *out = device_array<float>(1000, rank);
    for (int step = 0; step < 20; step++) {
        upload(in, std::vector<float>(1000, float(rank + step)), compute);
        order(compute, communication, rank);
        if (!(rank == 1 && step == skipped_step))
            CHECK(ncclAllReduce(in, out, 1000, ncclFloat32, ncclSum, comm, communication) == ncclSuccess);
        order(communication, compute, rank);
        std::vector<float> result(1000);
        cudaMemcpyAsync(result.data(), out, 4000, cudaMemcpyDeviceToHost, compute);
        if (cudaStreamSynchronize(compute) != cudaSuccess)
            return;
        *wrong += result[999] != float(ranks * (ranks - 1) / 2 + ranks * step);
    }
    cudaStreamSynchronize(communication);
    ncclCommDestroy(comm);
}

static int run_threads(int ranks, int skipped_step)
{
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    int wrong[most_ranks] = {};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++)
        threads.emplace_back(thread_of_rank, rank, ranks, id, skipped_step, &wrong[rank]);
    for (std::thread &thread : threads)
        thread.join();
    return wrong[0] + wrong[1] + wrong[2] + wrong[3];
}

GPUSIM_TEST(a_thread_for_each_rank)
{
    check::in_every_schedule([] {
        CHECK(run_threads(3, -1) == 0);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(a_rank_that_skips_a_collective)
{
    check::in_every_schedule_at_once([] {
        run_threads(2, 7);
        CHECK(gpusim_reports(GPUSIM_DEADLOCK) > 0);
    });
}
