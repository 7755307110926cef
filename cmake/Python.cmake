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
file(GLOB python_sources CONFIGURE_DEPENDS agent/python/src/*.c)
add_library(replay_python MODULE ${python_sources})
set_target_properties(replay_python PROPERTIES
    PREFIX "" OUTPUT_NAME _core SUFFIX .abi3.so LIBRARY_OUTPUT_DIRECTORY "${python_tree}/replaybus")
target_compile_definitions(replay_python PRIVATE Py_LIMITED_API=0x030B0000)
target_include_directories(replay_python SYSTEM PRIVATE ${Python3_INCLUDE_DIRS})
target_link_libraries(replay_python PRIVATE replay_flags replayserver_static Threads::Threads m)

# The Python files of the tree are links, so that an edit needs no build.
file(GLOB_RECURSE python_files CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/agent/python" agent/python/replaybus/*.py
    agent/python/replaybus/*.pyi agent/python/replaybus/py.typed)
foreach(name IN LISTS python_files)
    get_filename_component(folder "${python_tree}/${name}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/agent/python/${name}" "${python_tree}/${name}" SYMBOLIC)
endforeach()
file(MAKE_DIRECTORY "${python_tree}/replaybus/bin")
file(CREATE_LINK "${CMAKE_BINARY_DIR}/replay-broker" "${python_tree}/replaybus/bin/replay-broker" SYMBOLIC)
add_dependencies(replay_python replay-broker)

# What agent/python/bench/bench.py compares the package with.
add_library(replay_python_bench MODULE agent/python/bench/loop.c)
set_target_properties(replay_python_bench PROPERTIES PREFIX "")
target_link_libraries(replay_python_bench PRIVATE replay_flags replay_static Threads::Threads m)
