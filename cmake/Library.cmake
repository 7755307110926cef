# libreplay, shared and static, and what is installed with it.
#
# Both hold the client and the parts of proto/ that it uses. Only RP_API functions are visible from outside: hidden
# visibility does that for the shared library; for the static one all objects are joined to one and its hidden symbols
# made local, so that internal names like log_line can not clash with those of the host program.

set(library_objects $<TARGET_OBJECTS:replay_base_objects> ${client_objects})

add_library(replay SHARED ${library_objects})
set_target_properties(replay PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${RP_SOVERSION} LINKER_LANGUAGE C)
target_link_libraries(replay PRIVATE replay_flags PkgConfig::ZMQ PkgConfig::PROTOBUF_C PkgConfig::LZ4
    Threads::Threads m)
if(RP_SANITIZE STREQUAL "")
    target_link_options(replay PRIVATE -Wl,-z,defs)
endif()
target_include_directories(replay INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(replay::replay ALIAS replay)

set(joined_object "${CMAKE_BINARY_DIR}/replay_joined.o")
set(link_inputs "$<TARGET_OBJECTS:replay_base_objects>")
set(library_targets replay_base_objects)
if(TARGET replay_client_objects)
    list(APPEND link_inputs "$<TARGET_OBJECTS:replay_client_objects>")
    list(APPEND library_targets replay_client_objects)
endif()
add_custom_command(
    OUTPUT "${joined_object}"
    COMMAND ${CMAKE_LINKER} -r -o "${joined_object}" ${link_inputs}
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden "${joined_object}"
    DEPENDS ${library_targets} ${link_inputs}
    COMMENT "joining the objects of libreplay.a" COMMAND_EXPAND_LISTS VERBATIM)
add_library(replay_static STATIC "${joined_object}")
set_source_files_properties("${joined_object}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
set_target_properties(replay_static PROPERTIES OUTPUT_NAME replay LINKER_LANGUAGE C)
target_link_libraries(replay_static INTERFACE zmq protobuf-c lz4 pthread m)
target_include_directories(replay_static INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(replay::replay_static ALIAS replay_static)

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/replay")
# Relative, so that "cmake --install --prefix" to any place gives a working file.
file(RELATIVE_PATH RP_PC_TO_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file(cmake/replay.pc.in "${CMAKE_BINARY_DIR}/replay.pc" @ONLY)
configure_package_config_file(cmake/replayConfig.cmake.in "${CMAKE_BINARY_DIR}/replayConfig.cmake"
    INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/replayConfigVersion.cmake"
    VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)

install(TARGETS replay replay_static EXPORT replayTargets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT replayTargets NAMESPACE replay:: DESTINATION "${package_dir}")
install(FILES "${CMAKE_BINARY_DIR}/replayConfig.cmake" "${CMAKE_BINARY_DIR}/replayConfigVersion.cmake"
    DESTINATION "${package_dir}")
install(FILES "${CMAKE_BINARY_DIR}/replay.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(DIRECTORY include/replay DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
