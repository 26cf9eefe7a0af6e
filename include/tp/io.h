/* How tensors and memory are handed to layers; common to all of them.
 *
 * A layer has forward, backward_input, backward_weight and backward (both at once, cheaper). backward_weight may be
 * called later, or never.
 *   Saved      what forward keeps for backward: a plain struct. The caller sets .memory and .bytes
 *              (<layer>_saved_bytes(layer, pass), 64-byte aligned); forward fills the rest; it must stay, as must the
 *              forward's input and output, until the last backward call of the pass. saved == NULL: forward only,
 *              nothing kept, same bits.
 *   Delayed    what backward_input keeps for backward_weight, in the same manner. backward uses scratch instead.
 *   Gradients  of parameters are f32 and accumulate: weights in token order, then microbatch order. tp_params_zero_grad
 *              (or tp_params_begin) before a step, tp_params_finish after its last backward.
 *   Layers are immutable after creation; only their parameters' values and gradients change. */
#ifndef TP_IO_H
#define TP_IO_H

#include <tp/param.h>
#include <tp/pass.h>

/* Forward: out = f(in), + residual in f32 before the one rounding where the layer allows it. Backward: in is the
 * gradient of out, out that of in; residual is added to it, but by blocks. residual: tp_tensor_none(), a zero-filled
 * one, for none. out may be residual. Else no aliasing. Rows may lie apart (stride[0] of more than the columns), under
 * every overlap algorithm and with the same bits: where a collective or a reduction takes dense rows only, they are
 * copied through scratch. */
typedef struct tp_io {
    tp_tensor in, out, residual;
} tp_io;

#endif
