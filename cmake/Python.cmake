# The Python package: its extension is built where Python's headers are found, into the tree lib/python, which can be put on
# PYTHONPATH as it is. agent/python/setup.py makes a wheel of the same files.

if(NOT Python3_EXECUTABLE AND EXISTS /usr/bin/python3)
    set(Python3_EXECUTABLE /usr/bin/python3)
endif()
find_package(Python3 3.11 COMPONENTS Interpreter Development.Module)
if(NOT Python3_Development.Module_FOUND OR NOT RP_SANITIZE STREQUAL "")
    message(STATUS "no Python extension: it needs Python's headers (python3-dev), and a build without sanitizers")
    return()
endif()

set(python_tree "${CMAKE_BINARY_DIR}/lib/python")
file(GLOB python_base_sources CONFIGURE_DEPENDS agent/python/base/*.c)

# replay_extension(TARGET NAME sources...): the extension replaybus.NAME. Of what it contains it shows nothing but libreplay, so that
# two extensions, which contain the same names, stay apart.
function(replay_extension target name)
    add_library(${target} MODULE ${ARGN} ${python_base_sources})
    set_target_properties(${target} PROPERTIES
        PREFIX "" OUTPUT_NAME ${name} SUFFIX .abi3.so LIBRARY_OUTPUT_DIRECTORY "${python_tree}/replaybus")
    target_compile_definitions(${target} PRIVATE Py_LIMITED_API=0x030B0000)
    target_include_directories(${target} SYSTEM PRIVATE ${Python3_INCLUDE_DIRS})
    set(exports "${CMAKE_BINARY_DIR}/${target}.map")
    file(CONFIGURE OUTPUT "${exports}" CONTENT "{ global: PyInit_${name}; rp_*; local: *; };\n")
    target_link_options(${target} PRIVATE "-Wl,--version-script=${exports}")
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${exports}")
    target_link_libraries(${target} PRIVATE replay_flags Threads::Threads m)
endfunction()

# The client and an embedded broker.
file(GLOB python_sources CONFIGURE_DEPENDS agent/python/src/*.c)
replay_extension(replay_python _core ${python_sources})
target_link_libraries(replay_python PRIVATE replayserver_static)

# Environments and actors. Apart from _core, so that "import replaybus" loads neither OpenBLAS nor MuJoCo.
if(RP_AGENTS)
    file(GLOB python_agent_sources CONFIGURE_DEPENDS agent/python/agent/*.c)
    replay_extension(replay_python_agent _agent ${python_agent_sources})
    target_link_libraries(replay_python_agent PRIVATE replay_agent)
endif()
# All that a wheel contains beside Python files.
add_custom_target(replay_python_package DEPENDS replay_python replay-broker replay-ctl $<TARGET_NAME_IF_EXISTS:replay_python_agent>)

# The format of weights. Of its objects only weights_ functions stay global: libreplayserver.a has the others, too.
replay_objects(replay_weights_objects agent/learn/weights.c proto/base/crc32c.c proto/base/dtype.c proto/base/error.c
    proto/base/io.c proto/base/utf8.c)
target_link_libraries(replay_weights_objects PRIVATE PkgConfig::ISAL)
set(joined "${CMAKE_BINARY_DIR}/replay_weights_joined.o")
add_custom_command(
    OUTPUT "${joined}"
    COMMAND ${CMAKE_LINKER} -r -o "${joined}" $<TARGET_OBJECTS:replay_weights_objects>
    COMMAND ${CMAKE_OBJCOPY} --wildcard "--keep-global-symbol=weights_*" "${joined}"
    DEPENDS replay_weights_objects $<TARGET_OBJECTS:replay_weights_objects>
    COMMENT "joining the objects of the format of weights" COMMAND_EXPAND_LISTS VERBATIM)
set_source_files_properties("${joined}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
target_sources(replay_python PRIVATE "${joined}")
target_link_libraries(replay_python PRIVATE PkgConfig::ISAL)

# The Python files of the tree are links, so that an edit needs no build.
file(GLOB_RECURSE python_files CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/agent/python" agent/python/replaybus/*.py
    agent/python/replaybus/*.pyi agent/python/replaybus/py.typed)
foreach(name IN LISTS python_files)
    get_filename_component(folder "${python_tree}/${name}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/agent/python/${name}" "${python_tree}/${name}" SYMBOLIC)
endforeach()
file(MAKE_DIRECTORY "${python_tree}/replaybus/bin")
foreach(name replay-broker replay-ctl)
    file(CREATE_LINK "${CMAKE_BINARY_DIR}/${name}" "${python_tree}/replaybus/bin/${name}" SYMBOLIC)
endforeach()
add_dependencies(replay_python replay-broker replay-ctl)

# `./dev bench python`: the module replaybus_bench of the same tree, and the C loops that it compares the package with.
file(CREATE_LINK "${PROJECT_SOURCE_DIR}/agent/python/bench" "${python_tree}/replaybus_bench" SYMBOLIC)
add_library(replay_python_bench MODULE agent/python/bench/loop.c)
set_target_properties(replay_python_bench PROPERTIES PREFIX "")
target_link_libraries(replay_python_bench PRIVATE replay_flags replay_static Threads::Threads m)
