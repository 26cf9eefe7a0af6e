/* Other people's libraries beside ours in the same run. A peer that is not there is skipped, with the reason. */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include "command.h"
#include "gemm_case.h"
#include "peers/onednn.h"

typedef struct bench_peer {
    void *module;
    char name[64]; /* "oneDNN 2.6.3" */
    tp_peer_open *open;
    tp_peer_run *run;
    tp_peer_close *close;
} bench_peer;

/* Loads oneDNN's module. False, with the reason, where this build or machine has none. */
bool bench_peer_load(bench_peer *peer, char reason[BENCH_MESSAGE]);
void bench_peer_unload(bench_peer *peer);

/* The peer's product on the operands of ours, with a C of its own. NULL, with a message, if it can't. */
typedef struct bench_peer_gemm {
    const bench_peer *peer;
    void *product, *c;
    int status; /* not 0: a run failed */
} bench_peer_gemm;
bool bench_peer_gemm_open(bench_peer_gemm *self, const bench_peer *peer, const bench_gemm *gemm, bool packed,
                          char message[200]);
void bench_peer_gemm_close(bench_peer_gemm *self);

/* For bench_part. */
void bench_peer_gemm_run(void *self);

#endif
