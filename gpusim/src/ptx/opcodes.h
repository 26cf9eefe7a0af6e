// One function for each family of opcodes: turns a statement into instructions.
#pragma once
#include "decoder.h"

namespace gpusim::ptx
{

// arithmetic.cpp: integers here, other types in float_arithmetic.cpp and half_arithmetic.cpp
void decode_arithmetic(Decoder &decoder, const Statement &statement);
void decode_carry(Decoder &decoder, const Statement &statement);
void decode_dot_product(Decoder &decoder, const Statement &statement);
Handler float_handler(const Statement &statement, Type type);
Handler half_handler(const Statement &statement, Type type);
void decode_approximation(Decoder &decoder, const Statement &statement);
// bits.cpp
void decode_logic(Decoder &decoder, const Statement &statement);
void decode_bits(Decoder &decoder, const Statement &statement);
// compare.cpp
void decode_setp(Decoder &decoder, const Statement &statement);
void decode_set(Decoder &decoder, const Statement &statement);
void decode_select(Decoder &decoder, const Statement &statement);
void decode_testp(Decoder &decoder, const Statement &statement);
// convert.cpp, move.cpp
void decode_cvt(Decoder &decoder, const Statement &statement);
void decode_mov(Decoder &decoder, const Statement &statement);
void decode_cvta(Decoder &decoder, const Statement &statement);
void decode_isspacep(Decoder &decoder, const Statement &statement);
// memory.cpp, atomic.cpp, async_copy.cpp
void decode_load(Decoder &decoder, const Statement &statement);
void decode_store(Decoder &decoder, const Statement &statement);
void decode_hint(Decoder &decoder, const Statement &statement);
void decode_atomic(Decoder &decoder, const Statement &statement);
void decode_cp(Decoder &decoder, const Statement &statement);
// warp_operations.cpp
void decode_shfl(Decoder &decoder, const Statement &statement);
void decode_vote(Decoder &decoder, const Statement &statement);
void decode_match(Decoder &decoder, const Statement &statement);
void decode_redux(Decoder &decoder, const Statement &statement);
void decode_elect(Decoder &decoder, const Statement &statement);
void decode_activemask(Decoder &decoder, const Statement &statement);
// barrier.cpp
void decode_barrier(Decoder &decoder, const Statement &statement);
void decode_fence(Decoder &decoder, const Statement &statement);
void decode_mbarrier(Decoder &decoder, const Statement &statement);
// matrix.cpp, matrix_load.cpp
void decode_mma(Decoder &decoder, const Statement &statement);
void decode_ldmatrix(Decoder &decoder, const Statement &statement);
void decode_stmatrix(Decoder &decoder, const Statement &statement);
// control.cpp
void decode_branch(Decoder &decoder, const Statement &statement);
void decode_indexed_branch(Decoder &decoder, const Statement &statement);
void decode_call(Decoder &decoder, const Statement &statement);
void decode_return(Decoder &decoder, const Statement &statement);
void decode_trap(Decoder &decoder, const Statement &statement);
void decode_pause(Decoder &decoder, const Statement &statement);

} // namespace gpusim::ptx
