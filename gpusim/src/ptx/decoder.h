// From statements to instructions. The decoder owns names, registers and layout; one function for each family of
// opcodes (opcodes.h) knows what the instruction needs.
#pragma once
#include "module.h"
#include "program.h"
#include "register_layout.h"
#include "syntax.h"

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpusim::ptx
{

// What a name in a function stands for.
struct Symbol {
    enum class Kind : uint8_t { reg, shared, dynamic_shared, local, parameter };
    Kind kind = Kind::reg;
    uint8_t bytes = 0; // of a register: 0 predicate, 4, 8, 16
    size_t offset = 0; // in the register file, shared memory, local memory, parameters
    size_t size = 0;   // of a variable
};

// A function within the program.
struct Frame {
    int start = -1;
    std::vector<Symbol> parameters, results; // in local memory
    size_t own_begin = 0, own_end = 0;       // there, too: its arrays
};

class Decoder
{
  public:
    Decoder(Module *module, Program *program) : module_(module), program_(program)
    {
    }
    void decode(const Function &entry);

    // Registers. Widths are 4 or 8 bytes; a register of the other width is converted.
    uint32_t source(const Operand &operand, size_t width);
    uint32_t source_predicate(const Operand &operand);
    uint32_t destination(const Operand &operand, size_t width, bool sign_extends = false);
    uint32_t destination_predicate(const Operand &operand);
    uint32_t constant(uint64_t value, size_t width);
    uint32_t special(Special special, size_t width, uint64_t add = 0);
    uint32_t temporary_predicate();
    size_t width_of(const Operand &operand, size_t otherwise); // of the register it names

    // Fills base register, offset and space of a memory operand.
    void address(const Operand &operand, Instruction *instruction);
    const Symbol *find_symbol(std::string_view name) const;

    const uint32_t *list(std::vector<uint32_t> registers);
    const char *intern(const std::string &text);
    template <class T> T *extra(T value)
    {
        auto pointer = std::make_shared<T>(std::move(value));
        T *raw = pointer.get();
        program_->extras.push_back(std::move(pointer));
        return raw;
    }

    // Adds an instruction, with the statement's guard and source line.
    Instruction &emit(const Instruction &instruction);
    void unsupported(const Statement &statement, const char *why = nullptr);

    // Control flow.
    void branch_to(std::string_view label, Instruction instruction);
    const std::vector<Operand> *branch_targets(std::string_view label) const;
    void emit_branch_table(const std::vector<Operand> &labels, Instruction instruction);
    const Frame *frame_of(std::string_view function) const;
    bool in_entry() const
    {
        return function_->is_entry;
    }
    const char *kernel_name() const
    {
        return program_->name.c_str();
    }

  private:
    struct Label {
        std::unordered_map<std::string_view, int> positions;
        std::vector<std::pair<size_t, std::string_view>> uses;
        std::vector<std::pair<std::vector<int> *, std::vector<std::string_view>>> tables;
        std::map<std::string_view, std::vector<Operand>> targets;
    };

    void decode_function(const Function &function, const std::vector<Statement> &statements);
    void decode_statement(const Statement &statement);
    void decode_callees(const std::vector<Statement> &statements);
    void declare(const Variable &variable);
    void declare_register(std::string_view name, Type type);
    Symbol allocate_local(const Variable &variable);
    void resolve_labels();
    void layout_dynamic_shared();
    uint32_t allocate_register(size_t bytes, bool pinned = false);
    uint32_t use(uint32_t offset);
    uint32_t define(uint32_t offset);
    void emit_conversion(const Instruction &conversion);
    uint32_t symbol_address(const Operand &operand, size_t width);
    uint32_t preset(Preset preset);
    void fail(const std::string &message);

    Module *module_;
    Program *program_;
    const Function *function_ = nullptr;
    const Statement *statement_ = nullptr;
    std::vector<std::unordered_map<std::string_view, Symbol>> scopes_;
    std::unordered_map<std::string_view, Symbol> module_shared_;
    std::map<std::string_view, Frame> frames_;
    std::set<std::string_view> decoding_;
    Label labels_;
    uint32_t next_predicate_ = 0, predicates_left_ = 0;
    std::map<std::tuple<int, int, uint64_t, int>, uint32_t> preset_cache_;
    std::vector<size_t> dynamic_presets_;
    std::map<std::string_view, int> symbol_numbers_;
    std::vector<Instruction> after_; // conversions of results, added behind the current instruction
    std::deque<std::string> range_names_;
    std::vector<RegisterUnit> units_;
    std::vector<RegisterAccess> accesses_; // of each instruction
    RegisterAccess pending_;               // of the next one
    std::vector<BranchTable> tables_;
    bool has_calls_ = false;
};

// The decoder of an opcode's first word, or NULL.
using DecodeFunction = void (*)(Decoder &decoder, const Statement &statement);
DecodeFunction find_opcode(std::string_view word);

} // namespace gpusim::ptx
