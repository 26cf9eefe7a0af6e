/* Rows of packed sequences: `offsets` [sequences + 1], or NULL for equal lengths. */
#ifndef TPI_CPU_SEQUENCES_H
#define TPI_CPU_SEQUENCES_H

#include <stddef.h>
#include <stdint.h>

typedef struct tpi_sequences {
    const int64_t *offsets;
    int64_t count, length; /* length of each where offsets is NULL */
} tpi_sequences;

static inline tpi_sequences tpi_sequences_of(const int64_t *offsets, int64_t sequences, int64_t rows)
{
    tpi_sequences result = {offsets, sequences > 0 ? sequences : 1, rows};

    if (sequences > 0)
        result.length = rows / sequences;
    return result;
}

/* Place of a row in its sequence. */
static inline int64_t tpi_sequence_place(const tpi_sequences *sequences, int64_t row)
{
    int64_t low = 0, high = sequences->count;

    if (!sequences->offsets)
        return sequences->length > 0 ? row % sequences->length : row;
    while (high - low > 1) { /* offsets[low] <= row < offsets[high] */
        int64_t middle = low + (high - low) / 2;

        if (sequences->offsets[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return row - sequences->offsets[low];
}

#endif
