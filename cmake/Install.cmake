# Install rules and the package that find_package(commfuse) reads.
include(CMakePackageConfigHelpers)
install(TARGETS commfuse commfuse_sodium EXPORT commfuse_targets)
install(DIRECTORY include/commfuse DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/commfuse/version.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/commfuse)
install(DIRECTORY schemas DESTINATION ${CMAKE_INSTALL_DATADIR}/commfuse)
install(DIRECTORY examples/deployments DESTINATION ${CMAKE_INSTALL_DATADIR}/commfuse)
install(EXPORT commfuse_targets FILE commfuse_targets.cmake NAMESPACE commfuse:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/commfuse)
configure_package_config_file(cmake/commfuse-config.cmake.in ${PROJECT_BINARY_DIR}/commfuse-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/commfuse)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/commfuse-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/commfuse-config.cmake ${PROJECT_BINARY_DIR}/commfuse-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/commfuse)
if(TARGET commfuse_cli)
  install(TARGETS commfuse_cli)
endif()
