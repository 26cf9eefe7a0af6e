// Single and double precision: IEEE arithmetic with PTX's rounding, flush and saturation modifiers.
#include "opcodes.h"
#include "pick.h"
#include "scoped_rounding.h"

#include <cmath>
#include <limits>

namespace gpusim::ptx
{

namespace
{

// Subnormals become zeros of the same sign.
inline float flush(float x)
{
    uint32_t bits = to_word<float>(x);
    return (bits & 0x7F800000u) == 0 ? from_word<float>(bits & 0x80000000u) : x;
}
inline double flush(double x)
{
    return x;
}

template <class T> T saturate(T x)
{
    return x > T(1) ? T(1) : x > T(0) ? x : T(0); // NaN becomes zero
}

struct Add {
    template <class T> T operator()(T a, T b) const
    {
        return a + b;
    }
};
struct Subtract {
    template <class T> T operator()(T a, T b) const
    {
        return a - b;
    }
};
struct Multiply {
    template <class T> T operator()(T a, T b) const
    {
        return a * b;
    }
};
struct Divide {
    template <class T> T operator()(T a, T b) const
    {
        return a / b;
    }
};
struct Fma {
    template <class T> T operator()(T a, T b, T c) const
    {
        return std::fma(a, b, c);
    }
};
struct Minimum { // of a number and a NaN: the number; -0 is less than +0
    template <class T> T operator()(T a, T b) const
    {
        if (a != a || b != b) {
            return a != a ? b : a;
        }
        return a < b || (a == b && std::signbit(a)) ? a : b;
    }
};
struct Maximum {
    template <class T> T operator()(T a, T b) const
    {
        if (a != a || b != b) {
            return a != a ? b : a;
        }
        return a > b || (a == b && !std::signbit(a)) ? a : b;
    }
};
struct MinimumNan {
    template <class T> T operator()(T a, T b) const
    {
        return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : Minimum()(a, b);
    }
};
struct MaximumNan {
    template <class T> T operator()(T a, T b) const
    {
        return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : Maximum()(a, b);
    }
};
struct Absolute {
    template <class T> T operator()(T a) const
    {
        return std::fabs(a);
    }
};
struct Negate {
    template <class T> T operator()(T a) const
    {
        return -a;
    }
};
struct CopySign { // the sign of the first operand on the second
    template <class T> T operator()(T a, T b) const
    {
        return std::copysign(b, a);
    }
};

template <class F, bool Flush, bool Saturate> struct Modified {
    template <class T> static T finish(T x)
    {
        x = Flush ? flush(x) : x;
        return Saturate ? saturate(x) : x;
    }
    template <class T> static T start(T x)
    {
        return Flush ? flush(x) : x;
    }
    template <class T> T operator()(T a) const
    {
        return finish(F()(start(a)));
    }
    template <class T> T operator()(T a, T b) const
    {
        return finish(F()(start(a), start(b)));
    }
    template <class T> T operator()(T a, T b, T c) const
    {
        return finish(F()(start(a), start(b), start(c)));
    }
};

template <int Arguments, class R, class T, class F> void do_rounded(Warp &warp, const Instruction &in, uint32_t lanes)
{
    ScopedRounding rounding(static_cast<Rounding>(in.mode));
    apply<Arguments, R, T, F>()(warp, in, lanes);
}

template <int Arguments, class F> Handler pick_rounded(Type type)
{
    return type == Type::f32 ? Handler(do_rounded<Arguments, float, float, F>)
                             : Handler(do_rounded<Arguments, double, double, F>);
}

template <int Arguments, class F> Handler pick_modified(const Statement &statement, Type type)
{
    bool flushes = statement.has("ftz"), saturates = statement.has("sat");
    bool rounded = rounding_of(statement) != Rounding::nearest;
    if (rounded) {
        return flushes     ? saturates ? pick_rounded<Arguments, Modified<F, true, true>>(type)
                                       : pick_rounded<Arguments, Modified<F, true, false>>(type)
                   : saturates ? pick_rounded<Arguments, Modified<F, false, true>>(type)
                           : pick_rounded<Arguments, F>(type);
    }
    return flushes     ? saturates ? pick_float<Arguments, Modified<F, true, true>>(type)
                                   : pick_float<Arguments, Modified<F, true, false>>(type)
               : saturates ? pick_float<Arguments, Modified<F, false, true>>(type)
                       : pick_float<Arguments, F>(type);
}

#if defined(__x86_64__)
// std::fma is a call on machines built for without the instruction: use it where the processor has it.
__attribute__((target("avx2,fma"))) void fma_lanes(float *d, const float *a, const float *b, const float *c)
{
    LANES_ARE_INDEPENDENT
    for (int lane = 0; lane < 32; lane++) {
        d[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    }
}

__attribute__((target("avx2,fma"))) void fma_lane(float *d, const float *a, const float *b, const float *c)
{
    *d = __builtin_fmaf(*a, *b, *c);
}

void do_fma_single(Warp &warp, const Instruction &in, uint32_t lanes)
{
    float *d = reinterpret_cast<float *>(warp.registers + in.d);
    const float *a = reinterpret_cast<const float *>(warp.registers + in.a);
    const float *b = reinterpret_cast<const float *>(warp.registers + in.b);
    const float *c = reinterpret_cast<const float *>(warp.registers + in.c);
    if (lanes == kAllLanes) {
        fma_lanes(d, a, b, c);
        return;
    }
    each_lane(lanes, [=](int lane) { fma_lane(d + lane, a + lane, b + lane, c + lane); });
}

bool has_fma()
{
    return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
}
#else
void do_fma_single(Warp &warp, const Instruction &in, uint32_t lanes)
{
    apply3<float, float, Fma>(warp, in, lanes);
}

bool has_fma()
{
    return false;
}
#endif

} // namespace

Handler float_handler(const Statement &statement, Type type)
{
    std::string_view name = statement.words[0];
    bool plain = !statement.has("ftz") && !statement.has("sat") && rounding_of(statement) == Rounding::nearest;
    if ((name == "fma" || name == "mad") && type == Type::f32 && plain && has_fma()) {
        return do_fma_single;
    }
    if (name == "add") {
        return pick_modified<2, Add>(statement, type);
    }
    if (name == "sub") {
        return pick_modified<2, Subtract>(statement, type);
    }
    if (name == "mul") {
        return pick_modified<2, Multiply>(statement, type);
    }
    if (name == "div") {
        return pick_modified<2, Divide>(statement, type);
    }
    if (name == "fma" || name == "mad") {
        return pick_modified<3, Fma>(statement, type);
    }
    if (name == "min" || name == "max") {
        if (statement.operands.size() != 3 || statement.has("xorsign")) {
            return nullptr;
        }
        bool nan = statement.has("NaN");
        if (name == "min") {
            return nan ? pick_modified<2, MinimumNan>(statement, type) : pick_modified<2, Minimum>(statement, type);
        }
        return nan ? pick_modified<2, MaximumNan>(statement, type) : pick_modified<2, Maximum>(statement, type);
    }
    if (name == "abs") {
        return pick_modified<1, Absolute>(statement, type);
    }
    if (name == "neg") {
        return pick_modified<1, Negate>(statement, type);
    }
    return name == "copysign" ? pick_float<2, CopySign>(type) : nullptr;
}

} // namespace gpusim::ptx
