/* What tp_bench asks of a peer's matrix product. The peer lives in a module of its own, loaded only when it is asked
 * for: its libraries and their threads stay out of every other measurement. */
#ifndef BENCH_PEER_ONEDNN_H
#define BENCH_PEER_ONEDNN_H

#include <stdint.h>

/* C[rows, cols] (+)= A[rows, inner] B[inner, cols]; strides in elements; f32, or bf16 operands. */
typedef struct tp_peer_product {
    int64_t rows, cols, inner;
    int bf16;     /* operands, and C unless it accumulates */
    int c_f32;    /* C is f32 */
    int accumulate;
    int packed;   /* B may be laid out beforehand as the peer likes it */
    const void *a, *b;
    int64_t a_strides[2], b_strides[2];
    void *c;
} tp_peer_product;

/* Slots of the module, looked up by these names. open: by the thread that runs; NULL with a message if it can't. */
typedef void *tp_peer_open(const tp_peer_product *product, char message[200]);
typedef int tp_peer_run(void *peer); /* 0: done */
typedef void tp_peer_close(void *peer);
typedef void tp_peer_name(char text[64]);

#endif
