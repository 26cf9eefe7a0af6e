/* Philox4x32-10 and the numbers made from it. */
#include <tp/random.h>

#include "core/trig.h"

void tp_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The four words of elements 4 * block and on. */
static void words_of(tp_random_key key, uint64_t block, uint32_t words[4])
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)key.stream,
                                 (uint32_t)(key.stream >> 32)};
    const uint32_t seed[2] = {(uint32_t)key.seed, (uint32_t)(key.seed >> 32)};
    tp_philox4x32(counter, seed, words);
}

uint32_t tp_random_u32(tp_random_key key, uint64_t index)
{
    uint32_t words[4];
    words_of(key, index / 4, words);
    return words[index % 4];
}

float tp_random_uniform(tp_random_key key, uint64_t index)
{
    return (float)(tp_random_u32(key, index) >> 8) * 0x1p-24f;
}

float tp_random_normal(tp_random_key key, uint64_t index)
{
    uint32_t words[4];
    float pair[2];
    words_of(key, index / 4, words);
    tpi_normal_pair(words[index % 4 / 2 * 2], words[index % 4 / 2 * 2 + 1], pair);
    return pair[index % 2];
}

uint64_t tp_random_stream_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; name && *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

uint64_t tp_random_stream_step(uint32_t site, uint64_t step)
{
    /* Distinct for all steps below 2^32 of all sites. */
    return ((uint64_t)site << 32) ^ step;
}

uint32_t tp_random_threshold(float probability)
{
    if (!(probability > 0))
        return 0;
    return probability < 1 ? (uint32_t)((double)probability * 0x1p32) : UINT32_MAX;
}
