// Exponentials, roots and the like. What the hardware approximates is computed precisely here.
#include "half.h"
#include "opcodes.h"
#include "pick.h"

#include <cmath>

namespace gpusim::ptx
{

namespace
{

template <class T> T flush_single(T x)
{
    if constexpr (sizeof(T) == 4) {
        return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T(0), x) : x;
    } else {
        return x;
    }
}

struct Exp2 {
    template <class T> T operator()(T x) const
    {
        return std::exp2(x);
    }
};
struct Log2 {
    template <class T> T operator()(T x) const
    {
        return std::log2(x);
    }
};
struct Reciprocal {
    template <class T> T operator()(T x) const
    {
        return T(1) / x;
    }
};
struct SquareRoot {
    template <class T> T operator()(T x) const
    {
        return std::sqrt(x);
    }
};
struct ReciprocalRoot {
    template <class T> T operator()(T x) const
    {
        return static_cast<T>(1.0 / std::sqrt(static_cast<double>(x)));
    }
};
struct Sine {
    template <class T> T operator()(T x) const
    {
        return static_cast<T>(std::sin(static_cast<double>(x)));
    }
};
struct Cosine {
    template <class T> T operator()(T x) const
    {
        return static_cast<T>(std::cos(static_cast<double>(x)));
    }
};
struct HyperbolicTangent {
    template <class T> T operator()(T x) const
    {
        return static_cast<T>(std::tanh(static_cast<double>(x)));
    }
};

template <class F> struct Flushed {
    template <class T> T operator()(T x) const
    {
        return flush_single(F()(flush_single(x)));
    }
};

template <class T, class F> void do_rounded(Warp &warp, const Instruction &in, uint32_t lanes)
{
    ScopedRounding rounding(static_cast<Rounding>(in.mode));
    apply1<T, T, F>(warp, in, lanes);
}

template <class H, class F, bool Packed> void do_half(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map1<uint32_t, uint32_t>(warp, in, lanes, [](uint32_t x) {
        uint32_t low = to_half<H>(F()(to_float(H{static_cast<uint16_t>(x)}))).bits;
        uint32_t high = Packed ? to_half<H>(F()(to_float(H{static_cast<uint16_t>(x >> 16)}))).bits : 0;
        return low | high << 16;
    });
}

template <class F> Handler pick(const Statement &statement, Type type)
{
    bool flushes = statement.has("ftz"), rounds = rounding_of(statement) != Rounding::nearest;
    switch (type) {
    case Type::f32:
        return rounds    ? Handler(do_rounded<float, F>)
               : flushes ? Handler(apply1<float, float, Flushed<F>>)
                         : Handler(apply1<float, float, F>);
    case Type::f64: return rounds ? do_rounded<double, F> : apply1<double, double, F>;
    case Type::f16: return do_half<Half, F, false>;
    case Type::f16x2: return do_half<Half, F, true>;
    case Type::bf16: return do_half<Bfloat, F, false>;
    case Type::bf16x2: return do_half<Bfloat, F, true>;
    default: return nullptr;
    }
}

} // namespace

void decode_approximation(Decoder &decoder, const Statement &statement)
{
    static const struct {
        const char *name;
        Handler (*pick)(const Statement &, Type);
    } kFunctions[] = {{"ex2", pick<Exp2>},
                      {"lg2", pick<Log2>},
                      {"rcp", pick<Reciprocal>},
                      {"sqrt", pick<SquareRoot>},
                      {"rsqrt", pick<ReciprocalRoot>},
                      {"sin", pick<Sine>},
                      {"cos", pick<Cosine>},
                      {"tanh", pick<HyperbolicTangent>}};
    Type type = first_type(statement);
    for (const auto &function : kFunctions) {
        Handler handler = statement.words[0] == function.name ? function.pick(statement, type) : nullptr;
        if (handler) {
            emit_simple(decoder, statement, handler, register_width(type), register_width(type)).mode =
                static_cast<uint8_t>(rounding_of(statement));
            return;
        }
    }
    decoder.unsupported(statement);
}

} // namespace gpusim::ptx
