// NCCL's windows: what they give, what ranks must keep to, and what older libraries and GPUs without symmetric memory
// do.
#include "kernels.h"
#include "nccl_world.h"

// nccl_device.h declares it, from 2.29.2 on.
extern "C" ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **memory);

namespace {

// A window of `count` floats on every rank.
struct Windows {
    World &world;
    float *memory[most_ranks] = {};
    ncclWindow_t handle[most_ranks] = {};

    explicit Windows(World &in) : world(in) {}
    void allocate(size_t count)
    {
        for (int rank = 0; rank < world.size; rank++) {
            void *place = nullptr;
            cudaSetDevice(rank);
            CHECK(ncclMemAlloc(&place, count * sizeof(float)) == ncclSuccess);
            memory[rank] = static_cast<float *>(place);
        }
    }
    void open(size_t count)
    {
        allocate(count);
        world.each([&](int r) {
            return ncclCommWindowRegister(world.comms[r], memory[r], count * sizeof(float), &handle[r],
                                          NCCL_WIN_COLL_SYMMETRIC);
        });
    }
    float *peer(int rank, int other)
    {
        void *place = nullptr;
        CHECK(ncclGetPeerDevicePointer(handle[rank], 0, other, &place) == ncclSuccess);
        return static_cast<float *>(place);
    }
    void close()
    {
        for (int rank = 0; rank < world.size; rank++)
            CHECK(ncclCommWindowDeregister(world.comms[rank], handle[rank]) == ncclSuccess);
    }
    void free()
    {
        for (int rank = 0; rank < world.size; rank++)
            CHECK(ncclMemFree(memory[rank]) == ncclSuccess);
    }
};

ncclResult_t sum_of(World &world, int rank, const float *in, float *out, size_t count)
{
    return ncclAllReduce(in, out, count, ncclFloat32, ncclSum, world.comms[rank], world.streams[rank]);
}

} // namespace

GPUSIM_TEST(kernels_reach_peers)
{
    check::in_every_schedule([] {
        World world(3);
        Windows windows(world);
        windows.open(64);
        CHECK(windows.peer(1, 1) == windows.memory[1] && windows.peer(0, 2) == windows.memory[2]);
        upload(windows.memory[2], values_of(2, 64), world.streams[2]);
        order(world.streams[2], world.streams[0], 2);
        cudaSetDevice(0);
        CHECK(launch_fill(windows.memory[0], 1, 64, 0, world.streams[0]) == cudaSuccess);
        CHECK(launch_axpy(windows.memory[0], windows.peer(0, 2), 2, 64, world.streams[0]) == cudaSuccess);
        CHECK(download(windows.memory[0], 64, world.streams[0])[3] == 1 + 3 + 2 * 203);
        windows.close();
        windows.free();
        world.close();
        CHECK(gpusim_reports(-1) == 0 && gpusim_report_leaks() == 0);
    });
}

// 0: none. 1: before the window, 2: after its end.
GPUSIM_TEST(peers_are_reached_through_windows_only)
{
    for (int fault = 0; fault < 3; fault++)
        check::in_every_schedule([fault] {
            World world(2);
            Windows windows(world);
            if (fault == 1)
                windows.allocate(64);
            else
                windows.open(64);
            upload(windows.memory[1], values_of(1, 64), world.streams[1]);
            order(world.streams[1], world.streams[0], 1);
            if (fault == 2)
                CHECK(ncclCommWindowDeregister(world.comms[0], windows.handle[0]) == ncclSuccess);
            cudaSetDevice(0);
            launch_fill(windows.memory[0], 1, 64, 0, world.streams[0]);
            launch_axpy(windows.memory[0], windows.memory[1], 2, 64, world.streams[0]);
            cudaStreamSynchronize(world.streams[0]);
            CHECK(fault ? check::only_reports(GPUSIM_WRONG_DEVICE) : gpusim_reports(-1) == 0);
            world.size = 0;
        });
}

// A peer's memory stays as long as it is mapped here.
GPUSIM_TEST(peers_may_go_first)
{
    check::in_every_schedule([] {
        World world(2);
        Windows windows(world);
        windows.open(64);
        upload(windows.memory[1], values_of(1, 64), world.streams[1]);
        order(world.streams[1], world.streams[0], 1);
        cudaSetDevice(0);
        launch_fill(windows.memory[0], 1, 64, 0, world.streams[0]);
        launch_axpy(windows.memory[0], windows.memory[1], 2, 64, world.streams[0]);
        CHECK(ncclCommAbort(world.comms[1]) == ncclSuccess && ncclMemFree(windows.memory[1]) == ncclSuccess);
        CHECK(cudaStreamSynchronize(world.streams[0]) == cudaSuccess);
        CHECK(ncclCommAbort(world.comms[0]) == ncclSuccess && ncclMemFree(windows.memory[0]) == ncclSuccess);
        for (int rank = 0; rank < 2; rank++)
            CHECK(cudaStreamDestroy(world.streams[rank]) == cudaSuccess);
        world.size = 0;
        CHECK(gpusim_reports(-1) == 0 && gpusim_report_leaks() == 0);
    });
}

// A window is device code's only with a device communicator, which isn't simulated: its handle is no device memory.
GPUSIM_TEST(device_code_does_not_read_handles)
{
    check::in_every_schedule([] {
        World world(2);
        Windows windows(world);
        windows.open(64);
        cudaSetDevice(0);
        launch_fill(windows.memory[0], 1, 4, 0, world.streams[0]);
        launch_axpy(windows.memory[0], reinterpret_cast<const float *>(windows.handle[0]), 2, 4, world.streams[0]);
        CHECK(cudaStreamSynchronize(world.streams[0]) != cudaSuccess);
        CHECK(gpusim_reports(GPUSIM_OUT_OF_BOUNDS) + gpusim_reports(GPUSIM_HOST_ACCESS) > 0);
        world.size = 0;
    });
}

GPUSIM_TEST(collectives_in_windows)
{
    check::in_every_schedule([] {
        World world(3);
        Windows windows(world);
        windows.open(300);
        for (int rank = 0; rank < 3; rank++)
            upload(windows.memory[rank] + rank * 10, values_of(rank, 10), world.streams[rank]);
        world.each([&](int r) {
            return ncclAllGather(windows.memory[r] + r * 10, windows.memory[r], 10, ncclFloat32, world.comms[r],
                                 world.streams[r]);
        });
        CHECK(download(windows.memory[0], 30, world.streams[0])[24] == 204);
        world.each([&](int r) { return sum_of(world, r, windows.memory[r], windows.memory[r] + 100, 30); });
        CHECK(download(windows.memory[1] + 100, 30, world.streams[1])[24] == 3 * 204);
        windows.close();
        windows.free();
        CHECK(gpusim_reports(-1) == 0);
    });
}

// 0: none. 1: one rank's buffers are elsewhere. 2: at another place in the window. 3: only those written.
GPUSIM_TEST(ranks_use_their_windows_alike)
{
    for (int fault = 0; fault < 4; fault++)
        check::in_every_schedule([fault] {
            World world(2);
            Windows windows(world);
            windows.open(64);
            float *plain = world.filled(1, values_of(1, 64));
            for (int rank = 0; rank < 2; rank++)
                upload(windows.memory[rank], values_of(rank, 64), world.streams[rank]);
            world.each([&](int r) {
                float *in = r == 1 && (fault == 1 || fault == 3) ? plain
                            : r == 1 && fault == 2               ? windows.memory[r] + 8
                                                                 : windows.memory[r];
                return sum_of(world, r, in, fault == 1 && r == 1 ? in : windows.memory[r] + 32, 16);
            });
            for (int rank = 0; rank < 2; rank++)
                CHECK(cudaStreamSynchronize(world.streams[rank]) == cudaSuccess);
            windows.close();
            windows.free();
            CHECK(fault ? check::only_reports(GPUSIM_NCCL) : gpusim_reports(-1) == 0);
        });
}

// Bit 0: it is sent from a window. Bit 1: it is received in one.
GPUSIM_TEST(messages_have_both_ends_in_windows_or_none)
{
    for (int ends = 0; ends < 4; ends++)
        check::in_every_schedule([ends] {
            World world(2);
            Windows windows(world);
            windows.open(64);
            float *plain[2] = {world.filled(0, values_of(0, 64)), world.filled(1, values_of(1, 64))};
            upload(windows.memory[0], values_of(0, 64), world.streams[0]);
            float *from = ends & 1 ? windows.memory[0] : plain[0], *to = ends & 2 ? windows.memory[1] : plain[1];
            world.each([&](int r) {
                return r == 0 ? ncclSend(from, 16, ncclFloat32, 1, world.comms[0], world.streams[0])
                              : ncclRecv(to, 16, ncclFloat32, 0, world.comms[1], world.streams[1]);
            });
            CHECK(download(to, 16, world.streams[1])[3] == values_of(0, 64)[3]);
            CHECK(cudaStreamSynchronize(world.streams[0]) == cudaSuccess);
            windows.close();
            windows.free();
            CHECK(ends == 1 || ends == 2 ? check::only_reports(GPUSIM_NCCL) : gpusim_reports(-1) == 0);
        });
}

GPUSIM_TEST(ranks_that_register_differently)
{
    for (int fault = 0; fault < 2; fault++)
        check::in_every_schedule([fault] {
            World world(2);
            Windows windows(world);
            windows.allocate(64);
            CHECK(ncclGroupStart() == ncclSuccess);
            for (int r = 0; r < 2; r++)
                CHECK(ncclCommWindowRegister(
                          world.comms[r], windows.memory[r], fault == 0 && r == 1 ? 128 : 256, &windows.handle[r],
                          fault == 1 && r == 1 ? NCCL_WIN_DEFAULT : NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess);
            CHECK(ncclGroupEnd() == ncclInvalidArgument && !windows.handle[0] && !windows.handle[1]);
            CHECK(check::only_reports(GPUSIM_NCCL));
            windows.free();
        });
}

GPUSIM_TEST(memory_of_windows)
{
    check::in_every_schedule([] {
        World world(2);
        Windows windows(world);
        windows.allocate(4096);
        ncclWindow_t handle = nullptr;
        int reports = 0;
        auto refused = [&](void *memory, size_t bytes) {
            const bool failed = ncclCommWindowRegister(world.comms[0], memory, bytes, &handle,
                                                       NCCL_WIN_COLL_SYMMETRIC) == ncclInvalidArgument;
            return failed && !handle && gpusim_reports(GPUSIM_NCCL) == ++reports;
        };
        CHECK(refused(device_array<float>(64, 0), 256));     // cudaMalloc's
        CHECK(refused(windows.memory[0] + 8, 256));          // no multiple of 4096 bytes
        CHECK(refused(windows.memory[0] + 1024, 16384));     // more than there is
        CHECK(refused(windows.memory[1], 256));              // another device's
        CHECK(refused(nullptr, 256));
        CHECK(ncclMemFree(device_array<float>(64, 0)) == ncclInvalidArgument);
        CHECK(check::only_reports(GPUSIM_NCCL));
        windows.free();
    });
}

// 1: the memory goes before the window. 2: the communicator does. 3: a window ends twice. 4: another communicator ends
// it.
GPUSIM_TEST(windows_end_before_what_they_need)
{
    for (int fault = 1; fault <= 4; fault++)
        check::in_every_schedule([fault] {
            World world(2);
            Windows windows(world);
            windows.open(64);
            if (fault == 1)
                CHECK(ncclMemFree(windows.memory[0]) == ncclSuccess);
            if (fault == 2)
                CHECK(ncclCommDestroy(world.comms[0]) == ncclSuccess);
            if (fault == 3)
                windows.close();
            if (fault >= 3)
                CHECK(ncclCommWindowDeregister(world.comms[fault == 4], windows.handle[0]) == ncclInvalidArgument);
            CHECK(check::only_reports(fault == 2 ? GPUSIM_LEAK : GPUSIM_NCCL));
            world.size = 0;
        });
}

GPUSIM_TEST(abort_ends_windows)
{
    check::in_every_schedule([] {
        World world(2);
        Windows windows(world);
        windows.open(64);
        for (int rank = 0; rank < 2; rank++)
            CHECK(ncclCommAbort(world.comms[rank]) == ncclSuccess);
        windows.free();
        CHECK(gpusim_reports(-1) == 0);
        world.size = 0;
    });
}

// A communicator that doesn't block: the window is there when all ranks have come.
GPUSIM_TEST(registering_goes_on_behind)
{
    check::in_every_schedule([] {
        ncclUniqueId id;
        ncclComm_t comms[2];
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclWindow_t windows[2];
        ncclResult_t state = ncclSuccess;
        void *memory[2];
        config.blocking = 0;
        CHECK(ncclGetUniqueId(&id) == ncclSuccess);
        for (int rank = 0; rank < 2; rank++) {
            cudaSetDevice(rank);
            CHECK(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config) == (rank ? ncclSuccess : ncclInProgress));
            CHECK(ncclMemAlloc(&memory[rank], 256) == ncclSuccess);
        }
        CHECK(ncclCommWindowRegister(comms[0], memory[0], 256, &windows[0], NCCL_WIN_COLL_SYMMETRIC) ==
                  ncclInProgress &&
              !windows[0]);
        CHECK(ncclCommGetAsyncError(comms[0], &state) == ncclSuccess && state == ncclInProgress);
        CHECK(gpusim_reports(-1) == 0);
        float *buffer = device_array<float>(4, 0);
        // too early
        CHECK(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, comms[0], new_stream(0)) == ncclInvalidArgument);
        CHECK(check::only_reports(GPUSIM_NCCL));
        gpusim_clear_reports();
        CHECK(ncclCommWindowRegister(comms[1], memory[1], 256, &windows[1], NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess &&
              windows[0] && windows[1]);
        CHECK(ncclCommGetAsyncError(comms[0], &state) == ncclSuccess && state == ncclSuccess);
        for (int rank = 0; rank < 2; rank++) {
            CHECK(ncclCommAbort(comms[rank]) == ncclSuccess && ncclMemFree(memory[rank]) == ncclSuccess);
        }
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(other_libraries)
{
    check::in_every_schedule([] {
        World world(2);
        Windows windows(world);
        void *place = nullptr;
        int version = 0;
        windows.allocate(64);
        auto open = [&](int rank) {
            return ncclCommWindowRegister(world.comms[rank], windows.memory[rank], 256, &windows.handle[rank],
                                          NCCL_WIN_COLL_SYMMETRIC);
        };
        gpusim_nccl(0, false); // none of the new ones has symmetric memory: success, and no window
        CHECK(open(0) == ncclSuccess && !windows.handle[0]);
        gpusim_nccl(22809, false); // an older one: success, and a handle that is of no use
        CHECK(ncclGetVersion(&version) == ncclSuccess && version == 22809);
        CHECK(open(0) == ncclSuccess && windows.handle[0] && gpusim_reports(-1) == 0);
        CHECK(ncclGetPeerDevicePointer(windows.handle[0], 0, 1, &place) == ncclInvalidUsage &&
              check::only_reports(GPUSIM_UNSUPPORTED));
        gpusim_clear_reports();
        CHECK(ncclCommWindowDeregister(world.comms[0], windows.handle[0]) == ncclSuccess);
        gpusim_nccl(22605, true); // one without windows
        CHECK(open(0) == ncclInvalidUsage && check::only_reports(GPUSIM_UNSUPPORTED));
        gpusim_clear_reports();
        windows.free();
    });
}

GPUSIM_TEST(planted_failures)
{
    check::in_every_schedule([] {
        World world(2);
        Windows windows(world);
        ncclWindow_t handle = nullptr;
        ncclResult_t state = ncclSuccess;
        void *place = nullptr;
        windows.open(64);
        gpusim_fail_nccl(1, 1, GPUSIM_NCCL_LATER);
        cudaSetDevice(1);
        CHECK(ncclMemAlloc(&place, 64) == ncclSystemError);
        gpusim_fail_nccl(1, 1, GPUSIM_NCCL_AT_CALL);
        CHECK(ncclGetPeerDevicePointer(windows.handle[1], 0, 0, &place) == ncclSystemError &&
              windows.peer(1, 0) == windows.memory[0]);
        windows.close();
        gpusim_fail_nccl(1, 1, GPUSIM_NCCL_AT_CALL);
        CHECK(ncclCommWindowRegister(world.comms[1], windows.memory[1], 256, &handle, NCCL_WIN_COLL_SYMMETRIC) ==
              ncclSystemError);
        gpusim_fail_nccl(1, 1, GPUSIM_NCCL_LATER);
        CHECK(ncclCommWindowRegister(world.comms[1], windows.memory[1], 256, &handle, NCCL_WIN_COLL_SYMMETRIC) ==
                  ncclRemoteError &&
              !handle);
        CHECK(ncclCommGetAsyncError(world.comms[1], &state) == ncclSuccess && state == ncclRemoteError);
        windows.free();
        CHECK(gpusim_reports(-1) == 0);
    });
}
