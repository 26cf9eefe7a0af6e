/* The machine: what it is, and what its cores and memory can do at most. Shares of peak everywhere are shares of these
 * measured figures. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include "measure.h"

#include <stdbool.h>
#include <stddef.h>
#include <tp/tp.h>

typedef struct bench_machine {
    char processor[128];
    int cores; /* that this process may use */
    size_t memory, available; /* bytes */
    size_t cache[4]; /* bytes of L1d, L2, L3 in [1..3]; 0: unknown */
    tp_isa isa; /* the best that this machine has */
    double load; /* threads that wanted to run during the last minute; negative: unknown */
} bench_machine;

bench_machine bench_machine_look(void);

/* One line for tables: processor, cores, library version, instruction set (AUTO: the best). */
void bench_machine_line(const bench_machine *machine, tp_isa isa, char *text, size_t bytes);

/* By which a file of calibrate knows its machine. */
void bench_machine_name(const bench_machine *machine, char *text, size_t bytes);

/* A loop of independent multiply-adds that can't run faster: f32 FMA, or bf16 dot products where the machine has
 * them. */
typedef struct bench_peak {
    const char *what;  /* "AVX-512 FMA", ... */
    double (*run)(long rounds); /* returns floating-point operations done */
} bench_peak;

/* The fastest loop of an instruction set for a GEMM in this dtype. */
bench_peak bench_peak_of(tp_isa isa, tp_dtype dtype);

/* A chunk of about 0.2 ms of it: rounds to run. */
long bench_peak_rounds(const bench_peak *peak);

/* Floating-point operations a second of one core: median over short chunks for about `seconds`. */
double bench_peak_measure(const bench_peak *peak, double seconds);

/* The same with `threads` threads at once, summed. */
double bench_peak_together(const bench_peak *peak, int threads, double seconds);

/* Clock in cycles a second, by a chain of additions that take one cycle each; 0 where that isn't known (not x86-64). */
double bench_clock_measure(double seconds);

/* Bytes a second with `threads` threads at once, each over two arrays of so many bytes (a power of two, at least 4
 * KiB); bench_stream_memory is larger than a core's share of any cache. 0 if memory runs out. */
extern const size_t bench_stream_memory;
typedef enum bench_stream { BENCH_STREAM_READ = 0, BENCH_STREAM_COPY, BENCH_STREAM_ADD,
                           BENCH_STREAM_COUNT } bench_stream;
const char *bench_stream_name(bench_stream stream);
double bench_stream_measure(bench_stream stream, int threads, size_t bytes, double seconds);

/* Adding in place in memory, a sample at a time between other work: one thread's two arrays of bench_stream_memory.
 * False if memory runs out. */
typedef void bench_add(float *out, const float *in, size_t floats);
typedef struct bench_streamer {
    bench_add *add;
    float *in, *out;
} bench_streamer;
bool bench_streamer_open(bench_streamer *streamer);
void bench_streamer_close(bench_streamer *streamer);
void bench_streamer_run(bench_streamer *streamer);
/* Bytes a second by samples of that; `before`, measured otherwise, if none of them is clean. */
double bench_streamer_rate(const bench_figure *figure, double before);
/* That one run reads and writes: some milliseconds', as what is held against it takes. */
extern const double bench_streamer_bytes;

#endif
