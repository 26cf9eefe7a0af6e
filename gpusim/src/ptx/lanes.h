// Access to the lanes of a warp's registers. A register of up to 32 bits is 32 words, one of 64 bits is 32 double
// words; a predicate is one word with a bit for each lane. Values of 8 and 16 bits sit in a word, and whoever reads
// them looks at the low bits only.
#pragma once
#include "instruction.h"
#include "machine.h"

#include <cstring>
#include <type_traits>

#if defined(__clang__)
#define LANES_ARE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LANES_ARE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace gpusim::ptx
{

template <class T> using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T> inline Word<T> *words(Warp &warp, uint32_t offset)
{
    return reinterpret_cast<Word<T> *>(warp.registers + offset);
}

inline uint32_t &predicate(Warp &warp, uint32_t offset)
{
    return *reinterpret_cast<uint32_t *>(warp.registers + offset);
}

template <class T> inline T from_word(Word<T> word)
{
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(word);
    } else {
        T value;
        memcpy(&value, &word, sizeof value);
        return value;
    }
}

template <class T> inline Word<T> to_word(T value)
{
    if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
        return static_cast<Word<T>>(static_cast<std::make_signed_t<Word<T>>>(value));
    } else if constexpr (std::is_integral_v<T>) {
        return value;
    } else {
        Word<T> word = 0;
        memcpy(&word, &value, sizeof value);
        return word;
    }
}

// Calls function(lane) for each lane of the set.
template <class F> inline void each_lane(uint32_t lanes, F function)
{
    if (lanes == kAllLanes) {
        LANES_ARE_INDEPENDENT
        for (int lane = 0; lane < 32; lane++) {
            function(lane);
        }
    } else {
        for (; lanes != 0; lanes &= lanes - 1) {
            function(__builtin_ctz(lanes));
        }
    }
}

// d = F(a), F(a, b), F(a, b, c); R is the type of d.
template <class R, class T, class F> inline void map1(Warp &warp, const Instruction &in, uint32_t lanes, F function)
{
    Word<R> *d = words<R>(warp, in.d);
    const Word<T> *a = words<T>(warp, in.a);
    each_lane(lanes, [=](int lane) { d[lane] = to_word<R>(function(from_word<T>(a[lane]))); });
}

template <class R, class T, class F> inline void map2(Warp &warp, const Instruction &in, uint32_t lanes, F function)
{
    Word<R> *d = words<R>(warp, in.d);
    const Word<T> *a = words<T>(warp, in.a), *b = words<T>(warp, in.b);
    each_lane(lanes, [=](int lane) { d[lane] = to_word<R>(function(from_word<T>(a[lane]), from_word<T>(b[lane]))); });
}

template <class R, class T, class F> inline void map3(Warp &warp, const Instruction &in, uint32_t lanes, F function)
{
    Word<R> *d = words<R>(warp, in.d);
    const Word<T> *a = words<T>(warp, in.a), *b = words<T>(warp, in.b), *c = words<T>(warp, in.c);
    each_lane(lanes, [=](int lane) {
        d[lane] = to_word<R>(function(from_word<T>(a[lane]), from_word<T>(b[lane]), from_word<T>(c[lane])));
    });
}

} // namespace gpusim::ptx
