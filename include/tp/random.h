/* Counter-based random numbers on global indices (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC11). A number depends on the seed, the stream and the element's global index only: not on the layout, the
 * transport, the thread or the order of calls. Nothing has to be saved but the seed and the step. */
#ifndef TP_RANDOM_H
#define TP_RANDOM_H

#include <stdint.h>
#include <tp/tensor.h>

typedef struct tp_random_key {
    uint64_t seed;
    uint64_t stream; /* one a tensor and step: tp_random_stream_name, tp_random_stream_step */
} tp_random_key;

TP_BEGIN_DECLS

/* Philox4x32-10: four words for one counter and key. Known-answer vectors of the paper hold. */
TP_API void tp_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* The 32-bit word of element `index`: word index%4 of counter {index/4 low, index/4 high, stream low, stream high}. */
TP_API uint32_t tp_random_u32(tp_random_key key, uint64_t index);

/* Uniform in [0, 1) with 24 bits: (word >> 8) * 2^-24. */
TP_API float tp_random_uniform(tp_random_key key, uint64_t index);

/* Normal(0, 1) by Box-Muller on the words of elements 2*(index/2) and 2*(index/2)+1, in double precision. */
TP_API float tp_random_normal(tp_random_key key, uint64_t index);

/* Stream of a named tensor (64-bit FNV-1a; NULL is as ""), and of a site (layer << 8 | place) in a step: distinct for
 * all steps below 2^32. */
TP_API uint64_t tp_random_stream_name(const char *name);
TP_API uint64_t tp_random_stream_step(uint32_t site, uint64_t step);

/* Dropout keeps an element if its word >= tp_random_threshold(probability); kept values are scaled by
 * 1/(1-probability). 0 <= probability < 1; below, and for NaN, the threshold is 0. */
TP_API uint32_t tp_random_threshold(float probability);

TP_END_DECLS
#endif
