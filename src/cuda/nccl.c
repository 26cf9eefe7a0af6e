/* NCCL as a fabric (comm/fabric.h). Its communicators don't block: every wait is a poll within the context's bound,
 * during which peers' failures are seen.
 *
 * Its device code is not used: a window's handle is for calls of the host only. A handle is no proof of symmetric
 * memory, as NCCL 2.28 and older give one without, too; the addresses of peers' memory, which later ones give the host,
 * are. */
#include <stdio.h>
#include <string.h>

#include "comm/fabric.h"
#include "cuda/nccl_calls.h"
#include "cuda/state.h"

struct tpi_fabric_comm {
    tp_ctx *ctx;
    tpi_nccl_calls call;
    ncclComm_t handle;
    ncclResult_t result; /* of the last poll */
    ncclResult_t group;  /* the first error within a group */
    const char *group_call;
    bool grouped;
    ncclWindow_t window; /* being made: NCCL writes it in the background */
};

static bool available(char text[TPI_FABRIC_TEXT])
{
    tpi_nccl_calls calls;
    if (!tpi_nccl_load(&calls, text, TPI_FABRIC_TEXT))
        return false;
    snprintf(text, TPI_FABRIC_TEXT, "NCCL " TPI_NCCL_VERSION_FORMAT ": %s", TPI_NCCL_VERSION_PARTS(calls.version),
             calls.ncclGetPeerDevicePointer ? "windows, and symmetric buffers where GPUs reach each other"
             : calls.ncclCommWindowRegister
                 ? "windows, no symmetric buffers between processes: 2.29.2 has them"
                 : "no windows: 2.27.1 has them, 2.29.2 symmetric buffers between processes too");
    return true;
}

static tp_status load(tp_ctx *ctx, tpi_nccl_calls *out)
{
    char reason[TPI_FABRIC_TEXT];
    return tpi_nccl_load(out, reason, sizeof reason) ? TP_OK : tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "%s", reason);
}

/* TP_OK, or breaks the context with NCCL's words. */
static tp_status check(tp_ctx *ctx, const tpi_nccl_calls *call, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess)
        return TP_OK;
    const char *detail = call->ncclGetLastError(NULL);
    tp_status status = result == ncclInvalidArgument || result == ncclInvalidUsage ? TP_ERR_STATE : TP_ERR_COMM;
    return tpi_fail(ctx, status, "NCCL: %s: %s%s%s", what, call->ncclGetErrorString(result),
                    detail && detail[0] ? ": " : "", detail ? detail : "");
}

/* ---- waiting for calls that go on in the background -------------------------------------------------------------- */

static cudaError_t query_state(void *object)
{
    tpi_fabric_comm *comm = object;
    if (tp_ctx_failure(comm->ctx) != TP_OK || !comm->handle)
        return cudaSuccess; /* the poll's caller sees it */
    ncclResult_t asked = comm->call.ncclCommGetAsyncError(comm->handle, &comm->result);
    if (asked != ncclSuccess)
        comm->result = asked;
    return comm->result == ncclInProgress ? cudaErrorNotReady : cudaSuccess;
}

/* The end of a call that returned `result`. */
static tp_status settle(tpi_fabric_comm *comm, ncclResult_t result, const char *what)
{
    if (result == ncclInProgress) {
        TPI_TRY(tpi_cuda_poll(comm->ctx, query_state, comm, what));
        TPI_TRY(tpi_ctx_usable(comm->ctx));
        result = comm->result;
    }
    return check(comm->ctx, &comm->call, result, what);
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static tpi_fabric_comm *new_comm(tp_ctx *ctx, const tpi_nccl_calls *call)
{
    tpi_fabric_comm *comm = tpi_host_allocate(ctx, sizeof *comm);
    if (comm)
        *comm = (tpi_fabric_comm){.ctx = ctx, .call = *call};
    return comm;
}

static void free_comm(tpi_fabric_comm *comm)
{
    tpi_host_release(comm->ctx, comm, sizeof *comm);
}

static void abort_comm(tpi_fabric_comm *comm)
{
    cudaSetDevice(comm->ctx->desc.device_index);
    if (comm->handle)
        comm->call.ncclCommAbort(comm->handle);
    comm->handle = NULL;
}

static void release(tpi_fabric_comm *comm)
{
    abort_comm(comm);
    free_comm(comm);
}

static tp_status make_id(tp_ctx *ctx, tpi_fabric_id *out)
{
    tpi_nccl_calls call;
    ncclUniqueId id;
    _Static_assert(sizeof id <= sizeof out->bytes, "a fabric's id holds NCCL's");
    TPI_TRY(load(ctx, &call));
    TPI_TRY(tpi_cuda_enter(ctx));
    TPI_TRY(check(ctx, &call, call.ncclGetUniqueId(&id), "ncclGetUniqueId"));
    memcpy(out->bytes, &id, sizeof id);
    return TP_OK;
}

/* Takes a new communicator, or leaves nothing behind. */
static tp_status keep(tpi_fabric_comm *comm, tp_status status, tpi_fabric_comm **out)
{
    if (status == TP_OK)
        *out = comm;
    else
        release(comm);
    return status;
}

static tp_status create(tp_ctx *ctx, const tpi_fabric_id *id, int rank, int size, tpi_fabric_comm **out)
{
    *out = NULL;
    tpi_nccl_calls call;
    TPI_TRY(load(ctx, &call));
    TPI_TRY(tpi_cuda_enter(ctx));
    tpi_fabric_comm *comm = new_comm(ctx, &call);
    if (!comm)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for an NCCL communicator");
    ncclUniqueId unique;
    memcpy(&unique, id->bytes, sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t result = call.ncclCommInitRankConfig(&comm->handle, size, unique, rank, &config);
    return keep(comm, settle(comm, result, "ncclCommInitRankConfig"), out);
}

static tp_status split(tpi_fabric_comm *parent, int color, int key, tpi_fabric_comm **out)
{
    *out = NULL;
    tp_ctx *ctx = parent->ctx;
    TPI_TRY(tpi_cuda_enter(ctx));
    tpi_fabric_comm *comm = new_comm(ctx, &parent->call);
    if (!comm)
        return tpi_fail(ctx, TP_ERR_MEMORY, "no memory for an NCCL communicator");
    ncclResult_t result =
        parent->call.ncclCommSplit(parent->handle, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &comm->handle, NULL);
    tp_status status = settle(parent, result, "ncclCommSplit");
    if (status == TP_OK && comm->handle)
        status = settle(comm, ncclInProgress, "ncclCommSplit");
    if (status == TP_OK && color < 0) {
        free_comm(comm);
        return TP_OK;
    }
    return keep(comm, status, out);
}

static void destroy(tpi_fabric_comm *comm)
{
    tp_ctx *ctx = comm->ctx;
    bool whole = tpi_cuda_enter(ctx) == TP_OK &&
                 settle(comm, comm->call.ncclCommFinalize(comm->handle), "ncclCommFinalize") == TP_OK;
    if (whole) {
        comm->call.ncclCommDestroy(comm->handle);
        comm->handle = NULL;
    }
    release(comm);
}

static tp_status health(tpi_fabric_comm *comm)
{
    ncclResult_t state = ncclSuccess;
    ncclResult_t asked = comm->call.ncclCommGetAsyncError(comm->handle, &state);
    if (asked == ncclSuccess && (state == ncclSuccess || state == ncclInProgress))
        return TP_OK;
    return check(comm->ctx, &comm->call, asked != ncclSuccess ? asked : state, "a collective");
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tp_status group_begin(tpi_fabric_comm *comm)
{
    comm->grouped = true;
    comm->group = ncclSuccess;
    return check(comm->ctx, &comm->call, comm->call.ncclGroupStart(), "ncclGroupStart");
}

static tp_status group_end(tpi_fabric_comm *comm)
{
    comm->grouped = false;
    ncclResult_t ended = comm->call.ncclGroupEnd();
    if (comm->group != ncclSuccess)
        return check(comm->ctx, &comm->call, comm->group, comm->group_call);
    return settle(comm, ended, "ncclGroupEnd");
}

/* Errors within a group are kept until it has ended: it must end. */
static tp_status issued(tpi_fabric_comm *comm, ncclResult_t result, const char *what)
{
    if (!comm->grouped)
        return settle(comm, result, what);
    if (result != ncclSuccess && result != ncclInProgress && comm->group == ncclSuccess) {
        comm->group = result;
        comm->group_call = what;
    }
    return TP_OK;
}

static ncclDataType_t type_of(tp_dtype dtype)
{
    static const ncclDataType_t types[TP_DTYPE_COUNT] = {
        [TP_DTYPE_F32] = ncclFloat32, [TP_DTYPE_BF16] = ncclBfloat16, [TP_DTYPE_F16] = ncclFloat16,
        [TP_DTYPE_I32] = ncclInt32,   [TP_DTYPE_I64] = ncclInt64,     [TP_DTYPE_U8] = ncclUint8,
    };
    return types[dtype];
}

static ncclRedOp_t op_of(tp_reduce_op op)
{
    return op == TP_REDUCE_MAX ? ncclMax : op == TP_REDUCE_MIN ? ncclMin : ncclSum;
}

static tp_status send(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op)
{
    ncclResult_t result = comm->call.ncclSend(op->in, (size_t)op->count, type_of(op->dtype), op->peer, comm->handle,
                                              tpi_cuda_handle(stream));
    return issued(comm, result, "ncclSend");
}

static tp_status receive(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op)
{
    ncclResult_t result = comm->call.ncclRecv(op->out, (size_t)op->count, type_of(op->dtype), op->peer, comm->handle,
                                              tpi_cuda_handle(stream));
    return issued(comm, result, "ncclRecv");
}

static tp_status broadcast(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op)
{
    ncclResult_t result = comm->call.ncclBroadcast(op->in, op->out, (size_t)op->count, type_of(op->dtype), op->peer,
                                                   comm->handle, tpi_cuda_handle(stream));
    return issued(comm, result, "ncclBroadcast");
}

static tp_status all_gather(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op)
{
    ncclResult_t result = comm->call.ncclAllGather(op->in, op->out, (size_t)op->count, type_of(op->dtype), comm->handle,
                                                   tpi_cuda_handle(stream));
    return issued(comm, result, "ncclAllGather");
}

static tp_status all_reduce(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op)
{
    ncclResult_t result = comm->call.ncclAllReduce(op->in, op->out, (size_t)op->count, type_of(op->dtype),
                                                   op_of(op->op), comm->handle, tpi_cuda_handle(stream));
    return issued(comm, result, "ncclAllReduce");
}

static tp_status reduce_scatter(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op)
{
    ncclResult_t result = comm->call.ncclReduceScatter(op->in, op->out, (size_t)op->count, type_of(op->dtype),
                                                       op_of(op->op), comm->handle, tpi_cuda_handle(stream));
    return issued(comm, result, "ncclReduceScatter");
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static tp_status window_allocate(tp_ctx *ctx, size_t bytes, void **out)
{
    tpi_nccl_calls call;
    *out = NULL;
    TPI_TRY(load(ctx, &call));
    if (!call.ncclCommWindowRegister)
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "NCCL " TPI_NCCL_VERSION_FORMAT " has no windows, 2.27.1 has",
                          TPI_NCCL_VERSION_PARTS(call.version));
    TPI_TRY(tpi_cuda_enter(ctx));
    ncclResult_t result = call.ncclMemAlloc(out, bytes);
    if (result == ncclSuccess)
        return TP_OK;
    cudaGetLastError(); /* as in tpi_cuda_allocate */
    return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for a window: ncclMemAlloc of %zu bytes: %s", bytes,
                      call.ncclGetErrorString(result));
}

static void window_free(tp_ctx *ctx, void *memory, size_t bytes)
{
    tpi_nccl_calls call;
    (void)bytes;
    cudaSetDevice(ctx->desc.device_index);
    if (load(ctx, &call) == TP_OK)
        call.ncclMemFree(memory);
}

static tp_status window_open(tpi_fabric_comm *comm, void *memory, size_t bytes, void **out)
{
    *out = NULL;
    TPI_TRY(tpi_cuda_enter(comm->ctx));
    comm->window = NULL;
    ncclResult_t result =
        comm->call.ncclCommWindowRegister(comm->handle, memory, bytes, &comm->window, NCCL_WIN_COLL_SYMMETRIC);
    TPI_TRY(settle(comm, result, "ncclCommWindowRegister"));
    *out = comm->window;
    return TP_OK;
}

static void window_close(tpi_fabric_comm *comm, void *window)
{
    if (tpi_cuda_enter(comm->ctx) == TP_OK)
        settle(comm, comm->call.ncclCommWindowDeregister(comm->handle, window), "ncclCommWindowDeregister");
}

static tp_status window_address(tpi_fabric_comm *comm, void *window, int rank, void **out)
{
    tp_ctx *ctx = comm->ctx;
    *out = NULL;
    if (!comm->call.ncclGetPeerDevicePointer)
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED,
                          "symmetric_create: NCCL " TPI_NCCL_VERSION_FORMAT
                          " does not say where peers' memory is, 2.29.2 does",
                          TPI_NCCL_VERSION_PARTS(comm->call.version));
    TPI_TRY(
        check(ctx, &comm->call, comm->call.ncclGetPeerDevicePointer(window, 0, rank, out), "ncclGetPeerDevicePointer"));
    return *out ? TP_OK
                : tpi_refuse(ctx, TP_ERR_UNSUPPORTED,
                             "symmetric_create: rank %d's memory can't be reached from this GPU", rank);
}

const tpi_fabric tpi_fabric_nccl = {
    .name = "nccl",
    .available = available,
    .make_id = make_id,
    .create = create,
    .split = split,
    .destroy = destroy,
    .abort = abort_comm,
    .release = release,
    .health = health,
    .group_begin = group_begin,
    .group_end = group_end,
    .send = send,
    .receive = receive,
    .broadcast = broadcast,
    .all_gather = all_gather,
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .window_allocate = window_allocate,
    .window_free = window_free,
    .window_open = window_open,
    .window_close = window_close,
    .window_address = window_address,
};
