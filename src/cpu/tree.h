/* The fixed binary tree of sums: neighbours first, then twice the distance, and so on: with five values
 * ((a+b)+(c+d))+e. */
#ifndef TPI_CPU_TREE_H
#define TPI_CPU_TREE_H

#include <tp/shard.h>

/* The tree over value[0..count), count <= TP_VIRTUAL_RANKS; +0 if there is none. */
static inline float tpi_tree_sum(float *value, int count)
{
    for (int distance = 1; distance < count; distance *= 2) {
        for (int i = 0; i + distance < count; i += 2 * distance)
            value[i] += value[i + distance];
    }
    return count > 0 ? value[0] : 0.0f;
}

#endif
