#include "operation.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace gpusim {
namespace {

thread_local Operation *running;

std::vector<OperationRecord> &records()
{
    static auto &all = *new std::vector<OperationRecord>(1, OperationRecord{0, 0, "nobody"}); // id 0 means nobody
    return all;
}

constexpr size_t most_parts = 64; // of one operation

bool comes_first(const Part &a, const Part &b)
{
    return std::tie(a.operation, a.block, a.warp) < std::tie(b.operation, b.block, b.warp);
}

// Of one warp: the later interval says more, in one interval the later clock of each lane.
void add_to(Part &known, const Part &part)
{
    if (known.epoch < part.epoch)
        known = part;
    for (int lane = 0; lane < 32 && known.epoch == part.epoch; lane++)
        known.clocks[lane] = std::max(known.clocks[lane], part.clocks[lane]);
}

bool includes(const Part &known, const Part &part)
{
    if (known.epoch != part.epoch)
        return known.epoch > part.epoch;
    bool all = true;
    for (int lane = 0; lane < 32; lane++)
        all = all && known.clocks[lane] >= part.clocks[lane];
    return all;
}

} // namespace

void VectorClock::join(const Part &part)
{
    auto at = std::lower_bound(parts_.begin(), parts_.end(), part, comes_first);
    if (at != parts_.end() && !comes_first(part, *at))
        return add_to(*at, part);
    at = parts_.insert(at, part);
    auto of_another = [&part](const Part &other) { return other.operation != part.operation; };
    const auto first = std::find_if(std::make_reverse_iterator(at), parts_.rend(), of_another).base();
    limit(size_t(first - parts_.begin()), size_t(std::find_if(at, parts_.end(), of_another) - parts_.begin()));
}

// A kernel with too many parts, here all from `first` to `end`, counts as known whole, which may hide a race of it but
// costs no memory.
void VectorClock::limit(size_t first, size_t end)
{
    const bool known_whole = first != end && parts_[end - 1].block == all_blocks;
    if (end - first <= (known_whole ? 1 : most_parts))
        return;
    Part whole;
    whole.operation = parts_[first].operation;
    whole.block = all_blocks;
    parts_[first] = whole;
    parts_.erase(parts_.begin() + std::ptrdiff_t(first) + 1, parts_.begin() + std::ptrdiff_t(end));
}

bool VectorClock::covers(const Part &part) const
{
    const OperationRecord &record = operation_record(part.operation);
    return at(record.component) >= record.time;
}

// Whether joining the parts would change anything. Mostly it wouldn't: who polls reads the same release again and
// again.
bool VectorClock::has_parts(const VectorClock &other) const
{
    auto own = parts_.begin();
    for (const Part &part : other.parts_) {
        while (own != parts_.end() && comes_first(*own, part))
            ++own;
        const bool known_whole = own != parts_.end() && own->operation == part.operation && own->block == all_blocks;
        if (!known_whole && (own == parts_.end() || comes_first(part, *own) || !includes(*own, part)) && !covers(part))
            return false;
    }
    return true;
}

void VectorClock::join_parts(const VectorClock &other)
{
    auto covered = [this](const Part &part) { return covers(part); };
    parts_.erase(std::remove_if(parts_.begin(), parts_.end(), covered), parts_.end());
    if (has_parts(other))
        return;
    std::vector<Part> all;
    all.reserve(parts_.size() + other.parts_.size());
    all.swap(parts_);
    size_t first = 0; // of the latest operation
    auto add = [&](const Part &part) {
        if (!parts_.empty() && parts_.back().operation != part.operation) {
            limit(first, parts_.size());
            first = parts_.size();
        }
        parts_.push_back(part);
    };
    auto own = all.begin();
    for (const Part &part : other.parts_) {
        if (covers(part))
            continue;
        for (; own != all.end() && comes_first(*own, part); ++own)
            add(*own);
        add(part);
        if (own != all.end() && !comes_first(part, *own))
            add_to(parts_.back(), *own++);
    }
    for (; own != all.end(); ++own)
        add(*own);
    limit(first, parts_.size());
}

uint32_t component_new()
{
    static uint32_t next;
    return next++;
}

uint32_t operation_register(uint32_t component, uint32_t time, const char *name)
{
    records().push_back({component, time, name});
    return uint32_t(records().size() - 1);
}

const OperationRecord &operation_record(uint32_t id)
{
    return records()[id];
}

bool operation_before(uint32_t earlier, const Operation &now)
{
    if (earlier == now.known_before)
        return true;
    const OperationRecord &record = records()[earlier];
    if (now.clock.at(record.component) < record.time)
        return false;
    now.known_before = earlier;
    return true;
}

bool operation_between(const VectorClock &past, const VectorClock &now)
{
    return std::any_of(records().begin(), records().end(), [&](const OperationRecord &record) {
        return past.at(record.component) < record.time && record.time <= now.at(record.component);
    });
}

const char *interned(const std::string &text)
{
    static auto &all = *new std::set<std::string>;
    return all.insert(text).first->c_str();
}

Operation *current_operation()
{
    return running;
}

OperationScope::OperationScope(Operation *operation) : outer_(running)
{
    running = operation;
}

OperationScope::~OperationScope()
{
    running = outer_;
}

} // namespace gpusim
