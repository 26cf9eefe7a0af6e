#include "pinned.h"

#include "cells.h"
#include "memory.h"
#include "options.h"
#include "report.h"
#include "scheduler.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

namespace gpusim {
namespace {

constexpr uintptr_t page = 4096;

struct Use {
    PinnedRange pages;
    Stream *stream;
    uint64_t sequence;
    uint32_t time; // in the stream's component; 0: it has not begun
};

struct Pinned {
    std::vector<Use> uses;
    bool closed = false;            // their pages are, but for those
    std::vector<uintptr_t> touched; // since the host's latest call
};

Pinned &pinned()
{
    static auto &one = *new Pinned;
    return one;
}

void protect(const PinnedRange &pages, int protection)
{
    mprotect(reinterpret_cast<void *>(pages.begin), pages.end - pages.begin, protection);
}

void close_all()
{
    for (const Use &use : pinned().uses)
        protect(use.pages, PROT_NONE);
    for (uintptr_t touched : pinned().touched)
        protect({touched, touched + page}, PROT_READ | PROT_WRITE);
    pinned().closed = true;
}

bool over(const Use &use, const VectorClock &known)
{
    if (use.time == 0)
        return use.stream->done >= use.sequence; // dropped by a fault
    return known.at(use.stream->component) >= use.time;
}

// What a host thread may know: all that others have waited for, and what kernels have released to pinned memory, where
// it may have seen a flag.
Operation toucher()
{
    if (current_operation()) // a host function: as its stream
        return *current_operation();
    Operation operation = host_operation();
    kernel_order().join_released(operation.clock, [](uintptr_t address) {
        const Allocation *found = memory_find(address);
        return found && found->space == Space::pinned;
    });
    return operation;
}

} // namespace

void pinned_add(std::vector<PinnedRange> &ranges, const void *memory, size_t bytes)
{
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    const Allocation *found = memory_find(begin);
    if (found && found->space == Space::pinned && found->live && options().check)
        ranges.push_back({begin, std::min(begin + bytes, found->base + found->bytes)});
}

void pinned_add_parameters(std::vector<PinnedRange> &ranges, const std::vector<unsigned char> &parameters)
{
    for (size_t at = 0; at + sizeof(uintptr_t) <= parameters.size(); at += sizeof(uintptr_t)) {
        uintptr_t pointer;
        memcpy(&pointer, parameters.data() + at, sizeof pointer);
        const Allocation *found = memory_find(pointer);
        if (found)
            pinned_add(ranges, reinterpret_cast<const void *>(found->base), found->bytes);
    }
}

// A stream's later use of the same pages stands for its earlier ones.
void pinned_issued(Stream &stream, const Task &task)
{
    std::vector<Use> &uses = pinned().uses;
    for (const PinnedRange &range : task.pinned) {
        const Use use = {{range.begin / page * page, (range.end + page - 1) / page * page}, &stream, task.sequence, 0};
        auto same = std::find_if(uses.begin(), uses.end(), [&use](const Use &one) {
            return one.stream == use.stream && one.pages.begin == use.pages.begin && one.pages.end == use.pages.end;
        });
        pinned_open();
        if (same != uses.end())
            *same = use;
        else
            uses.push_back(use);
    }
}

void pinned_begins(Stream &stream, const Task &task)
{
    if (task.pinned.empty())
        return;
    for (Use &use : pinned().uses)
        if (use.stream == &stream && use.sequence == task.sequence)
            use.time = stream.clock.at(stream.component);
}

void pinned_open()
{
    if (!pinned().closed)
        return;
    pinned().closed = false;
    for (const Use &use : pinned().uses)
        protect(use.pages, PROT_READ | PROT_WRITE);
}

void pinned_close(const VectorClock &known)
{
    std::vector<Use> &uses = pinned().uses;
    const bool any_over = std::any_of(uses.begin(), uses.end(), [&known](const Use &use) { return over(use, known); });
    if (uses.empty() || (pinned().closed && pinned().touched.empty() && !any_over))
        return;
    pinned_open();
    uses.erase(std::remove_if(uses.begin(), uses.end(), [&known](const Use &use) { return over(use, known); }),
               uses.end());
    pinned().touched.clear();
    if (!uses.empty())
        close_all();
}

void pinned_forget(uintptr_t begin, uintptr_t end)
{
    pinned_open();
    std::vector<Use> &uses = pinned().uses;
    const VectorClock known = toucher().clock;
    auto within = [=](const Use &use) { return use.pages.begin >= begin && use.pages.begin < end; };
    if (std::any_of(uses.begin(), uses.end(), [&](const Use &use) { return within(use) && !over(use, known); }))
        report(GPUSIM_RACE_STREAM,
               "pinned memory is freed, and work that was given it is not known to be over: an event wait or a "
               "synchronisation is missing");
    uses.erase(std::remove_if(uses.begin(), uses.end(), within), uses.end());
}

void pinned_reset()
{
    pinned_open();
    pinned().uses.clear();
}

bool pinned_touched(uintptr_t address, bool writes)
{
    Allocation *found = memory_find(address);
    if (!pinned().closed || !found || found->space != Space::pinned || !found->live)
        return false;
    const std::vector<Use> uses = pinned().uses; // a copy: others may be issued meanwhile
    auto touches = [address](const Use &use) { return address - use.pages.begin < use.pages.end - use.pages.begin; };
    if (std::none_of(uses.begin(), uses.end(), touches))
        return false;
    for (const Use &use : uses)
        if (touches(use) && !current_operation())
            run_until(*use.stream, use.sequence); // what it does there is seen then
    const Operation operation = toucher();
    const unsigned flags = (writes ? kWrite : kRead) | kAtomic; // a flag for a kernel that polls it is no race
    const Accessor now = {&operation, nullptr, flags, 0, "pinned", false, true, nullptr};
    const uintptr_t cell = (address - found->base) & ~uintptr_t(1);
    cells_check(found->shadow, cell, std::min<size_t>(2, found->bytes - cell), now);
    pinned().touched.push_back(address / page * page);
    close_all();
    return true;
}

} // namespace gpusim
