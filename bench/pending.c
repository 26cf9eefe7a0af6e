/* Commands that are not there yet. */
#include "command.h"

int bench_command_model(bench_call *call)
{
    return bench_fail(call, "not there yet");
}
