# cmake --install: headers, both libraries, a pkg-config file and a CMake package; and tp_bench (bench/CMakeLists.txt).
include(CMakePackageConfigHelpers)

install(TARGETS tp tp_static EXPORT tp_targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tp_cuda)
    install(TARGETS tp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY include/tp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

set(TP_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tp)
install(EXPORT tp_targets NAMESPACE tp:: FILE tp-targets.cmake DESTINATION ${TP_CMAKE_DIR})
configure_package_config_file(cmake/tp-config.cmake.in ${PROJECT_BINARY_DIR}/tp-config.cmake
    INSTALL_DESTINATION ${TP_CMAKE_DIR})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tp-config.cmake ${PROJECT_BINARY_DIR}/tp-config-version.cmake
    DESTINATION ${TP_CMAKE_DIR})

file(RELATIVE_PATH TP_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/tp.pc.in ${PROJECT_BINARY_DIR}/tp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
