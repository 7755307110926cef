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

# The client, an embedded broker, and the format of weights.
file(GLOB python_sources CONFIGURE_DEPENDS agent/python/src/*.c)
replay_extension(replay_python _core ${python_sources} agent/learn/weights.c $<TARGET_OBJECTS:replay_client_objects>)
target_link_libraries(replay_python PRIVATE replay_broker replay_base PkgConfig::ISAL)

# Environments and actors. Apart from _core, so that "import replaybus" loads neither OpenBLAS nor MuJoCo.
if(RP_AGENTS)
    file(GLOB python_agent_sources CONFIGURE_DEPENDS agent/python/agent/*.c)
    replay_extension(replay_python_agent _agent ${python_agent_sources})
    target_link_libraries(replay_python_agent PRIVATE replay_agent)
endif()
# All that a wheel contains beside Python files.
add_custom_target(replay_python_package DEPENDS replay_python replay-broker replay-ctl $<TARGET_NAME_IF_EXISTS:replay_python_agent>)

# The Python files of the tree are links, so that an edit needs no build.
file(GLOB_RECURSE python_files CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/agent/python" agent/python/replaybus/*.py
    agent/python/replaybus/*.pyi agent/python/replaybus/py.typed)
file(GLOB_RECURSE python_links "${python_tree}/replaybus/*.py")
foreach(link IN LISTS python_links)
    if(NOT EXISTS "${link}") # the file is gone
        file(REMOVE "${link}")
    endif()
endforeach()
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
