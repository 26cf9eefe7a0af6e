#include "readers.h"

#include "operation.h"

#include <cstring>

namespace gpusim {
namespace {

// Within a kernel only so many of the latest readers are looked at: older ones that are superseded may stay, which
// costs time and changes nothing.
constexpr int looked_at = 64;

constexpr size_t most_buckets = 256;
constexpr uint16_t strong_question = 0x2000; // Reading::warp, in questions

} // namespace

bool ReaderSets::Node::operator==(const Node &other) const
{
    return rest == other.rest && memcmp(&reading, &other.reading, sizeof reading) == 0;
}

size_t ReaderSets::Hash::operator()(const Node &node) const
{
    const Reading &one = node.reading;
    uint64_t mixed = node.rest * 0x9E3779B97F4A7C15ull;
    for (uint64_t part : {uint64_t(one.operation) << 32 | one.epoch, uint64_t(one.site) << 32 | one.lanes,
                          uint64_t(one.clock) << 16 | one.warp})
        mixed = (mixed ^ part ^ mixed >> 29) * 0xBF58476D1CE4E5B9ull;
    return size_t(mixed ^ mixed >> 32);
}

bool ReaderSets::superseded(const Reading &old, const Reading &added, const Operation &now, bool strong) const
{
    if (strong && !(old.warp & kReadingAtomic))
        return false;
    if (old.operation != now.id && operation_before(old.operation, now))
        return true;
    if (old.operation != added.operation || added.operation != now.id ||
        (!(old.warp & kReadingAtomic) && added.warp & kReadingAtomic))
        return false;
    if (old.epoch != added.epoch)
        return old.epoch < added.epoch && block_of_(now, old.epoch) == block_of_(now, added.epoch);
    return (old.warp | kReadingAtomic) == (added.warp | kReadingAtomic) && old.clock <= added.clock &&
           (old.lanes & ~added.lanes) == 0;
}

uint32_t ReaderSets::with(uint32_t set, const Reading &added)
{
    const uint32_t number = uint32_t(nodes_.size());
    const auto made = numbers_.emplace(Node{added, set}, number);
    if (!made.second)
        return made.first->second;
    const uint32_t rest = nodes_[set].plain;
    const bool atomic = added.warp & kReadingAtomic;
    nodes_.push_back(Node{added, set, !atomic && rest == set ? number : rest});
    if (!atomic && rest != set) {
        const uint32_t plain = with(rest, added);
        nodes_[number].plain = plain;
    }
    return number;
}

uint32_t ReaderSets::plain(uint32_t set, const Reading &added)
{
    const uint32_t kept = nodes_[set].plain;
    return added.operation && !(added.warp & kReadingAtomic) ? with(kept, added) : kept;
}

uint32_t ReaderSets::computed(uint32_t set, const Reading &added, const Operation &now, bool strong)
{
    std::vector<Reading> kept;
    uint32_t rest = set, unchanged = set; // what lies deeper than the last that is dropped stays as it is
    size_t above = 0;                     // of `kept`, those that lie above `unchanged`
    int limit = added.operation == now.id ? looked_at : INT32_MAX;
    for (; rest && limit; rest = nodes_[rest].rest, limit--) {
        if (memcmp(&nodes_[rest].reading, &added, sizeof added) == 0)
            return set; // blocks that poll one word in turns would else make a set of each order of theirs
        if (superseded(nodes_[rest].reading, added, now, strong)) {
            unchanged = nodes_[rest].rest;
            above = kept.size();
        } else {
            kept.push_back(nodes_[rest].reading);
        }
    }
    uint32_t result = unchanged;
    while (above > 0)
        result = with(result, kept[--above]);
    const bool stays = strong && !(added.warp & kReadingAtomic);
    const bool known =
        !added.operation || (!stays && added.operation != now.id && operation_before(added.operation, now));
    return known ? result : with(result, added);
}

uint32_t ReaderSets::extended(uint32_t set, const Reading &added, const Operation &now, bool strong)
{
    Node question{added, set};
    question.reading.warp |= strong ? strong_question : 0;
    const size_t hash = Hash()(question);
    Recent &recent = recent_[hash % (sizeof recent_ / sizeof *recent_)];
    if (recent.operation == now.id && recent.question == question)
        return recent.answer;
    if (answers_of_ != now.id) {
        answers_of_ = now.id;
        // Clearing walks through all buckets: kernels that poll in turns would do nothing else after one that had many
        // questions.
        if (answers_.bucket_count() > most_buckets)
            answers_ = {};
        else
            answers_.clear();
    }
    auto found = answers_.find(question);
    if (found == answers_.end())
        found = answers_.emplace(question, computed(set, added, now, strong)).first;
    recent = {question, now.id, found->second};
    return found->second;
}

} // namespace gpusim
