// Who does something, and what is known to come before it. Streams and host threads are the components of vector clocks;
// an operation is one step of a component: a kernel, a copy, a collective's share of one rank.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpusim {

class VectorClock {
public:
    uint32_t at(uint32_t component) const { return component < times_.size() ? times_[component] : 0; }
    void advance(uint32_t component)
    {
        if (times_.size() <= component)
            times_.resize(component + 1);
        times_[component]++;
    }
    void join(const VectorClock &other)
    {
        if (times_.size() < other.times_.size())
            times_.resize(other.times_.size());
        for (size_t i = 0; i < other.times_.size(); i++)
            if (times_[i] < other.times_[i])
                times_[i] = other.times_[i];
    }

private:
    std::vector<uint32_t> times_;
};

struct Operation {
    uint32_t id = 0;
    VectorClock clock;
    int device = -1; // -1: the host
    const char *name = "";
    mutable uint32_t known_before = 0; // an operation found to come before this one: most questions are about the same one
};

struct OperationRecord {
    uint32_t component, time;
    const char *name;
};

// All of these under machine_lock().
uint32_t component_new();
uint32_t operation_register(uint32_t component, uint32_t time, const char *name);
const OperationRecord &operation_record(uint32_t id);
bool operation_before(uint32_t earlier, const Operation &now); // is `earlier` ordered before `now`?
const char *interned(const std::string &text); // lives for ever

// Set on the calling thread while an operation runs.
Operation *current_operation();

class OperationScope {
public:
    explicit OperationScope(Operation *operation);
    ~OperationScope();
    OperationScope(const OperationScope &) = delete;
    OperationScope &operator=(const OperationScope &) = delete;

private:
    Operation *outer_;
};

} // namespace gpusim
