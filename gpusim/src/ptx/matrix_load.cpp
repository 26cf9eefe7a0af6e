// ldmatrix and stmatrix: matrices of 8 rows of 16 bytes between shared memory and the lanes of a warp. The rows of
// matrix m are at the addresses that lanes 8m to 8m+7 give.
#include "access.h"
#include "opcodes.h"
#include "pick.h"

namespace gpusim::ptx
{

namespace
{

const int kMatrixRows = 8;
const size_t kRowBytes = 16;

// The rows of all matrices; false after a fault.
bool find_rows(Warp &warp, const Instruction &in, unsigned flags, unsigned char **rows)
{
    for (int lane = 0; lane < in.count * kMatrixRows; lane++) {
        rows[lane] = locate(warp, in, lane, kRowBytes, flags);
        if (!rows[lane]) {
            return false;
        }
    }
    return true;
}

// Where the two elements of a lane are: row and column.
struct Element {
    int row, column;
};

Element element_of(int lane, int which, bool transposed)
{
    int major = lane >> 2, minor = (lane & 3) * 2 + which;
    return transposed ? Element{minor, major} : Element{major, minor};
}

void do_ldmatrix(Warp &warp, const Instruction &in, uint32_t)
{
    unsigned char *rows[32];
    if (!find_rows(warp, in, kRead, rows)) {
        return;
    }
    for (int matrix = 0; matrix < in.count; matrix++) {
        uint32_t *d = words<uint32_t>(warp, in.list[matrix]);
        for (int lane = 0; lane < 32; lane++) {
            uint32_t word = 0;
            for (int which = 0; which < 2; which++) {
                Element element = element_of(lane, which, in.mode != 0);
                uint16_t value;
                memcpy(&value, rows[matrix * kMatrixRows + element.row] + 2 * element.column, sizeof value);
                word |= static_cast<uint32_t>(value) << (16 * which);
            }
            d[lane] = word;
        }
    }
}

void do_stmatrix(Warp &warp, const Instruction &in, uint32_t)
{
    unsigned char *rows[32];
    if (!find_rows(warp, in, kWrite, rows)) {
        return;
    }
    for (int matrix = 0; matrix < in.count; matrix++) {
        const uint32_t *source = words<uint32_t>(warp, in.list[matrix]);
        for (int lane = 0; lane < 32; lane++) {
            for (int which = 0; which < 2; which++) {
                Element element = element_of(lane, which, in.mode != 0);
                uint16_t value = static_cast<uint16_t>(source[lane] >> (16 * which));
                memcpy(rows[matrix * kMatrixRows + element.row] + 2 * element.column, &value, sizeof value);
            }
        }
    }
}

void decode_matrix_access(Decoder &decoder, const Statement &statement, bool load)
{
    if (!statement.has("m8n8") || last_type(statement) != Type::b16) {
        decoder.unsupported(statement);
        return;
    }
    const Operand &memory = statement.operands[load ? 1 : 0], &value = statement.operands[load ? 0 : 1];
    Instruction in;
    in.handler = load ? do_ldmatrix : do_stmatrix;
    in.flow = Flow::rendezvous;
    in.space = space_of(statement);
    in.mode = statement.has("trans");
    decoder.address(memory, &in);
    std::vector<uint32_t> registers;
    auto add = [&](const Operand &part) {
        registers.push_back(load ? decoder.destination(part, 4) : decoder.source(part, 4));
    };
    if (value.kind == Operand::Kind::vector) {
        for (const Operand &part : value.parts) {
            add(part);
        }
    } else {
        add(value);
    }
    in.count = static_cast<uint8_t>(registers.size());
    in.list = decoder.list(registers);
    decoder.emit(in);
}

} // namespace

void decode_ldmatrix(Decoder &decoder, const Statement &statement)
{
    decode_matrix_access(decoder, statement, true);
}

void decode_stmatrix(Decoder &decoder, const Statement &statement)
{
    decode_matrix_access(decoder, statement, false);
}

} // namespace gpusim::ptx
