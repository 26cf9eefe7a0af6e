#include "decoder.h"

#include "gpusim/gpusim.h"
#include "lanes.h"
#include "parser.h"

#include <algorithm>
#include <utility>

namespace gpusim::ptx
{

namespace
{

const size_t kLanes = 32;

size_t align_up(size_t value, size_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

void do_unsupported(Warp &warp, const Instruction &in, uint32_t lanes)
{
    fault(warp, in, __builtin_ctz(lanes), cudaErrorLaunchFailure, GPUSIM_UNSUPPORTED, "%s",
          static_cast<const char *>(in.extra));
}

bool is_warp_level(const Statement &statement)
{
    static const char *const kWords[] = {"mma",  "ldmatrix", "stmatrix", "movmatrix", "cp",    "bar", "barrier",
                                         "shfl", "vote",     "match",    "redux",     "elect", "wmma"};
    for (std::string_view word : kWords) {
        if (statement.words[0] == word) {
            return true;
        }
    }
    return false;
}

} // namespace

void Decoder::fail(const std::string &message)
{
    if (program_->error.empty()) {
        program_->error = "PTX line " + std::to_string(statement_ ? statement_->line : 0) + ": " + message;
    }
}

void Decoder::decode(const Function &entry)
{
    std::vector<Statement> statements;
    std::string error = parse_body(module_->syntax, entry, &statements);
    if (!error.empty()) {
        program_->error = error;
        return;
    }
    decoding_.insert(entry.name);
    decode_callees(statements);
    program_->entry = static_cast<int>(program_->code.size());
    decode_function(entry, statements);
    layout_dynamic_shared();
    if (!has_calls_ && program_->error.empty()) {
        compact_registers(program_, units_, accesses_, tables_);
    }
    program_->register_bytes = static_cast<uint32_t>(align_up(program_->register_bytes, 64));
}

// Functions that are called come first: their instructions have the lower numbers, so lanes in them catch up with the
// others.
void Decoder::decode_callees(const std::vector<Statement> &statements)
{
    for (const Statement &statement : statements) {
        if (statement.kind != Statement::Kind::instruction || statement.words[0] != "call") {
            continue;
        }
        for (const Operand &operand : statement.operands) {
            auto found = module_->syntax.functions.find(operand.name);
            if (operand.kind != Operand::Kind::name || found == module_->syntax.functions.end() ||
                found->second.body_begin == found->second.body_end || frames_.count(operand.name) ||
                !decoding_.insert(operand.name).second) {
                continue;
            }
            std::vector<Statement> body;
            std::string error = parse_body(module_->syntax, found->second, &body);
            if (!error.empty()) {
                program_->error = error;
                return;
            }
            has_calls_ = true;
            decode_callees(body);
            decode_function(found->second, body);
        }
    }
}

void Decoder::decode_function(const Function &function, const std::vector<Statement> &statements)
{
    function_ = &function;
    labels_ = Label();
    scopes_.assign(1, {});
    Frame frame;
    frame.start = static_cast<int>(program_->code.size());
    size_t kernel_offset = 0;
    for (const Variable &variable : function.parameters) {
        Symbol symbol;
        if (function.is_entry) {
            kernel_offset = align_up(kernel_offset, variable.align());
            symbol.kind = Symbol::Kind::parameter;
            symbol.offset = kernel_offset;
            kernel_offset += variable.bytes();
        } else {
            symbol = allocate_local(variable);
            frame.parameters.push_back(symbol);
        }
        scopes_.back()[variable.name] = symbol;
    }
    for (const Variable &variable : function.results) {
        frame.results.push_back(allocate_local(variable));
        scopes_.back()[variable.name] = frame.results.back();
    }
    frame.own_begin = program_->local_bytes;
    for (const Statement &statement : statements) {
        decode_statement(statement);
    }
    frame.own_end = program_->local_bytes;
    static const Statement kReturn = [] {
        Statement statement;
        statement.opcode = "ret";
        statement.words = {"ret"};
        return statement;
    }();
    statement_ = &kReturn;
    find_opcode("ret")(*this, kReturn); // the text may end without one
    resolve_labels();
    statement_ = nullptr;
    frames_[function.name] = frame;
}

void Decoder::decode_statement(const Statement &statement)
{
    statement_ = &statement;
    switch (statement.kind) {
    case Statement::Kind::open: scopes_.emplace_back(); break;
    case Statement::Kind::close:
        if (scopes_.size() > 1) {
            scopes_.pop_back();
        }
        break;
    case Statement::Kind::label: labels_.positions[statement.label] = static_cast<int>(program_->code.size()); break;
    case Statement::Kind::targets: labels_.targets[statement.label] = statement.operands; break;
    case Statement::Kind::declaration: declare(statement.variable); break;
    case Statement::Kind::instruction: {
        pending_ = {};
        DecodeFunction decode_opcode = find_opcode(statement.words[0]);
        if (decode_opcode) {
            decode_opcode(*this, statement);
        } else {
            unsupported(statement);
        }
        for (const Instruction &conversion : std::exchange(after_, {})) {
            emit_conversion(conversion);
        }
        break;
    }
    }
}

void Decoder::resolve_labels()
{
    for (const auto &[position, label] : labels_.uses) {
        auto found = labels_.positions.find(label);
        if (found == labels_.positions.end()) {
            fail("no label " + std::string(label));
            continue;
        }
        program_->code[position].target = found->second;
    }
    for (const auto &[table, names] : labels_.tables) {
        for (std::string_view name : names) {
            table->push_back(labels_.positions[name]);
        }
    }
}

Instruction &Decoder::emit(const Instruction &instruction)
{
    program_->code.push_back(instruction);
    accesses_.push_back(std::exchange(pending_, {}));
    Instruction &in = program_->code.back();
    if (!statement_->guard.empty()) {
        const Symbol *symbol = find_symbol(statement_->guard);
        if (!symbol || symbol->bytes != 0) {
            fail("no predicate " + std::string(statement_->guard));
        } else {
            in.guard = static_cast<uint32_t>(symbol->offset);
            in.guard_flip = statement_->guard_negated ? kAllLanes : 0;
        }
    }
    in.site = site_of(module_, program_->name.c_str(), *function_, statement_->location, statement_->line,
                      is_warp_level(*statement_));
    return in;
}

// Of an operand's width, before or after the instruction whose operands are being collected.
void Decoder::emit_conversion(const Instruction &conversion)
{
    RegisterAccess collected = std::exchange(pending_, {{conversion.a}, {conversion.d}});
    emit(conversion);
    pending_ = std::move(collected);
}

void Decoder::unsupported(const Statement &statement, const char *why)
{
    Instruction in;
    in.handler = do_unsupported;
    in.flow = Flow::memory;
    in.extra =
        intern("'" + std::string(statement.opcode) + "' is not simulated" + (why ? std::string(": ") + why : ""));
    emit(in);
}

void Decoder::branch_to(std::string_view label, Instruction instruction)
{
    emit(instruction);
    labels_.uses.emplace_back(program_->code.size() - 1, label);
}

const std::vector<Operand> *Decoder::branch_targets(std::string_view label) const
{
    auto found = labels_.targets.find(label);
    return found == labels_.targets.end() ? nullptr : &found->second;
}

void Decoder::emit_branch_table(const std::vector<Operand> &labels, Instruction instruction)
{
    std::vector<int> *table = extra(std::vector<int>());
    std::vector<std::string_view> names;
    for (const Operand &label : labels) {
        names.push_back(label.name);
    }
    instruction.extra = table;
    emit(instruction);
    tables_.push_back({program_->code.size() - 1, table});
    labels_.tables.emplace_back(table, std::move(names));
}

const Frame *Decoder::frame_of(std::string_view function) const
{
    auto found = frames_.find(function);
    return found == frames_.end() ? nullptr : &found->second;
}

const uint32_t *Decoder::list(std::vector<uint32_t> registers)
{
    program_->lists.push_back(std::move(registers));
    return program_->lists.back().data();
}

const char *Decoder::intern(const std::string &text)
{
    program_->strings.push_back(text);
    return program_->strings.back().c_str();
}

// ------------------------------------------------------------------ declarations

void Decoder::declare(const Variable &variable)
{
    if (variable.space == Space::registers) {
        if (variable.range < 0) {
            declare_register(variable.name, variable.type);
        }
        for (int64_t i = 0; i < variable.range; i++) {
            range_names_.push_back(std::string(variable.name) + std::to_string(i));
            declare_register(range_names_.back(), variable.type);
        }
    } else if (variable.space == Space::shared) {
        Symbol symbol;
        symbol.kind = Symbol::Kind::shared;
        symbol.size = variable.bytes();
        symbol.offset = align_up(program_->static_shared, variable.align());
        program_->static_shared = symbol.offset + symbol.size;
        program_->shared_alignment = std::max(program_->shared_alignment, variable.align());
        scopes_.back()[variable.name] = symbol;
    } else {
        scopes_.back()[variable.name] = allocate_local(variable);
    }
}

void Decoder::declare_register(std::string_view name, Type type)
{
    Symbol symbol;
    symbol.bytes = type == Type::pred ? 0 : static_cast<uint8_t>(std::max<size_t>(4, bytes_of(type)));
    symbol.offset = type == Type::pred ? temporary_predicate() : allocate_register(symbol.bytes);
    scopes_.back()[name] = symbol;
}

Symbol Decoder::allocate_local(const Variable &variable)
{
    Symbol symbol;
    symbol.kind = Symbol::Kind::local;
    symbol.size = variable.bytes();
    symbol.offset = align_up(program_->local_bytes, std::max<size_t>(variable.align(), 8));
    program_->local_bytes = symbol.offset + symbol.size;
    return symbol;
}

const Symbol *Decoder::find_symbol(std::string_view name) const
{
    for (size_t i = scopes_.size(); i-- > 0;) {
        auto found = scopes_[i].find(name);
        if (found != scopes_[i].end()) {
            return &found->second;
        }
    }
    return nullptr;
}

uint32_t Decoder::allocate_register(size_t bytes, bool pinned)
{
    RegisterUnit unit{program_->register_bytes, static_cast<uint32_t>(bytes * kLanes), pinned};
    units_.push_back(unit);
    program_->register_bytes += unit.bytes;
    return unit.offset;
}

uint32_t Decoder::use(uint32_t offset)
{
    pending_.uses.push_back(offset);
    return offset;
}

uint32_t Decoder::define(uint32_t offset)
{
    pending_.definitions.push_back(offset);
    return offset;
}

uint32_t Decoder::temporary_predicate()
{
    if (predicates_left_ == 0) {
        next_predicate_ = allocate_register(sizeof(uint32_t), true);
        predicates_left_ = kLanes;
    }
    predicates_left_--;
    uint32_t offset = next_predicate_;
    next_predicate_ += sizeof(uint32_t);
    return offset;
}

// Dynamic shared memory follows the static, which is all known only now.
void Decoder::layout_dynamic_shared()
{
    program_->dynamic_shared_offset = align_up(program_->static_shared, program_->shared_alignment);
    program_->local_used = program_->local_bytes;
    program_->local_bytes = align_up(program_->local_bytes, 16); // so that every thread's is aligned
    for (size_t index : dynamic_presets_) {
        program_->presets[index].value += program_->dynamic_shared_offset;
    }
}

} // namespace gpusim::ptx
