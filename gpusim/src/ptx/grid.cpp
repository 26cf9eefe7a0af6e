// Running a grid: blocks are started in an order, two of them resident, more only while all that are do nothing but
// poll. It runs in turns, so that it may wait for what others write.
#include "gpusim/gpusim.h"
#include "lanes.h"
#include "module.h"
#include "program.h"
#include "report.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace gpusim
{

using namespace ptx;

namespace
{

const size_t kResident = 2;
const uint32_t kBurst = 4096;           // instructions of a warp before the next has its turn
const uint64_t kBlockTurn = 200000;     // of a block
uint64_t instructions_so_far;

uint64_t random_number(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 16;
}

uint64_t special_value(const Grid &grid, const Block &block, uint32_t warp, uint32_t lane, const Preset &preset)
{
    const dim3 &size = grid.launch->block, &grid_size = grid.launch->grid;
    uint32_t thread = warp * 32 + lane;
    uint32_t bit = 1u << lane;
    uint64_t workspace = reinterpret_cast<uint64_t>(grid.workspace);
    switch (preset.special) {
    case Special::none:
    case Special::zero:
    case Special::smid:
    case Special::gridid: return 0;
    case Special::one:
    case Special::nsmid: return 1;
    case Special::tid_x: return thread % size.x;
    case Special::tid_y: return thread / size.x % size.y;
    case Special::tid_z: return thread / (size.x * size.y);
    case Special::ntid_x: return size.x;
    case Special::ntid_y: return size.y;
    case Special::ntid_z: return size.z;
    case Special::ctaid_x: return block.index % grid_size.x;
    case Special::ctaid_y: return block.index / grid_size.x % grid_size.y;
    case Special::ctaid_z: return block.index / (grid_size.x * grid_size.y);
    case Special::nctaid_x: return grid_size.x;
    case Special::nctaid_y: return grid_size.y;
    case Special::nctaid_z: return grid_size.z;
    case Special::laneid: return lane;
    case Special::warpid: return warp;
    case Special::nwarpid: return (block.threads + 31) / 32;
    case Special::lanemask_eq: return bit;
    case Special::lanemask_lt: return bit - 1;
    case Special::lanemask_le: return bit | (bit - 1);
    case Special::lanemask_gt: return static_cast<uint32_t>(~(bit | (bit - 1)));
    case Special::lanemask_ge: return static_cast<uint32_t>(~(bit - 1));
    case Special::dynamic_shared: return grid.launch->dynamic_shared;
    case Special::total_shared: return block.shared_bytes;
    case Special::workspace_high: return workspace >> 32;
    case Special::workspace_low: return static_cast<uint32_t>(workspace);
    case Special::local_base: return reinterpret_cast<uint64_t>(block.local + thread * grid.program->local_bytes);
    case Special::shared_base: return reinterpret_cast<uint64_t>(block.shared);
    case Special::parameter_base: return reinterpret_cast<uint64_t>(grid.parameters);
    }
    return 0;
}

void set_preset(const Grid &grid, Warp &warp, const Preset &preset)
{
    uint64_t base = preset.value;
    if (preset.symbol >= 0) {
        base += grid.symbol_addresses[static_cast<size_t>(preset.symbol)];
    }
    if (preset.bytes == 0) {
        predicate(warp, preset.offset) = static_cast<uint32_t>(base);
        return;
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint64_t value = base;
        if (preset.special != Special::none) {
            value += special_value(grid, *warp.block, warp.index, lane, preset);
        }
        if (preset.bytes == 8) {
            words<uint64_t>(warp, preset.offset)[lane] = value;
        } else {
            words<uint32_t>(warp, preset.offset)[lane] = static_cast<uint32_t>(value);
        }
    }
}

// Memory of a block's place on the machine: made once in a launch, used by one block after the other.
std::unique_ptr<Block> make_place(Grid *grid)
{
    const Program &program = *grid->program;
    auto block = std::make_unique<Block>();
    block->grid = grid;
    const dim3 &size = grid->launch->block;
    block->threads = size.x * size.y * size.z;
    block->shared_bytes = grid->launch->dynamic_shared ? program.dynamic_shared_offset + grid->launch->dynamic_shared
                                                       : program.static_shared;
    block->shared_storage.resize(block->shared_bytes + 1024);
    block->shared =
        block->shared_storage.data() + (1024 - reinterpret_cast<uintptr_t>(block->shared_storage.data()) % 1024);
    block->local_bytes = program.local_bytes * block->threads;
    block->local_storage.assign(block->local_bytes + 64, 0xFF);
    block->local = block->local_storage.data() + (64 - reinterpret_cast<uintptr_t>(block->local_storage.data()) % 64);
    if (grid->check && block->local_bytes > 0) {
        block->written_storage.resize(block->local_bytes);
        block->local_written = block->written_storage.data();
    }
    block->warps = std::vector<Warp>((block->threads + 31) / 32);
    for (NamedBarrier &barrier : block->barriers) {
        barrier.waiting.assign(block->warps.size(), 0);
    }
    for (size_t i = 0; i < block->warps.size(); i++) {
        Warp &warp = block->warps[i];
        warp.block = block.get();
        warp.index = static_cast<uint32_t>(i);
        uint32_t left = block->threads - static_cast<uint32_t>(i) * 32;
        warp.present = left >= 32 ? kAllLanes : (1u << left) - 1;
        warp.storage.reset(new unsigned char[program.register_bytes + 64]());
        warp.registers = warp.storage.get() + (64 - reinterpret_cast<uintptr_t>(warp.storage.get()) % 64);
        for (const Preset &preset : program.presets) {
            set_preset(*grid, warp, preset);
        }
    }
    return block;
}

void start_block(Grid *grid, Block *block, uint32_t index)
{
    block->index = index;
    block->live = block->threads;
    block->polling = false;
    block->pending_copies = 0;
    block->first_epoch = grid->next_epoch++;
    memset(block->shared, 0xFF, block->shared_bytes);
    std::fill(block->local_storage.begin(), block->local_storage.end(), static_cast<unsigned char>(0xFF));
    std::fill(block->written_storage.begin(), block->written_storage.end(), static_cast<unsigned char>(0));
    block->shadow = grid->check && block->shared_bytes ? shared_shadow_begin(block->shared_bytes, index) : nullptr;
    for (NamedBarrier &barrier : block->barriers) {
        std::fill(barrier.waiting.begin(), barrier.waiting.end(), 0);
        barrier.arrived = 0;
    }
    for (Warp &warp : block->warps) {
        warp.live = warp.present;
        warp.at_barrier = warp.at_rendezvous = 0;
        warp.turn = 0;
        warp.epoch = block->first_epoch;
        memset(warp.seen, 0, sizeof warp.seen);
        for (int lane = 0; lane < 32; lane++) {
            warp.pc[lane] = grid->program->entry;
            warp.clock[lane] = 1;
            warp.calls[lane].clear();
            warp.copies[lane].pending.clear();
            warp.copies[lane].committed = 0;
        }
        for (const Preset &preset : grid->program->presets) {
            if (preset.per_block) {
                set_preset(*grid, warp, preset);
            }
        }
    }
}

void end_block(Block *block)
{
    if (block->shadow) {
        shared_shadow_end(block->shadow);
        block->shadow = nullptr;
    }
}

void report_stuck(Grid *grid, Block *block, const char *why)
{
    for (Warp &warp : block->warps) {
        uint32_t waiting = warp.at_barrier | warp.at_rendezvous ? warp.at_barrier | warp.at_rendezvous : warp.live;
        if (waiting == 0) {
            continue;
        }
        int lane = __builtin_ctz(waiting);
        const Instruction &in = grid->program->code[static_cast<size_t>(warp.pc[lane])];
        fault(warp, in, lane, cudaErrorLaunchTimeout, GPUSIM_DEADLOCK,
              "%s: %u threads of the block live, one of them waits here", why, block->live);
        return;
    }
}

bool can_run(const Block *block)
{
    for (const Warp &warp : block->warps) {
        if (runnable_lanes(warp) != 0) {
            return true;
        }
    }
    return false;
}

// One turn of a block, for about so many steps. It polls if all it did was to look again and again.
void run_block(Grid *grid, Block *block, uint64_t steps)
{
    uint64_t end = grid->steps + steps;
    size_t count = block->warps.size();
    while (block->live > 0 && grid->fault == cudaSuccess && grid->steps < end) {
        bool any = false, all_polled = true;
        for (size_t i = 0; i < count && grid->fault == cudaSuccess; i++) {
            size_t index = i;
            uint32_t burst = kBurst;
            if (grid->options.order == BlockOrder::down) {
                index = count - 1 - i;
            } else if (grid->options.order == BlockOrder::random) {
                index = random_number(&grid->random) % count;
                burst = 1 + static_cast<uint32_t>(random_number(&grid->random) % 200);
            }
            Warp &warp = block->warps[index];
            if (run_warp(warp, burst)) {
                any = true;
                all_polled = all_polled && warp.yields;
            }
        }
        bool random = grid->options.order == BlockOrder::random;
        if (!any && random && can_run(block)) {
            continue; // chance has skipped those that can
        }
        if (!any && block->live > 0 && grid->fault == cudaSuccess) {
            report_stuck(grid, block, "deadlock within a block");
            return;
        }
        if (all_polled && any) {
            block->polling = true;
            return;
        }
        if (random && random_number(&grid->random) % 2 == 0) {
            break; // so that blocks meet in the middle of what they do, too
        }
    }
    block->polling = false;
}

std::vector<uint32_t> block_order(Grid *grid)
{
    const dim3 &size = grid->launch->grid;
    std::vector<uint32_t> order(static_cast<size_t>(size.x) * size.y * size.z);
    std::iota(order.begin(), order.end(), 0u);
    if (grid->options.order == BlockOrder::down) {
        std::reverse(order.begin(), order.end());
    } else if (grid->options.order == BlockOrder::random) {
        for (size_t i = order.size(); i > 1; i--) {
            std::swap(order[i - 1], order[random_number(&grid->random) % i]);
        }
    }
    return order;
}

cudaError_t check_launch(const Launch &launch, const Program &program)
{
    size_t threads = static_cast<size_t>(launch.block.x) * launch.block.y * launch.block.z;
    size_t blocks = static_cast<size_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    if (!program.error.empty()) {
        report(GPUSIM_UNSUPPORTED, "%s: %s", program.name.c_str(), program.error.c_str());
        return cudaErrorLaunchFailure;
    }
    if (threads == 0 || threads > 1024 || blocks == 0 || blocks > UINT32_MAX) {
        return cudaErrorInvalidConfiguration;
    }
    return cudaSuccess;
}

} // namespace

struct GridRun {
    Launch launch;
    std::vector<unsigned char> parameters;
    Grid grid;
    std::vector<uint32_t> order;
    size_t next = 0;  // in the order
    size_t first = 0; // of the running blocks, in the coming round
    std::vector<std::unique_ptr<Block>> running, idle;

    explicit GridRun(const Launch &launched) : launch(launched), parameters(launched.parameters) {}
    ~GridRun()
    {
        for (auto &block : running) {
            end_block(block.get());
        }
        instructions_so_far += grid.steps;
    }
    GridRun(const GridRun &) = delete;
    GridRun &operator=(const GridRun &) = delete;
};

namespace
{

bool is_over(const GridRun &run)
{
    return run.grid.fault != cudaSuccess || (run.next == run.order.size() && run.running.empty());
}

void start_next(GridRun &run)
{
    if (run.idle.empty()) {
        run.idle.push_back(make_place(&run.grid));
    }
    run.running.push_back(std::move(run.idle.back()));
    run.idle.pop_back();
    start_block(&run.grid, run.running.back().get(), run.order[run.next++]);
}

void put_away_ended(GridRun &run)
{
    std::vector<std::unique_ptr<Block>> &running = run.running;
    for (size_t i = 0; i < running.size();) {
        if (running[i]->live == 0) {
            end_block(running[i].get());
            run.idle.push_back(std::move(running[i]));
            running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            i++;
        }
    }
}

// Gives every running block a turn, as long as there are steps left. True if all of them only polled.
bool run_round(GridRun &run, uint64_t end)
{
    Grid &grid = run.grid;
    size_t count = run.running.size(), first = run.first++ % count;
    bool all_poll = true;
    for (size_t i = 0; i < count && grid.fault == cudaSuccess; i++) {
        if (grid.steps >= end) {
            all_poll = false;
            break;
        }
        Block *block = run.running[(first + i) % count].get();
        run_block(&grid, block, std::min(kBlockTurn, end - grid.steps));
        all_poll = all_poll && block->polling && block->live > 0;
    }
    put_away_ended(run);
    return all_poll;
}

} // namespace

std::shared_ptr<GridRun> grid_start(const Launch &launch, const LaunchOptions &options)
{
    const Program &program = program_of(launch.kernel);
    auto run = std::make_shared<GridRun>(launch);
    Grid &grid = run->grid;
    grid.fault = check_launch(run->launch, program);
    if (grid.fault != cudaSuccess) {
        return run;
    }
    run->parameters.resize(launch.kernel->parameter_bytes + 16);
    grid.program = &program;
    grid.launch = &run->launch;
    grid.options = options;
    grid.check = options.check;
    grid.parameters = run->parameters.data();
    grid.parameter_bytes = launch.kernel->parameter_bytes;
    grid.random = options.seed * 0x9E3779B97F4A7C15ull + 0x1234567;
    for (std::string_view symbol : program.symbols) {
        void *address = variable_address(launch.kernel->module, symbol, launch.device);
        grid.symbol_addresses.push_back(reinterpret_cast<uint64_t>(address));
    }
    run->order = block_order(&grid);
    return run;
}

GridState grid_turn(GridRun &run, uint64_t steps)
{
    uint64_t end = steps > UINT64_MAX - run.grid.steps ? UINT64_MAX : run.grid.steps + steps;
    while (!is_over(run)) {
        if (run.grid.steps >= end) {
            return GridState::goes_on;
        }
        while (run.running.size() < kResident && run.next < run.order.size()) {
            start_next(run);
        }
        if (!run_round(run, end)) {
            continue;
        }
        if (run.next == run.order.size()) {
            return GridState::polls;
        }
        start_next(run); // what they wait for may be another block's to do
    }
    return GridState::ended;
}

cudaError_t grid_result(const GridRun &run)
{
    return run.grid.fault;
}

size_t grid_unfinished(const GridRun &run)
{
    return run.order.size() - run.next + run.running.size();
}

void grid_report_stuck(GridRun &run)
{
    if (!run.running.empty()) {
        report_stuck(&run.grid, run.running[0].get(), "endless polling");
    }
}

uint64_t executed_instructions()
{
    return instructions_so_far;
}

} // namespace gpusim
