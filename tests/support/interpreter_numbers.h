/* The numbers that the interpreter of plans works on, and what its ops make of them. */
#ifndef TPT_INTERPRETER_NUMBERS_H
#define TPT_INTERPRETER_NUMBERS_H

#include <stdint.h>

static inline uint64_t tpt_draw(uint64_t *random)
{
    *random += 0x9e3779b97f4a7c15u;
    uint64_t z = *random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Arithmetic on integers mod 2^64 that no two different plans agree on by chance. Each is a map of its own for every
 * rank and part. */
static inline uint64_t constant(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t random = a * 1000003 + b * 1009 + c * 7919;
    return tpt_draw(&random) | 1;
}

static inline uint64_t input_number(int buffer, int rank, int piece)
{
    return constant(100 + (uint64_t)buffer, (uint64_t)rank + 1, (uint64_t)piece);
}

static inline uint64_t gemm(int rank, int part, uint64_t x)
{
    return x * constant(1, (uint64_t)rank, (uint64_t)part) + constant(2, (uint64_t)rank, (uint64_t)part);
}

static inline uint64_t compute(int rank, uint64_t x)
{
    return (x ^ (x >> 31)) * constant(3, (uint64_t)rank, 0);
}

static inline uint64_t core(int rank, const uint64_t *x, int count, int piece)
{
    uint64_t all = 0;
    for (int i = 0; i < count; i++)
        all = all * 31 + compute(rank, x[i]);
    return all * constant(4, (uint64_t)rank, (uint64_t)piece);
}

static inline uint64_t accumulate(uint64_t sum, uint64_t x)
{
    return sum * 1000003 + x;
}

#define LOCAL_OPERAND 77 /* of the first of two layers' weight gradient: in no buffer of the plan */

static inline uint64_t accumulate_gradient(int part, uint64_t gradient, uint64_t dy, uint64_t x)
{
    return accumulate(gradient * constant(5, (uint64_t)part, 0), dy * (x ^ (x >> 17)));
}

#endif
