// Operands: registers, literals, addresses.
#include "decoder.h"
#include "lanes.h"

#include <algorithm>
#include <unordered_map>

namespace gpusim::ptx
{

namespace
{

void do_truncate(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map1<uint32_t, uint64_t>(warp, in, lanes, [](uint64_t value) { return static_cast<uint32_t>(value); });
}

void do_zero_extend(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map1<uint64_t, uint32_t>(warp, in, lanes, [](uint32_t value) { return static_cast<uint64_t>(value); });
}

void do_sign_extend(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map1<int64_t, int32_t>(warp, in, lanes, [](int32_t value) { return static_cast<int64_t>(value); });
}

void do_not_predicate(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t &d = predicate(warp, in.d);
    d = (d & ~lanes) | (~predicate(warp, in.a) & lanes);
}

Special find_special(std::string_view name)
{
    static const std::unordered_map<std::string_view, Special> kSpecials = {
        {"%tid.x", Special::tid_x},
        {"%tid.y", Special::tid_y},
        {"%tid.z", Special::tid_z},
        {"%ntid.x", Special::ntid_x},
        {"%ntid.y", Special::ntid_y},
        {"%ntid.z", Special::ntid_z},
        {"%ctaid.x", Special::ctaid_x},
        {"%ctaid.y", Special::ctaid_y},
        {"%ctaid.z", Special::ctaid_z},
        {"%nctaid.x", Special::nctaid_x},
        {"%nctaid.y", Special::nctaid_y},
        {"%nctaid.z", Special::nctaid_z},
        {"%laneid", Special::laneid},
        {"%warpid", Special::warpid},
        {"%nwarpid", Special::nwarpid},
        {"%smid", Special::smid},
        {"%nsmid", Special::nsmid},
        {"%gridid", Special::gridid},
        {"%lanemask_eq", Special::lanemask_eq},
        {"%lanemask_lt", Special::lanemask_lt},
        {"%lanemask_le", Special::lanemask_le},
        {"%lanemask_gt", Special::lanemask_gt},
        {"%lanemask_ge", Special::lanemask_ge},
        {"%dynamic_smem_size", Special::dynamic_shared},
        {"%total_smem_size", Special::total_shared},
        {"%envreg1", Special::workspace_high},
        {"%envreg2", Special::workspace_low},
        // every block is a cluster of its own
        {"%is_explicit_cluster", Special::zero},
        {"%cluster_ctarank", Special::zero},
        {"%cluster_nctarank", Special::one},
        {"%cluster_ctaid.x", Special::zero},
        {"%cluster_ctaid.y", Special::zero},
        {"%cluster_ctaid.z", Special::zero},
        {"%cluster_nctaid.x", Special::one},
        {"%cluster_nctaid.y", Special::one},
        {"%cluster_nctaid.z", Special::one},
        {"%clusterid.x", Special::ctaid_x},
        {"%clusterid.y", Special::ctaid_y},
        {"%clusterid.z", Special::ctaid_z},
        {"%nclusterid.x", Special::nctaid_x},
        {"%nclusterid.y", Special::nctaid_y},
        {"%nclusterid.z", Special::nctaid_z},
    };
    auto found = kSpecials.find(name);
    return found == kSpecials.end() ? Special::none : found->second;
}

uint64_t literal_bits(const Operand &operand, size_t width)
{
    if (operand.kind == Operand::Kind::single_bits && width == 8) {
        return to_word<double>(from_word<float>(static_cast<uint32_t>(operand.bits)));
    }
    if (operand.kind == Operand::Kind::double_bits && width == 4) {
        return to_word<float>(static_cast<float>(from_word<double>(operand.bits)));
    }
    return operand.bits;
}

} // namespace

uint32_t Decoder::preset(Preset preset)
{
    std::tuple<int, int, uint64_t, int> key{preset.bytes, static_cast<int>(preset.special), preset.value,
                                            preset.symbol};
    auto found = preset_cache_.find(key);
    if (found != preset_cache_.end()) {
        return use(found->second);
    }
    preset.offset = preset.bytes == 0 ? temporary_predicate() : allocate_register(preset.bytes, true);
    preset_cache_[key] = preset.offset;
    program_->presets.push_back(preset);
    return use(preset.offset);
}

uint32_t Decoder::constant(uint64_t value, size_t width)
{
    Preset constant{};
    constant.bytes = static_cast<uint8_t>(width);
    constant.value = width == 4 ? static_cast<uint32_t>(value) : value;
    return preset(constant);
}

uint32_t Decoder::special(Special special, size_t width, uint64_t add)
{
    Preset value{};
    value.bytes = static_cast<uint8_t>(width);
    value.special = special;
    value.value = add;
    value.per_block = special == Special::ctaid_x || special == Special::ctaid_y || special == Special::ctaid_z;
    return preset(value);
}

size_t Decoder::width_of(const Operand &operand, size_t otherwise)
{
    const Symbol *symbol = operand.kind == Operand::Kind::name ? find_symbol(operand.name) : nullptr;
    return symbol && symbol->kind == Symbol::Kind::reg ? symbol->bytes : otherwise;
}

uint32_t Decoder::source(const Operand &operand, size_t width)
{
    if (operand.kind != Operand::Kind::name) {
        return constant(literal_bits(operand, width), width);
    }
    const Symbol *symbol = find_symbol(operand.name);
    if (!symbol || symbol->kind != Symbol::Kind::reg) {
        if (operand.name == "WARP_SZ") {
            return constant(32, width);
        }
        Special found = find_special(operand.name);
        return found != Special::none ? special(found, width) : symbol_address(operand, width);
    }
    if (symbol->bytes == width || symbol->bytes == 16) {
        return use(static_cast<uint32_t>(symbol->offset));
    }
    if (symbol->bytes == 0) {
        fail("predicate " + std::string(operand.name) + " where a value is expected");
        return constant(0, width);
    }
    Instruction convert;
    convert.handler = width == 4 ? do_truncate : do_zero_extend;
    convert.a = static_cast<uint32_t>(symbol->offset);
    convert.d = allocate_register(width);
    emit_conversion(convert);
    return use(convert.d);
}

uint32_t Decoder::symbol_address(const Operand &operand, size_t width)
{
    const Symbol *symbol = find_symbol(operand.name);
    uint64_t offset = static_cast<uint64_t>(operand.offset);
    if (symbol && symbol->kind == Symbol::Kind::shared) {
        return constant(symbol->offset + offset, width);
    }
    if (symbol && symbol->kind == Symbol::Kind::local) {
        return special(Special::local_base, width, symbol->offset + offset);
    }
    if (symbol && symbol->kind == Symbol::Kind::parameter) {
        return special(Special::parameter_base, width, symbol->offset + offset);
    }
    for (const Variable &variable : module_->syntax.variables) {
        if (variable.name != operand.name || variable.space != Space::shared) {
            continue;
        }
        if (variable.external) {
            program_->shared_alignment = std::max(program_->shared_alignment, variable.align());
            Preset address{};
            address.bytes = static_cast<uint8_t>(width);
            address.value = offset;
            address.symbol = -2; // not the constant of that value
            size_t before = program_->presets.size();
            uint32_t result = preset(address);
            if (program_->presets.size() > before) {
                dynamic_presets_.push_back(before);
            }
            return result;
        }
        auto &placed = module_shared_[variable.name];
        if (placed.size == 0) {
            placed.kind = Symbol::Kind::shared;
            placed.size = std::max<size_t>(variable.bytes(), 1);
            placed.offset = (program_->static_shared + variable.align() - 1) / variable.align() * variable.align();
            program_->static_shared = placed.offset + variable.bytes();
        }
        return constant(placed.offset + offset, width);
    }
    if (module_->variables.count(operand.name)) {
        auto [entry, added] = symbol_numbers_.try_emplace(operand.name, static_cast<int>(program_->symbols.size()));
        if (added) {
            program_->symbols.push_back(operand.name);
        }
        Preset address{};
        address.bytes = static_cast<uint8_t>(width);
        address.symbol = entry->second;
        address.value = offset;
        return preset(address);
    }
    fail("unknown name " + std::string(operand.name));
    return constant(0, width);
}

uint32_t Decoder::source_predicate(const Operand &operand)
{
    if (operand.kind == Operand::Kind::integer) {
        Preset value{};
        value.value = operand.bits != 0 ? kAllLanes : 0;
        return preset(value);
    }
    const Symbol *symbol = find_symbol(operand.name);
    if (!symbol || symbol->kind != Symbol::Kind::reg || symbol->bytes != 0) {
        fail("no predicate " + std::string(operand.name));
        return 0;
    }
    if (!operand.negated) {
        return use(static_cast<uint32_t>(symbol->offset));
    }
    Instruction negate;
    negate.handler = do_not_predicate;
    negate.a = static_cast<uint32_t>(symbol->offset);
    negate.d = temporary_predicate();
    emit_conversion(negate);
    return use(negate.d);
}

uint32_t Decoder::destination(const Operand &operand, size_t width, bool sign_extends)
{
    const Symbol *symbol = find_symbol(operand.name);
    if (operand.name == "_") {
        return define(allocate_register(width));
    }
    if (!symbol || symbol->kind != Symbol::Kind::reg || symbol->bytes == 0) {
        fail("no register " + std::string(operand.name));
        return define(allocate_register(width));
    }
    if (symbol->bytes == width || symbol->bytes == 16) {
        return define(static_cast<uint32_t>(symbol->offset));
    }
    Instruction convert;
    convert.handler = width == 8 ? do_truncate : sign_extends ? do_sign_extend : do_zero_extend;
    convert.a = allocate_register(width);
    convert.d = static_cast<uint32_t>(symbol->offset);
    after_.push_back(convert);
    return define(convert.a);
}

uint32_t Decoder::destination_predicate(const Operand &operand)
{
    const Symbol *symbol = find_symbol(operand.name);
    if (operand.name == "_") {
        return define(temporary_predicate());
    }
    if (!symbol || symbol->kind != Symbol::Kind::reg || symbol->bytes != 0) {
        fail("no predicate " + std::string(operand.name));
        return 0;
    }
    return define(static_cast<uint32_t>(symbol->offset));
}

void Decoder::address(const Operand &operand, Instruction *instruction)
{
    instruction->immediate = operand.offset;
    if (operand.name.empty()) {
        instruction->a = constant(0, 8);
        return;
    }
    const Symbol *symbol = find_symbol(operand.name);
    if (symbol && symbol->kind == Symbol::Kind::reg) {
        instruction->a = use(static_cast<uint32_t>(symbol->offset));
        instruction->wide_address = symbol->bytes == 8;
        return;
    }
    if (symbol && symbol->kind == Symbol::Kind::parameter) {
        instruction->space = Space::parameter;
        instruction->immediate += static_cast<int64_t>(symbol->offset);
        return;
    }
    if (symbol && symbol->kind == Symbol::Kind::local) { // a parameter of a call, too
        instruction->space = Space::local;
    }
    Operand base = operand;
    base.kind = Operand::Kind::name;
    base.offset = 0;
    instruction->a = symbol_address(base, 8);
}

} // namespace gpusim::ptx
