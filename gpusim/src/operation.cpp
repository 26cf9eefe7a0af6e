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

} // namespace

void VectorClock::join(const Part &part)
{
    auto at = std::lower_bound(parts_.begin(), parts_.end(), part, comes_first);
    if (at == parts_.end() || comes_first(part, *at)) {
        parts_.insert(at, part);
        limit(part.operation);
    } else if (at->epoch < part.epoch) {
        *at = part;
    } else if (at->epoch == part.epoch) {
        for (int lane = 0; lane < 32; lane++)
            at->clocks[lane] = std::max(at->clocks[lane], part.clocks[lane]);
    }
}

// A kernel with too many parts counts as known whole, which may hide a race of it but costs no memory.
void VectorClock::limit(uint32_t operation)
{
    auto of_it = [operation](const Part &part) { return part.operation == operation; };
    const auto first = std::find_if(parts_.begin(), parts_.end(), of_it), end = std::find_if_not(first, parts_.end(), of_it);
    const bool known_whole = first != end && std::prev(end)->block == all_blocks;
    if (size_t(end - first) <= (known_whole ? 1 : most_parts))
        return;
    Part whole;
    whole.operation = operation;
    whole.block = all_blocks;
    *first = whole;
    parts_.erase(first + 1, end);
}

void VectorClock::join_parts(const VectorClock &other)
{
    for (const Part &part : other.parts_)
        join(part);
    parts_.erase(std::remove_if(parts_.begin(), parts_.end(),
                                [this](const Part &part) {
                                    const OperationRecord &record = operation_record(part.operation);
                                    return at(record.component) >= record.time;
                                }),
                 parts_.end());
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
