# The CUDA backend: plugins, never linked into libtp. tp_cuda_sim runs on simulated GPUs and is what tests load;
# tp_cuda is for machines with GPUs.
set(TP_CUDA AUTO CACHE STRING
    "The CUDA backend: ON, OFF, AUTO (if nvcc 13 or later is found), or GPUSIM (only the simulator and its tests)")
set_property(CACHE TP_CUDA PROPERTY STRINGS AUTO ON OFF GPUSIM)
option(TP_TEST_REAL_GPU "Tests under tests/cuda run on this machine's GPU, not on simulated ones" OFF)
option(TP_CUDA_PLUGIN "Also build libtp_cuda.so for real GPUs (compiles every kernel for every architecture)" OFF)
set(TP_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual CACHE STRING "Architectures of libtp_cuda.so")
set(TP_CUDA_LEAST 13)

# Sets `out` to "" if the backend can be built, else to why not.
function(tp_cuda_why_not out)
    set(${out} "" PARENT_SCOPE)
    if(NOT TP_NVCC)
        set(${out} "no nvcc" PARENT_SCOPE)
        return()
    endif()
    execute_process(COMMAND ${TP_NVCC} --version OUTPUT_VARIABLE text RESULT_VARIABLE failed)
    string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" found "${text}")
    if(failed OR NOT found OR CMAKE_MATCH_1 LESS TP_CUDA_LEAST)
        set(${out} "${TP_NVCC} is ${found}, at least ${TP_CUDA_LEAST} is needed" PARENT_SCOPE)
    elseif(NOT CMAKE_CXX_COMPILER)
        set(${out} "no C++ compiler" PARENT_SCOPE)
    elseif(TP_SANITIZE MATCHES thread AND TP_CUDA STREQUAL AUTO)
        set(${out} "not with the thread sanitizer unless TP_CUDA is ON" PARENT_SCOPE)
    endif()
endfunction()

set(TP_CUDA_FOUND OFF)
set(TP_CUDA_REASON "TP_CUDA is OFF")
if(TP_CUDA)
    tp_cuda_why_not(TP_CUDA_REASON)
    if(NOT TP_CUDA_REASON)
        set(TP_CUDA_FOUND ON)
    elseif(NOT TP_CUDA STREQUAL AUTO)
        message(FATAL_ERROR "TP_CUDA is ${TP_CUDA}: ${TP_CUDA_REASON}")
    endif()
endif()
if(NOT TP_CUDA_FOUND)
    list(APPEND TP_LEFT_OUT "CUDA backend: ${TP_CUDA_REASON}")
    return()
endif()

set(CMAKE_CUDA_COMPILER ${TP_NVCC})
set(CMAKE_CUDA_ARCHITECTURES 80-virtual)
if(TP_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TP_CCACHE})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Kernels interpreted under a sanitizer take hours: there the simulator has its own tests, and the backend's run
# without it.
if(TP_CUDA STREQUAL GPUSIM OR (TP_SANITIZE AND TP_CUDA STREQUAL AUTO))
    add_subdirectory(gpusim)
    list(APPEND TP_FOUND "CUDA ${CUDAToolkit_VERSION}: gpusim and its tests")
    list(APPEND TP_LEFT_OUT "CUDA backend: not with sanitizers unless TP_CUDA is ON")
    return()
endif()
list(APPEND TP_FOUND "CUDA ${CUDAToolkit_VERSION}: the CUDA backend on simulated GPUs (libtp_cuda_sim.so)")

file(GLOB cuda_host_sources CONFIGURE_DEPENDS src/cuda/*.c)
file(GLOB cuda_kernel_sources CONFIGURE_DEPENDS src/cuda/*.cu)
# Pure functions that both sides of the plugin's border use.
list(APPEND cuda_host_sources src/core/dtype.c src/core/inner.c src/core/random.c src/core/shard.c src/core/tensor.c)

add_library(tp_cuda_host OBJECT ${cuda_host_sources})
tp_internal_target(tp_cuda_host)
tp_use_contract(tp_cuda_host)
target_include_directories(tp_cuda_host SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})

# Kernels: a*b+c is fused only where the source says fma, here too.
function(tp_kernel_objects target architectures)
    add_library(${target} OBJECT ${cuda_kernel_sources})
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${architectures}" CUDA_STANDARD 17
        CUDA_STANDARD_REQUIRED ON
        CUDA_RUNTIME_LIBRARY None POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden)
    target_include_directories(${target} PRIVATE include src)
    target_compile_options(${target} PRIVATE -lineinfo -fmad=false --expt-relaxed-constexpr
        "-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off" ${ARGN})
    if(TP_WERROR)
        target_compile_options(${target} PRIVATE -Werror=all-warnings "-Xcompiler=-Werror")
    endif()
endfunction()

# Its symbols stay its own: two plugins, or another CUDA in the process, do not meet.
function(tp_plugin target kernels)
    set(objects $<TARGET_OBJECTS:tp_cuda_host>)
    if(cuda_kernel_sources)
        list(APPEND objects $<TARGET_OBJECTS:${kernels}>)
    endif()
    add_library(${target} MODULE ${objects})
    set_target_properties(${target} PROPERTIES PREFIX lib LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY None
        LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/plugin.map)
    target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/cuda/plugin.map)
    if(NOT TP_SANITIZE)
        target_link_options(${target} PRIVATE -Wl,--no-undefined)
    endif()
    target_link_libraries(${target} PRIVATE Threads::Threads m ${ARGN})
endfunction()

if(TP_CUDA_PLUGIN)
    if(cuda_kernel_sources)
        tp_kernel_objects(tp_cuda_real "${TP_CUDA_ARCHITECTURES}")
    endif()
    tp_plugin(tp_cuda tp_cuda_real CUDA::cudart CUDA::cublasLt)
    list(JOIN TP_CUDA_ARCHITECTURES " " architectures)
    list(APPEND TP_FOUND "libtp_cuda.so: for ${architectures}")
else()
    list(APPEND TP_LEFT_OUT "libtp_cuda.so: TP_CUDA_PLUGIN is OFF")
endif()

# The simulator reads the PTX that nvcc left in the objects, so it must be there, and not compressed.
if(EXISTS ${PROJECT_SOURCE_DIR}/gpusim/CMakeLists.txt)
    add_subdirectory(gpusim)
    if(cuda_kernel_sources)
        tp_kernel_objects(tp_cuda_ptx 80-virtual --compress-mode=none)
    endif()
    if(TARGET gpusim)
        tp_plugin(tp_cuda_sim tp_cuda_ptx gpusim)
        # The real plugin looks for NCCL when it needs it; the simulated one is linked to it.
        add_library(tp_cuda_linked OBJECT src/cuda/linked/nccl.c)
        tp_internal_target(tp_cuda_linked)
        target_include_directories(tp_cuda_linked SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
        target_sources(tp_cuda_sim PRIVATE $<TARGET_OBJECTS:tp_cuda_linked>)
    endif()
endif()
