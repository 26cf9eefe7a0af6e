// Who has read a cell since its last write, beyond the latest warp: sets of readers, each kept once and known by
// number, so that cells with the same history share them.
#pragma once
#include "shadow.h"

#include <unordered_map>
#include <vector>

namespace gpusim {

struct Operation;

class ReaderSets {
public:
    // `block_of(epoch)`: which block of the running kernel an interval belongs to.
    using BlockOf = uint32_t (*)(const Operation &now, uint32_t epoch);
    explicit ReaderSets(BlockOf block_of) : block_of_(block_of) {}

    // `set` with `added` (operation 0: nothing), without what comes before `added` or before the operation `now`:
    // whoever comes after those comes after these too.
    // `strong`: whoever comes after them has come by an atomic read; plain ones stay then.
    uint32_t extended(uint32_t set, const Reading &added, const Operation &now, bool strong);
    // `set` without atomic reads, and with `added` if that is none (operation 0: nothing).
    uint32_t plain(uint32_t set, const Reading &added);

    template <class Visit> void each(uint32_t set, Visit visit) const
    {
        for (; set; set = nodes_[set].rest)
            visit(nodes_[set].reading);
    }

private:
    struct Node {
        Reading reading;
        uint32_t rest; // of the set
        uint32_t plain = 0; // the set without atomic reads
        bool operator==(const Node &other) const;
    };
    struct Hash {
        size_t operator()(const Node &node) const;
    };
    struct Recent {
        Node question;
        uint32_t operation, answer;
    };
    uint32_t computed(uint32_t set, const Reading &added, const Operation &now, bool strong);
    uint32_t with(uint32_t set, const Reading &added);
    bool superseded(const Reading &old, const Reading &added, const Operation &now, bool strong) const;

    BlockOf block_of_;
    std::vector<Node> nodes_ = {Node{}};
    std::unordered_map<Node, uint32_t, Hash> numbers_;
    std::unordered_map<Node, uint32_t, Hash> answers_; // for the operation answers_of_
    uint32_t answers_of_ = 0;
    Recent recent_[64] = {};
};

} // namespace gpusim
