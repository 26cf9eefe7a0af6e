// The rules for threads of one kernel, told to the monitor as the PTX machine tells them.
#include "devices.h"

#include "monitor.h"
#include "operation.h"
#include "options.h"

#include <memory>

using namespace gpusim;

namespace {

// One kernel's operation on a device buffer. Threads are places of its blocks; every block has its own epochs.
struct Kernel {
    Operation operation;
    std::unique_ptr<OperationScope> scope;
    uintptr_t memory = reinterpret_cast<uintptr_t>(device_array<char>(4096));
    uint32_t next_epoch = 1;
    uint16_t seen[32] = {};
    std::vector<Site> sites;

    Kernel()
    {
        Locked lock(machine_lock());
        const uint32_t component = component_new();
        operation.device = 0;
        operation.name = "kernel";
        operation.clock.advance(component);
        operation.id = operation_register(component, 1, operation.name);
        scope = std::make_unique<OperationScope>(&operation);
        sites.reserve(1000);
    }
    struct Block {
        uint32_t number, first, epoch;
    };
    Block block(uint32_t number)
    {
        const uint32_t epoch = next_epoch++;
        return {number, epoch, epoch};
    }
    void barrier(Block &block) { block.epoch = next_epoch++; }
    Place place(const Block &block, unsigned thread, unsigned clock = 1)
    {
        return {block.number, uint16_t(thread), uint16_t(clock), block.epoch, block.first, seen};
    }
    bool access(const Place &at, size_t offset, size_t bytes, unsigned flags)
    {
        sites.push_back({"kernel", "kernel.cu", int(sites.size()) + 1, int(sites.size()) + 1});
        Locked lock(machine_lock());
        return monitor_access(at, memory + offset, bytes, flags, sites.back());
    }
    void fence(const Place &at)
    {
        Locked lock(machine_lock());
        monitor_fence(at, Scope::device);
    }
};

} // namespace

GPUSIM_TEST(barriers_order_threads_of_a_block)
{
    Kernel kernel;
    Kernel::Block block = kernel.block(0);
    CHECK(kernel.access(kernel.place(block, 0), 0, 4, kWrite));
    CHECK(kernel.access(kernel.place(block, 0), 0, 4, kRead));
    kernel.barrier(block);
    CHECK(kernel.access(kernel.place(block, 40), 0, 4, kRead));
    CHECK(gpusim_reports(-1) == 0);
    CHECK(kernel.access(kernel.place(block, 70), 0, 4, kWrite)); // no barrier since the read
    CHECK(check::only_reports(GPUSIM_RACE_GLOBAL));
}

GPUSIM_TEST(warp_synchronisation_orders_lanes)
{
    Kernel kernel;
    Kernel::Block block = kernel.block(0);
    CHECK(kernel.access(kernel.place(block, 3, 1), 0, 4, kWrite));
    CHECK(kernel.access(kernel.place(block, 4, 1), 0, 4, kRead));
    CHECK(gpusim_reports(GPUSIM_RACE_GLOBAL) == 1);
    gpusim_clear_reports();
    CHECK(kernel.access(kernel.place(block, 3, 1), 8, 4, kWrite));
    kernel.seen[3] = 1; // __syncwarp
    CHECK(kernel.access(kernel.place(block, 4, 2), 8, 4, kRead));
    CHECK(gpusim_reports(-1) == 0);
    CHECK(kernel.access(kernel.place(block, 36, 1), 8, 4, kRead)); // a lane of another warp
    CHECK(check::only_reports(GPUSIM_RACE_GLOBAL));
}

GPUSIM_TEST(blocks_are_unordered)
{
    Kernel kernel;
    Kernel::Block one = kernel.block(0), two = kernel.block(1);
    CHECK(kernel.access(kernel.place(one, 0), 0, 4, kWrite));
    kernel.barrier(one);
    kernel.barrier(two);
    CHECK(kernel.access(kernel.place(two, 0), 0, 4, kWrite));
    CHECK(check::only_reports(GPUSIM_RACE_GLOBAL));
    gpusim_clear_reports();
    CHECK(kernel.access(kernel.place(one, 0), 16, 4, kRead | kWrite | kAtomic));
    CHECK(gpusim_reports(GPUSIM_UNINITIALISED) == 1);
    gpusim_clear_reports();
    CHECK(kernel.access(kernel.place(two, 0), 16, 4, kRead | kWrite | kAtomic));
    CHECK(gpusim_reports(-1) == 0); // atomics are no race
    CHECK(kernel.access(kernel.place(two, 1), 16, 4, kWrite));
    CHECK(check::only_reports(GPUSIM_RACE_GLOBAL));
}

// The last block to come reads what the others wrote: partial results, a fence, a counter.
static int last_block_reports(bool fence, bool barrier)
{
    Kernel kernel;
    constexpr size_t counter = 1024;
    const unsigned update = kRead | kWrite | kAtomic;
    Kernel::Block setup = kernel.block(99);
    kernel.access(kernel.place(setup, 0), counter, 4, kWrite | kAtomic);
    Kernel::Block blocks[3] = {kernel.block(0), kernel.block(1), kernel.block(2)};
    for (uint32_t i = 0; i < 3; i++) {
        for (unsigned thread : {0u, 64u}) {
            kernel.access(kernel.place(blocks[i], thread), i * 64 + thread / 2, 4, kWrite);
            if (fence)
                kernel.fence(kernel.place(blocks[i], thread));
        }
        if (barrier)
            kernel.barrier(blocks[i]);
        kernel.access(kernel.place(blocks[i], 0), counter, 4, update);
        kernel.barrier(blocks[i]);
    }
    if (fence)
        kernel.fence(kernel.place(blocks[2], 5));
    for (uint32_t i = 0; i < 3; i++)
        kernel.access(kernel.place(blocks[2], 5), i * 64 + 32, 4, kRead);
    return gpusim_reports(GPUSIM_RACE_GLOBAL);
}

GPUSIM_TEST(fences_and_atomics_order_blocks)
{
    CHECK(last_block_reports(true, true) == 0 && gpusim_reports(-1) == 0);
    CHECK(last_block_reports(false, true) > 0);
    gpusim_clear_reports();
}

// Many warps of several blocks read; the last block writes when all but one have said so (said: all).
static int reports_after_readers(uint32_t blocks, unsigned warps, bool said)
{
    gpusim_clear_reports();
    Kernel kernel;
    constexpr size_t counter = 1024;
    Kernel::Block writer = kernel.block(blocks);
    kernel.access(kernel.place(writer, 0), counter, 4, kWrite | kAtomic);
    std::vector<Kernel::Block> readers;
    for (uint32_t i = 0; i < blocks; i++)
        readers.push_back(kernel.block(i));
    kernel.access(kernel.place(writer, 0), 0, 4, kWrite);
    for (unsigned warp = 0; warp < warps; warp++)
        for (Kernel::Block &reader : readers) {
            const unsigned thread = warp * 32 + warp % 3;
            kernel.access(kernel.place(reader, thread), 0, 4, kRead);
            if (!said && reader.number == blocks / 2 && warp == warps / 2)
                continue;
            kernel.fence(kernel.place(reader, thread));
            kernel.access(kernel.place(reader, thread, 2), counter, 4, kRead | kWrite | kAtomic);
        }
    gpusim_clear_reports(); // the reads are not ordered after the first write
    kernel.access(kernel.place(writer, 0), counter, 4, kRead | kAtomic);
    kernel.fence(kernel.place(writer, 0));
    kernel.access(kernel.place(writer, 0, 2), 0, 4, kWrite);
    return gpusim_reports(-1);
}

GPUSIM_TEST(no_reader_is_forgotten)
{
    for (uint32_t blocks : {1u, 2u, 3u, 7u})
        for (unsigned warps : {1u, 3u, 8u}) {
            CHECK(reports_after_readers(blocks, warps, true) == 0);
            CHECK(reports_after_readers(blocks, warps, false) == 1);
        }
}

// A lane's write after reads by another lane of its warp and by itself; an atomic read after a plain one.
GPUSIM_TEST(each_lane_that_has_read_counts)
{
    Kernel kernel;
    Kernel::Block block = kernel.block(0);
    CHECK(kernel.access(kernel.place(block, 4), 0, 16, kWrite));
    kernel.barrier(block);
    CHECK(kernel.access(kernel.place(block, 4), 0, 4, kRead) && kernel.access(kernel.place(block, 3), 0, 4, kRead));
    CHECK(kernel.access(kernel.place(block, 40), 8, 4, kRead) &&
          kernel.access(kernel.place(block, 40), 8, 4, kRead | kAtomic));
    CHECK(gpusim_reports(-1) == 0);
    CHECK(kernel.access(kernel.place(block, 4), 0, 4, kWrite) && check::only_reports(GPUSIM_RACE_GLOBAL));
    gpusim_clear_reports();
    CHECK(kernel.access(kernel.place(block, 70), 8, 4, kWrite | kAtomic) && check::only_reports(GPUSIM_RACE_GLOBAL));
}

GPUSIM_TEST(lanes_read_shared_memory_at_different_times)
{
    for (bool synchronised : {false, true}) {
        gpusim_clear_reports();
        Kernel kernel;
        Kernel::Block block = kernel.block(0);
        Locked lock(machine_lock());
        SharedShadow *shared = shared_shadow_begin(256, 0);
        const Site site = {"kernel", "kernel.cu", 7, 7};
        CHECK(monitor_shared_access(shared, kernel.place(block, 0), 0, 4, kWrite, site));
        kernel.barrier(block);
        CHECK(monitor_shared_access(shared, kernel.place(block, 3, 1), 0, 4, kRead, site));
        kernel.seen[3] = synchronised;
        CHECK(monitor_shared_access(shared, kernel.place(block, 4, 2), 0, 4, kRead, site) && gpusim_reports(-1) == 0);
        CHECK(monitor_shared_access(shared, kernel.place(block, 4, 2), 0, 4, kWrite, site));
        CHECK(synchronised ? gpusim_reports(-1) == 0 : check::only_reports(GPUSIM_RACE_SHARED));
        shared_shadow_end(shared);
    }
}

GPUSIM_TEST(pending_copies)
{
    Kernel kernel;
    Kernel::Block block = kernel.block(0);
    Locked lock(machine_lock());
    SharedShadow *shared = shared_shadow_begin(256, 0);
    const Site site = {"kernel", "kernel.cu", 7, 7};
    CHECK(monitor_shared_access(shared, kernel.place(block, 0), 0, 16, kWrite | kPending, site));
    CHECK(monitor_shared_access(shared, kernel.place(block, 0), 0, 4, kRead, site));
    CHECK(check::only_reports(GPUSIM_PENDING_COPY));
    gpusim_clear_reports();
    CHECK(monitor_shared_access(shared, kernel.place(block, 0), 0, 16, kWrite | kLands, site)); // the wait
    kernel.barrier(block);
    CHECK(monitor_shared_access(shared, kernel.place(block, 33), 0, 4, kRead, site) && gpusim_reports(-1) == 0);
    CHECK(monitor_shared_access(shared, kernel.place(block, 0), 0, 16, kWrite | kPending, site)); // refilled too early
    CHECK(check::only_reports(GPUSIM_RACE_SHARED));
    gpusim_clear_reports();
    CHECK(!monitor_shared_access(shared, kernel.place(block, 0), 250, 16, kRead, site) &&
          check::only_reports(GPUSIM_OUT_OF_BOUNDS));
    gpusim_clear_reports();
    CHECK(monitor_shared_access(shared, kernel.place(block, 0), 64, 4, kRead, site) &&
          check::only_reports(GPUSIM_UNINITIALISED));
    shared_shadow_end(shared);
}

GPUSIM_TEST(neighbouring_bytes_of_threads)
{
    Kernel kernel;
    Kernel::Block block = kernel.block(0);
    for (unsigned thread = 0; thread < 64; thread++)
        CHECK(kernel.access(kernel.place(block, thread), thread, 1, kWrite));
    CHECK(gpusim_reports(-1) == 0);
    CHECK(kernel.access(kernel.place(block, 0), 1, 1, kWrite) && check::only_reports(GPUSIM_RACE_GLOBAL));
}

GPUSIM_TEST(identical_reports_are_counted_once)
{
    Kernel kernel;
    Kernel::Block block = kernel.block(0);
    const Site site = {"kernel", "kernel.cu", 7, 7};
    Locked lock(machine_lock());
    for (unsigned thread = 0; thread < 10; thread++)
        monitor_access(kernel.place(block, thread), kernel.memory, 4, kRead, site);
    CHECK(gpusim_reports(-1) == 1 && strstr(gpusim_report_text(0), "(10 times)"));
    CHECK(strstr(gpusim_report_text(0), "kernel.cu:7"));
}
