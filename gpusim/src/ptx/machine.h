// The state of a running grid: blocks, warps, and what they share.
#pragma once
#include "instruction.h"
#include "ptx.h"

#include <memory>
#include <vector>

namespace gpusim::ptx
{

struct Program;
struct Block;
struct Grid;

// A cp.async that was not waited for yet.
struct PendingCopy {
    uint32_t shared_offset;
    uint8_t bytes, source_bytes;
    uint32_t group;
    const unsigned char *source;
    const Instruction *instruction;
};

struct LaneCopies {
    std::vector<PendingCopy> pending;
    uint32_t committed = 0; // groups
};

struct Warp {
    unsigned char *registers = nullptr;
    Block *block = nullptr;
    uint32_t index = 0;                         // in the block
    uint32_t present = 0;                       // lanes that exist
    uint32_t live = 0;                          // and have not exited
    uint32_t at_barrier = 0, at_rendezvous = 0; // waiting lanes
    uint32_t carry = 0;                         // condition code, a bit a lane
    int pc[32];
    uint32_t rendezvous_mask[32];
    uint8_t barrier_number[32];
    std::vector<int> calls[32]; // return addresses
    LaneCopies copies[32];

    // What the monitor is told.
    uint32_t epoch = 0;
    uint16_t clock[32];
    uint16_t seen[32][32];

    // Scheduling.
    uint32_t turn = 0;
    uint32_t polls = 0;
    const unsigned char *looked_at[4] = {}; // words that atomics have left as they were, the latest ones
    uint32_t next_look = 0;
    bool yields = false; // end this burst
    std::unique_ptr<unsigned char[]> storage;
};

inline uint32_t runnable_lanes(const Warp &warp)
{
    return warp.live & ~(warp.at_barrier | warp.at_rendezvous);
}

struct NamedBarrier {
    uint32_t arrived = 0, expected = 0;
    std::vector<uint32_t> waiting; // lanes of each warp
    uint32_t count = 0;            // of true predicates (bar.red)
    bool all = true, any = false;
    const Site *site = nullptr;
};

const int kBarriers = 16;

struct Block {
    Grid *grid = nullptr;
    uint32_t index = 0; // linear, in the grid
    uint32_t threads = 0, live = 0;
    std::vector<Warp> warps;
    NamedBarrier barriers[kBarriers];
    unsigned char *shared = nullptr; // its address is the shared window of generic addresses
    size_t shared_bytes = 0;
    unsigned char *local = nullptr;
    size_t local_bytes = 0; // of all threads
    unsigned char *local_written = nullptr; // for each of its bytes: 1 if its thread has written it. NULL: not checked
    SharedShadow *shadow = nullptr;
    uint32_t first_epoch = 0;
    uint32_t pending_copies = 0; // cp.async of its threads that were not waited for
    bool polling = false; // its last turn did nothing but poll
    std::vector<unsigned char> shared_storage, local_storage, written_storage;
};

struct Grid {
    const Program *program = nullptr;
    const Launch *launch = nullptr;
    LaunchOptions options;
    const unsigned char *parameters = nullptr;
    size_t parameter_bytes = 0;
    bool check = true;
    uint32_t next_epoch = 1;
    uint64_t steps = 0;
    uint64_t random = 1;
    cudaError_t fault = cudaSuccess;
    alignas(16) unsigned char workspace[256] = {}; // of cooperative groups
    std::vector<uint64_t> symbol_addresses;
};

// Stops the grid with an error and a report of what, where and by whom.
void fault(Warp &warp, const Instruction &instruction, int lane, cudaError_t error, int kind, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

inline Place place_of(const Warp &warp, int lane)
{
    Place place;
    place.block = warp.block->index;
    place.thread = static_cast<uint16_t>(warp.index * 32 + static_cast<uint32_t>(lane));
    place.lane_clock = warp.clock[lane];
    place.epoch = warp.epoch;
    place.first_epoch = warp.block->first_epoch;
    place.seen = warp.seen[lane];
    return place;
}

// Mutation: counts the site and says whether it is the one that does nothing.
void count_sync_site(int site);
inline bool skips(const Grid &grid, const Instruction &instruction)
{
    if (instruction.sync_site >= 0) {
        count_sync_site(instruction.sync_site);
    }
    return instruction.sync_site >= 0 && instruction.sync_site == grid.options.skip_barrier;
}

// Runs one warp for about `budget` instructions; false if it could do nothing.
bool run_warp(Warp &warp, uint32_t budget);

// Block barriers: lanes arrive at barrier `number` and, if `waits`, stay there until `expected` threads have (0: all
// that live). `truths` are the predicates of bar.red.
void arrive_at_barrier(Warp &warp, const Instruction &instruction, uint32_t lanes, int number, uint32_t expected,
                       bool waits, uint32_t truths);
// Barriers that wait for threads that have left: reported.
void check_barriers_after_exit(Warp &warp);

// Lanes leave: for those that wait for them this may be the end of the wait, or a deadlock.
void exit_lanes(Warp &warp, uint32_t lanes);

} // namespace gpusim::ptx
