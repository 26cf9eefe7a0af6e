// What the files of the simulated CUDA runtime share.
#pragma once
#include "../api.h"
#include "../memory.h"
#include "../options.h"
#include "../report.h"
#include "../scheduler.h"

struct CUevent_st {
    std::shared_ptr<gpusim::EventState> state; // of the latest record; NULL: never recorded
    int device = 0;
    unsigned flags = 0;
    bool destroyed = false;
};

namespace gpusim {

int current_device();

// Remembers an error as the calling thread's last one, and returns it.
cudaError_t fail(cudaError_t error);

// The start of every call: cudaErrorNoDevice, or the fault of the current device.
cudaError_t enter();
cudaError_t no_device(); // that there is none, or a variable that says how many means nothing

// The stream behind a handle. NULL and the other default streams: reported, as their implicit order is not simulated.
Stream *stream_of(cudaStream_t handle, const char *call);
Stream *implicit_stream(); // of the current device, for calls without a stream that wait for their end
bool stream_belongs(const Stream &stream, const char *call); // to the current device; reported if not

cudaError_t wait_for_device(int device);
void wait_for_blocking_streams(int device);

// nccl/group.cpp: whether the calling thread has given the stream NCCL calls since ncclGroupStart, which have not
// started; and what no ncclGroupEnd has ended, at the end of the program.
bool waits_for_own_group(const Stream &stream);
void report_open_groups();

bool peer_enabled(int from, int to);

// Calls that may not come while the thread captures: cudaErrorStreamCaptureUnsupported, and the capture is lost.
cudaError_t refuse_in_capture(const char *call);

void runtime_reset(); // gpusim_configure
void event_reset();   // numbers cudaStreamWaitEvent from the start

} // namespace gpusim
