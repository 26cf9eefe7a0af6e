#include "register_layout.h"

#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>

namespace gpusim::ptx
{

namespace
{

using Bits = std::vector<uint64_t>;

void set_bit(Bits &bits, size_t i)
{
    bits[i / 64] |= 1ull << (i % 64);
}

struct BasicBlock {
    size_t first, last; // instructions
    std::vector<size_t> successors;
    Bits used, defined, live_in, live_out; // used: before it is defined
};

struct Interval {
    size_t start = SIZE_MAX, end = 0;

    void include(size_t position)
    {
        start = std::min(start, position);
        end = std::max(end, position);
    }
};

class Layout
{
  public:
    Layout(Program *program, const std::vector<RegisterUnit> &units, const std::vector<RegisterAccess> &accesses,
           const std::vector<BranchTable> &tables)
        : program_(program), units_(units), accesses_(accesses), tables_(tables), places_(units.size())
    {
        unit_at_.resize(program->register_bytes / kGrain + 1);
        for (size_t i = 0; i < units.size(); i++) {
            for (uint32_t at = units[i].offset; at < units[i].offset + units[i].bytes; at += kGrain) {
                unit_at_[at / kGrain] = i;
            }
        }
    }

    void run()
    {
        find_blocks();
        find_live();
        find_intervals();
        assign();
        rewrite();
    }

  private:
    static const uint32_t kGrain = 128;

    size_t unit_of(uint32_t offset) const
    {
        return unit_at_[offset / kGrain];
    }

    std::vector<size_t> targets_of(size_t position) const
    {
        const Instruction &in = program_->code[position];
        std::vector<size_t> targets;
        if (in.flow == Flow::branch) {
            targets.push_back(static_cast<size_t>(in.target));
        }
        for (const BranchTable &table : tables_) {
            if (table.position == position) {
                targets.insert(targets.end(), table.targets->begin(), table.targets->end());
            }
        }
        return targets;
    }

    void find_blocks()
    {
        const size_t count = program_->code.size();
        std::vector<bool> leads(count + 1, false);
        std::map<size_t, std::vector<size_t>> targets;
        leads[0] = true;
        for (size_t i = 0; i < count; i++) {
            std::vector<size_t> found = targets_of(i);
            if (!found.empty()) {
                leads[i + 1] = true;
                for (size_t target : found) {
                    leads[target] = true;
                }
                targets[i] = std::move(found);
            }
        }
        std::vector<size_t> block_at(count);
        for (size_t i = 0; i < count; i++) {
            if (leads[i]) {
                blocks_.push_back({i, i, {}, {}, {}, {}, {}});
            }
            blocks_.back().last = i;
            block_at[i] = blocks_.size() - 1;
        }
        for (BasicBlock &block : blocks_) {
            const Instruction &in = program_->code[block.last];
            bool always = in.flow == Flow::branch && in.guard == kNoGuard;
            if (!always && block.last + 1 < count) {
                block.successors.push_back(block_at[block.last + 1]);
            }
            for (size_t target : targets[block.last]) {
                block.successors.push_back(block_at[target]);
            }
        }
    }

    void find_live()
    {
        const size_t length = (units_.size() + 63) / 64;
        for (BasicBlock &block : blocks_) {
            block.used.assign(length, 0);
            block.defined.assign(length, 0);
            block.live_in.assign(length, 0);
            block.live_out.assign(length, 0);
            for (size_t i = block.first; i <= block.last; i++) {
                for (uint32_t offset : accesses_[i].uses) {
                    size_t unit = unit_of(offset);
                    if (!(block.defined[unit / 64] >> (unit % 64) & 1)) {
                        set_bit(block.used, unit);
                    }
                }
                bool certain = program_->code[i].guard == kNoGuard; // else the old value may live on
                for (uint32_t offset : accesses_[i].definitions) {
                    if (certain) {
                        set_bit(block.defined, unit_of(offset));
                    }
                }
            }
        }
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t b = blocks_.size(); b-- > 0;) {
                BasicBlock &block = blocks_[b];
                for (size_t successor : block.successors) {
                    for (size_t w = 0; w < length; w++) {
                        block.live_out[w] |= blocks_[successor].live_in[w];
                    }
                }
                for (size_t w = 0; w < length; w++) {
                    uint64_t in = block.used[w] | (block.live_out[w] & ~block.defined[w]);
                    changed = changed || in != block.live_in[w];
                    block.live_in[w] = in;
                }
            }
        }
    }

    void find_intervals()
    {
        intervals_.resize(units_.size());
        for (size_t i = 0; i < accesses_.size(); i++) {
            for (uint32_t offset : accesses_[i].uses) {
                intervals_[unit_of(offset)].include(i);
            }
            for (uint32_t offset : accesses_[i].definitions) {
                intervals_[unit_of(offset)].include(i);
            }
        }
        for (const BasicBlock &block : blocks_) {
            include_all(block.live_in, block.first);
            include_all(block.live_out, block.last);
        }
    }

    void include_all(const Bits &bits, size_t position)
    {
        for (size_t w = 0; w < bits.size(); w++) {
            for (uint64_t rest = bits[w]; rest != 0; rest &= rest - 1) {
                intervals_[w * 64 + static_cast<size_t>(__builtin_ctzll(rest))].include(position);
            }
        }
    }

    uint32_t extend(uint32_t bytes)
    {
        uint32_t place = end_;
        end_ += bytes;
        return place;
    }

    // In the order of their beginnings; a place is free again after the last position where its value is needed.
    void assign()
    {
        std::vector<size_t> order;
        for (size_t i = 0; i < units_.size(); i++) {
            if (units_[i].pinned) {
                places_[i] = extend(units_[i].bytes);
            } else if (intervals_[i].start != SIZE_MAX) {
                order.push_back(i);
            }
        }
        std::sort(order.begin(), order.end(),
                  [&](size_t a, size_t b) { return intervals_[a].start < intervals_[b].start; });
        using Ending = std::pair<size_t, size_t>; // last position, unit
        std::priority_queue<Ending, std::vector<Ending>, std::greater<Ending>> busy;
        std::map<uint32_t, std::vector<uint32_t>> free; // by size
        for (size_t unit : order) {
            while (!busy.empty() && busy.top().first < intervals_[unit].start) {
                size_t ended = busy.top().second;
                busy.pop();
                free[units_[ended].bytes].push_back(places_[ended]);
            }
            std::vector<uint32_t> &candidates = free[units_[unit].bytes];
            if (candidates.empty()) {
                places_[unit] = extend(units_[unit].bytes);
            } else {
                places_[unit] = candidates.back();
                candidates.pop_back();
            }
            busy.emplace(intervals_[unit].end, unit);
        }
    }

    uint32_t place_of(uint32_t offset) const
    {
        size_t unit = unit_of(offset);
        return places_[unit] + (offset - units_[unit].offset);
    }

    void rewrite()
    {
        std::unordered_map<const uint32_t *, std::vector<uint32_t> *> lists;
        for (std::vector<uint32_t> &list : program_->lists) {
            lists[list.data()] = &list;
        }
        for (size_t i = 0; i < program_->code.size(); i++) {
            Instruction &in = program_->code[i];
            std::vector<uint32_t> registers = accesses_[i].uses;
            registers.insert(registers.end(), accesses_[i].definitions.begin(), accesses_[i].definitions.end());
            auto move = [&](uint32_t *field) {
                bool is_register =
                    *field < program_->register_bytes &&
                    std::any_of(registers.begin(), registers.end(), [&](uint32_t offset) {
                        return offset == *field || (offset + 256 == *field && unit_of(offset) == unit_of(*field));
                    });
                if (is_register) {
                    *field = place_of(*field);
                }
            };
            for (uint32_t *field : {&in.d, &in.a, &in.b, &in.c, &in.lane_mask}) {
                move(field);
            }
            if (in.guard != kNoGuard) {
                in.guard = place_of(in.guard);
            }
            if (in.list) {
                for (uint32_t &field : *lists[in.list]) {
                    move(&field);
                }
            }
        }
        for (Preset &preset : program_->presets) {
            preset.offset = place_of(preset.offset);
        }
        program_->register_bytes = end_;
    }

    Program *program_;
    const std::vector<RegisterUnit> &units_;
    const std::vector<RegisterAccess> &accesses_;
    const std::vector<BranchTable> &tables_;
    std::vector<size_t> unit_at_;
    std::vector<BasicBlock> blocks_;
    std::vector<Interval> intervals_;
    std::vector<uint32_t> places_;
    uint32_t end_ = 0;
};

} // namespace

void compact_registers(Program *program, const std::vector<RegisterUnit> &units,
                       const std::vector<RegisterAccess> &accesses, const std::vector<BranchTable> &tables)
{
    if (!program->code.empty()) {
        Layout(program, units, accesses, tables).run();
    }
}

} // namespace gpusim::ptx
