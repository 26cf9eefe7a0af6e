# Compiler flags. tp_internal: what the library, its tests and tp_bench are compiled with.
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# No flag here may change a result: no fast-math, and an a*b+c becomes a fused operation only where the source says fma.
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1")
set(CMAKE_C_FLAGS_DEBUG "-Og -g3")
# For sanitizers: fast enough for the tests, and stacks are readable.
set(CMAKE_C_FLAGS_SANITIZE "-O2 -g1 -fno-omit-frame-pointer")
mark_as_advanced(CMAKE_C_FLAGS_SANITIZE)

set(TP_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wundef -Wwrite-strings -Wpointer-arith)
set(TP_WARNINGS_C ${TP_WARNINGS} -Wstrict-prototypes -Wmissing-prototypes)
if(TP_WERROR)
    list(APPEND TP_WARNINGS -Werror)
    list(APPEND TP_WARNINGS_C -Werror)
endif()

# Neither flag changes a value: errno and floating-point exception flags are not read anywhere.
set(TP_MATH_FLAGS -ffp-contract=off -fno-math-errno -fno-trapping-math)

if(TP_SANITIZE)
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TP_SANITIZE};-fno-sanitize-recover=all>")
    add_link_options(-fsanitize=${TP_SANITIZE} -fno-sanitize-recover=all)
endif()

# Instrumented code makes gcc suspect paths that do not exist; the other builds have these warnings on.
if(TP_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL GNU)
    list(APPEND TP_WARNINGS_C -Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow)
endif()

add_library(tp_internal INTERFACE)
target_include_directories(tp_internal INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_options(tp_internal INTERFACE ${TP_WARNINGS_C} ${TP_MATH_FLAGS})
target_compile_definitions(tp_internal INTERFACE _GNU_SOURCE)

# A target made of the library's own sources: strict C11, position independent, nothing exported but what TP_API marks.
function(tp_internal_target target)
    set_target_properties(${target} PROPERTIES C_STANDARD 11 C_EXTENSIONS OFF C_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${target} PRIVATE tp_internal)
endfunction()

find_program(TP_CCACHE ccache)
mark_as_advanced(TP_CCACHE)
if(TP_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${TP_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TP_CCACHE})
endif()
