# CPU ops are compiled once per instruction set. The same source gives tpi_cpu_norm_portable, tpi_cpu_norm_avx2, ...:
# TPI_ISA_SUFFIX names the set, TPI_ISA_LEVEL orders them (0..3) for the preprocessor. src/cpu/table.c gathers each
# set's tasks.
set(TPI_ISA_PREFIXES gemm norm attention activation map reduce rope embedding xent optimizer random_fill square_sum
    table isa_)

set(TPI_ISA_SETS portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND TPI_ISA_SETS avx2 avx512 avx512_bf16)
endif()
set(TPI_ISA_LEVEL_portable 0)
set(TPI_ISA_LEVEL_avx2 1)
set(TPI_ISA_LEVEL_avx512 2)
set(TPI_ISA_LEVEL_avx512_bf16 3)
set(TPI_ISA_FLAGS_portable)
# gcc's late expansion of values used once holds back the counts of gemm_exact.c's sums until its registers are spilled:
# a fifth slower.
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
    set(TPI_ISA_FLAGS_portable -fno-tree-ter)
endif()
set(TPI_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(TPI_ISA_FLAGS_avx512 ${TPI_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(TPI_ISA_FLAGS_avx512_bf16 ${TPI_ISA_FLAGS_avx512} -mavx512bf16)
# Checking every access makes gcc's -O2 take minutes for a file of plain C vectors, which are loops of sixteen, and five
# times as long as -O1 for the others.
set(TPI_ISA_FLAGS_SANITIZE)
if(TP_SANITIZE MATCHES undefined)
    set(TPI_ISA_FLAGS_SANITIZE -O1)
endif()
# AVX512-BF16 adds a dot product, for which operands are packed in pairs. Its table takes the ops that know of neither
# from avx512.
set(TPI_ISA_PREFIXES_avx512_bf16 gemm attention optimizer table)

# Sets `out` to the files of `sources` whose names begin with one of the prefixes.
function(tp_files_with_prefix sources prefixes out)
    list(JOIN prefixes "|" pattern)
    list(FILTER sources INCLUDE REGEX "/src/cpu/(${pattern})[^/]*\\.c$")
    set(${out} "${sources}" PARENT_SCOPE)
endfunction()

# Moves the per-instruction-set files from the list named `list_name` to the list named `isa_list_name`.
function(tp_split_isa_sources list_name isa_list_name)
    tp_files_with_prefix("${${list_name}}" "${TPI_ISA_PREFIXES}" chosen)
    set(rest ${${list_name}})
    if(chosen)
        list(REMOVE_ITEM rest ${chosen})
    endif()
    set(${list_name} "${rest}" PARENT_SCOPE)
    set(${isa_list_name} "${chosen}" PARENT_SCOPE)
endfunction()

# Adds one object library per instruction set and appends its objects to the list named `list_name`.
function(tp_add_isa_objects isa_sources list_name)
    set(all ${${list_name}})
    foreach(set ${TPI_ISA_SETS})
        set(sources ${isa_sources})
        if(DEFINED TPI_ISA_PREFIXES_${set})
            tp_files_with_prefix("${isa_sources}" "${TPI_ISA_PREFIXES_${set}}" sources)
        endif()
        if(sources)
            add_library(tp_cpu_${set} OBJECT ${sources})
            tp_internal_target(tp_cpu_${set})
            target_compile_definitions(tp_cpu_${set} PRIVATE TPI_ISA_SUFFIX=${set}
                TPI_ISA_LEVEL=${TPI_ISA_LEVEL_${set}})
            target_compile_options(tp_cpu_${set} PRIVATE ${TPI_ISA_FLAGS_${set}} ${TPI_ISA_FLAGS_SANITIZE})
            list(APPEND all $<TARGET_OBJECTS:tp_cpu_${set}>)
        endif()
    endforeach()
    set(${list_name} "${all}" PARENT_SCOPE)
endfunction()
