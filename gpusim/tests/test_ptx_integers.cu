// Integer arithmetic, carry chains and bit operations against the host's.
#include "ptx_values.h"

namespace {

using u32 = uint32_t;
using s32 = int32_t;
using u64 = uint64_t;
using s64 = int64_t;

PTX_OPERATION(add_u32, u32, u32, "add.u32 %0, %1, %2;", "r", "r", return a + b;);
PTX_OPERATION(sub_s64, u64, u64, "sub.s64 %0, %1, %2;", "l", "l", return a - b;);
PTX_OPERATION(mul_lo, u32, u32, "mul.lo.s32 %0, %1, %2;", "r", "r", return a * b;);
PTX_OPERATION(mul_hi_u32, u32, u32, "mul.hi.u32 %0, %1, %2;", "r", "r", return u32(u64(a) * b >> 32););
PTX_OPERATION(mul_hi_s32, u32, u32, "mul.hi.s32 %0, %1, %2;", "r", "r", return u32(u64(s64(s32(a)) * s32(b)) >> 32););
PTX_OPERATION(mul_hi_u64, u64, u64, "mul.hi.u64 %0, %1, %2;", "l", "l", return u64((unsigned __int128)a * b >> 64););
PTX_OPERATION(mul_hi_s64, u64, u64, "mul.hi.s64 %0, %1, %2;", "l", "l", return u64(__int128(s64(a)) * s64(b) >> 64););
PTX_OPERATION(mul_wide_u32, u32, u64, "mul.wide.u32 %0, %1, %2;", "l", "r", return u64(a) * b;);
PTX_OPERATION(mul_wide_s32, u32, u64, "mul.wide.s32 %0, %1, %2;", "l", "r", return u64(s64(s32(a)) * s32(b)););
PTX_OPERATION(mad_lo, u32, u32, "mad.lo.u32 %0, %1, %2, %3;", "r", "r", return a * b + c;);
PTX_OPERATION(mad_hi, u32, u32, "mad.hi.u32 %0, %1, %2, %3;", "r", "r", return u32(u64(a) * b >> 32) + c;);
PTX_OPERATION(mad_wide, u32, u64, "{ .reg .u64 t; cvt.u64.u32 t, %3; mad.wide.s32 %0, %1, %2, t; }", "l", "r",
              return u64(s64(s32(a)) * s32(b)) + c;);
PTX_OPERATION(div_u32, u32, u32, "div.u32 %0, %1, %2;", "r", "r", return b ? a / b : ~0u;);
PTX_OPERATION(rem_s32, u32, u32, "rem.s32 %0, %1, %2;", "r", "r",
              return b == 0     ? a
                     : b == ~0u ? 0
                                : u32(s32(a) % s32(b)););
PTX_OPERATION(min_s32, u32, u32, "min.s32 %0, %1, %2;", "r", "r", return s32(a) < s32(b) ? a : b;);
PTX_OPERATION(max_u64, u64, u64, "max.u64 %0, %1, %2;", "l", "l", return a > b ? a : b;);
PTX_OPERATION(abs_s32, u32, u32, "abs.s32 %0, %1;", "r", "r", return s32(a) < 0 ? 0 - a : a;);
PTX_OPERATION(neg_s16, u32, u32, "{ .reg .b16 t; cvt.u16.u32 t, %1; neg.s16 t, t; cvt.s32.s16 %0, t; }", "r", "r",
              return u32(s32(int16_t(-int16_t(a)))););
PTX_OPERATION(add_s16, u32, u32,
              "{ .reg .b16 s, t; cvt.u16.u32 s, %1; cvt.u16.u32 t, %2; add.s16 s, s, t; cvt.u32.u16 %0, s; }", "r", "r",
              return uint16_t(a + b););
PTX_OPERATION(sad, u32, u32, "sad.u32 %0, %1, %2, %3;", "r", "r", return (a < b ? b - a : a - b) + c;);
PTX_OPERATION(dp4a_signed, u32, u32, "dp4a.s32.s32 %0, %1, %2, %3;", "r", "r",
              for (int i = 0; i < 4; i++) c += u32(int8_t(a >> 8 * i) * int8_t(b >> 8 * i)); return c;);
PTX_OPERATION(dp4a_unsigned, u32, u32, "dp4a.u32.u32 %0, %1, %2, %3;", "r", "r",
              for (int i = 0; i < 4; i++) c += u32(uint8_t(a >> 8 * i)) * uint8_t(b >> 8 * i); return c;);
PTX_OPERATION(dp2a_low, u32, u32, "dp2a.lo.s32.u32 %0, %1, %2, %3;", "r", "r",
              for (int i = 0; i < 2; i++) c += u32(int16_t(a >> 16 * i) * int32_t(uint8_t(b >> 8 * i))); return c;);
PTX_OPERATION(dp2a_high, u32, u32, "dp2a.hi.u32.s32 %0, %1, %2, %3;", "r", "r",
              for (int i = 0; i < 2; i++) c += u32(uint16_t(a >> 16 * i)) * u32(int8_t(b >> 8 * (i + 2))); return c;);
template <class T, class F> u32 each_half(u32 a, u32 b, F function)
{
    return u32(uint16_t(function(T(a), T(b)))) | u32(uint16_t(function(T(a >> 16), T(b >> 16)))) << 16;
}
PTX_OPERATION(add_pair, u32, u32, "add.u16x2 %0, %1, %2;", "r", "r",
              return each_half<uint16_t>(a, b, [](int x, int y) { return x + y; }););
PTX_OPERATION(min_pair, u32, u32, "min.u16x2 %0, %1, %2;", "r", "r",
              return each_half<uint16_t>(a, b, [](int x, int y) { return std::min(x, y); }););
PTX_OPERATION(min_signed_pair, u32, u32, "min.s16x2 %0, %1, %2;", "r", "r",
              return each_half<int16_t>(a, b, [](int x, int y) { return std::min(x, y); }););
PTX_OPERATION(max_signed_pair, u32, u32, "max.s16x2 %0, %1, %2;", "r", "r",
              return each_half<int16_t>(a, b, [](int x, int y) { return std::max(x, y); }););
// 128-bit sum of (b, a) and (a, c); its high half
PTX_OPERATION(carry_add, u64, u64, "{ .reg .u64 t; add.cc.u64 t, %1, %3; addc.u64 %0, %2, %1; }", "l", "l",
              return u64(((unsigned __int128)b << 64 | a) + ((unsigned __int128)a << 64 | c) >> 64););
PTX_OPERATION(carry_subtract, u32, u32, "{ .reg .u32 t; sub.cc.u32 t, %1, %3; subc.u32 %0, %2, %1; }", "r", "r",
              return u32(((u64(b) << 32 | a) - (u64(a) << 32 | c)) >> 32););
PTX_OPERATION(carry_mad, u32, u32, "{ .reg .u32 t; mad.lo.cc.u32 t, %1, %2, %3; madc.hi.u32 %0, %1, %2, 0; }", "r", "r",
              return u32((u64(a) * b + c) >> 32););

PTX_OPERATION(shl_b32, u32, u32, "shl.b32 %0, %1, %2;", "r", "r", return b > 31 ? 0 : a << b;);
PTX_OPERATION(shr_u32, u32, u32, "shr.u32 %0, %1, %2;", "r", "r", return b > 31 ? 0 : a >> b;);
PTX_OPERATION(shr_s32, u32, u32, "shr.s32 %0, %1, %2;", "r", "r", return u32(s32(a) >> (b > 31 ? 31 : b)););
PTX_OPERATION(shf_left, u32, u32, "shf.l.wrap.b32 %0, %1, %2, %3;", "r", "r",
              return u32((u64(b) << 32 | a) << (c & 31) >> 32););
PTX_OPERATION(shf_right, u32, u32, "shf.r.clamp.b32 %0, %1, %2, %3;", "r", "r",
              return u32((u64(b) << 32 | a) >> (c > 32 ? 32 : c)););
PTX_OPERATION(lop3, u32, u32, "lop3.b32 %0, %1, %2, %3, 0x96;", "r", "r", return a ^ b ^ c;);
PTX_OPERATION(lop3_select, u32, u32, "lop3.b32 %0, %1, %2, %3, 0xCA;", "r", "r", return (a & b) | (~a & c););
PTX_OPERATION(prmt, u32, u32, "prmt.b32 %0, %1, %2, %3;", "r", "r", u32 d = 0; for (int i = 0; i < 4; i++) {
    u32 s = c >> 4 * i & 15, byte = u32((u64(b) << 32 | a) >> 8 * (s & 7)) & 255;
    d |= (s & 8 ? byte & 128 ? 255 : 0 : byte) << 8 * i;
} return d;);
PTX_OPERATION(bfi, u32, u32,
              "{ .reg .u32 p, l; and.b32 p, %3, 31; shr.u32 l, %3, 8; and.b32 l, l, 31; bfi.b32 %0, %1, %2, p, l; }",
              "r", "r", u32 p = c & 31;
              u32 l = c >> 8 & 31; u32 mask = ((1u << l) - 1) << p; return (a << p & mask) | (b & ~mask););
PTX_OPERATION(bfe_u32, u32, u32, "bfe.u32 %0, %1, %2, %3;", "r", "r", u32 p = b & 255; u32 l = c & 255;
              return p > 31 ? 0 : a >> p & (l > 31 ? ~0u : (1u << l) - 1););
PTX_OPERATION(bfe_s32, u32, u32, "bfe.s32 %0, %1, %2, %3;", "r", "r", u32 p = b & 255; u32 l = c & 255;
              if (l == 0) return 0; u32 top = p + l - 1 < 31 ? p + l - 1 : 31; u32 d = 0;
              for (u32 i = 0; i < 32; i++) d |= (i < l && p + i < 32 ? a >> (p + i) & 1 : a >> top & 1) << i;
              return d;);
PTX_OPERATION(bfind, u32, u32, "bfind.s32 %0, %1;", "r", "r", u32 v = s32(a) < 0 ? ~a : a;
              return v ? 31 - __builtin_clz(v) : ~0u;);
PTX_OPERATION(brev, u64, u64, "brev.b64 %0, %1;", "l", "l", u64 d = 0;
              for (int i = 0; i < 64; i++) d |= (a >> i & 1) << (63 - i); return d;);
PTX_OPERATION(clz, u64, u32, "clz.b64 %0, %1;", "r", "l", return a ? __builtin_clzll(a) : 64;);
PTX_OPERATION(popc, u32, u32, "popc.b32 %0, %1;", "r", "r", return __builtin_popcount(a););
PTX_OPERATION(set_lt, u32, u32, "set.lt.u32.s32 %0, %1, %2;", "r", "r", return s32(a) < s32(b) ? ~0u : 0;);
PTX_OPERATION(setp_combined, u32, u32,
              "{ .reg .pred p, q, r; setp.gt.u32 r, %2, %3; setp.lt.and.s32 p|q, %1, %2, r; selp.u32 %0, 1, 0, p; @q "
              "add.u32 %0, %0, 2; }",
              "r", "r", bool r = b > c;
              bool p = s32(a) < s32(b); return (p && r ? 1 : 0) + (!p && r ? 2 : 0););
PTX_OPERATION(select_by_sign, u32, u32, "slct.u32.s32 %0, %1, %2, %3;", "r", "r", return s32(c) >= 0 ? a : b;);
PTX_OPERATION(pack, u32, u64, "{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b64 %0, {l, h, l, h}; }", "l", "r",
              return u64(a) << 32 | a;);

} // namespace

GPUSIM_TEST(arithmetic)
{
    CHECK_OPERATION(add_u32);
    CHECK_OPERATION(sub_s64);
    CHECK_OPERATION(mul_lo);
    CHECK_OPERATION(mul_hi_u32);
    CHECK_OPERATION(mul_hi_s32);
    CHECK_OPERATION(mul_hi_u64);
    CHECK_OPERATION(mul_hi_s64);
    CHECK_OPERATION(mul_wide_u32);
    CHECK_OPERATION(mul_wide_s32);
    CHECK_OPERATION(mad_lo);
    CHECK_OPERATION(mad_hi);
    CHECK_OPERATION(mad_wide);
    CHECK_OPERATION(div_u32);
    CHECK_OPERATION(rem_s32);
    CHECK_OPERATION(min_s32);
    CHECK_OPERATION(max_u64);
    CHECK_OPERATION(abs_s32);
    CHECK_OPERATION(neg_s16);
    CHECK_OPERATION(add_s16);
    CHECK_OPERATION(sad);
    CHECK_OPERATION(dp4a_signed);
    CHECK_OPERATION(dp4a_unsigned);
    CHECK_OPERATION(dp2a_low);
    CHECK_OPERATION(dp2a_high);
    CHECK_OPERATION(add_pair);
    CHECK_OPERATION(min_pair);
    CHECK_OPERATION(min_signed_pair);
    CHECK_OPERATION(max_signed_pair);
}

GPUSIM_TEST(carries)
{
    CHECK_OPERATION(carry_add);
    CHECK_OPERATION(carry_subtract);
    CHECK_OPERATION(carry_mad);
}

GPUSIM_TEST(bits)
{
    CHECK_OPERATION(shl_b32);
    CHECK_OPERATION(shr_u32);
    CHECK_OPERATION(shr_s32);
    CHECK_OPERATION(shf_left);
    CHECK_OPERATION(shf_right);
    CHECK_OPERATION(lop3);
    CHECK_OPERATION(lop3_select);
    CHECK_OPERATION(prmt);
    CHECK_OPERATION(bfi);
    CHECK_OPERATION(bfe_u32);
    CHECK_OPERATION(bfe_s32);
    CHECK_OPERATION(bfind);
    CHECK_OPERATION(brev);
    CHECK_OPERATION(clz);
    CHECK_OPERATION(popc);
    CHECK_OPERATION(pack);
}

GPUSIM_TEST(comparisons)
{
    CHECK_OPERATION(set_lt);
    CHECK_OPERATION(setp_combined);
    CHECK_OPERATION(select_by_sign);
}
