/* Names of a plan's parts. */
#include <tp/plan.h>

static const char *const op_names[TP_OP_KINDS] = {
#define OP_WORD(name, letter, word) [name] = word,
    TP_OP_LIST(OP_WORD)
#undef OP_WORD
};

static const char *const buffer_names[TP_BUFFERS] = {
#define BUFFER_WORD(name, word) [name] = word,
    TP_BUFFER_LIST(BUFFER_WORD)
#undef BUFFER_WORD
};

static const char *const lane_names[TP_LANES] = {
    [TP_LANE_COMPUTE] = "compute", [TP_LANE_COMM] = "comm", [TP_LANE_COPY] = "copy"};

static const char *const fault_names[TP_FAULTS] = {
#define FAULT_WORD(name, word) [name] = word,
    TP_FAULT_LIST(FAULT_WORD)
#undef FAULT_WORD
};

const char *tp_op_name(tp_op_kind kind)
{
    return (int)kind >= 0 && kind < TP_OP_KINDS ? op_names[kind] : "?";
}

const char *tp_buffer_name(tp_buffer buffer)
{
    return (int)buffer >= 0 && buffer < TP_BUFFERS ? buffer_names[buffer] : "?";
}

const char *tp_lane_name(tp_lane lane)
{
    return (int)lane >= 0 && lane < TP_LANES ? lane_names[lane] : "?";
}

const char *tp_fault_name(tp_fault fault)
{
    return (int)fault >= 0 && fault < TP_FAULTS ? fault_names[fault] : "?";
}
