#include "cells.h"

#include "report.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

namespace gpusim {
namespace {

// Who reads: an operation, and for a kernel the barrier interval.
using Reader = std::pair<uint32_t, uint32_t>;

// Sets of readers, each kept once and known by number. 0 is the empty set.
class ReaderSets {
public:
    const std::vector<Reader> &members(uint32_t set) const { return sets_[set]; }

    // `set` with `added`, without what is ordered before `now` (any later writer that comes after `now` comes after those).
    uint32_t extended(uint32_t set, Reader added, const Operation &now)
    {
        if (now.id != memo_operation_) {
            memo_operation_ = now.id;
            memo_.clear();
        }
        auto found = memo_.find({set, added});
        if (found != memo_.end())
            return found->second;
        std::vector<Reader> members;
        for (const Reader &one : sets_[set])
            if (one.first != now.id && !operation_before(one.first, now))
                members.push_back(one);
        if (added.first && added.first != now.id && !operation_before(added.first, now))
            members.push_back(added);
        std::sort(members.begin(), members.end());
        members.erase(std::unique(members.begin(), members.end()), members.end());
        auto known = numbers_.find(members);
        if (known == numbers_.end()) {
            known = numbers_.emplace(members, uint32_t(sets_.size())).first;
            sets_.push_back(members);
        }
        return memo_[{set, added}] = known->second;
    }

private:
    std::vector<std::vector<Reader>> sets_ = {{}};
    std::map<std::vector<Reader>, uint32_t> numbers_ = {{{}, 0}};
    std::map<std::pair<uint32_t, Reader>, uint32_t> memo_;
    uint32_t memo_operation_ = 0;
};

ReaderSets &reader_sets()
{
    static auto &sets = *new ReaderSets;
    return sets;
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
    return format_text("'%s' block %u thread %u at %s", now.operation->name, now.place->block, now.place->thread & kThreadMask,
                       site_text(now.site).c_str());
}

std::string access_text(const Access &old)
{
    const char *name = operation_record(old.operation).name;
    if (!old.site)
        return format_text("'%s'", name);
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
        report_new(kind, key, format_text("%s of %s memory by %s: %s", verb(now), now.memory, place_text(now).c_str(), what));
}

void report_conflict(gpusim_report_kind kind, const Accessor &now, const Access &old, const char *old_verb, const char *why)
{
    const char *old_name = operation_record(old.operation).name;
    const std::string key = format_text("%s:%u:%s:%u:%s:%s", now.operation->name, now.site, old_name, old.site, verb(now), old_verb);
    if (!report_seen(kind, key))
        report_new(kind, key,
                   format_text("%s of %s memory by %s is not ordered after the %s by %s: %s", verb(now), now.memory,
                               place_text(now).c_str(), old_verb, access_text(old).c_str(), why));
}

BlockOrder &blocks_of(const Accessor &now)
{
    return kernel_order().blocks(now.operation->id);
}

// Within one kernel.
void check_threads(const Accessor &now, const Access &old, const char *old_verb)
{
    const Place &place = *now.place;
    const unsigned old_thread = old.thread & kThreadMask;
    if (!now.shared) {
        const uint32_t old_block = old.epoch == place.epoch ? place.block : blocks_of(now).block_of(old.epoch);
        if (old_block != place.block) {
            if (!blocks_of(now).before(old.epoch, old_thread, place))
                report_conflict(GPUSIM_RACE_GLOBAL, now, old, old_verb, "another block, with no fence and atomic between them");
            return;
        }
    }
    if (old.epoch != place.epoch || old_thread == place.thread)
        return;
    if (old_thread / 32 == place.thread / 32u && place.seen[old_thread % 32] >= old.clock)
        return;
    report_conflict(now.shared ? GPUSIM_RACE_SHARED : GPUSIM_RACE_GLOBAL, now, old, old_verb,
                    old_thread / 32 == place.thread / 32u ? "no __syncwarp or __syncthreads between them" : "no __syncthreads between them");
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
    if (!atomics && !operation_before(old.operation, *now.operation) && !kernel_order().before(old, *now.operation, now.place))
        report_conflict(GPUSIM_RACE_STREAM, now, old, old_verb,
                        now.place && old.epoch ? "an event wait or a synchronisation, or a release and an acquire of a flag, is missing"
                                               : "an event wait or a synchronisation is missing");
}

void check_value(const Cell &cell, const Accessor &now)
{
    if (!cell.writer.operation) {
        if (!now.unwritten_allowed)
            report_access(GPUSIM_UNINITIALISED, now, "nothing was ever written there");
    } else if (cell.writer.thread & kAccessPending) {
        report_access(GPUSIM_PENDING_COPY, now, "the cp.async that fills it was not waited for");
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

void remember_read(Cell &cell, const Accessor &now)
{
    const Access made = access_of(now);
    if (cell.reader.operation != made.operation) {
        if (cell.reader.operation || cell.readers)
            cell.readers = reader_sets().extended(cell.readers, {cell.reader.operation, cell.reader.epoch}, *now.operation);
        if (cell.other_reader.operation && cell.other_reader.epoch != cell.reader.epoch)
            cell.readers = reader_sets().extended(cell.readers, {cell.other_reader.operation, cell.other_reader.epoch}, *now.operation);
        cell.reader = made;
        cell.other_reader = Access{};
        return;
    }
    // An older interval of the same block, or the same thread, comes before this read: it is enough to remember this one.
    const bool same_thread = cell.reader.thread == made.thread && cell.reader.epoch == made.epoch;
    const bool older_interval = now.place && cell.reader.epoch != made.epoch &&
                                (now.shared || blocks_of(now).block_of(cell.reader.epoch) == now.place->block);
    if (same_thread || older_interval)
        cell.reader = made;
    else
        cell.other_reader = made;
}

void cell_access(Cell &cell, const Accessor &now)
{
    if (!(now.flags & kWrite) || (now.flags & kRead))
        check_value(cell, now);
    check_against(now, cell.writer, "write");
    if (!(now.flags & kWrite)) {
        remember_read(cell, now);
        return;
    }
    check_against(now, cell.reader, "read");
    check_against(now, cell.other_reader, "read");
    if (cell.readers)
        for (const Reader &one : reader_sets().members(cell.readers))
            check_against(now, Access{one.first, one.second, 0, 0, 0}, "read");
    cell = Cell{};
    cell.writer = access_of(now);
}

} // namespace

uint32_t site_number(const Site &site)
{
    Sites &all = sites();
    Sites::Recent &recent = all.recent[(reinterpret_cast<uintptr_t>(&site) / sizeof(Site) + size_t(site.ptx_line)) % 1024];
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

} // namespace gpusim
