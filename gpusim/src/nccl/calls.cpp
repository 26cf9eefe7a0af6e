// The communication calls: arguments are checked, then they join the group.
#include "group.h"

namespace gpusim {
namespace {

bool valid_comm(ncclComm_t comm, const char *call)
{
    if (!comm)
        return false;
    if (comm->dead)
        report(GPUSIM_NCCL, "%s on a communicator that was destroyed or aborted", call);
    return !comm->dead;
}

ncclResult_t refuse(const char *call, const std::string &why)
{
    report(GPUSIM_NCCL, "%s: %s", call, why.c_str());
    return group_error(nccl_fail(ncclInvalidArgument, std::string(call) + ": " + why));
}

// The calling rank's common checks, and the job to fill.
ncclResult_t begin_job(Job &job, const char *call)
{
    if (!valid_comm(job.comm, call))
        return group_error(nccl_fail(ncclInvalidArgument, std::string(call) + ": not a communicator"));
    if (!job.comm->team->complete)
        return group_error(nccl_fail(ncclInvalidArgument, std::string(call) + ": the communicator is not ready"));
    if (!in_group() && job.comm->registering && !job.comm->registering->done)
        return refuse(call, "before ncclCommWindowRegister has ended");
    if (nccl_type_bytes(job.arguments.type) == 0)
        return refuse(call, format_text("data type %d", int(job.arguments.type)));
    if (job.stream->device != job.comm->device)
        return refuse(call, format_text("a stream of device %d with a communicator of device %d", job.stream->device,
                                        job.comm->device));
    const cudaError_t fault = device_fault(job.comm->device);
    if (fault != cudaSuccess)
        return group_error(nccl_fail(ncclUnhandledCudaError, cudaGetErrorString(fault)));
    return ncclSuccess;
}

bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uintptr_t x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + b_bytes && y < x + a_bytes;
}

// In place means one exact position; any other overlap is undefined.
void check_in_place(const Job &job, const char *call)
{
    const CollectiveArguments &arguments = job.arguments;
    const size_t ranks = job.comm->team->ranks.size(), rank = size_t(job.comm->rank);
    const size_t piece = arguments.count * nccl_type_bytes(arguments.type);
    const char *send = static_cast<const char *>(arguments.send);
    const char *receive = static_cast<const char *>(arguments.receive);
    const bool gathers = arguments.kind == Collective::all_gather || arguments.kind == Collective::gather;
    const bool scatters = arguments.kind == Collective::reduce_scatter || arguments.kind == Collective::scatter;
    const bool exchanges = arguments.kind == Collective::all_to_all;
    const size_t send_bytes = scatters || exchanges ? piece * ranks : piece,
                 receive_bytes = gathers || exchanges ? piece * ranks : piece;
    const char *in_place = gathers ? receive + rank * piece : receive;
    const char *from = scatters ? send + rank * piece : send;
    const bool exact = from == in_place && !exchanges;
    if (send && receive && !exact && overlap(send, send_bytes, receive, receive_bytes))
        report(GPUSIM_NCCL, "%s: send and receive buffers overlap and are not in place", call);
}

// The last thing that can go wrong with a call.
ncclResult_t give(Job &job, const char *call)
{
    const Planted planted = planted_failure(job.comm->device);
    if (planted == Planted::at_call)
        return group_error(nccl_fail(ncclSystemError, std::string(call) + ": a planted failure"));
    job.never_ends = planted == Planted::later;
    return add_job(job);
}

ncclResult_t collective(CollectiveArguments arguments, ncclComm_t comm, cudaStream_t handle)
{
    Locked lock(machine_lock());
    const char *call = collective_name(arguments.kind);
    Job job = {comm, stream_of(handle, call), false, false, 0, arguments, false};
    if (const ncclResult_t result = begin_job(job, call))
        return result;
    const bool known_op = (arguments.op >= 0 && arguments.op < ncclNumOps) || comm->reductions.count(int(arguments.op));
    if (!known_op)
        return refuse(call, format_text("operation %d", int(arguments.op)));
    if (arguments.root < 0 || arguments.root >= int(comm->team->ranks.size()))
        return refuse(call, format_text("root %d of %zu ranks", arguments.root, comm->team->ranks.size()));
    if (arguments.count == 0)
        return ncclSuccess; // the real one does nothing at all
    const bool receives = arguments.kind != Collective::reduce && arguments.kind != Collective::gather;
    if (receives)
        check_in_place(job, call);
    return give(job, call);
}

ncclResult_t message(bool sends, const void *send, void *receive, size_t count, ncclDataType_t type, int peer,
                     ncclComm_t comm, cudaStream_t handle)
{
    Locked lock(machine_lock());
    const char *call = sends ? "ncclSend" : "ncclRecv";
    Job job = {comm, stream_of(handle, call),
               true, sends,
               peer, {Collective::all_reduce, send, receive, count, type, ncclSum, 0},
               false};
    if (const ncclResult_t result = begin_job(job, call))
        return result;
    if (peer < 0 || peer >= int(comm->team->ranks.size()))
        return refuse(call, format_text("peer %d of %zu ranks", peer, comm->team->ranks.size()));
    return count == 0 ? ncclSuccess : give(job, call);
}

} // namespace
} // namespace gpusim

using namespace gpusim;

extern "C" {

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return collective({Collective::all_reduce, send, receive, count, type, op, 0}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return collective({Collective::reduce_scatter, send, receive, count, type, op, 0}, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return collective({Collective::all_gather, send, receive, count, type, ncclSum, 0}, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream)
{
    return collective({Collective::all_to_all, send, receive, count, type, ncclSum, 0}, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return collective({Collective::broadcast, send, receive, count, type, ncclSum, root}, comm, stream);
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
    return collective({Collective::broadcast, buffer, buffer, count, type, ncclSum, root}, comm, stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return collective({Collective::reduce, send, receive, count, type, op, root}, comm, stream);
}

ncclResult_t ncclGather(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream)
{
    return collective({Collective::gather, send, receive, count, type, ncclSum, root}, comm, stream);
}

ncclResult_t ncclScatter(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream)
{
    return collective({Collective::scatter, send, receive, count, type, ncclSum, root}, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return message(true, send, nullptr, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return message(false, nullptr, receive, count, type, peer, comm, stream);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    Locked lock(machine_lock());
    if (!op || !scalar || !valid_comm(comm, "ncclRedOpCreatePreMulSum") || nccl_type_bytes(type) == 0)
        return nccl_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum");
    ScaledSum sum = {type, residence, scalar, {}};
    if (residence == ncclScalarHostImmediate)
        std::copy_n(static_cast<const unsigned char *>(scalar), nccl_type_bytes(type), sum.value);
    const int number = int(ncclNumOps) + int(comm->reductions.size());
    comm->reductions[number] = sum;
    *op = ncclRedOp_t(number);
    return ncclSuccess;
}

// Kept: calls that are queued still read it.
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    Locked lock(machine_lock());
    return comm && comm->reductions.count(int(op)) ? ncclSuccess : nccl_fail(ncclInvalidArgument, "ncclRedOpDestroy");
}
}
