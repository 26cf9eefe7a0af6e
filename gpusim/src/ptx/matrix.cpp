// mma.sync: products of small matrices spread over the lanes of a warp. Each element is a chain of exact products,
// added in single precision in the order of the inner index, starting from C.
#include "gpusim/gpusim.h"
#include "half.h"
#include "opcodes.h"
#include "pick.h"

namespace gpusim::ptx
{

namespace
{

const int kRows = 16, kColumns = 8, kMaxInner = 16;

struct Shape {
    int inner;
    Type operands;    // f16, bf16, tf32
    bool half_result; // C and D are f16
    int a_registers, b_registers, c_registers;
};

struct Tiles {
    float a[kRows][kMaxInner];
    float b[kMaxInner][kColumns];
    float d[kRows][kColumns];
};

float low_half(uint32_t word, Type type)
{
    uint16_t bits = static_cast<uint16_t>(word);
    return type == Type::f16 ? to_float(Half{bits}) : to_float(Bfloat{bits});
}

// In each lane, `group` counts rows of A and columns of B, `member` walks along the inner index.
void unpack_pairs(Warp &warp, const Shape &shape, const uint32_t *a, const uint32_t *b, Tiles *tiles)
{
    for (int lane = 0; lane < 32; lane++) {
        int group = lane >> 2, member = (lane & 3) * 2;
        for (int i = 0; i < shape.a_registers; i++) {
            uint32_t word = words<uint32_t>(warp, a[i])[lane];
            float *row = &tiles->a[group + (i & 1) * 8][member + (i >> 1) * 8];
            row[0] = low_half(word, shape.operands);
            row[1] = low_half(word >> 16, shape.operands);
        }
        for (int i = 0; i < shape.b_registers; i++) {
            uint32_t word = words<uint32_t>(warp, b[i])[lane];
            tiles->b[member + i * 8][group] = low_half(word, shape.operands);
            tiles->b[member + i * 8 + 1][group] = low_half(word >> 16, shape.operands);
        }
    }
}

float tf32(uint32_t word)
{
    return from_word<float>(word & 0xFFFFE000u);
}

void unpack_singles(Warp &warp, const Shape &shape, const uint32_t *a, const uint32_t *b, Tiles *tiles)
{
    for (int lane = 0; lane < 32; lane++) {
        int group = lane >> 2, member = lane & 3;
        for (int i = 0; i < shape.a_registers; i++) {
            tiles->a[group + (i & 1) * 8][member + (i >> 1) * 4] = tf32(words<uint32_t>(warp, a[i])[lane]);
        }
        for (int i = 0; i < shape.b_registers; i++) {
            tiles->b[member + i * 4][group] = tf32(words<uint32_t>(warp, b[i])[lane]);
        }
    }
}

void load_result(Warp &warp, const Shape &shape, const uint32_t *c, Tiles *tiles)
{
    for (int lane = 0; lane < 32; lane++) {
        int group = lane >> 2, column = (lane & 3) * 2;
        for (int i = 0; i < 2; i++) {
            float *row = &tiles->d[group + i * 8][column];
            if (shape.half_result) {
                uint32_t word = words<uint32_t>(warp, c[i])[lane];
                row[0] = low_half(word, Type::f16);
                row[1] = low_half(word >> 16, Type::f16);
            } else {
                row[0] = from_word<float>(words<uint32_t>(warp, c[2 * i])[lane]);
                row[1] = from_word<float>(words<uint32_t>(warp, c[2 * i + 1])[lane]);
            }
        }
    }
}

void store_result(Warp &warp, const Shape &shape, const uint32_t *d, const Tiles &tiles)
{
    for (int lane = 0; lane < 32; lane++) {
        int group = lane >> 2, column = (lane & 3) * 2;
        for (int i = 0; i < 2; i++) {
            const float *row = &tiles.d[group + i * 8][column];
            if (shape.half_result) {
                words<uint32_t>(warp, d[i])[lane] =
                    to_half<Half>(row[0]).bits | static_cast<uint32_t>(to_half<Half>(row[1]).bits) << 16;
            } else {
                words<uint32_t>(warp, d[2 * i])[lane] = to_word<float>(row[0]);
                words<uint32_t>(warp, d[2 * i + 1])[lane] = to_word<float>(row[1]);
            }
        }
    }
}

void do_mma(Warp &warp, const Instruction &in, uint32_t lanes)
{
    if (lanes != kAllLanes) {
        fault(warp, in, __builtin_ctz(lanes), cudaErrorLaunchFailure, GPUSIM_DEADLOCK,
              "mma by lanes %08x of a warp only", lanes);
        return;
    }
    const Shape &shape = *static_cast<const Shape *>(in.extra);
    const uint32_t *d = in.list, *a = d + shape.c_registers, *b = a + shape.a_registers, *c = b + shape.b_registers;
    Tiles tiles;
    if (shape.operands == Type::tf32) {
        unpack_singles(warp, shape, a, b, &tiles);
    } else {
        unpack_pairs(warp, shape, a, b, &tiles);
    }
    load_result(warp, shape, c, &tiles);
    for (int row = 0; row < kRows; row++) {
        for (int k = 0; k < shape.inner; k++) {
            float factor = tiles.a[row][k];
            for (int column = 0; column < kColumns; column++) {
                tiles.d[row][column] += factor * tiles.b[k][column];
            }
        }
    }
    store_result(warp, shape, d, tiles);
}

bool parse_shape(const Statement &statement, Shape *shape)
{
    std::vector<Type> types;
    for (std::string_view word : statement.words) {
        if (parse_type(word) != Type::none) {
            types.push_back(parse_type(word));
        }
        shape->inner = word == "m16n8k16" ? 16 : word == "m16n8k8" ? 8 : word == "m16n8k4" ? 4 : shape->inner;
    }
    if (types.size() != 4 || shape->inner == 0 || !statement.has("row") || !statement.has("col") ||
        types[1] != types[2] || types[0] != types[3] || statement.words[1] != "sync") {
        return false;
    }
    shape->operands = types[1];
    shape->half_result = types[0] == Type::f16;
    bool pairs = types[1] == Type::f16 || types[1] == Type::bf16;
    int width = pairs ? 8 : 4; // of the inner index in a register
    shape->a_registers = 2 * shape->inner / width;
    shape->b_registers = shape->inner / width;
    shape->c_registers = shape->half_result ? 2 : 4;
    return (pairs && shape->inner >= 8) || (types[1] == Type::tf32 && shape->inner <= 8);
}

} // namespace

void decode_mma(Decoder &decoder, const Statement &statement)
{
    Shape shape{};
    if (!parse_shape(statement, &shape)) {
        decoder.unsupported(statement);
        return;
    }
    Instruction in;
    in.handler = do_mma;
    in.flow = Flow::rendezvous;
    in.extra = decoder.extra(shape);
    std::vector<uint32_t> registers;
    for (const Operand &part : statement.operands[0].parts) {
        registers.push_back(decoder.destination(part, 4));
    }
    for (size_t i = 1; i < 4; i++) {
        const Operand &operand = statement.operands[i];
        if (operand.kind == Operand::Kind::vector) {
            for (const Operand &part : operand.parts) {
                registers.push_back(decoder.source(part, 4));
            }
        } else {
            registers.push_back(decoder.source(operand, 4));
        }
    }
    in.count = static_cast<uint8_t>(registers.size());
    if (in.count != 2 * shape.c_registers + shape.a_registers + shape.b_registers) {
        decoder.unsupported(statement, "a wrong number of registers");
        return;
    }
    in.list = decoder.list(registers);
    decoder.emit(in);
}

} // namespace gpusim::ptx
