# What libtp and a plugin must have been built from alike: a hash of the headers that both are compiled from. As a
# script (cmake -P) with TP_ROOT, TP_VERSION and TP_OUT it writes the header with it, included by CMakeLists.txt it
# has that done whenever one of them changes.
if(CMAKE_SCRIPT_MODE_FILE)
    file(GLOB headers ${TP_ROOT}/include/tp/*.h ${TP_ROOT}/src/core/*.h ${TP_ROOT}/src/comm/fabric.h)
    list(SORT headers)
    set(hashes)
    foreach(header ${headers})
        file(SHA256 ${header} hash)
        get_filename_component(name ${header} NAME)
        string(APPEND hashes "${name} ${hash}\n")
    endforeach()
    string(SHA256 hash "${hashes}")
    string(SUBSTRING ${hash} 0 16 hash)
    file(CONFIGURE OUTPUT ${TP_OUT} CONTENT "#define TPI_CONTRACT \"@TP_VERSION@ @hash@\"\n" @ONLY)
    return()
endif()

set(TP_CONTRACT_FOLDER ${PROJECT_BINARY_DIR}/contract)
file(GLOB contract_headers CONFIGURE_DEPENDS include/tp/*.h src/core/*.h src/comm/fabric.h)
add_custom_command(OUTPUT ${TP_CONTRACT_FOLDER}/tpi_contract.h ${TP_CONTRACT_FOLDER}/stamp
    COMMAND ${CMAKE_COMMAND} -DTP_ROOT=${PROJECT_SOURCE_DIR} -DTP_VERSION=${PROJECT_VERSION}
        -DTP_OUT=${TP_CONTRACT_FOLDER}/tpi_contract.h
        -P ${PROJECT_SOURCE_DIR}/cmake/contract.cmake
    COMMAND ${CMAKE_COMMAND} -E touch ${TP_CONTRACT_FOLDER}/stamp
    DEPENDS ${contract_headers} ${PROJECT_SOURCE_DIR}/cmake/contract.cmake COMMENT "Hashing the headers of plugins")
add_custom_target(tp_contract DEPENDS ${TP_CONTRACT_FOLDER}/stamp)

# For a target whose sources include tpi_contract.h.
function(tp_use_contract target)
    target_include_directories(${target} PRIVATE ${TP_CONTRACT_FOLDER})
    add_dependencies(${target} tp_contract)
endfunction()
