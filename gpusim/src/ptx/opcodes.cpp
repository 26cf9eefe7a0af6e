#include "opcodes.h"

#include "pick.h"

#include <unordered_map>

namespace gpusim::ptx
{

DecodeFunction find_opcode(std::string_view word)
{
    static const std::unordered_map<std::string_view, DecodeFunction> kOpcodes = {
        {"add", decode_arithmetic},
        {"sub", decode_arithmetic},
        {"mul", decode_arithmetic},
        {"mad", decode_arithmetic},
        {"fma", decode_arithmetic},
        {"div", decode_arithmetic},
        {"rem", decode_arithmetic},
        {"abs", decode_arithmetic},
        {"neg", decode_arithmetic},
        {"min", decode_arithmetic},
        {"max", decode_arithmetic},
        {"sad", decode_arithmetic},
        {"mul24", decode_arithmetic},
        {"mad24", decode_arithmetic},
        {"copysign", decode_arithmetic},
        {"addc", decode_carry},
        {"subc", decode_carry},
        {"madc", decode_carry},
        {"dp4a", decode_dot_product},
        {"dp2a", decode_dot_product},
        {"ex2", decode_approximation},
        {"lg2", decode_approximation},
        {"rcp", decode_approximation},
        {"sqrt", decode_approximation},
        {"rsqrt", decode_approximation},
        {"sin", decode_approximation},
        {"cos", decode_approximation},
        {"tanh", decode_approximation},
        {"and", decode_logic},
        {"or", decode_logic},
        {"xor", decode_logic},
        {"not", decode_logic},
        {"cnot", decode_bits},
        {"lop3", decode_bits},
        {"shl", decode_bits},
        {"shr", decode_bits},
        {"shf", decode_bits},
        {"bfe", decode_bits},
        {"bfi", decode_bits},
        {"bfind", decode_bits},
        {"brev", decode_bits},
        {"clz", decode_bits},
        {"popc", decode_bits},
        {"prmt", decode_bits},
        {"bmsk", decode_bits},
        {"szext", decode_bits},
        {"fns", decode_bits},
        {"setp", decode_setp},
        {"set", decode_set},
        {"selp", decode_select},
        {"slct", decode_select},
        {"testp", decode_testp},
        {"cvt", decode_cvt},
        {"mov", decode_mov},
        {"cvta", decode_cvta},
        {"isspacep", decode_isspacep},
        {"ld", decode_load},
        {"ldu", decode_load},
        {"st", decode_store},
        {"prefetch", decode_hint},
        {"prefetchu", decode_hint},
        {"discard", decode_hint},
        {"applypriority", decode_hint},
        {"createpolicy", decode_hint},
        {"setmaxnreg", decode_hint},
        {"griddepcontrol", decode_hint},
        {"pmevent", decode_hint},
        {"atom", decode_atomic},
        {"red", decode_atomic},
        {"cp", decode_cp},
        {"shfl", decode_shfl},
        {"vote", decode_vote},
        {"match", decode_match},
        {"redux", decode_redux},
        {"elect", decode_elect},
        {"activemask", decode_activemask},
        {"bar", decode_barrier},
        {"barrier", decode_barrier},
        {"fence", decode_fence},
        {"membar", decode_fence},
        {"mbarrier", decode_mbarrier},
        {"mma", decode_mma},
        {"ldmatrix", decode_ldmatrix},
        {"stmatrix", decode_stmatrix},
        {"bra", decode_branch},
        {"brx", decode_indexed_branch},
        {"call", decode_call},
        {"ret", decode_return},
        {"exit", decode_return},
        {"trap", decode_trap},
        {"brkpt", decode_trap},
        {"nanosleep", decode_pause},
    };
    auto found = kOpcodes.find(word);
    return found == kOpcodes.end() ? nullptr : found->second;
}

Type first_type(const Statement &statement)
{
    for (size_t i = 1; i < statement.words.size(); i++) {
        Type type = parse_type(statement.words[i]);
        if (type != Type::none) {
            return type;
        }
    }
    return Type::none;
}

Type last_type(const Statement &statement)
{
    for (size_t i = statement.words.size(); i-- > 1;) {
        Type type = parse_type(statement.words[i]);
        if (type != Type::none) {
            return type;
        }
    }
    return Type::none;
}

Instruction &emit_simple(Decoder &decoder, const Statement &statement, Handler handler, size_t result_width,
                         size_t width)
{
    Instruction in;
    in.handler = handler;
    const std::vector<Operand> &operands = statement.operands;
    uint32_t *const fields[] = {&in.a, &in.b, &in.c};
    for (size_t i = 1; i < operands.size() && i < 4; i++) {
        *fields[i - 1] = decoder.source(operands[i], width);
    }
    in.d = decoder.destination(operands[0], result_width);
    return decoder.emit(in);
}

} // namespace gpusim::ptx
