#include "builtin.h"

#include "backing.h"
#include "gpusim/gpusim.h"
#include "lanes.h"
#include "program.h"

#include <cstdio>
#include <string>

namespace gpusim::ptx
{

namespace
{

struct Arguments {
    std::vector<size_t> offsets; // in local memory
    int result = -1;
};

uint64_t argument(const Warp &warp, int lane, size_t offset)
{
    uint64_t value;
    memcpy(&value, local_memory(warp, lane) + offset, sizeof value);
    return value;
}

const char *text_at(uint64_t address)
{
    return reinterpret_cast<const char *>(backing(address));
}

// One conversion with its flags, and the bytes it takes from the buffer.
std::string format_one(const std::string &spec, const unsigned char *values, size_t *at)
{
    char kind = spec.back();
    bool is_float = strchr("aAeEfFgG", kind) != nullptr, is_text = kind == 's';
    bool is_long = is_float || is_text || kind == 'p' || spec.find('l') != std::string::npos ||
                   spec.find('z') != std::string::npos || spec.find('j') != std::string::npos ||
                   spec.find('t') != std::string::npos;
    size_t bytes = is_long ? 8 : 4;
    *at = (*at + bytes - 1) / bytes * bytes;
    uint64_t bits = 0;
    memcpy(&bits, values + *at, bytes);
    *at += bytes;
    char text[512];
    if (is_float) {
        snprintf(text, sizeof text, spec.c_str(), from_word<double>(bits));
    } else if (is_text) {
        snprintf(text, sizeof text, spec.c_str(), text_at(bits));
    } else if (is_long) {
        snprintf(text, sizeof text, spec.c_str(), bits);
    } else {
        snprintf(text, sizeof text, spec.c_str(), static_cast<uint32_t>(bits));
    }
    return text;
}

std::string format_all(const char *format, const unsigned char *values)
{
    std::string text;
    size_t at = 0;
    for (const char *c = format; *c != 0; c++) {
        if (*c != '%') {
            text += *c;
        } else if (c[1] == '%') {
            text += *c++;
        } else {
            std::string spec(1, '%');
            do {
                spec += *++c;
            } while (*c != 0 && !strchr("diouxXcspaAeEfFgG", *c));
            if (*c == 0) {
                return text;
            }
            text += format_one(spec, values, &at);
        }
    }
    return text;
}

void do_printf(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Arguments &arguments = *static_cast<const Arguments *>(in.extra);
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        const char *format = text_at(argument(warp, lane, arguments.offsets[0]));
        uint64_t values = backing(argument(warp, lane, arguments.offsets[1]));
        static const unsigned char kNothing[8] = {};
        std::string text = format_all(format, values ? reinterpret_cast<const unsigned char *>(values) : kNothing);
        fputs(text.c_str(), stderr);
        if (arguments.result >= 0) {
            int32_t count = static_cast<int32_t>(text.size());
            memcpy(local_memory(warp, lane) + arguments.result, &count, sizeof count);
            local_is_written(warp, lane, static_cast<size_t>(arguments.result), sizeof count);
        }
    }
}

void do_assert(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Arguments &arguments = *static_cast<const Arguments *>(in.extra);
    int lane = __builtin_ctz(lanes);
    auto text = [&](size_t i) { return text_at(argument(warp, lane, arguments.offsets[i])); };
    uint32_t line = static_cast<uint32_t>(argument(warp, lane, arguments.offsets[2]));
    fault(warp, in, lane, cudaErrorAssert, GPUSIM_TRAP, "assertion '%s' failed at %s:%u in %s", text(0),
          text(1), line, text(3));
}

} // namespace

unsigned char *local_memory(const Warp &warp, int lane)
{
    size_t thread = warp.index * 32 + static_cast<size_t>(lane);
    return warp.block->local + thread * warp.block->grid->program->local_bytes;
}

void local_is_written(Warp &warp, int lane, size_t offset, size_t bytes)
{
    if (Block &block = *warp.block; block.local_written) {
        memset(block.local_written + (local_memory(warp, lane) - block.local) + offset, 1, bytes);
    }
}

bool decode_builtin(Decoder &decoder, std::string_view name, const std::vector<Operand> &results,
                    const std::vector<Operand> &parameters)
{
    bool prints = name == "vprintf" && parameters.size() == 2;
    bool asserts = name == "__assertfail" && parameters.size() == 5;
    if (!prints && !asserts) {
        return false;
    }
    Arguments arguments;
    for (const Operand &parameter : parameters) {
        const Symbol *symbol = decoder.find_symbol(parameter.name);
        if (!symbol) {
            return false;
        }
        arguments.offsets.push_back(symbol->offset);
    }
    if (!results.empty() && decoder.find_symbol(results[0].name)) {
        arguments.result = static_cast<int>(decoder.find_symbol(results[0].name)->offset);
    }
    Instruction in;
    in.handler = prints ? do_printf : do_assert;
    in.flow = Flow::memory;
    in.extra = decoder.extra(arguments);
    decoder.emit(in);
    return true;
}

} // namespace gpusim::ptx
