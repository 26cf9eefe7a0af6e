#include "cells.h"

#include "report.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

namespace gpusim {
namespace {

uint32_t block_of_epoch(const Operation &now, uint32_t epoch)
{
    return kernel_order().blocks(now.id).block_of(epoch);
}

ReaderSets &readers_of(const Accessor &now)
{
    static auto &global = *new ReaderSets(block_of_epoch);
    return now.readers ? *now.readers : global;
}

struct Sites {
    std::vector<Site> list = {Site{"", nullptr, 0, 0}};
    std::map<std::tuple<const char *, const char *, int, int>, uint32_t> numbers;
    struct Recent {
        const Site *at;
        Site site;
        uint32_t number;
    } recent[1024] = {};
};

Sites &sites()
{
    static auto &all = *new Sites;
    return all;
}

bool same_site(const Site &a, const Site &b)
{
    return a.ptx_line == b.ptx_line && a.line == b.line && a.kernel == b.kernel && a.file == b.file;
}

std::string place_text(const Accessor &now)
{
    if (!now.place)
        return format_text("'%s'", now.operation->name);
    return format_text("'%s' block %u thread %u at %s", now.operation->name, now.place->block,
                       now.place->thread & kThreadMask, site_text(now.site).c_str());
}

std::string access_text(const Access &old)
{
    const char *name = operation_record(old.operation).name;
    if (!old.site)
        return format_text("'%s'", name);
    if (old.thread & kAccessSomeLane)
        return format_text("'%s' a thread of warp %u at %s", name, (old.thread & kThreadMask) / 32,
                           site_text(old.site).c_str());
    return format_text("'%s' thread %u at %s", name, old.thread & kThreadMask, site_text(old.site).c_str());
}

const char *verb(const Accessor &now)
{
    return now.flags & kWrite ? (now.flags & kRead ? "update" : "write") : "read";
}

void report_access(gpusim_report_kind kind, const Accessor &now, const char *what)
{
    const std::string key = format_text("%s:%u:%s:%s", now.operation->name, now.site, what, verb(now));
    if (!report_seen(kind, key))
        report_new(kind, key,
                   format_text("%s of %s memory by %s: %s", verb(now), now.memory, place_text(now).c_str(), what));
}

void report_conflict(gpusim_report_kind kind, const Accessor &now, const Access &old, const char *old_verb,
                     const char *why)
{
    const char *old_name = operation_record(old.operation).name;
    const std::string key =
        format_text("%s:%u:%s:%u:%s:%s", now.operation->name, now.site, old_name, old.site, verb(now), old_verb);
    if (!report_seen(kind, key))
        report_new(kind, key,
                   format_text("%s of %s memory by %s is not ordered after the %s by %s: %s", verb(now), now.memory,
                               place_text(now).c_str(), old_verb, access_text(old).c_str(), why));
}

BlockOrder &blocks_of(const Accessor &now)
{
    return kernel_order().blocks(now.operation->id);
}

// Whether threads of one kernel have made order between them by fences, atomics, releases and acquires.
bool ordered_by_atomics(const Accessor &now, const Access &old)
{
    const bool strong_read = (now.flags & (kAtomic | kWrite)) == kAtomic;
    return kernel_order().before_in_kernel(old, *now.operation, *now.place, strong_read);
}

// Within one kernel.
void check_threads(const Accessor &now, const Access &old, const char *old_verb)
{
    const Place &place = *now.place;
    const unsigned old_thread = old.thread & kThreadMask;
    const uint32_t old_block =
        now.shared || old.epoch == place.epoch ? place.block : blocks_of(now).block_of(old.epoch);
    if (old_block != place.block) {
        if (!ordered_by_atomics(now, old))
            report_conflict(GPUSIM_RACE_GLOBAL, now, old, old_verb,
                            "another block, with no fence and atomic between them");
        return;
    }
    const bool same_warp = old_thread / 32 == place.thread / 32u;
    if (old.epoch != place.epoch || (same_warp && (old.thread & kAccessSomeLane || old_thread == place.thread)))
        return;
    if ((same_warp && place.seen[old_thread % 32] >= old.clock) || ordered_by_atomics(now, old))
        return;
    report_conflict(now.shared ? GPUSIM_RACE_SHARED : GPUSIM_RACE_GLOBAL, now, old, old_verb,
                    same_warp ? "no __syncwarp or __syncthreads between them" : "no __syncthreads between them");
}

inline void check_against(const Accessor &now, const Access &old, const char *old_verb)
{
    if (!old.operation || old.operation == now.operation->known_before)
        return;
    const bool atomics = (old.thread & kAccessAtomic) && (now.flags & kAtomic);
    if (old.operation == now.operation->id) {
        if (now.place && old.epoch && !atomics)
            check_threads(now, old, old_verb);
        return;
    }
    if (!atomics && !operation_before(old.operation, *now.operation) &&
        !kernel_order().before(old, *now.operation, now.place))
        report_conflict(GPUSIM_RACE_STREAM, now, old, old_verb,
                        now.place && old.epoch
                            ? "an event wait or a synchronisation, or a release and an acquire of a flag, is missing"
                            : "an event wait or a synchronisation is missing");
}

void check_value(const Cell &cell, const Accessor &now)
{
    if (!cell.writer.operation) {
        if (!now.unwritten_allowed)
            report_access(GPUSIM_UNINITIALISED, now, "nothing was ever written there");
    } else if (cell.writer.thread & kAccessPending) {
        report_access(GPUSIM_PENDING_COPY, now, "the cp.async that fills it was not waited for");
    } else if ((now.flags & kReadOnly) && cell.writer.operation == now.operation->id) {
        report_access(GPUSIM_RACE_GLOBAL, now,
                      "this kernel has written it, and the load is one of read-only memory (ld.global.nc)");
    }
}

Access access_of(const Accessor &now)
{
    Access made{now.operation->id, 0, now.site, 0, 0};
    if (now.place) {
        made.epoch = now.place->epoch;
        made.clock = now.place->lane_clock;
        made.thread = now.place->thread & kThreadMask;
    }
    if (now.flags & kAtomic)
        made.thread |= kAccessAtomic;
    if (now.flags & kPending)
        made.thread |= kAccessPending;
    return made;
}

Reading reading_of(const Accessor &now)
{
    Reading made{now.operation->id, 0, now.site, 0, 0, 0};
    if (now.place) {
        made.epoch = now.place->epoch;
        made.clock = now.place->lane_clock;
        made.warp = now.place->thread / 32;
        made.lanes = 1u << now.place->thread % 32;
    }
    if (now.flags & kAtomic)
        made.warp |= kReadingAtomic;
    return made;
}

bool older_interval(const Reading &old, const Accessor &now)
{
    return old.epoch < now.place->epoch && (now.shared || blocks_of(now).block_of(old.epoch) == now.place->block);
}

// Whether what comes after this read must come after the old one too: that need not be remembered then.
bool superseded(const Reading &old, const Reading &made, const Accessor &now)
{
    if (!old.operation)
        return true;
    if (!(old.warp & kReadingAtomic) && made.warp & kReadingAtomic)
        return false;
    if (old.operation != made.operation)
        return operation_before(old.operation, *now.operation);
    if (!now.place || old.epoch != made.epoch)
        return !now.place || older_interval(old, now);
    if ((old.warp | kReadingAtomic) != (made.warp | kReadingAtomic))
        return false;
    for (uint32_t lanes = old.lanes & ~made.lanes; lanes; lanes &= lanes - 1)
        if (now.place->seen[__builtin_ctz(lanes)] < old.clock)
            return false;
    return true;
}

void remember_read(Cell &cell, const Accessor &now)
{
    const Reading made = reading_of(now);
    const bool strong = now.flags & kAtomic;
    Reading &last = cell.reader;
    if (last.operation == made.operation && last.epoch == made.epoch && last.warp == made.warp &&
        last.clock == made.clock) {
        last.lanes |= made.lanes;
        last.site = made.site;
        return;
    }
    if (!superseded(last, made, now)) {
        Reading spilled = last;
        if (!now.shared)
            spilled.lanes = 0; // by warps: a set for each lane's cell would be too many
        cell.readers = readers_of(now).extended(cell.readers, spilled, *now.operation, strong);
    } else if (cell.readers && now.shared && last.operation && last.epoch != made.epoch) {
        cell.readers = 0;
    } else if (cell.readers && last.operation != made.operation) {
        cell.readers = readers_of(now).extended(cell.readers, Reading{}, *now.operation, strong);
    }
    last = made;
}

void check_against_reading(const Accessor &now, const Reading &old)
{
    if (!old.operation || old.operation == now.operation->known_before)
        return;
    if (old.operation != now.operation->id) {
        if (operation_before(old.operation, *now.operation))
            return;
    } else if (!now.place || !old.epoch || (old.epoch != now.place->epoch && older_interval(old, now))) {
        return;
    }
    const char *old_verb = old.warp & kReadingWrite ? "write" : "read";
    const uint16_t thread = uint16_t((old.warp & kWarpMask) * 32 | (old.warp & kReadingAtomic ? kAccessAtomic : 0));
    Access one{old.operation, old.epoch, old.site, old.clock, uint16_t(thread | kAccessSomeLane)};
    if (!old.lanes)
        check_against(now, one, old_verb);
    for (uint32_t lanes = old.lanes; lanes; lanes &= lanes - 1) {
        one.thread = uint16_t(thread + __builtin_ctz(lanes));
        check_against(now, one, old_verb);
    }
}

void check_cell(const Cell &cell, const Accessor &now)
{
    if (!(now.flags & kWrite) || (now.flags & kRead))
        check_value(cell, now);
    else if (cell.writer.thread & kAccessPending && !(now.flags & kLands))
        report_access(GPUSIM_PENDING_COPY, now, "the cp.async that fills it was not waited for");
    check_against(now, cell.writer, "write");
    if (!(now.flags & kWrite))
        return;
    check_against_reading(now, cell.reader);
    readers_of(now).each(cell.readers, [&now](const Reading &one) { check_against_reading(now, one); });
}

// Of an interval before the latest block barrier: nobody of the block can race with it any more.
bool passed(uint32_t operation, uint32_t epoch, const Accessor &now)
{
    return !operation || (now.shared && epoch != now.place->epoch);
}

// What an atomic write leaves of the cell's plain accesses: whoever comes next by an atomic need not be ordered after
// this one, but must be after them.
uint32_t plain_accesses(const Cell &cell, const Accessor &now)
{
    const Access &old = cell.writer;
    const bool reader_passed = passed(cell.reader.operation, cell.reader.epoch, now);
    const bool writer_passed = passed(old.operation, old.epoch, now);
    uint32_t kept = now.shared && reader_passed && writer_passed ? 0 : cell.readers;
    Reading last = reader_passed ? Reading{} : cell.reader;
    if (!now.shared)
        last.lanes = 0; // as of those that remember_read() puts into the set
    kept = readers_of(now).plain(kept, last);
    if (old.thread & kAccessAtomic || writer_passed)
        return kept;
    Reading write{old.operation, old.epoch, old.site, old.clock, 0, 0};
    write.warp = uint16_t((old.thread & kThreadMask) / 32 | kReadingWrite);
    write.lanes = now.shared ? 1u << old.thread % 32 : 0;
    return readers_of(now).plain(kept, write);
}

void cell_access(Cell &cell, const Accessor &now)
{
    check_cell(cell, now);
    if (!(now.flags & kWrite)) {
        remember_read(cell, now);
        return;
    }
    const uint32_t kept = now.flags & kAtomic ? plain_accesses(cell, now) : 0;
    cell = Cell{};
    cell.writer = access_of(now);
    cell.readers = kept;
}

} // namespace

uint32_t site_number(const Site &site)
{
    Sites &all = sites();
    Sites::Recent &recent =
        all.recent[(reinterpret_cast<uintptr_t>(&site) / sizeof(Site) + size_t(site.ptx_line)) % 1024];
    if (recent.at == &site && same_site(recent.site, site))
        return recent.number;
    const auto key = std::make_tuple(site.kernel, site.file, site.line, site.ptx_line);
    auto found = all.numbers.find(key);
    if (found == all.numbers.end()) {
        found = all.numbers.emplace(key, uint32_t(all.list.size())).first;
        all.list.push_back(site);
    }
    recent = {&site, site, found->second};
    return found->second;
}

std::string site_text(uint32_t number)
{
    const Site &site = sites().list[number];
    if (site.file && site.line)
        return format_text("%s:%d", site.file, site.line);
    return format_text("PTX line %d", site.ptx_line);
}

// Neighbouring cells mostly have the same history: what was found for one holds for the next.
void cells_access(ShadowMap &shadow, size_t offset, size_t bytes, const Accessor &now)
{
    Cell before, after;
    bool known = false;
    shadow.each(offset, bytes, [&](Cell &cell) {
        if (known && memcmp(&cell, &before, sizeof cell) == 0) {
            cell = after;
            return;
        }
        before = cell;
        cell_access(cell, now);
        after = cell;
        known = true;
    });
}

void cells_check(ShadowMap &shadow, size_t offset, size_t bytes, const Accessor &now)
{
    shadow.each(offset, bytes, [&](Cell &cell) { check_cell(cell, now); });
}

} // namespace gpusim
