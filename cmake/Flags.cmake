# Compiler flags of everything in this tree, as one interface library: replay_flags.

option(RP_WERROR "treat warnings as errors" OFF)
option(RP_UNITY "compile the files of a room as one" OFF)
option(RP_COVERAGE "instrument for gcov" OFF)
option(RP_FUZZ "build the libFuzzer targets in tests/fuzz (clang only)" OFF)
set(RP_SANITIZE "" CACHE STRING "address (with UBSan), thread, or empty")
set_property(CACHE RP_SANITIZE PROPERTY STRINGS "" address thread)

# Asserts stay on outside of Release: tests rely on them. Symbols are those of a back trace, lines and functions: a quarter of the build
# would go into the rest, which optimised code cannot show. For a debugger: RP_CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Debug ./dev build
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_C_FLAGS_RELEASE "-O3 -g -DNDEBUG")

add_library(replay_flags INTERFACE)
target_compile_definitions(replay_flags INTERFACE _GNU_SOURCE)
# Error texts have a fixed size and are meant to be cut: hence no -Wformat-truncation.
# The same sums on every machine: arm64 would fuse a multiplication and an addition, and round once.
target_compile_options(replay_flags INTERFACE -ffp-contract=off)
target_compile_options(replay_flags INTERFACE
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wundef
    $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>
    -fno-math-errno -fvisibility=hidden $<$<BOOL:${RP_WERROR}>:-Werror>)
target_include_directories(replay_flags INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
target_link_options(replay_flags INTERFACE -Wl,--as-needed)

if(RP_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "RP_FUZZ needs clang: cmake --preset fuzz")
    endif()
    set(RP_SANITIZE address)
    target_compile_options(replay_flags INTERFACE -fsanitize=fuzzer-no-link)
    target_compile_definitions(replay_flags INTERFACE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
endif()

if(RP_SANITIZE STREQUAL "address")
    target_compile_options(replay_flags INTERFACE
        -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined)
    target_link_options(replay_flags INTERFACE -fsanitize=address,undefined)
elseif(RP_SANITIZE STREQUAL "thread")
    # gcc warns of fences, which the sanitizer does not follow.
    target_compile_options(replay_flags INTERFACE
        -O1 -fno-omit-frame-pointer -fsanitize=thread $<$<C_COMPILER_ID:GNU>:-Wno-tsan>)
    target_link_options(replay_flags INTERFACE -fsanitize=thread)
elseif(NOT RP_SANITIZE STREQUAL "")
    message(FATAL_ERROR "RP_SANITIZE is '${RP_SANITIZE}'; it may be address, thread or empty")
endif()

if(RP_COVERAGE)
    target_compile_options(replay_flags INTERFACE -O0 --coverage)
    target_link_options(replay_flags INTERFACE --coverage)
endif()
