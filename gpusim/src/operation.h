// Who does something, and what is known to come before it. Streams and host threads are the components of vector
// clocks; an operation is one step of a component: a kernel, a copy, a collective's share of one rank.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpusim {

// What a release has told of one block of a kernel that may still run: its accesses before a barrier interval (epoch),
// and in that interval those of the lanes of one warp up to these clocks.
struct Part {
    uint32_t operation = 0, block = 0, warp = 0;
    uint32_t epoch = 0;
    uint16_t clocks[32] = {};
};
constexpr uint32_t all_blocks = UINT32_MAX; // Part::block: of the whole kernel, too many blocks to tell apart

class VectorClock {
public:
    uint32_t at(uint32_t component) const { return component < times_.size() ? times_[component] : 0; }
    void advance(uint32_t component)
    {
        if (times_.size() <= component)
            times_.resize(component + 1);
        times_[component]++;
    }
    void step_back(uint32_t component) { times_[component]--; }
    void join(const VectorClock &other)
    {
        if (times_.size() < other.times_.size())
            times_.resize(other.times_.size());
        for (size_t i = 0; i < other.times_.size(); i++)
            if (times_[i] < other.times_[i])
                times_[i] = other.times_[i];
        if (!parts_.empty() || !other.parts_.empty())
            join_parts(other);
    }
    void join(const Part &part);
    const std::vector<Part> &parts() const { return parts_; }

private:
    void join_parts(const VectorClock &other);
    bool has_parts(const VectorClock &other) const;
    bool covers(const Part &part) const;
    void limit(size_t first, size_t end);

    std::vector<uint32_t> times_; // whole operations, by component
    std::vector<Part> parts_;     // of operations that `times_` doesn't cover; by operation, block, warp
};

struct Operation {
    uint32_t id = 0;
    VectorClock clock;
    int device = -1; // -1: the host
    const char *name = "";
    mutable uint32_t known_before = 0; // an operation found to come before this one: most questions are about the same
                                       // one
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
// is there one before `now` that is not before `past`?
bool operation_between(const VectorClock &past, const VectorClock &now);
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
