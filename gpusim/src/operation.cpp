#include "operation.h"

#include <set>

namespace gpusim {
namespace {

thread_local Operation *running;

std::vector<OperationRecord> &records()
{
    static auto &all = *new std::vector<OperationRecord>(1, OperationRecord{0, 0, "nobody"}); // id 0 means nobody
    return all;
}

} // namespace

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
