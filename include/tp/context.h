/* A context is one rank: its device, streams, memory, mesh position, communicators and seed. There are no globals: two
 * contexts in one process never share state. One context is used by one thread at a time; different contexts
 * concurrently. */
#ifndef TP_CONTEXT_H
#define TP_CONTEXT_H

#include <tp/mesh.h>
#include <tp/shard.h>
#include <tp/tensor.h>

typedef struct tp_ctx tp_ctx;
typedef struct tp_comm tp_comm;
typedef struct tp_world tp_world;

typedef enum tp_device { TP_DEVICE_CPU = 0, TP_DEVICE_CUDA } tp_device;

/* Instruction sets of the CPU backend. AUTO takes the best that the machine has; forcing a missing one is refused.
 * All of them give the same bits. */
typedef enum tp_isa {
    TP_ISA_AUTO = 0,
    TP_ISA_PORTABLE,
    TP_ISA_AVX2,       /* AVX2 + FMA + F16C */
    TP_ISA_AVX512,     /* AVX-512 F, BW, DQ, VL */
    TP_ISA_AVX512_BF16, /* the above and AVX512-BF16 */
    TP_ISA_COUNT
} tp_isa;

/* TREE: the same bits on every layout that divides 8. FAST: run-to-run deterministic only. */
typedef enum tp_sum_order { TP_SUM_TREE = 0, TP_SUM_FAST } tp_sum_order;

/* What memory is used for; tp_ctx_memory counts each. */
typedef enum tp_memory_kind {
    TP_MEMORY_PARAM = 0, /* values, gradients, masters, packed copies */
    TP_MEMORY_OPTIMIZER,
    TP_MEMORY_SAVED,
    TP_MEMORY_SCRATCH,
    TP_MEMORY_COMM,
    TP_MEMORY_OTHER, /* the context itself, layers, plans */
    TP_MEMORY_KINDS
} tp_memory_kind;

typedef struct tp_memory_count {
    size_t bytes, peak; /* now, and the most since creation or the last tp_ctx_memory_reset_peak */
} tp_memory_count;

/* Optional allocator; memory is 64-byte aligned at least. allocate returns NULL on failure. Called from any thread of
 * the context, one at a time. */
typedef struct tp_allocator {
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *memory, size_t bytes);
    void *user;
} tp_allocator;

/* What moves data between ranks. THREADS: ranks read each other's memory; they may share a device. NCCL: a GPU a rank.
 * AUTO: NCCL if sum_order is TP_SUM_FAST, every rank has a GPU of its own and the library is there; THREADS
 * otherwise. */
typedef enum tp_transport { TP_TRANSPORT_AUTO = 0, TP_TRANSPORT_THREADS, TP_TRANSPORT_NCCL } tp_transport;

/* Zero-filled means: CPU, all defaults, one rank. */
typedef struct tp_ctx_desc {
    int version; /* TP_VERSION of the caller's headers, or 0 */
    tp_device device;
    int device_index;
    const char *plugin; /* file of the CUDA backend; borrowed for the call; NULL: libtp_cuda.so beside the library, else
                         * where the loader finds it */
    int threads; /* compute threads of this rank; 0: max(1, cores / ranks of this process) */
    tp_isa isa;
    uint64_t seed;
    tp_sum_order sum_order;
    /* Never by itself, and only with TP_SUM_FAST on a GPU: f32 products may lose precision for speed.
     * Computes    products of f32 operands by cuBLASLt in TF32: elements of both are cut to ten explicit bits of
     *             mantissa first, products are added in f32. So an element is off by at most 2^-10 of the sum of |a b|
     *             if the library rounds to nearest (twice that if it cuts off), beside what f32 sums of that length
     *             are. Sums of rows beside a weight gradient (of a bias) may be of the cut values. Bias, activation and
     *             residual stay f32, as do products that cuBLASLt doesn't take, attention, norms, losses and the
     *             optimizer. bf16 and f16 are as without it. As with all of TP_SUM_FAST the same run on the same
     *             machine gives the same numbers; layouts and batch splits don't.
     * Shapes      all.
     * Collectives none; ranks of a world should agree.
     * Saved       nothing: what is stored is f32.
     * Aliasing    as without it.
     * Errors      TP_ERR_ARGUMENT on the CPU, or with TP_SUM_TREE. */
    bool tf32;
    tp_world *world; /* borrowed; NULL: this rank is alone */
    int rank;        /* this rank of the world */
    tp_mesh mesh;
    tp_allocator allocator;
    void (*log)(void *user, const char *text); /* gets the message of the first failure, from the thread that met it */
    void *log_user;
    int64_t timeout_ms; /* bound of every wait; 0: ten minutes */
    const struct tp_machine *machine; /* what TP_OVERLAP_AUTO goes by (tp/auto.h); borrowed; NULL: tp_machine_default_of
                                       * the device. A modelled link of the world goes before its own */
    /* Nothing is computed and nothing moves: memory is address space only, reads as zeros, and is counted, as is the
     * work of ops. The mesh, resolved, says how many ranks there would be; world must be NULL. Sizes of any layout can
     * be asked for without having it. */
    bool dry_run;
    tp_transport dry_transport; /* then: what would move data, for the memory that it takes. Ranks that are processes
                                 * have NCCL */
    bool synchronous;   /* finish each op before the next is issued, so that an error names the right one */
    /* Test mode, of all ranks or of none: compute runs on a worker lane too and lanes are delayed at random, which
     * shows missing waits. 0: off. */
    uint64_t lane_delay_seed;
} tp_ctx_desc;

TP_BEGIN_DECLS

/* Computes: nothing; prepares one rank. Collectives: the communicators of the mesh are split, so all ranks of a world
 * call it.
 * Errors: TP_ERR_VERSION, TP_ERR_ARGUMENT (field and numbers), TP_ERR_BACKEND (why the device can't be used),
 * TP_ERR_MEMORY. On failure *out is NULL and nothing is left behind. */
TP_API tp_status tp_ctx_create(const tp_ctx_desc *desc, tp_ctx **out);

/* Waits for this rank's work and frees it. Layers, parameters and optimizers made with it must be destroyed before.
 * NULL is fine. */
TP_API void tp_ctx_destroy(tp_ctx *ctx);

/* Copies between the host's memory and the context's (`to` or `from`), ordered on the compute stream. Both return when
 * the host's memory may be used again: a download waits for what was issued before it, an upload does not. bytes 0 is
 * nothing. */
TP_API tp_status tp_ctx_upload(tp_ctx *ctx, void *to, const void *host, size_t bytes);
TP_API tp_status tp_ctx_download(tp_ctx *ctx, void *host, const void *from, size_t bytes);

/* Waits for all work issued so far; returns the first failure of any lane. */
TP_API tp_status tp_ctx_synchronize(tp_ctx *ctx);

/* The message of the first failure that broke this context, else of the last refused call; "" if none, or of NULL. */
TP_API const char *tp_ctx_message(const tp_ctx *ctx);

/* TP_OK, or the failure after which this context can only be destroyed; TP_ERR_ARGUMENT: ctx is NULL. */
TP_API tp_status tp_ctx_failure(const tp_ctx *ctx);

/* Of NULL: 0, AUTO, no mesh. */
TP_API int tp_ctx_rank(const tp_ctx *ctx);
TP_API int tp_ctx_threads(const tp_ctx *ctx);
TP_API tp_isa tp_ctx_isa(const tp_ctx *ctx);
TP_API uint64_t tp_ctx_seed(const tp_ctx *ctx);
TP_API const tp_mesh *tp_ctx_mesh(const tp_ctx *ctx);

/* Communicator of this rank's group along an axis, and of the whole world. A group of one is `self`; NULL only where
 * there is no such axis, or ctx is NULL. */
TP_API tp_comm *tp_ctx_group(const tp_ctx *ctx, tp_axis axis);
TP_API tp_comm *tp_ctx_world(const tp_ctx *ctx);

/* Device memory from the context's allocator, 64-byte aligned, not cleared; counted under `kind`. bytes 0 gives a
 * pointer that may be released. TP_ERR_MEMORY is a refusal: the context stays whole. */
TP_API tp_status tp_ctx_allocate(tp_ctx *ctx, tp_memory_kind kind, size_t bytes, void **out);
TP_API void tp_ctx_release(tp_ctx *ctx, tp_memory_kind kind, void *memory, size_t bytes);
TP_API tp_memory_count tp_ctx_memory(const tp_ctx *ctx, tp_memory_kind kind);
TP_API void tp_ctx_memory_reset_peak(tp_ctx *ctx);

/* Floating-point operations and bytes of all ops issued since creation, from the counts that the kernels get. A place
 * that is NULL gets nothing; ctx NULL: 0. So with the times below. */
TP_API void tp_ctx_work(const tp_ctx *ctx, double *flops, double *bytes);

/* Seconds of this rank's compute thread since creation: in compute ops, and in (or waiting for) communication. */
TP_API void tp_ctx_times(const tp_ctx *ctx, double *compute_seconds, double *comm_seconds);
TP_API void tp_ctx_times_reset(tp_ctx *ctx);

/* Name of an instruction set, and whether this machine has it. */
TP_API const char *tp_isa_name(tp_isa isa);
TP_API bool tp_isa_available(tp_isa isa);

TP_END_DECLS
#endif
