# Installs the runtime and serving for C and C++ hosts: libraries, headers, files for CMake's find_package(dhlo) and for pkg-config, which all
# find each other wherever the folder is moved to; and makes packages of it.
set(DHLO_CMAKEDIR ${DHLO_LIBDIR}/cmake/dhlo)

if(SKBUILD)
  # Wheels hold no links: what linkers look for is a script that names the library, not another copy of it.
  install(TARGETS dhlo_runtime_shared dhlo_serve_shared EXPORT dhlo-targets
    LIBRARY DESTINATION ${DHLO_LIBDIR} COMPONENT runtime NAMELINK_SKIP)
  foreach(library dhlo_runtime dhlo_serve)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/link/lib${library}.so "INPUT(lib${library}.so.1)\n")
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/link/lib${library}.so DESTINATION ${DHLO_LIBDIR} COMPONENT development)
  endforeach()
else()
  install(TARGETS dhlo_runtime_shared dhlo_serve_shared EXPORT dhlo-targets
    LIBRARY DESTINATION ${DHLO_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
endif()
install(TARGETS dhlo_runtime dhlo_serve EXPORT dhlo-targets ARCHIVE DESTINATION ${DHLO_LIBDIR} COMPONENT development)
install(DIRECTORY include/dhlo serve/include/dhlo DESTINATION ${DHLO_INCLUDEDIR} COMPONENT development)
install(EXPORT dhlo-targets NAMESPACE dhlo:: DESTINATION ${DHLO_CMAKEDIR} COMPONENT development)

configure_package_config_file(cmake/dhloConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/dhloConfig.cmake
  INSTALL_DESTINATION ${DHLO_CMAKEDIR} NO_SET_AND_CHECK_MACRO)
# Before 1.0 each minor version is another interface.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/dhloConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/dhloConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/dhloConfigVersion.cmake
  DESTINATION ${DHLO_CMAKEDIR} COMPONENT development)

file(RELATIVE_PATH DHLO_PREFIX_FROM_PC /${DHLO_LIBDIR}/pkgconfig /)
file(RELATIVE_PATH DHLO_INCLUDE_FROM_PC /${DHLO_LIBDIR}/pkgconfig /${DHLO_INCLUDEDIR})
foreach(package dhlo dhlo-static dhlo-serve dhlo-serve-static)
  configure_file(cmake/${package}.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc DESTINATION ${DHLO_LIBDIR}/pkgconfig COMPONENT development)
endforeach()

set(CPACK_PACKAGE_NAME dhlo)
set(CPACK_PACKAGE_VENDOR dhlo)
set(CPACK_PACKAGE_CONTACT "dhlo <dhlo@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Runtime of dhlo, a dynamic-shape compiler for PyTorch")
set(CPACK_STRIP_FILES ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "The shared libraries that run and serve compiled models.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers, static libraries, and files for CMake and pkg-config.")
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS runtime)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libdhlo-runtime)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libdhlo-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
include(CPack)
