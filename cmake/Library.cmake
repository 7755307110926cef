# libreplay, and libreplayserver, which holds the same and a broker; shared and static, and what is installed with them.
#
# Only rp_ functions are visible from outside: a list does that for the shared library; for the static one all objects are joined
# to one and its other symbols made local. So internal names like log_line cannot clash with those of the host program.

# replay_library(NAME OBJECTS targets... PACKAGES pkg-config targets... LIBRARIES names to link the static one with)
function(replay_library name)
    cmake_parse_arguments(arg "" "" "OBJECTS;PACKAGES;LIBRARIES" ${ARGN})
    list(TRANSFORM arg_OBJECTS REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
    add_library(${name} SHARED ${objects})
    set_target_properties(${name} PROPERTIES
        VERSION ${PROJECT_VERSION} SOVERSION ${RP_SOVERSION} LINKER_LANGUAGE C)
    target_link_libraries(${name} PRIVATE replay_flags ${arg_PACKAGES} Threads::Threads m)
    target_link_options(${name} PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map")
    set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/exports.map")
    if(RP_SANITIZE STREQUAL "")
        target_link_options(${name} PRIVATE -Wl,-z,defs)
    endif()

    set(joined "${CMAKE_BINARY_DIR}/${name}_joined.o")
    add_custom_command(
        OUTPUT "${joined}"
        COMMAND ${CMAKE_LINKER} -r -o "${joined}" ${objects}
        COMMAND ${CMAKE_OBJCOPY} --wildcard "--keep-global-symbol=rp_*" "${joined}"
        DEPENDS ${arg_OBJECTS} ${objects}
        COMMENT "joining the objects of lib${name}.a" COMMAND_EXPAND_LISTS VERBATIM)
    add_library(${name}_static STATIC "${joined}")
    set_source_files_properties("${joined}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set_target_properties(${name}_static PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE C)
    target_link_libraries(${name}_static INTERFACE ${arg_LIBRARIES} pthread m)
    foreach(target IN ITEMS ${name} ${name}_static)
        target_include_directories(${target} INTERFACE
            $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
        add_library(replay::${target} ALIAS ${target})
    endforeach()
endfunction()

replay_library(replay
    OBJECTS replay_base_objects replay_client_objects
    PACKAGES PkgConfig::ZMQ PkgConfig::PROTOBUF_C PkgConfig::LZ4
    LIBRARIES zmq protobuf-c lz4)
replay_library(replayserver
    OBJECTS replay_base_objects replay_client_objects replay_schema_objects replay_broker_objects
    PACKAGES PkgConfig::ZMQ PkgConfig::CZMQ PkgConfig::PROTOBUF_C PkgConfig::LZ4 PkgConfig::YAML PkgConfig::ISAL
        ${CMAKE_DL_LIBS}
    LIBRARIES zmq czmq protobuf-c lz4 yaml isal ${CMAKE_DL_LIBS})

# libzmq calls functions of this library once a broker has started (broker/peer/guard.c), and may stay longer than the library.
target_link_options(replayserver PRIVATE -Wl,-z,nodelete)

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/replay")
# Relative, so that "cmake --install --prefix" to any place gives a working file.
file(RELATIVE_PATH RP_PC_TO_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
set(RP_PC_REQUIRES "libzmq libprotobuf-c liblz4")
set(RP_PC_NAME replay)
set(RP_PC_WHAT "the client library")
configure_file(cmake/replay.pc.in "${CMAKE_BINARY_DIR}/replay.pc" @ONLY)
string(APPEND RP_PC_REQUIRES " libczmq yaml-0.1 libisal")
set(RP_PC_NAME replayserver)
set(RP_PC_WHAT "the client library and a broker within the process")
configure_file(cmake/replay.pc.in "${CMAKE_BINARY_DIR}/replayserver.pc" @ONLY)
configure_package_config_file(cmake/replayConfig.cmake.in "${CMAKE_BINARY_DIR}/replayConfig.cmake"
    INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/replayConfigVersion.cmake"
    VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)

install(TARGETS replay replay_static replayserver replayserver_static EXPORT replayTargets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT replayTargets NAMESPACE replay:: DESTINATION "${package_dir}")
install(FILES "${CMAKE_BINARY_DIR}/replayConfig.cmake" "${CMAKE_BINARY_DIR}/replayConfigVersion.cmake"
    DESTINATION "${package_dir}")
install(FILES "${CMAKE_BINARY_DIR}/replay.pc" "${CMAKE_BINARY_DIR}/replayserver.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(DIRECTORY include/replay DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
